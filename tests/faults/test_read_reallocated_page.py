"""A row entry of B is pointed at a page that A gave back and that C was given since.

All three are in one namespace: only owner and birth tell the pages apart.
Class: use after free, read, after reuse.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server

TOKENS = 24


def _inject(stage: Stage):
    a, b, c = stage.rid("A"), stage.rid("B"), stage.rid("C")
    mine, others = stage.prompt("B"), stage.prompt("C", 700)
    expected = stage.alone(mine, TOKENS), stage.alone(others, 3 * TOKENS)
    stage.watch(a)
    armed = stage.arm(
        "point_at_pages_of",
        When(rid=b, produced=2, beside=c, after=a),
        other=a,
        first=0,
        count=4,
        expect="reallocated",
    )
    stage.send(stage.prompt("A"), 4, a).result()
    # So many pages that those of A come round again.
    stage.send(stage.prompt("filler", 700), 1, stage.rid("filler")).result()
    holder = stage.send(others, 3 * TOKENS, c)
    stage.until_producing(c)
    offender = stage.send(mine, TOKENS, b)
    armed.outcome()
    return holder.result(), offender.result(), expected, mine


def test_stock_serves_it(stock: Stage) -> None:
    _, offender, expected, _ = _inject(stock)
    assert offender.text != expected[0], "the fault has an effect"


def test_guard_stops_the_reader_only(guarded: Stage) -> None:
    holder, offender, expected, prompt = _inject(guarded)
    guarded.expect_violation(offender, "I2", prompt)
    assert holder.text == expected[1]
    assert guarded.new_violations() == 1
