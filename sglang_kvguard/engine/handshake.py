"""No scheduler process unconfirmed: the server does not listen before all said they guard.

A scheduler sends one message to its parent when it is ready. Ours carries
``kv_guard``: product version, digests of the policy and of the seam table, the
process id and what the power-on self-test said, or ``error``. A plugin that was left
out of the child process (``SGLANG_PLUGINS``, ``SGLANG_PLATFORM``, a load error that
SGLang swallowed) sends nothing, and that is an answer too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, NoReturn

import sglang_kvguard
from sglang_kvguard.engine import activation
from sglang_kvguard.engine.refusal import EXIT_CODE, GuardRefusal, end_refusing
from sglang_kvguard.engine.seam import SeamError
from sglang_kvguard.engine.seams import seam_digest, verify_seams

logger = logging.getLogger(__name__)

KEY = "kv_guard"


def confirm(info: dict[str, Any], _scheduler) -> dict[str, Any]:
    """Hook behind ``Scheduler.get_init_info``: adds this process's confirmation.

    What is wrong is sent instead of raised, so that the parent can say it in one line.
    """
    from sglang_kvguard.engine import runtime

    active = activation.active()
    try:
        verify_seams((*active.table.LAUNCH_SEAMS, *active.table.SEAMS))
    except SeamError as error:
        return {**info, KEY: {"error": str(error)}}
    running = runtime.confirmation()
    if running is None:
        return {**info, KEY: {"error": "the guard was not built in this scheduler process"}}
    return {**info, KEY: {**running, **_identity(active), "pid": os.getpid()}}


def require_confirmations(original: Callable, readers: list, procs: list) -> list[dict]:
    """Hook around ``_wait_for_scheduler_ready``: every scheduler confirmed, or nobody serves.

    Args:
        original: the engine's function.
        readers: one pipe end a scheduler process.
        procs: the scheduler processes.

    Returns:
        What the engine's function returned, one message a scheduler.

    Raises:
        GuardRefusal: a confirmation is missing or differs; the schedulers are ended.
            The whole process ends instead, with exit code 2, when the guard was
            asked for on the command line.
    """
    active = activation.active()
    try:
        infos = original(readers, procs)
    except RuntimeError:
        if not any(proc.exitcode == EXIT_CODE for proc in procs):
            raise
        _refuse(active, procs, "a scheduler process refused; its own line is above")
    expected = _identity(active)
    problems = [
        f"scheduler {rank}: {problem}"
        for rank, info in enumerate(infos)
        if (problem := _problem(info.get(KEY), expected))
    ]
    if len(infos) != len(procs):
        problems.append(f"{len(infos)} of {len(procs)} scheduler processes answered")
    if problems:
        _refuse(active, procs, "; ".join(problems))
    logger.info(
        "kv-guard: confirmed by %d of %d scheduler processes (policy %s, %d seams)",
        len(infos),
        len(procs),
        expected["policy"],
        len(active.table.LAUNCH_SEAMS) + len(active.table.SEAMS),
    )
    return infos


def _identity(active: activation.Activation) -> dict[str, str]:
    return {
        "version": sglang_kvguard.__version__,
        "policy": active.policy.digest(),
        "seams": seam_digest((*active.table.LAUNCH_SEAMS, *active.table.SEAMS)),
    }


def _problem(confirmation: dict[str, Any] | None, expected: dict[str, str]) -> str | None:
    if confirmation is None:
        return (
            "did not confirm that it is guarded; SGLang left the plugin out of that process "
            "or failed to load it (see its log; check SGLANG_PLUGINS and SGLANG_PLATFORM)"
        )
    if "error" in confirmation:
        return confirmation["error"]
    for key, value in expected.items():
        if confirmation.get(key) != value:
            return f"confirmed another {key} ({confirmation.get(key)}, expected {value})"
    if confirmation.get("self_test") != "ok":
        return f"its self-test did not pass ({confirmation.get('self_test')})"
    return None


def _refuse(active: activation.Activation, procs: list, reason: str) -> NoReturn:
    error = GuardRefusal(reason)
    if active.origin == "command line":
        end_refusing(error)
    from sglang.srt.utils import kill_process_tree

    for proc in procs:
        kill_process_tree(proc.pid)
    raise error
