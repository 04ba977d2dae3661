"""A forward of B writes its token into a slot of A.

The write is diverted before the forward runs, so that A is not harmed while the verdict
is on its way. Class: write after free, write into somebody else's page.
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
    armed = [
        stage.arm(
            "write_into_pages_of",
            When(rid=b, produced=produced, beside=a),
            other=a,
            position=position,
        )
        for produced, position in ((4, 79), (5, 78), (6, 77), (7, 76))
    ]
    victim = stage.send(first, 2 * TOKENS, a)
    stage.until_producing(a)
    offender = stage.send(second, TOKENS, b)
    armed[0].outcome()
    return victim.result(), offender.result(), expected, second


def test_stock_corrupts_the_victim(stock: Stage) -> None:
    victim, offender, expected, _ = _inject(stock)
    assert (victim.text, offender.text) != expected, "the fault has an effect"


def test_guard_diverts_the_write_and_stops_the_writer(guarded: Stage) -> None:
    victim, offender, expected, prompt = _inject(guarded)
    line = guarded.expect_violation(offender, "I3", prompt)
    assert "write_target" in line["reasons"]
    assert victim.text == expected[0], "not one wrong byte in the victim"
