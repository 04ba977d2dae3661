"""Power-on self-test: the guard works on the pool of this very server, or it does not start.

It lives the life of a page on the real buffers and the real page table, including the
faults that the guard exists for, and looks at the result each time. A kernel that does
nothing, a table of addresses that misses a layer, a verdict that never arrives: each
fails here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_kvguard.core.guard import KVGuard
from sglang_kvguard.core.tags import RowTag
from sglang_kvguard.core.violations import Verdict
from sglang_kvguard.kernels import layout as L

# Rows of the page table that the test borrows while no request holds one.
_ROW_A, _ROW_B = 1, 2

# Written to every word of a page; not zero in any integer width.
_PATTERN = 0x25


class SelfTestFailed(RuntimeError):
    """The guard did not behave on this server's pool; it must not serve."""


@dataclass(frozen=True)
class SelfTestResult:
    """Steps that were exercised and passed, in order."""

    steps: tuple[str, ...]


def run_self_test(guard: KVGuard, req_to_token: torch.Tensor) -> SelfTestResult:
    """Exercise scrub, fence, quarantine and verdicts before the server accepts traffic.

    Uses the first and the last pages of the pool and two rows of the page table. May wait for the
    device. The caller clears the pool afterwards.

    Args:
        guard: guard of an unused pool.
        req_to_token: int32 (rows, context), the engine's page table.

    Raises:
        SelfTestFailed: naming the step, what was expected and what was found.
    """
    return _SelfTest(guard, req_to_token).run()


class _SelfTest:
    def __init__(self, guard: KVGuard, req_to_token: torch.Tensor) -> None:
        self.guard = guard
        self.table = req_to_token
        self.page_size = guard.ledger.page_size
        self.steps: list[str] = []
        last = guard.ledger.num_pages
        if last < 4 or req_to_token.shape[0] <= _ROW_B:
            raise SelfTestFailed(
                f"self-test: the pool has {last} pages and {req_to_token.shape[0] - 1} rows; it "
                "needs at least 4 pages and 2 rows: raise --max-total-tokens or "
                "--max-running-requests"
            )
        # Both ends of the pool, so that an address table that is off by one shows.
        self.pages_a, self.pages_b = [1, last], [2, last - 1]

    def run(self) -> SelfTestResult:
        guard = self.guard
        a = guard.mint(_ROW_A, None)
        b = guard.mint(_ROW_B, None)

        self._born(a, self.pages_a, "birth")
        self._expect_clean("a row reads its own pages", a)
        self._fill(self.pages_a)

        self._born(b, self.pages_b, "second birth")
        entry = self.table[_ROW_B, 0].item()
        self.table[_ROW_B, 0] = self.table[_ROW_A, 0]
        self._expect("a row entry pointed at another's page", b, L.R_FOREIGN | L.R_NAMESPACE)
        self.table[_ROW_B, 0] = entry
        self._expect("poison is sticky", b, L.R_DIGEST | L.R_FOREIGN | L.R_NAMESPACE)

        self._free(a, self.pages_a)
        self._expect("a freed page", a, L.R_DEAD)
        self._check_zero_bytes("scrub", self.pages_a)
        if len(guard.quarantine) != len(self.pages_a):
            self._fail("quarantine", f"{len(self.pages_a)} pages", f"{len(guard.quarantine)} pages")
        self.steps.append("quarantine holds freed pages")

        self._free(a, self.pages_a[:1])
        self._expect_fault("double free", L.F_DOUBLE_FREE)

        self._fill(self.pages_a[-1:])
        c = guard.mint(_ROW_A, None)
        self._born(c, self.pages_a, "rebirth")
        if guard.policy.verify_zero == "always":
            self._expect("a write after free", c, L.R_DIRTY | L.R_TAINTED)

        self._born(b, self.pages_a[:1], "alias", fresh=False)
        self._expect_fault("a page handed out twice", L.F_ALIAS)
        self.table[[_ROW_A, _ROW_B]] = 0
        return SelfTestResult(tuple(self.steps))

    # -- moves ----------------------------------------------------------------------------

    def _locs(self, pages: list[int]) -> torch.Tensor:
        ids = torch.tensor(pages, dtype=torch.int64, device=self.guard.ledger.device)
        offsets = torch.arange(self.page_size, device=ids.device)
        return (ids[:, None] * self.page_size + offsets).flatten()

    def _born(self, tag: RowTag, pages: list[int], step: str, fresh: bool = True) -> None:
        """Give whole pages to a row, as a prefill does, and fence that prefill."""
        locs = self._locs(pages)
        want = self.guard.want([tag], [locs.numel()], [fresh])
        self.guard.stamp(want, locs)
        if fresh:
            self.table[tag.row, : locs.numel()] = locs.to(torch.int32)
            self.verdict = self._fence(tag, want, locs.numel(), locs.clone())
            self.steps.append(step)
        else:
            self.guard.launch_now()

    def _free(self, tag: RowTag, pages: list[int]) -> None:
        with self.guard.acting(tag.owner):
            self.guard.free(torch.tensor(pages, device=self.guard.ledger.device))

    def _fill(self, pages: list[int]) -> None:
        for view in self.guard.spans.views:
            view[pages] = _PATTERN

    def _fence(self, tag: RowTag, want: torch.Tensor, length: int, out: torch.Tensor) -> Verdict:
        device = self.guard.ledger.device
        with self.guard.launch_stream():
            report = self.guard.fence(
                want=want,
                req_to_token=self.table,
                rows=torch.tensor([tag.row], dtype=torch.int64, device=device),
                seq_lens=torch.tensor([length], dtype=torch.int64, device=device),
                out_locs=out,
                max_len=length,
            )
        report.wait(None)
        self.faults = self.guard.new_faults(report)
        found = report.violations()
        return found[0][1] if found else Verdict(owner=tag.owner, reasons=0)

    def _read(self, tag: RowTag) -> Verdict:
        """Fence a forward that reads the row's two pages and writes nothing."""
        want = self.guard.want([tag], [0], [False])
        out = torch.zeros(0, dtype=torch.int64, device=self.guard.ledger.device)
        return self._fence(tag, want, 2 * self.page_size, out)

    # -- expectations -----------------------------------------------------------------------

    def _fail(self, step: str, expected: str, found: str) -> None:
        raise SelfTestFailed(f"self-test step {step!r}: expected {expected}, found {found}")

    def _expect_clean(self, step: str, tag: RowTag) -> None:
        for verdict in (self.verdict, self._read(tag)):
            if verdict.reasons:
                self._fail(step, "a clean verdict", f"reasons {verdict.reasons:#x}")
        self.steps.append(step)

    def _expect(self, step: str, tag: RowTag, any_of: int) -> None:
        verdict = self._read(tag)
        if not verdict.reasons & any_of:
            self._fail(step, f"one of reasons {any_of:#x}", f"{verdict.reasons:#x}")
        self.steps.append(step)

    def _expect_fault(self, step: str, kind: int) -> None:
        report = self.guard.report_faults()
        report.wait(None)
        kinds = [fault.kind for fault in self.guard.new_faults(report)]
        if kind not in kinds:
            self._fail(step, f"page fault {kind}", f"{kinds}")
        self.steps.append(step)

    def _check_zero_bytes(self, step: str, pages: list[int]) -> None:
        dirty = sum(int((view[pages] != 0).sum()) for view in self.guard.spans.views)
        if dirty:
            self._fail(step, "only zero bytes in freed pages", f"{dirty} non-zero words")
        self.steps.append(step)
