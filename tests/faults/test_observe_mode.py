"""Observe mode records what enforce mode would have stopped, and ends nothing."""

from __future__ import annotations

import pytest

from sglang_kvguard.testing.harness.server import Server
from sglang_kvguard.testing.injector.conditions import When
from tests.faults.conftest import ARGUMENTS, GUARD
from tests.faults.stage import Stage

pytestmark = pytest.mark.server


def test_a_violation_is_recorded_and_answered(model: list[str], tmp_path) -> None:
    server = Server(
        [*model, *ARGUMENTS, *GUARD, "--kv-guard-mode", "observe"],
        log_path=tmp_path / "server.log",
        inject=True,
    )
    with server.wait_until_ready():
        stage = Stage(server)
        b = stage.rid("B")
        armed = stage.arm("swap_entries", When(rid=b, produced=3), one=2, two=37)
        reply = stage.send(stage.prompt("B"), 40, b)
        armed.outcome()
        assert len(reply.result().text) == 40
        (line,) = stage.incidents()
        assert line["event"] == "kv_guard_violation" and line["action"] == "recorded"
        assert line["mode"] == "observe" and line["reasons"] == ["digest"]
        stage.clear()
        assert server.alive()
