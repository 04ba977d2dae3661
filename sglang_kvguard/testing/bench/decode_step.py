"""The guard's host work of one decode step, as the engine seams do it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from sglang_kvguard.core.guard import KVGuard
from sglang_kvguard.core.ledger import Ledger
from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.kernels.spans import Span, SpanTable
from sglang_kvguard.testing.bench.launches import recorded
from sglang_kvguard.testing.bench.sync_calls import SyncCounter

PAGE_SIZE = 16
CONTEXT = 1024


@dataclass(frozen=True)
class DecodeCost:
    """Cost of one decode step.

    Attributes:
        batch: requests in it.
        microseconds: median host time that the guard adds, Triton launches excluded.
        p99_microseconds: 99th percentile of the same.
        launches: kernel launches a step, by kernel.
        sync_calls: calls that would wait for the device, by kind.
    """

    batch: int
    microseconds: float
    p99_microseconds: float
    launches: dict[str, float]
    sync_calls: dict[str, int]


class _Bench:
    def __init__(self, batch: int) -> None:
        pages = batch * CONTEXT // PAGE_SIZE
        buffers = [torch.zeros((pages + 1) * PAGE_SIZE, 1, 2) for _ in range(2)]
        self.guard = KVGuard(
            ledger=Ledger(pages, batch, PAGE_SIZE, "cpu"),
            spans=SpanTable.build(
                [Span.of_slots(f"b{i}", b, PAGE_SIZE) for i, b in enumerate(buffers)], pages, "cpu"
            ),
            policy=GuardPolicy(scope="shared"),
            clock=time.monotonic,
        )
        self.reqs = [object() for _ in range(batch)]
        self.known = list(self.reqs)
        self.tags = [self.guard.mint(row, 1) for row in range(1, batch + 1)]
        self.owners = [tag.owner for tag in self.tags]
        self.want = self.guard.want(self.tags, [1] * batch, [False] * batch)
        self.table = torch.zeros((batch + 1, CONTEXT), dtype=torch.int32)
        self.rows = torch.arange(1, batch + 1)
        self.lengths = torch.full((batch,), CONTEXT // 2)
        self.locs = torch.arange(PAGE_SIZE, PAGE_SIZE + batch)

    def step(self) -> None:
        """What the allocation, forward and result seams add to a decode step."""
        if self.known != self.reqs:
            raise AssertionError("the batch does not change in this benchmark")
        self.guard.stamp(self.want, self.locs)
        report = self.guard.fence(
            want=self.want,
            req_to_token=self.table,
            rows=self.rows,
            seq_lens=self.lengths,
            out_locs=self.locs,
            max_len=CONTEXT // 2,
        )
        report.wait(None)
        # Nothing was launched, so the answer means nothing here; its cost does.
        report.is_of(self.owners)
        self.guard.new_faults(report)
        report.violations()

    def device_tensors(self) -> set[int]:
        ledger = self.guard.ledger
        tensors = (
            ledger.pages, ledger.history, ledger.seals, ledger.report, self.want, self.table,
            self.rows, self.lengths, self.locs,
        )  # fmt: skip
        return {t.untyped_storage().data_ptr() for t in tensors}


def measure(batch: int, steps: int = 2000) -> DecodeCost:
    """Time ``steps`` decode steps of ``batch`` requests and count what they do."""
    bench = _Bench(batch)
    with recorded() as launched:
        for _ in range(50):
            bench.step()
        launched.clear()
        times = []
        for _ in range(steps):
            begin = time.perf_counter_ns()
            bench.step()
            times.append((time.perf_counter_ns() - begin) / 1000)
        launches = {name: count / steps for name, count in sorted(launched.items())}
        counter = SyncCounter(bench.device_tensors())
        with counter:
            for _ in range(10):
                bench.step()
    return DecodeCost(
        batch=batch,
        microseconds=statistics.median(times),
        p99_microseconds=statistics.quantiles(times, n=100)[98],
        launches=launches,
        sync_calls=dict(counter.calls),
    )
