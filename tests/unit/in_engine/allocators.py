"""The guarded allocators beside the stock ones, driven by the same random calls."""

from __future__ import annotations

import contextlib
import random

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from sglang_kvguard.core.guard import KVGuard
from sglang_kvguard.core.ledger import Ledger
from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.core.tags import SHARED_NAMESPACE, RowTag
from sglang_kvguard.engine.allocators import GuardedPagedAllocator, GuardedTokenAllocator
from sglang_kvguard.kernels.spans import Span, SpanTable

PAGES, ROWS, TTL = 24, 6, 10.0


class _Twins:
    """One guarded and one stock allocator, and the rows that were allocated from both.

    Slots differ, because the quarantine hands pages out in another order; what has to
    agree is whether a call succeeds, the shape of what it returns, where in a page each
    slot lies, and every count.
    """

    def __init__(self, page_size: int, rng: random.Random) -> None:
        self.page_size, self.rng, self.now = page_size, rng, 0.0
        size = PAGES * page_size
        common = dict(dtype=torch.float32, device="cpu", kvcache=None, need_sort=False)
        if page_size == 1:
            self.stock = TokenToKVPoolAllocator(size, **common)
            self.guarded = GuardedTokenAllocator(size, **common)
        else:
            self.stock = PagedTokenToKVPoolAllocator(size, page_size, **common)
            self.guarded = GuardedPagedAllocator(size, page_size, **common)
        self.bytes = torch.zeros((PAGES + 1) * page_size, 8)
        self.guard = KVGuard(
            ledger=Ledger(PAGES, ROWS, page_size, "cpu"),
            spans=SpanTable.build([Span.of_slots("kv", self.bytes, page_size)], PAGES, "cpu"),
            policy=GuardPolicy(scope="shared", ttl=TTL),
            clock=lambda: self.now,
        )
        self.guarded.attach(self.guard, self.settle)
        self.tags: dict[int, RowTag] = {}
        # Slots of each living row: (stock, guarded), in row order.
        self.rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    # -- random calls ---------------------------------------------------------------------

    def extend(self) -> None:
        """A new row, or a longer one, or both at once."""
        new = [row for row in range(1, ROWS + 1) if row not in self.rows]
        batch = self.rng.sample(new, min(len(new), self.rng.randint(0, 2)))
        batch += self.rng.sample(sorted(self.rows), min(len(self.rows), self.rng.randint(0, 1)))
        if not batch:
            return
        lengths = [self.length(row) for row in batch]
        grow = [self.rng.randint(1, 4 * self.page_size) for _ in batch]
        if self.page_size == 1:
            got = [a.alloc(sum(grow)) for a in (self.stock, self.guarded)]
        else:
            got = [self._alloc_extend(side, batch, lengths, grow) for side in (0, 1)]
        self._took(batch, grow, got)

    def decode(self) -> None:
        """One more slot for some of the rows."""
        batch = self.rng.sample(sorted(self.rows), self.rng.randint(0, len(self.rows)))
        if not batch:
            return
        if self.page_size == 1:
            got = [a.alloc(len(batch)) for a in (self.stock, self.guarded)]
        else:
            seq = torch.tensor([self.length(row) + 1 for row in batch])
            last = [torch.stack([self.rows[row][side][-1] for row in batch]) for side in (0, 1)]
            got = [
                allocator.alloc_decode(seq, seq, last[side])
                for side, allocator in enumerate((self.stock, self.guarded))
            ]
        self._took(batch, [1] * len(batch), got)

    def end(self) -> None:
        """A row ends: its slots come back, whole, in two segments, or loose."""
        if not self.rows:
            return
        row = self.rng.choice(sorted(self.rows))
        how = self.rng.choice(("segment", "segments", "loose"))
        slots = self.rows.pop(row)
        cut = self.rng.randint(0, slots[0].numel()) // self.page_size * self.page_size
        with self.guard.acting(self.tags.pop(row).owner):
            for allocator, mine in zip((self.stock, self.guarded), slots):
                if how == "segment":
                    allocator.free_segment(mine, start_pos=0)
                elif how == "segments":
                    allocator.free_segments([(mine[:cut], 0), (mine[cut:], cut)])
                else:
                    allocator.free(mine[torch.randperm(mine.numel())])

    def end_in_a_group(self) -> None:
        """Several rows end inside one free group, as at the end of a batch."""
        for allocator in (self.stock, self.guarded):
            allocator.free_group_begin()
        for _ in range(self.rng.randint(1, 3)):
            self.end()
        for allocator in (self.stock, self.guarded):
            allocator.free_group_end()

    def flush(self) -> None:
        """Everything is thrown away at once; rare."""
        if self.rng.random() < 0.1:
            self.rows.clear()
            self.tags.clear()
            self.stock.clear()
            self.guarded.clear()

    def launch(self) -> None:
        """Another forward is launched: what was freed is released and scrubbed."""
        self.guard.launch()

    def settle(self) -> None:
        """Verdicts arrive. Legitimate use has none."""
        faults = self.guard.new_faults(self.guard.report_faults())
        assert not faults, faults

    def wait(self) -> None:
        self.now += self.rng.uniform(0, TTL)

    # -- helpers --------------------------------------------------------------------------

    def length(self, row: int) -> int:
        return self.rows[row][0].numel() if row in self.rows else 0

    def _alloc_extend(
        self, side: int, batch: list[int], lengths: list[int], grow: list[int]
    ) -> torch.Tensor | None:
        prefix, seq = torch.tensor(lengths), torch.tensor([n + g for n, g in zip(lengths, grow)])
        last = torch.tensor(
            [int(self.rows[row][side][-1]) if row in self.rows else -1 for row in batch]
        )
        allocator = (self.stock, self.guarded)[side]
        return allocator.alloc_extend(prefix, prefix, seq, seq, last, sum(grow))

    def _took(self, batch: list[int], grow: list[int], got: list[torch.Tensor | None]) -> None:
        stock, guarded = got
        assert (stock is None) == (guarded is None), "one succeeded, the other did not"
        if stock is None:
            return
        assert stock.shape == guarded.shape and stock.dtype == guarded.dtype
        assert torch.equal(stock % self.page_size, guarded % self.page_size)
        fresh = [row not in self.rows for row in batch]
        for row in (row for row, is_new in zip(batch, fresh) if is_new):
            self.tags[row] = self.guard.mint(row, SHARED_NAMESPACE)
        want = self.guard.want([self.tags[row] for row in batch], grow, fresh)
        self.guard.stamp(want, guarded)
        assert int((self.bytes[guarded] != 0).sum()) == 0, "what is handed out is zero"
        # The forward they were allocated for: its launch checks the births, then it writes.
        self.guard.launch()
        self.bytes[guarded] = 1.0
        empty = torch.zeros(0, dtype=torch.int64)
        for row, mine, theirs in zip(batch, stock.split(grow), guarded.split(grow)):
            before = self.rows.get(row, (empty, empty))
            self.rows[row] = (torch.cat((before[0], mine)), torch.cat((before[1], theirs)))

    def check(self) -> None:
        assert self.stock.available_size() == self.guarded.available_size()
        free = self.guarded.get_all_free_pages()
        held = [slots // self.page_size for _, slots in self.rows.values()]
        held = torch.cat([pages.unique() for pages in held]) if held else free[:0]
        everything = torch.cat((free, held)).sort().values
        assert torch.equal(everything, torch.arange(1, PAGES + 1)), "each page is in one place"
        assert self.stock.get_all_free_pages().numel() == free.numel()


CALLS = (
    "extend", "extend", "decode", "decode", "decode", "end", "end_in_a_group",
    "flush", "launch", "launch", "settle", "wait",
)  # fmt: skip


def run(page_size: int, seed: int, steps: int) -> dict[str, int]:
    """Drive both with ``steps`` random calls.

    Returns:
        How often each call was made, how often the pool was dry, and how many pages
        left the quarantine before and after their time.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    twins = _Twins(page_size, rng)
    counts = dict.fromkeys(CALLS, 0)
    for _ in range(steps):
        call = rng.choice(CALLS)
        getattr(twins, call)()
        counts[call] += 1
        twins.check()
    quarantine = twins.guard.quarantine
    return counts | {"early": quarantine.early_releases, "full": quarantine.full_releases}


def broken(page_size: int, seed: int, steps: int) -> str:
    """The same with an allocator that forgets one page of each free: what says so."""
    stock_free = KVGuard.free
    with contextlib.ExitStack() as stack:
        KVGuard.free = lambda guard, ids: stock_free(guard, ids[1:])
        stack.callback(setattr, KVGuard, "free", stock_free)
        try:
            run(page_size, seed, steps)
        except AssertionError as error:
            return str(error) or "counts differ"
    return ""
