"""The engine's slot allocators with a quarantine behind them.

Both replace the stock class of the same role. Until a guard is attached (the pools are
built before the scheduler is) they behave as stock. Afterwards freed pages go to the
guard and come back, zeroed, in the order in which they were freed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.utils import get_num_new_pages

from sglang_kvguard.core.guard import KVGuard


class _Quarantined:
    """What both allocators share. Page ids are slot ids when the page size is 1.

    Attributes:
        guard: None until attached.
        decode_births: pages that the last decode step took from the pool.
    """

    guard: KVGuard | None = None
    decode_births = 0

    def attach(self, guard: KVGuard, settle: Callable[[], None]) -> None:
        """From now on frees go through ``guard``.

        Args:
            guard: of this pool, which must be unused.
            settle: launches what is queued, waits for it and reads its page faults.
        """
        super().clear()
        guard.flush(rested=True)
        self.free_pages = self.free_pages[:0]
        self.guard, self._settle = guard, settle

    def available_size(self) -> int:
        guard = self.guard
        waiting = 0 if guard is None else len(guard.quarantine)
        return (len(self.free_pages) + waiting) * self.page_size

    def get_all_free_pages(self) -> torch.Tensor:
        if self.guard is None:
            return self.free_pages
        return torch.cat((self.free_pages, *self.guard.quarantine.all_ids()))

    def clear(self) -> None:
        super().clear()
        if self.guard is not None:
            self.guard.flush()
            self.free_pages = self.free_pages[:0]

    def drop_refused(self) -> None:
        """Forget ids that the ledger refused after they were handed back to us.

        Waits for the device; called only when a fault was seen.
        """
        self.free_pages = self.free_pages[self.free_pages != 0]

    def make_room(self, num_pages: int) -> None:
        """Bring free_pages up to ``num_pages`` if the quarantine allows.

        Pages that rested their full time come first. Under the elastic policy the
        shortfall is then made up by the oldest resting pages. Only when even those do not
        suffice, pages that were freed since the last forward are scrubbed and waited for:
        what their release refused has to be known before an id of them is handed out.
        """
        guard = self.guard
        if guard is None or num_pages <= len(self.free_pages):
            return
        taken = guard.quarantine.take_aged(guard.clock())
        short = num_pages - len(self.free_pages) - sum(ids.numel() for ids in taken)
        if short > 0:
            early = guard.quarantine.take_early(short)
            short -= sum(ids.numel() for ids in early)
            if short > 0 and len(guard.quarantine):
                self._settle()
                early += guard.quarantine.take_early(short)
            taken += early
        if taken:
            self.free_pages = torch.cat((self.free_pages, *taken))
            if self.free_pages.is_cuda:
                for ids in taken:
                    ids.record_stream(torch.cuda.current_stream())


class GuardedTokenAllocator(_Quarantined, TokenToKVPoolAllocator):
    """Page size 1: every slot is a page, every allocation a birth."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        self.make_room(need_size)
        self.decode_births = need_size
        return super().alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        if self.guard is None:
            super().free(free_index)
            return
        if free_index.numel():
            # A copy, because callers pass views of page-table rows that they reuse.
            self.guard.free(free_index.to(torch.int64, copy=True))


class GuardedPagedAllocator(_Quarantined, PagedTokenToKVPoolAllocator):
    """Page size above 1."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        self.make_room(need_size // self.page_size)
        return super().alloc(need_size)

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        if self.guard is not None:
            if num_new_pages is None:
                num_new_pages = get_num_new_pages(
                    seq_lens=seq_lens_cpu, page_size=self.page_size, prefix_lens=prefix_lens_cpu
                )
            self.make_room(num_new_pages)
        return super().alloc_extend(
            prefix_lens,
            prefix_lens_cpu,
            seq_lens,
            seq_lens_cpu,
            last_loc,
            extend_num_tokens,
            num_new_pages,
        )

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        if self.guard is not None and len(self.free_pages) < len(seq_lens):
            self.make_room(
                get_num_new_pages(seq_lens=seq_lens_cpu, page_size=self.page_size, decode=True)
            )
        free = len(self.free_pages)
        locs = super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)
        self.decode_births = free - len(self.free_pages)
        return locs

    def free(self, free_index: torch.Tensor) -> None:
        if self.guard is None:
            super().free(free_index)
        elif free_index.numel():
            # Whoever frees loose slots instead of a segment of a row pays for the
            # stock allocator's own synchronising unique.
            self.guard.free(torch.unique(free_index // self.page_size).to(torch.int64))

    def free_page_ids(self, page_ids: torch.Tensor) -> None:
        if self.guard is None:
            super().free_page_ids(page_ids)
        elif page_ids.numel():
            # No free group: a group would mix the pages of several requests, and with
            # them on whose behalf each is freed. The quarantine batches them anyway.
            self.guard.free(page_ids.to(torch.int64, copy=True))
