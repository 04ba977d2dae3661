"""A forward reads sixteen entries past the end of its row: stale entries, stale KV.

Class: stale page-table rows; state read before it is written.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server


def _inject(stage: Stage):
    b = stage.rid("B")
    prompt = stage.prompt("B")
    # The row that B is given held more entries before.
    stage.send(stage.prompt("longer", 300), 4, stage.rid("before")).result()
    expected = stage.alone(prompt, 40)
    armed = stage.arm("read_past_the_end", When(rid=b, produced=4), tokens=16)
    reply = stage.send(prompt, 40, b)
    armed.outcome()
    return reply.result(), expected, prompt


def test_stock_reads_on(stock: Stage) -> None:
    reply, expected, _ = _inject(stock)
    assert reply.text != expected, "the fault has an effect"


def test_guard_sees_the_length(guarded: Stage) -> None:
    reply, _, prompt = _inject(guarded)
    line = guarded.expect_violation(reply, "I2", prompt)
    assert "length" in line["reasons"]
