"""A parent process and what its schedulers may say, with real processes to end."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sglang_kvguard.engine import activation, handshake, runtime

_READY = {"status": "ready", "max_total_num_tokens": 1}


def _good() -> dict[str, Any]:
    return {"self_test": "ok", **handshake._identity(activation.active())}


def _message(change: dict[str, Any] | None) -> dict[str, Any]:
    """A scheduler's message: confirmed, with changes; None for a stock scheduler."""
    return _READY if change is None else {**_READY, "kv_guard": {**_good(), **change}}


def answer(changes: list[dict[str, Any] | None], *, origin: str, exit_code: int | None) -> dict:
    """How the parent answers its schedulers' messages.

    Args:
        changes: one a scheduler, see ``_message``.
        origin: who turned the guard on.
        exit_code: of a scheduler that died instead of answering.
    """
    activation._active = replace(activation.active(), origin=origin)
    sleepers = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in changes
    ]
    procs = [SimpleNamespace(pid=child.pid, exitcode=exit_code) for child in sleepers]

    def engine_function(_readers: list, _procs: list) -> list[dict]:
        if exit_code is not None:
            raise RuntimeError("Rank 0 scheduler died during initialization")
        return [_message(change) for change in changes]

    stderr = io.StringIO()
    outcome: Any = None
    with contextlib.redirect_stderr(stderr):
        try:
            infos = handshake.require_confirmations(engine_function, [], procs)
            outcome = f"{len(infos)} ready"
        except SystemExit as exit:
            outcome = f"exit {exit.code}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
    alive = 0
    for child in sleepers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.5)
        alive += child.poll() is None
        child.kill()
        child.wait()
    return {"outcome": outcome, "stderr": stderr.getvalue(), "alive": alive}


def command_line(*changes: dict[str, Any] | None) -> dict:
    return answer(list(changes), origin="command line", exit_code=None)


def python(*changes: dict[str, Any] | None) -> dict:
    return answer(list(changes), origin="python", exit_code=None)


def died(exit_code: int) -> dict:
    return answer([None], origin="command line", exit_code=exit_code)


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
