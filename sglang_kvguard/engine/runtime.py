"""The guard of this scheduler process: built once, before the server may listen."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sglang_kvguard.core.guard import KVGuard
from sglang_kvguard.core.ledger import Ledger
from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.core.selftest import run_self_test
from sglang_kvguard.core.tags import SHARED_NAMESPACE
from sglang_kvguard.engine.incidents import IncidentLog
from sglang_kvguard.engine.pool_spans import spans_of
from sglang_kvguard.kernels import layout as L

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

    from sglang_kvguard.engine.step import Step

logger = logging.getLogger(__name__)

# The circuit breaker: with this share of the pool withheld something is badly wrong,
# and serving on would only hide it.
RETIRED_SHARE = 0.10
RETIRED_AT_LEAST = 32

# Releases that were refused; the page stays as it is.
_REFUSED = frozenset((L.F_FOREIGN_FREE, L.F_INVALID_FREE))


class GuardFailure(RuntimeError):
    """The guard cannot vouch for the server any more; it has to stop (I8)."""


class Runtime:
    """One scheduler and its guard.

    Attributes:
        guard: core guard of the scheduler's KV pool.
        scheduler: the engine's scheduler object.
        incidents: where violations are recorded.
        step: forward that is being launched, None in between.
        living: owner tags of the requests that hold a row.
        decode_reqs, decode_owners, decode_want: the decode batch as of its last change.
        self_test: what the power-on self-test did.
    """

    def __init__(self, scheduler: Scheduler, policy: GuardPolicy) -> None:
        """Attach a guard to a scheduler that was just built, and prove that it works.

        Raises:
            UnsupportedPool: the engine's pool, allocator or prefix cache is not known.
            SelfTestFailed: the pool did not behave under test.
        """
        from sglang_kvguard.engine.allocators import GuardedPagedAllocator, GuardedTokenAllocator
        from sglang_kvguard.engine.pool_spans import UnsupportedPool
        from sglang_kvguard.engine.radix_cache import GuardedRadixCache

        allocator = scheduler.token_to_kv_pool_allocator
        if type(allocator) not in (GuardedPagedAllocator, GuardedTokenAllocator):
            raise UnsupportedPool(
                f"slot allocator {type(allocator).__qualname__} is not supported by "
                "--enable-kv-guard; expected the token or paged allocator"
            )
        if type(scheduler.tree_cache) is not GuardedRadixCache:
            raise UnsupportedPool(
                f"prefix cache {type(scheduler.tree_cache).__qualname__} is not supported by "
                "--enable-kv-guard; leave --radix-cache-backend unset"
            )
        page_size = allocator.page_size
        num_pages = allocator.size // page_size
        self.scheduler = scheduler
        self.policy = policy
        self.step: Step | None = None
        self.guard = KVGuard(
            ledger=Ledger(num_pages, scheduler.req_to_token_pool.size, page_size, allocator.device),
            spans=spans_of(allocator.get_kvcache(), page_size, num_pages),
            policy=policy,
            clock=time.monotonic,
            launch_stream=self._launch_stream,
        )
        self.incidents = IncidentLog(policy)
        self.retired_limit = max(RETIRED_AT_LEAST, int(RETIRED_SHARE * num_pages))
        self.decode_reqs: list[Req] = []
        self.decode_owners: list[int] = []
        self.decode_want: torch.Tensor | None = None
        self.living: set[int] = set()
        self.self_test = run_self_test(
            self.guard, scheduler.req_to_token_pool.req_to_token
        )
        allocator.attach(self.guard, self.settle_now)
        scheduler.tree_cache.attach(self.guard)

    # -- streams ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _launch_stream(self) -> Iterator[None]:
        """See ``KVGuard``: the stream that ``run_batch`` launches forwards on."""
        scheduler = self.scheduler
        if scheduler.device == "cpu" or not scheduler.enable_overlap:
            yield
            return
        # The schedule stream in the event loop, the default stream during start.
        caller = scheduler.device_module.current_stream()
        with scheduler.forward_stream_ctx:
            scheduler.forward_stream.wait_stream(caller)
            yield
        caller.wait_stream(scheduler.forward_stream)

    # -- identity -----------------------------------------------------------------------

    def take_row(self, req: Req, row: int) -> None:
        """``req`` was just given ``row``: mint its tag."""
        shared = self.policy.scope == "shared"
        req.kvguard_tag = self.guard.mint(row, SHARED_NAMESPACE if shared else None)
        self.living.add(req.kvguard_tag.owner)
        self._forget_decode_batch()
        if not shared:
            # Scope request: nothing of it is ever published.
            req.skip_radix_cache_insert = True

    def give_back_row(self, req: Req) -> None:
        """``req`` released its row: its tag is nobody's any more."""
        self.living.discard(req.kvguard_tag.owner)
        req.kvguard_tag = None
        self._forget_decode_batch()

    def _forget_decode_batch(self) -> None:
        # It is known by its request objects, and one that was retracted comes back as the
        # same object with another tag.
        self.decode_reqs = []

    # -- page faults --------------------------------------------------------------------

    def settle_faults(self, report) -> None:
        """Record the page faults that ``report`` brought and correct the counts.

        Raises:
            GuardFailure: more pages are withheld than the circuit breaker allows.
        """
        faults = self.guard.new_faults(report)
        if not faults:
            return
        self.scheduler.token_to_kv_pool_allocator.drop_refused()
        for fault in faults:
            self.incidents.page_fault(fault)
        if any(fault.kind in _REFUSED for fault in faults):
            # Whoever was meant may have released its row before: then nobody frees the
            # page again.
            self.guard.retire_orphans(self.living)
        self.check_breaker()

    def check_breaker(self) -> None:
        if self.guard.retired > self.retired_limit:
            raise GuardFailure(
                f"KV guard: {self.guard.retired} pages are retired, more than the limit of "
                f"{self.retired_limit}; stopping the server because its KV pool cannot be trusted"
            )

    def retire_orphans(self) -> None:
        """Withhold what ended requests left alive, and put the counts right at once.

        What a release refused was launched with it, so nothing would be left for the idle
        loop to notice before the engine checks its equation.

        Raises:
            GuardFailure: as for ``settle_faults``.
        """
        self.guard.retire_orphans(self.living)
        self.settle_now()
        self.check_breaker()

    def settle_idle(self) -> None:
        """Nothing runs: scrub all that was freed and report what it showed, now."""
        if self.guard.has_work:
            self.settle_now()

    def settle_now(self) -> None:
        """Do everything that is queued and report what it showed. Waits for the device.

        Raises:
            GuardFailure: as for ``settle_faults``.
        """
        report = self.guard.report_faults()
        report.wait(None)
        self.settle_faults(report)


_current: Runtime | None = None


def install(scheduler: Scheduler, policy: GuardPolicy) -> Runtime:
    """Build the guard of this process.

    Raises:
        GuardFailure: there is one already.
    """
    global _current
    if _current is not None:
        raise GuardFailure("KV guard: a second scheduler in one process is not supported")
    _current = Runtime(scheduler, policy)
    return _current


def current() -> Runtime | None:
    """The guard of this process; None before it was installed."""
    return _current


def confirmation() -> dict[str, object] | None:
    """What this process tells the one that started it; None when it has no guard."""
    if _current is None:
        return None
    return {
        "self_test": "ok",
        "self_test_steps": list(_current.self_test.steps),
        "num_pages": _current.guard.ledger.num_pages,
        "page_size": _current.guard.ledger.page_size,
        "bytes_per_page": _current.guard.spans.bytes_per_page,
    }
