"""A row entry of B is pointed at a page that A gave back before it was flushed.

The incident that the product exists for. Class: use after free, read.
"""

import json

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server

TOKENS = 80


def _inject(stage: Stage, streamed: bool = False):
    a, b = stage.rid("A"), stage.rid("B")
    first, second = stage.prompt("A"), stage.prompt("B")
    expected = stage.alone(second, TOKENS)
    stage.watch(a)
    armed = stage.arm(
        "point_at_pages_of",
        When(rid=b, produced=6, after=a),
        other=a,
        first=0,
        count=2,
        expect="freed",
    )
    # B first, so that it is not simply given the pages that A gives back.
    offender = (stage.stream if streamed else stage.send)(second, TOKENS, b)
    stage.send(first, 8, a)
    armed.outcome()
    return offender.result(), expected, second


def test_stock_serves_it(stock: Stage) -> None:
    offender, expected, _ = _inject(stock)
    assert offender.text != expected, "the fault has an effect"


def test_guard_stops_the_reader(guarded: Stage) -> None:
    offender, _, prompt = _inject(guarded)
    line = guarded.expect_violation(offender, "I2", prompt)
    assert "dead" in line["reasons"]


def test_a_stream_that_has_begun_ends_with_the_error(guarded: Stage) -> None:
    stream, expected, prompt = _inject(guarded, streamed=True)
    assert stream.status == 200 and stream.ended
    assert stream.violation is not None and stream.violation["invariant"] == "I2"
    assert 0 < len(stream.text) < TOKENS
    assert expected.startswith(stream.text), "what arrived was computed before the violation"
    line = guarded.incident(stream.violation["incident_id"])
    assert line["tokens_sent"] == len(stream.text)
    assert prompt not in json.dumps(line)
