"""How a step's verdicts reach the host without a wait of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sglang_kvguard.core.ledger import Ledger
from sglang_kvguard.core.violations import Verdict
from sglang_kvguard.kernels import layout as L


class ReportOverrun(RuntimeError):
    """A report's buffer was used again before the report was read: its verdicts are lost."""


class PageFault:
    """One record of the fault ring, as the host sees it."""

    __slots__ = ("kind", "page", "actor", "owner", "namespace", "birth", "flags")

    def __init__(self, record: list[int]) -> None:
        self.kind = record[L.FAULT_KIND]
        self.page = record[L.FAULT_PAGE]
        self.actor = record[L.FAULT_ACTOR]
        self.owner = record[L.FAULT_PAGE_OWNER]
        self.namespace = record[L.FAULT_PAGE_NAMESPACE]
        self.birth = record[L.FAULT_PAGE_BIRTH]
        self.flags = record[L.FAULT_PAGE_FLAGS]


class ReportRing:
    """Host buffers that step reports are copied into, used in turn.

    A report has to be read before ``depth`` more are sent; one that was not raises when
    it is read. The engine keeps at most two forwards in flight, so a small ring is enough
    and nothing is allocated a step. Reports without a forward are read at once, and as
    many as there are offenders can be sent between two forwards: they need a ring of
    their own.
    """

    def __init__(self, ledger: Ledger, depth: int = 8) -> None:
        """
        Args:
            ledger: whose report tensor is copied.
            depth: host buffers (pinned when the ledger is on a GPU).
        """
        self._ledger = ledger
        self._cuda = ledger.device.type == "cuda"
        self._buffers = [
            torch.empty(ledger.report.shape, dtype=torch.int64, pin_memory=self._cuda)
            for _ in range(depth)
        ]
        self._sent = 0

    def send(self, batch_size: int, release: int) -> Report:
        """Enqueue the copy of the current faults and verdicts on the current stream.

        Args:
            batch_size: entries of the forward; 0 when only faults are wanted.
            release: number of the last release launch, whose faults are in it.
        """
        rows = self._ledger.faults.shape[0] + batch_size
        host = self._buffers[self._sent % len(self._buffers)][:rows]
        self._sent += 1
        sent = self._sent
        host.copy_(self._ledger.report[:rows], non_blocking=True)
        event = None
        if self._cuda:
            event = torch.cuda.Event()
            event.record()
        return Report(host, event, release, lambda: self._sent - sent < len(self._buffers))


class Report:
    """Verdicts of one forward (possibly of none) and the page faults known by then.

    Attributes:
        release: number of the last release launch whose faults it holds.
    """

    def __init__(
        self,
        host: torch.Tensor,
        event: torch.cuda.Event | None,
        release: int,
        intact: Callable[[], bool],
    ) -> None:
        """
        Args:
            host: int64 (64 + batch_size, 8), fault ring first, then the verdicts.
            event: recorded behind the copy; None if the copy is done already.
            release: see there.
            intact: whether the buffer still holds this report.
        """
        self.release = release
        self._intact = intact
        self._host = host
        self._event = event
        self._head = 1 + L.FAULT_SLOTS

    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return self._event is None or self._event.query()

    def wait(self, engine_wait: Callable[[], None] | None) -> None:
        """Make sure the copy has landed.

        Args:
            engine_wait: the wait that the engine does next for the same forward's
                tokens. Its event lies behind ours on the same stream, so doing it now
                makes the engine's own a no-op; the guard adds none.

        Raises:
            ReportOverrun: it waited too long to be read.
        """
        if not self._intact():
            raise ReportOverrun("a verdict was overwritten before it was read")
        if self.arrived():
            return
        if engine_wait is not None:
            engine_wait()
        else:
            self._event.synchronize()

    def fault_count(self) -> int:
        """Faults recorded since the start, as of this report."""
        return int(self._host[0, 0])

    def faults_since(self, count: int) -> list[PageFault]:
        """Fault records after the first ``count``, oldest first; overwritten ones are lost."""
        total = self.fault_count()
        first = max(count, total - L.FAULT_SLOTS)
        return [
            PageFault(self._host[1 + k % L.FAULT_SLOTS].tolist()) for k in range(first, total)
        ]

    def is_of(self, owners: list[int]) -> bool:
        """Whether the verdicts are those of these row incarnations, in this order."""
        return self._host[self._head :, L.VERDICT_OWNER].tolist() == owners

    def violations(self) -> list[tuple[int, Verdict]]:
        """``(batch entry, verdict)`` of every entry that is not clean."""
        rows = self._host[self._head :].numpy()
        return [
            (
                int(i),
                Verdict(
                    owner=int(rows[i, L.VERDICT_OWNER]),
                    reasons=int(rows[i, L.VERDICT_REASONS]),
                    position=int(rows[i, L.VERDICT_POSITION]),
                    slot=int(rows[i, L.VERDICT_SLOT]),
                    page_owner=int(rows[i, L.VERDICT_PAGE_OWNER]),
                    page_namespace=int(rows[i, L.VERDICT_PAGE_NAMESPACE]),
                    page_birth=int(rows[i, L.VERDICT_PAGE_BIRTH]),
                    page_flags=int(rows[i, L.VERDICT_PAGE_FLAGS]),
                ),
            )
            for i in rows[:, L.VERDICT_REASONS].nonzero()[0]
        ]
