"""A row entry of B is pointed at a page that A is using.

Class: two owners of one page; stale page-table rows.
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
    armed = stage.arm(
        "point_at_pages_of",
        When(rid=b, produced=4, beside=a),
        other=a,
        first=0,
        count=3,
        expect="live",
    )
    victim = stage.send(first, 2 * TOKENS, a)
    stage.until_producing(a)
    offender = stage.send(second, TOKENS, b)
    armed.outcome()
    return victim.result(), offender.result(), expected, second


def test_stock_delivers_what_it_computed_from_it(stock: Stage) -> None:
    _, offender, expected, _ = _inject(stock)
    assert offender.text != expected[1], "the fault has an effect"


def test_guard_stops_the_reader_only(guarded: Stage) -> None:
    victim, offender, expected, prompt = _inject(guarded)
    line = guarded.expect_violation(offender, "I2", prompt)
    assert line["page_owner"] not in (0, line["owner"]), "it says whose page it was"
    assert victim.text == expected[0]
    assert guarded.new_violations() == 1
