"""The guard of one KV pool: queues what the scheduler did, launches it in order.

The scheduler allocates, publishes and frees on its own stream while a forward runs.
Those events are queued here and reach the device in one batch ahead of the next
forward, on the stream that forwards are launched on (the *launch stream*), which is
the only writer of ledger and seals:

    stamp -> check_zero -> publish -> release -> scrub -> fence -> forward

A page freed in one batch cannot be born again in the same batch, because it leaves
the quarantine only after its scrub was enqueued; so this order within a batch is the
order of events, and the launch stream keeps it between batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch

from sglang_kvguard.core.ledger import Ledger
from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.core.quarantine import Quarantine
from sglang_kvguard.core.tags import Mint, RowTag
from sglang_kvguard.core.verdicts import PageFault, Report, ReportRing
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.check_zero import check_zero
from sglang_kvguard.kernels.fence import fence, fence_scratch
from sglang_kvguard.kernels.publish import publish
from sglang_kvguard.kernels.release import release
from sglang_kvguard.kernels.scrub import scrub
from sglang_kvguard.kernels.spans import SpanTable
from sglang_kvguard.kernels.stamp import stamp

# Scrub bytes a step. At 80 % of an H100's 3.35 TB/s this is about 0.1 ms of a decode
# step of several ms; what is over it waits in limbo and cannot be allocated.
SCRUB_BYTES_A_STEP = 256 << 20

# --kv-guard-verify-zero sampled: one born page in this many is read.
ZERO_SAMPLE = 16


class KVGuard:
    """Everything the guard keeps for one pool, and the operations on it.

    Not thread-safe: it belongs to the scheduler thread, like the pool itself.

    Attributes:
        ledger, quarantine: see there.
        policy: as configured.
        clock, launch_stream: as given.
        retired: pages withheld from allocation.
        num_scrubbed_pages: pages whose scrub was enqueued since the start.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        spans: SpanTable,
        policy: GuardPolicy,
        clock: Callable[[], float],
        launch_stream: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ) -> None:
        """
        Args:
            ledger: empty ledger of the pool.
            spans: every byte that a page addresses.
            policy: mode, scope, time to live, zero check.
            clock: seconds; the same value on all ranks at the same decision.
            launch_stream: context that makes the launch stream current, ordered after
                what the caller's stream holds, and afterwards orders the caller's
                stream behind it. Used outside forwards only.
        """
        self.ledger = ledger
        self.spans = spans
        self.policy = policy
        self.clock = clock
        self.launch_stream = launch_stream
        self.quarantine = Quarantine(policy.ttl)
        self.retired = 0
        self.num_scrubbed_pages = 0
        self._mint = Mint()
        self._ring = ReportRing(ledger)
        self._fault_ring = ReportRing(ledger)
        self._scratch = fence_scratch(ledger.num_rows, ledger.device)
        self._actor = L.TREE
        self._stamps: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._publications: list[tuple[list[int], torch.Tensor, torch.Tensor]] = []
        self._faults_seen = 0
        self._releases = 0
        self._sampled = 0
        page_bytes = max(1, spans.bytes_per_page)
        self._scrub_pages_a_step = max(1, SCRUB_BYTES_A_STEP // page_bytes)

    # -- what the scheduler tells, on its own stream ---------------------------------

    def mint(self, row: int, namespace: int | None) -> RowTag:
        """Tag a row incarnation; see ``Mint.tag``."""
        return self._mint.tag(row, namespace)

    @contextlib.contextmanager
    def acting(self, owner: int) -> Iterator[None]:
        """Pages freed inside are given back on behalf of ``owner``."""
        outer, self._actor = self._actor, owner
        try:
            yield
        finally:
            self._actor = outer

    def want(self, tags: Sequence[RowTag], new: Sequence[int], fresh: Sequence[bool]) -> torch.Tensor:
        """What the scheduler says a batch is.

        Args:
            tags: one a batch entry.
            new: tokens that the forward writes for it.
            fresh: whether the row was just taken by this incarnation.

        Returns:
            int64 (batch, WANT_FIELDS) on the ledger's device; its copy there does not
            make the host wait.
        """
        rows, offset = [], 0
        for tag, count, is_fresh in zip(tags, new, fresh, strict=True):
            rows.append((tag.row, tag.owner, tag.namespace, count, offset, int(is_fresh), 0, 0))
            offset += count
        return self._to_device(rows, L.WANT_FIELDS)

    def stamp(self, want: torch.Tensor, locs: torch.Tensor) -> None:
        """The allocator returned ``locs`` (int64, sum of WANT_NEW) for this batch."""
        self._stamps.append((want, locs))

    def publish(
        self, tag: RowTag, start: int, old_locs: torch.Tensor, new_locs: torch.Tensor, *, reseal: bool
    ) -> None:
        """The prefix cache took over row entries from ``start`` on.

        Args:
            tag: whose row.
            start: row position of the first entry.
            old_locs: int (n,), slots that the row mapped before.
            new_locs: int (n,), slots that the cache says it maps now.
            reseal: the row lives on; its seal follows.
        """
        count = new_locs.numel()
        if count:
            chunk = [0, count, tag.row, tag.owner, tag.namespace, start, int(reseal), 0]
            self._publications.append((chunk, old_locs.to(torch.int64), new_locs.to(torch.int64)))

    def free(self, page_ids: torch.Tensor) -> None:
        """Pages come back (int64 (n,)); on whose behalf, ``acting`` says."""
        if page_ids.numel():
            self.quarantine.free(page_ids, self._actor)

    # -- launching ---------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(
            self._stamps or self._publications or self.quarantine.pending or self.quarantine.limbo
        )

    def launch(self, *, scrub_all: bool = False) -> None:
        """Enqueue everything queued so far on the current stream, which must be the
        launch stream.

        Args:
            scrub_all: ignore the byte budget of a step.
        """
        ledger = self.ledger
        for want, locs in self._stamps:
            _used_here(want, locs)
            self._launch_stamp(want, locs)
        self._stamps.clear()
        if self._publications:
            self._launch_publish()
        if self.quarantine.pending:
            self._launch_release()
        budget = ledger.num_pages + self.quarantine.num_limbo if scrub_all else self._scrub_pages_a_step
        buried = self.quarantine.take_limbo(budget)
        if buried:
            now = self.clock()
            scrub(self.spans, _cat([batch.scrub_ids for batch in buried]))
            for batch in buried:
                self.num_scrubbed_pages += len(batch)
                self.quarantine.rest(batch.ids, now, batch.release)

    def launch_now(self, *, scrub_all: bool = True) -> None:
        """``launch`` from outside a forward: switches to the launch stream and back."""
        with self.launch_stream():
            self.launch(scrub_all=scrub_all)

    def fence(
        self,
        *,
        want: torch.Tensor,
        req_to_token: torch.Tensor,
        rows: torch.Tensor,
        seq_lens: torch.Tensor,
        out_locs: torch.Tensor,
        max_len: int,
    ) -> Report:
        """Launch what is queued, then fence one forward; on the launch stream.

        Args:
            want: int64 (batch, WANT_FIELDS), from ``want``.
            req_to_token: int32 (rows, context), the engine's page table.
            rows: int (batch,), row indices that the forward will use.
            seq_lens: int (batch,), lengths that the forward will use.
            out_locs: int (tokens,), write set of the forward. In enforce mode the
                entries of an offender are turned to the padding slot, so that it
                cannot damage anybody.
            max_len: upper bound of ``seq_lens`` that the host knows.

        Returns:
            The report, to be read before any result of the forward is used.
        """
        self.launch()
        ledger = self.ledger
        batch = want.shape[0]
        fence(
            ledger.pages,
            ledger.seals,
            req_to_token,
            rows,
            seq_lens,
            want,
            out_locs,
            ledger.verdicts(batch),
            self._scratch,
            ledger.page_size,
            ledger.key,
            self.policy.mode == "enforce",
            max_len,
        )
        return self._ring.send(batch, self._releases)

    def report_faults(self) -> Report:
        """Launch everything queued and ask for the page faults, outside a forward."""
        with self.launch_stream():
            self.launch(scrub_all=True)
            return self._fault_ring.send(0, self._releases)

    def new_faults(self, report: Report) -> list[PageFault]:
        """Page faults that no earlier report had. Corrects the counts they changed, for
        which it waits for the device; without a fault it does not."""
        if report.fault_count() <= self._faults_seen:
            self.quarantine.settled = max(self.quarantine.settled, report.release)
            return []
        faults = report.faults_since(self._faults_seen)
        lost = report.fault_count() - self._faults_seen - len(faults)
        self._faults_seen = report.fault_count()
        if lost or any(f.kind in WITHHOLDING for f in faults):
            with self.launch_stream():
                for ids in self.quarantine.drop_refused():
                    scrub(self.spans, ids)
                # Counted where it is true; the ring may have lost records of a burst.
                flags = self.ledger.pages[1:, L.PAGE_FLAGS]
                self.retired = int(((flags & L.RETIRED) != 0).sum())
            # Ids of every launch so far were looked at, not only of those reported.
            self.quarantine.settled = self._releases
        self.quarantine.settled = max(self.quarantine.settled, report.release)
        return faults

    # -- rare paths, which may wait for the device -----------------------------------

    def retire_orphans(self, living: Iterable[int]) -> int:
        """Withhold unpublished pages of owners that are no more.

        A release gives back what the row says, so a page whose entry was overwritten, or
        whose release was refused, is still alive and nobody will ever free it.

        Args:
            living: owner tags of all requests that hold a row.

        Returns:
            Number of pages retired.
        """
        with self.launch_stream():
            self.launch(scrub_all=True)
            pages = self.ledger.pages
            flags = pages[:, L.PAGE_FLAGS]
            held = torch.tensor(list(living), dtype=torch.int64, device=pages.device)
            orphan = ~torch.isin(pages[:, L.PAGE_OWNER], held)
            orphan &= (flags & (L.LIVE | L.PUBLISHED)) == L.LIVE
            ids = orphan.nonzero().flatten()
            if ids.numel():
                pages[ids, L.PAGE_FLAGS] = L.RETIRED
                scrub(self.spans, ids)
        self.retired += ids.numel()
        return ids.numel()

    def flush(self, *, rested: bool = False) -> torch.Tensor:
        """The engine threw its whole cache away: nothing is alive, every byte is zeroed.

        Args:
            rested: nothing was ever in these pages, so they need no time to live.

        Returns:
            int64 ids of all pages that may be allocated again; they rest first.
        """
        with self.launch_stream():
            self.launch(scrub_all=True)
            self.quarantine.clear()
            self.ledger.forget_all()
            everything = torch.arange(1, self.ledger.num_pages + 1, device=self.ledger.device)
            scrub(self.spans, everything)
            self.num_scrubbed_pages += everything.numel()
            retired = (self.ledger.pages[1:, L.PAGE_FLAGS] & L.RETIRED) != 0
            usable = everything[~retired]
        self.quarantine.rest(usable, self.clock() - (self.policy.ttl if rested else 0.0))
        return usable

    # -- one launch each ---------------------------------------------------------------

    def _launch_stamp(self, want: torch.Tensor, locs: torch.Tensor) -> None:
        count = locs.numel()
        ledger = self.ledger
        born = torch.empty(count, dtype=torch.int64, device=ledger.device)
        stamp(
            ledger.pages, ledger.history, ledger.seals, ledger.faults, want, locs, born,
            ledger.take_births(count), ledger.page_size,
        )
        checked = self._to_check(born)
        if checked is not None:
            check_zero(self.spans, checked, ledger.pages, ledger.faults)

    def _to_check(self, born: torch.Tensor) -> torch.Tensor | None:
        if self.policy.verify_zero == "always":
            return born
        if self.policy.verify_zero == "sampled":
            first = -self._sampled % ZERO_SAMPLE
            self._sampled += born.numel()
            return born[first::ZERO_SAMPLE].contiguous()
        return None

    def _launch_publish(self) -> None:
        chunks, offset = [], 0
        for chunk, _, _ in self._publications:
            chunk[L.PUBLISH_OFFSET] = offset
            offset += chunk[L.PUBLISH_COUNT]
            chunks.append(chunk)
        for _, old, new in self._publications:
            _used_here(old, new)
        old = _cat([old for _, old, _ in self._publications])
        new = _cat([new for _, _, new in self._publications])
        self._publications.clear()
        table = self._to_device(chunks, L.PUBLISH_FIELDS)
        ledger = self.ledger
        publish(
            ledger.pages, ledger.seals, ledger.faults, table, old, new, ledger.page_size, ledger.key
        )

    def _launch_release(self) -> None:
        chunks, offset, batches = [], 0, self.quarantine.take_pending()
        for batch in batches:
            chunks.append((offset, len(batch), batch.actor, 0))
            offset += len(batch)
            _used_here(batch.ids)
        ids = torch.cat([batch.ids for batch in batches])
        scrub_ids = torch.empty_like(ids)
        table = self._to_device(chunks, L.RELEASE_FIELDS)
        ledger = self.ledger
        release(ledger.pages, ledger.seals, ledger.faults, table, ids, scrub_ids)
        self._releases += 1
        self.quarantine.bury(ids, scrub_ids, self._releases)

    def _to_device(self, rows: Sequence[Sequence[int]], fields: int) -> torch.Tensor:
        if not rows:
            return torch.zeros((0, fields), dtype=torch.int64, device=self.ledger.device)
        cuda = self.ledger.device.type == "cuda"
        host = torch.tensor(rows, dtype=torch.int64, pin_memory=cuda)
        return host.to(self.ledger.device, non_blocking=True)


# Faults after which an id in quarantine may have become 0.
WITHHOLDING = frozenset((L.F_DOUBLE_FREE, L.F_FOREIGN_FREE, L.F_INVALID_FREE, L.F_RETIRED))


def _used_here(*tensors: torch.Tensor) -> None:
    """Tell the caching allocator that tensors of another stream are used on this one."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream())


def _cat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
