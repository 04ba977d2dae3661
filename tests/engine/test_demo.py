"""``kvguard demo`` shows what it claims, says so when it does not, and cleans up."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from sglang_kvguard.cli import demo as demo_module
from sglang_kvguard.cli.main import main
from sglang_kvguard.cli.recycled_buffer import Outcome
from sglang_kvguard.testing.harness import Reply, ServerFailed

SECRET = "4711"
COMMAND = [sys.executable, "-c", "from sglang_kvguard.cli.main import main; main()", "demo"]

LEAK = Reply(200, {"text": f"{SECRET};"}, f'{{"text": "{SECRET};"}}')
VIOLATION = Reply(
    500,
    {"error": {"kv_guard_violation": True, "invariant": "I2", "incident_id": "kvg-0123456789abcdef"}},
    "",
)
OFF = Outcome(SECRET, f"{SECRET};", LEAK, (LEAK.raw,), freed=160, not_zero=135, guard=None)
ON = Outcome(
    SECRET, f"{SECRET};", VIOLATION, (VIOLATION.raw,), freed=160, not_zero=0, guard={"violations": 1}
)


def _demo_of(monkeypatch: pytest.MonkeyPatch, off: Outcome, on: Outcome):
    acts = {"guard off": off, "guard on": on}
    monkeypatch.setattr(demo_module, "_act", lambda _console, _folder, name, *_: acts[name])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return CliRunner().invoke(main, ["demo", "--seed", "1"])


def test_all_acts_as_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _demo_of(monkeypatch, OFF, ON)
    assert result.exit_code == 0, result.output
    assert "All three acts came out as claimed" in result.output
    assert "135 of 160" in result.output


@pytest.mark.parametrize(
    ("act", "off", "on"),
    [
        pytest.param(1, {"bodies": ("nothing",)}, {}, id="nothing leaks without the guard"),
        pytest.param(2, {}, {"to_b": LEAK}, id="B is answered with the guard"),
        pytest.param(2, {}, {"bodies": (f"x{SECRET}",)}, id="a bystander is told the secret"),
        pytest.param(3, {}, {"not_zero": 1}, id="a freed slot keeps a byte"),
        pytest.param(3, {}, {"freed": 0}, id="nothing was freed"),
    ],
)
def test_anything_else_is_an_error(
    monkeypatch: pytest.MonkeyPatch, act: int, off: dict, on: dict
) -> None:
    result = _demo_of(
        monkeypatch, dataclasses.replace(OFF, **off), dataclasses.replace(ON, **on)
    )
    assert result.exit_code == 1
    assert f"Not as claimed: act {act}" in result.output


def test_a_server_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_):
        raise ServerFailed("the server exited with code 2\n-- end of log --\nout of memory")

    monkeypatch.setattr(demo_module, "_act", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 2 and "out of memory" in result.output


@pytest.mark.server
def test_on_real_servers(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--keep-logs", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All three acts came out as claimed" in done.stdout
    assert '"event":"kv_guard_violation"' in (tmp_path / "guard-on.log").read_text()
    assert "kv-guard" not in (tmp_path / "guard-off.log").read_text()


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_ended_early_it_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*COMMAND, "--keep-logs", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        log = tmp_path / "guard-off.log"
        # Something of the engine is logged: the server is in the middle of its start.
        deadline = time.monotonic() + 120
        while not (log.exists() and log.stat().st_size):
            assert demo.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        family = psutil.Process(demo.pid).children(recursive=True)
        assert family
        demo.send_signal(number)
        assert demo.wait(60) != 0
        _, left = psutil.wait_procs(family, timeout=10)
        assert not left
    finally:
        demo.kill()
        demo.communicate()
