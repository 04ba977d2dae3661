"""A launcher and what its schedulers may say, in processes that really end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil

from sglang_kvguard.engine import activation, handshake, runtime

_READY = {"status": "ready", "max_total_num_tokens": 1}


def _message(change: dict[str, Any] | None) -> dict[str, Any]:
    """A scheduler's message: confirmed, with changes; None for a stock scheduler."""
    if change is None:
        return _READY
    confirmed = {"self_test": "ok", **handshake._identity(activation.active())}
    return {**_READY, handshake.KEY: {**confirmed, **change}}


def _launch(changes: list, origin: str, exit_code: int | None, report) -> None:
    """The launcher: starts stand-ins for schedulers and waits for them."""
    activation._active = replace(activation.active(), origin=origin)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    pids = [subprocess.Popen(sleep).pid for _ in changes]
    print(json.dumps(pids), file=report, flush=True)

    def engine_function(_readers: list, _procs: list) -> list[dict]:
        if exit_code is not None:
            raise RuntimeError("Rank 0 scheduler died during initialization")
        return [_message(change) for change in changes]

    procs = [SimpleNamespace(pid=pid, exitcode=exit_code) for pid in pids]
    try:
        outcome = f"{len(handshake.require_confirmations(engine_function, [], procs))} ready"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps(outcome), file=report, flush=True)


def answer(changes: list[dict[str, Any] | None], origin: str, exit_code: int | None) -> dict:
    """How a launcher answers its schedulers' messages.

    Args:
        changes: one a scheduler, see ``_message``.
        origin: who turned the guard on.
        exit_code: of a scheduler that died instead of answering.

    Returns:
        Exit code of the launcher, 0 when it went on; its stderr; what came of the
        engine's function; how many of the schedulers are left alive.
    """
    with tempfile.TemporaryFile("w+") as stderr, tempfile.TemporaryFile("w+") as report:
        launcher = os.fork()
        if launcher == 0:
            os.dup2(stderr.fileno(), 2)
            _launch(changes, origin, exit_code, report)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])
        stderr.seek(0)
        report.seek(0)
        pids, *outcome = map(json.loads, report)
        return {
            "exit": code,
            "stderr": stderr.read(),
            "outcome": outcome[0] if outcome else None,
            "alive": sum(_ended_late(pid) for pid in pids),
        }


def _ended_late(pid: int) -> bool:
    """Whether a scheduler is still there a moment later; it is gone after this."""
    try:
        process = psutil.Process(pid)
        deadline = time.monotonic() + 0.5
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                process.kill()
                return True
            time.sleep(0.02)
    except psutil.NoSuchProcess:
        pass
    return False


def command_line(*changes: dict[str, Any] | None) -> dict:
    return answer(list(changes), "command line", None)


def python(*changes: dict[str, Any] | None) -> dict:
    return answer(list(changes), "python", None)


def died(exit_code: int) -> dict:
    return answer([None], "command line", exit_code)


def confirmation(*, hooked: bool, built: bool) -> dict[str, Any]:
    """What a scheduler adds to its message.

    Args:
        hooked: whether its seams are in place.
        built: whether its guard was built.
    """
    real = handshake.verify_seams, runtime.confirmation
    if hooked:
        handshake.verify_seams = lambda _seams: None
    runtime.confirmation = lambda: {"self_test": "ok"} if built else None
    try:
        info = handshake.confirm(dict(_READY), None)
    finally:
        handshake.verify_seams, runtime.confirmation = real
    return {
        "message": info,
        "problem": handshake._problem(
            info["kv_guard"], handshake._identity(activation.active())
        ),
    }


def unhooked() -> dict[str, Any]:
    return confirmation(hooked=False, built=True)


def unbuilt() -> dict[str, Any]:
    return confirmation(hooked=True, built=False)


def ready() -> dict[str, Any]:
    return confirmation(hooked=True, built=True)
