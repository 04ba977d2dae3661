"""The allocator hands out a page that a running request holds.

Class: two owners of one page.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server

TOKENS = 60


def _inject(stage: Stage):
    a, b = stage.rid("A"), stage.rid("B")
    first, second = stage.prompt("A"), stage.prompt("B")
    expected = stage.alone(first, TOKENS), stage.alone(second, 8)
    armed = stage.arm("hand_out_again", When(rid=a, produced=4), other=a, page=1)
    owner = stage.send(first, TOKENS, a)
    armed.outcome()
    second_owner = stage.send(second, 8, b)
    return owner.result(), second_owner.result(), expected, second


def test_stock_lets_both_write(stock: Stage) -> None:
    owner, _, expected, _ = _inject(stock)
    assert owner.text != expected[0], "the fault has an effect"


def test_guard_stops_the_second_owner_only(guarded: Stage) -> None:
    owner, second_owner, expected, prompt = _inject(guarded)
    line = guarded.expect_violation(second_owner, "I3", prompt)
    assert "alias" in line["reasons"]
    assert owner.text == expected[0]
    faults = guarded.new_page_faults()
    assert faults == {"alias": 1, "foreign_free": 1}, "and it may not free it either"
