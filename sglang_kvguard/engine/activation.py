"""Whether the guard is on in this process, and how a child process learns of it.

A process is guarded for one of three reasons: its command line said so, its Python
code called ``sglang_kvguard.enable()``, or the process that spawned it is guarded.
Only the last one reads the environment, and only from its own parent: the variable
carries the writer's process id, so one that an operator's shell exported, or that a
guarded program left to a server it starts as a separate command, does nothing.

A process has one policy. It cannot be changed or withdrawn once it is set, because
hooks cannot be taken out again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from sglang.srt.plugins import load_plugins
from sglang.version import __version__ as ENGINE_VERSION

from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.engine import seams
from sglang_kvguard.engine.refusal import GuardRefusal, exit_refusing
from sglang_kvguard.engine.refused_configurations import refuse_unguardable
from sglang_kvguard.engine.releases import CLI_SEAMS, table_for
from sglang_kvguard.engine.seam import SeamError

logger = logging.getLogger(__name__)

POLICY_ENV = "SGLANG_KVGUARD_POLICY"

Origin = Literal["command line", "python", "parent"]


@dataclass(frozen=True)
class Activation:
    """The guard is on in this process.

    Attributes:
        policy: what was asked for.
        table: seam table of the engine release.
        origin: who asked.
    """

    policy: GuardPolicy
    table: ModuleType
    origin: Origin


_active: Activation | None = None


def active() -> Activation | None:
    """What this process is guarded by; ``None`` when the guard is off here."""
    return _active


def enable(
    *,
    mode: str = "enforce",
    scope: str = "request",
    ttl: float = 30.0,
    ttl_policy: str = "elastic",
    verify_zero: str = "always",
    allow_unverified_engine: bool = False,
) -> GuardPolicy:
    """Guard every ``sglang.Engine`` that this process starts from now on.

    Call it before the first ``sglang.Engine(...)``; its child processes inherit it. A
    second call with the same settings does nothing.

    Args:
        mode, scope, ttl, ttl_policy, verify_zero, allow_unverified_engine: see
            ``sglang_kvguard.core.policy.GuardPolicy``.

    Returns:
        The validated policy.

    Raises:
        PolicyError: a setting is wrong.
        GuardRefusal: the engine version is unknown, the guard is already on with other
            settings, or SGLang leaves the plugin out in this process.
        SeamError: the engine cannot be hooked.
    """
    policy = GuardPolicy(mode, scope, ttl, ttl_policy, verify_zero, allow_unverified_engine)
    if _active is None and inherited_policy() == policy:
        # A spawned child imports its parent's main module, and this call with it,
        # before it runs. What it has to hook is only known in load_plugins().
        return policy
    load_plugins()
    if not seams.is_registered(CLI_SEAMS):
        # Child processes ask the same filters, so their schedulers would be stock.
        raise GuardRefusal(
            "SGLang left the plugin 'kvguard' out of this process "
            f"(SGLANG_PLUGINS={os.environ.get('SGLANG_PLUGINS', '')!r}, "
            f"SGLANG_PLATFORM={os.environ.get('SGLANG_PLATFORM', '')!r}); install sglang-kvguard "
            "with pip and name kvguard in SGLANG_PLUGINS, or unset it"
        )
    activate(policy, "python")
    return policy


def activate(policy: GuardPolicy, origin: Origin) -> None:
    """Turn the guard on in this process and in the child processes it starts later.

    Raises:
        GuardRefusal: unknown engine version, or already on with other settings.
        SeamError: the engine cannot be hooked.
    """
    global _active
    if _active is not None:
        if _active.policy != policy:
            raise GuardRefusal(
                "the guard is already on in this process with other settings "
                f"({_active.policy.to_json()}); a process has one policy"
            )
        return
    table = table_for(ENGINE_VERSION, policy.allow_unverified_engine)
    if origin == "parent":
        # load_plugins() hooks what is registered when all plugins have registered.
        seams.register(table.LAUNCH_SEAMS)
        if "sglang.srt.managers.scheduler" in sys.modules:
            # load_plugins() is called from there in a scheduler process; a
            # detokenizer has no use for these seams and would import half the engine.
            seams.register(table.SEAMS)
    else:
        seams.install(table.LAUNCH_SEAMS)
    _active = Activation(policy, table, origin)
    _export()
    if origin != "parent":
        _announce(policy)


def inherited_policy() -> GuardPolicy | None:
    """The policy that the process that spawned this one runs under.

    A variable that was not written by that process is removed, so that it cannot
    reach a child of ours.

    Raises:
        PolicyError: our parent wrote something that is not a policy.
    """
    text = os.environ.get(POLICY_ENV)
    if text is None:
        return None
    try:
        handed = json.loads(text)
        writer, settings = handed["writer"], handed["policy"]
    except (ValueError, TypeError, KeyError):
        writer, settings = None, None
    if writer is None or writer != _spawner():
        if _active is None:
            del os.environ[POLICY_ENV]
            logger.warning(
                "kv-guard: ignored %s, which this process's parent did not write; "
                "use --enable-kv-guard or sglang_kvguard.enable()",
                POLICY_ENV,
            )
        return None
    return GuardPolicy.from_dict(settings)


def when_resolved(_result: None, server_args) -> None:
    """Hook behind ``ServerArgs.resolve_once``, the last step before anything is started.

    Refuses what cannot be guarded, and hooks the process that starts the schedulers
    only now: the modules behind those seams are imported at this point by stock
    SGLang too, and not earlier.

    Raises:
        GuardRefusal: the configuration cannot be guarded.
        SeamError: the engine cannot be hooked.
        SystemExit: instead of both when the guard was asked for on the command line.
    """
    active = _active
    try:
        refuse_unguardable(server_args)
        if active.origin != "parent" or "sglang.srt.entrypoints.engine" in sys.modules:
            _export()
            seams.check_signatures(active.table.SEAMS)
            seams.install(active.table.SERVER_SEAMS)
            os.register_at_fork(after_in_child=_hook_forked_scheduler)
    except (GuardRefusal, SeamError) as error:
        if active.origin == "command line":
            exit_refusing(error)
        raise


def _hook_forked_scheduler() -> None:
    """In a child that was forked and not spawned, whose ``load_plugins()`` has run already.

    What it raises is printed and ignored by Python; the child then confirms nothing, and
    its parent does not listen.
    """
    if "sglang.srt.managers.scheduler" in sys.modules:
        seams.install(_active.table.SEAMS)


def _spawner() -> int | None:
    """Process id of the process that spawned this one with ``multiprocessing``."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        return parent.pid
    # While a spawned child still imports its parent's main module, multiprocessing
    # knows no parent yet; this is the mark that it guards itself with by then.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        return os.getppid()
    return None


def _export() -> None:
    """Hand the policy to child processes; again before each launch, as a fork may be us."""
    handed = {"writer": os.getpid(), "policy": dataclasses.asdict(_active.policy)}
    os.environ[POLICY_ENV] = json.dumps(handed)


def _announce(policy: GuardPolicy) -> None:
    logger.info("kv-guard: on, %s", policy.to_json())
    if policy.scope == "request":
        logger.warning(
            "kv-guard: scope request shares no KV between requests, so every prompt is "
            "computed in full and no prefix is ever reused; --kv-guard-scope shared "
            "keeps the prefix cache, for clients that may see each other's prefixes"
        )
