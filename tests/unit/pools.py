"""A small pool with a guard, for unit tests of the core."""

from __future__ import annotations

import torch

from sglang_kvguard.core.guard import KVGuard
from sglang_kvguard.core.ledger import Ledger
from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.core.tags import RowTag
from sglang_kvguard.core.verdicts import PageFault
from sglang_kvguard.core.violations import Verdict
from sglang_kvguard.kernels.spans import Span, SpanTable

CONTEXT = 256


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SmallPool:
    """KV buffers, a page table and a guard, driven by hand.

    Attributes:
        guard, table, buffers, clock: the parts.
        page_faults: everything the guard reported so far.
    """

    def __init__(self, *, page_size: int = 4, num_pages: int = 16, num_rows: int = 4, **policy):
        self.page_size = page_size
        self.buffers = [torch.zeros((num_pages + 1) * page_size, 2, 8) for _ in range(4)]
        self.clock = Clock()
        self.guard = KVGuard(
            ledger=Ledger(num_pages, num_rows, page_size, "cpu"),
            spans=SpanTable.build(
                [Span.of_slots(f"b{i}", b, page_size) for i, b in enumerate(self.buffers)],
                num_pages,
                "cpu",
            ),
            policy=GuardPolicy(**policy),
            clock=self.clock,
        )
        self.table = torch.zeros(num_rows + 1, CONTEXT, dtype=torch.int32)
        self.lengths: dict[int, int] = {}
        self.page_faults: list[PageFault] = []

    def locs(self, pages: list[int]) -> torch.Tensor:
        ids = torch.tensor(pages, dtype=torch.int64)
        return (ids[:, None] * self.page_size + torch.arange(self.page_size)).flatten()

    def extend(self, tag: RowTag, pages: list[int], *, fresh: bool = False) -> Verdict:
        """Give whole pages to a row and fence the forward that writes them."""
        locs = self.locs(pages)
        start = 0 if fresh else self.lengths[tag.row]
        end = start + locs.numel()
        want = self.guard.want([tag], [locs.numel()], [fresh])
        self.guard.stamp(want, locs)
        self.table[tag.row, start:end] = locs.to(torch.int32)
        self.lengths[tag.row] = end
        return self.forward(tag, want, end, locs.clone())

    def read(self, tag: RowTag, length: int | None = None) -> Verdict:
        """Fence a forward that only reads."""
        want = self.guard.want([tag], [0], [False])
        return self.forward(
            tag, want, self.lengths[tag.row] if length is None else length, torch.zeros(0).long()
        )

    def forward(
        self, tag: RowTag, want: torch.Tensor, length: int, out: torch.Tensor, row: int | None = None
    ) -> Verdict:
        report = self.guard.fence(
            want=want,
            req_to_token=self.table,
            rows=torch.tensor([tag.row if row is None else row]),
            seq_lens=torch.tensor([length]),
            out_locs=out,
            max_len=length,
        )
        self.page_faults += self.guard.new_faults(report)
        found = report.violations()
        return found[0][1] if found else Verdict(owner=tag.owner, reasons=0)

    def free(self, tag: RowTag | None, pages: list[int]) -> None:
        """Give pages back on behalf of ``tag``; None is the prefix cache."""
        with self.guard.acting(0 if tag is None else tag.owner):
            self.guard.free(torch.tensor(pages))

    def settle(self) -> list[PageFault]:
        """Launch what is queued and return the faults it brought."""
        faults = self.guard.new_faults(self.guard.report_faults())
        self.page_faults += faults
        return faults

    def bytes_of(self, pages: list[int]) -> int:
        """Non-zero elements in these pages, over all buffers."""
        locs = self.locs(pages)
        return sum(int((buffer[locs] != 0).sum()) for buffer in self.buffers)

    def fill(self, pages: list[int], value: float = 1.0) -> None:
        for buffer in self.buffers:
            buffer[self.locs(pages)] = value
