"""A page is freed while its owner runs.

Freed by nobody in particular, the free is refused and nobody is harmed. Freed in the
owner's name, as a bug in its own release would do, the owner is stopped.
Class: use after free, double free.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server

TOKENS = 60


def _inject(stage: Stage, as_owner: bool):
    a, b = stage.rid("A"), stage.rid("B")
    first, second = stage.prompt("A"), stage.prompt("B", 400)
    expected = stage.alone(first, TOKENS), stage.alone(second, 16)
    armed = stage.arm(
        "free_pages_of", When(rid=a, produced=4), other=a, first=1, count=2, as_owner=as_owner
    )
    owner = stage.send(first, TOKENS, a)
    armed.outcome()
    # Large enough to be given the freed pages by a stock allocator.
    other = stage.send(second, 16, b)
    return owner.result(), other.result(), expected, first


def test_stock_gives_the_page_to_another_request(stock: Stage) -> None:
    owner, _, expected, _ = _inject(stock, as_owner=False)
    assert owner.text != expected[0], "the fault has an effect"


def test_guard_refuses_a_free_by_nobody(guarded: Stage) -> None:
    owner, other, expected, _ = _inject(guarded, as_owner=False)
    assert (owner.text, other.text) == expected
    assert guarded.new_violations() == 0
    assert guarded.new_page_faults() == {"foreign_free": 2}


def test_guard_stops_an_owner_that_lost_its_page(guarded: Stage) -> None:
    owner, other, expected, prompt = _inject(guarded, as_owner=True)
    guarded.expect_violation(owner, "I2", prompt)
    assert other.text == expected[1]
    assert guarded.new_page_faults() == {"double_free": 2}, "its own release comes second"
