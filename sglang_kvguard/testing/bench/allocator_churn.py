"""Allocate and free through the stock and the guarded allocator, in alternation."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

from sglang_kvguard.core.guard import KVGuard
from sglang_kvguard.core.ledger import Ledger
from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.engine.allocators import GuardedPagedAllocator
from sglang_kvguard.kernels.spans import Span, SpanTable
from sglang_kvguard.testing.bench.launches import recorded

PAGE_SIZE = 16


@dataclass(frozen=True)
class ChurnCost:
    """One pool size and batch.

    Attributes:
        pages, batch: pool size in pages; pages allocated and freed at a time.
        stock, guarded: operations (one allocation and one free) a second, medians.
        ratio: median over the pairs of guarded time by stock time.
        spread: 10th and 90th percentile of that ratio.
    """

    pages: int
    batch: int
    stock: float
    guarded: float
    ratio: float
    spread: tuple[float, float]


def measure(pages: int, batch: int, pairs: int = 30, rounds: int = 50) -> ChurnCost:
    """Measure ``pairs`` alternations of ``rounds`` operations each.

    The guarded side includes what its next launch does on the host for the freed pages.
    """
    size = pages * PAGE_SIZE
    arguments = dict(
        size=size, page_size=PAGE_SIZE, dtype=torch.float32, device="cpu", kvcache=None,
        need_sort=False,
    )  # fmt: skip
    buffer = torch.zeros((pages + 1) * PAGE_SIZE, 1, 1, dtype=torch.uint8)
    stock, guarded = PagedTokenToKVPoolAllocator(**arguments), GuardedPagedAllocator(**arguments)
    guard = KVGuard(
        ledger=Ledger(pages, 1, PAGE_SIZE, "cpu"),
        spans=SpanTable.build([Span.of_slots("b", buffer, PAGE_SIZE)], pages, "cpu"),
        policy=GuardPolicy(),
        clock=time.monotonic,
    )
    times: dict[str, list[float]] = {"stock": [], "guarded": []}

    def churn(allocator, after) -> float:
        begin = time.perf_counter()
        for _ in range(rounds):
            locs = allocator.alloc(batch * PAGE_SIZE)
            allocator.free_segment(locs, start_pos=0)
            after()
        return (time.perf_counter() - begin) / rounds

    with recorded():
        guarded.attach(guard, lambda: guard.new_faults(guard.report_faults()))
        for pair in range(pairs + 2):
            order = ("stock", "guarded") if pair % 2 else ("guarded", "stock")
            for name in order:
                if name == "stock":
                    seconds = churn(stock, lambda: None)
                else:
                    seconds = churn(guarded, lambda: _step(guard))
                if pair >= 2:
                    times[name].append(seconds)
    ratios = sorted(g / s for g, s in zip(times["guarded"], times["stock"], strict=True))
    deciles = statistics.quantiles(ratios, n=10)
    return ChurnCost(
        pages=pages,
        batch=batch,
        stock=1 / statistics.median(times["stock"]),
        guarded=1 / statistics.median(times["guarded"]),
        ratio=statistics.median(ratios),
        spread=(deciles[0], deciles[8]),
    )


def _step(guard: KVGuard) -> None:
    """What the next forward and its result do about pages that were freed."""
    guard.launch()
    guard.new_faults(guard.report_faults())
