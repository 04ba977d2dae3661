"""Start, idle, accounting: the scheduler's own housekeeping with the guard in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.runtime_context import get_context

from sglang_kvguard.engine.activation import active
from sglang_kvguard.engine.radix_cache import BACKEND, register_backend
from sglang_kvguard.core.selftest import SelfTestFailed
from sglang_kvguard.engine.pool_spans import UnsupportedPool
from sglang_kvguard.engine.refusal import end_refusing
from sglang_kvguard.engine.runtime import GuardFailure, current, install
from sglang_kvguard.engine.seam import SeamError
from sglang_kvguard.engine.seams import verify_seams

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler


def scheduler_init(original: Callable, scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
    """AROUND ``Scheduler.__init__``: the guard is built, or the server does not start."""
    activation = active()
    register_backend()
    get_context().override("kvguard", radix_cache_backend=BACKEND)
    original(scheduler, *args, **kwargs)
    try:
        verify_seams(activation.table.SEAMS)
        install(scheduler, activation.policy)
    except (SeamError, UnsupportedPool, SelfTestFailed, GuardFailure) as error:
        end_refusing(error)


def on_idle(original: Callable, scheduler: Scheduler) -> None:
    """AROUND ``Scheduler.on_idle``: what the last forward showed is reported now."""
    runtime = current()
    if runtime is not None:
        runtime.settle_idle()
    original(scheduler)


def check_pool_invariant(
    original: Callable, pool_name: str, available: int, *args: Any, **kwargs: Any
) -> tuple[bool, str]:
    """AROUND ``SchedulerInvariantChecker._check_pool_invariant``.

    Retired pages cannot be allocated, but they are not lost either: they belong into
    the equation that the engine checks.
    """
    runtime = current()
    if runtime is not None and pool_name == "full":
        available += runtime.guard.retired * runtime.guard.ledger.page_size
    return original(pool_name, available, *args, **kwargs)
