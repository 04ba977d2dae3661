"""A batch entry of B carries A's row index.

Class: stale page-table rows; batch tensors and requests that disagree.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server

TOKENS = 40


def _inject(stage: Stage):
    a, b = stage.rid("A"), stage.rid("B")
    first, second = stage.prompt("A"), stage.prompt("B")
    expected = stage.alone(first, 2 * TOKENS), stage.alone(second, TOKENS)
    armed = stage.arm("use_row_of", When(rid=b, produced=4, beside=a), other=a)
    victim = stage.send(first, 2 * TOKENS, a)
    stage.until_producing(a)
    offender = stage.send(second, TOKENS, b)
    armed.outcome()
    return victim.result(), offender.result(), expected, second


def test_stock_answers_from_the_other_row(stock: Stage) -> None:
    _, offender, expected, _ = _inject(stock)
    assert offender.text != expected[1], "the fault has an effect"


def test_guard_stops_the_entry_only(guarded: Stage) -> None:
    victim, offender, expected, prompt = _inject(guarded)
    line = guarded.expect_violation(offender, "I1", prompt)
    assert "row" in line["reasons"]
    assert victim.text == expected[0]
