"""Two entries of a row change places.

Attention does not depend on the order of its keys, so a stock engine answers as if
nothing were; the row is corrupt all the same. Class: stale page-table rows.
"""

import pytest

from sglang_kvguard.testing.injector.conditions import When
from tests.faults.stage import Stage

pytestmark = pytest.mark.server


def _inject(stage: Stage):
    b = stage.rid("B")
    prompt = stage.prompt("B")
    armed = stage.arm("swap_entries", When(rid=b, produced=3), one=2, two=37)
    reply = stage.send(prompt, 40, b)
    armed.outcome()
    return reply.result(), prompt


def test_stock_does_not_see_it(stock: Stage) -> None:
    reply, _ = _inject(stock)
    assert reply.status == 200


def test_guard_sees_the_digest(guarded: Stage) -> None:
    reply, prompt = _inject(guarded)
    line = guarded.expect_violation(reply, "I2", prompt)
    assert line["reasons"] == ["digest"]
