"""What the injector sees of the engine: requests, their rows and pages, the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler


class EngineView:
    """One scheduler, looked at between two steps of its loop.

    Attributes:
        scheduler: the engine's object.
        watched: pages of watched requests, in row order, as last seen.
        idle_passes: passes of the loop, up to now, that found nothing to do.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.watched: dict[str, list[int]] = {}
        self.idle_passes = 0

    @property
    def allocator(self):
        return self.scheduler.token_to_kv_pool_allocator

    @property
    def page_size(self) -> int:
        return self.allocator.page_size

    @property
    def req_to_token(self) -> torch.Tensor:
        """The page table, int32 (rows, context)."""
        return self.scheduler.req_to_token_pool.req_to_token

    def running(self) -> list[Req]:
        """Requests that hold a row and have not ended."""
        scheduler = self.scheduler
        batches = (scheduler.running_batch, scheduler.last_batch)
        reqs = [req for batch in batches if batch is not None for req in batch.reqs]
        reqs += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
        unique = {id(req): req for req in reqs}
        return [req for req in unique.values() if req.kv.holds_kv and not req.finished()]

    def find(self, rid: str) -> Req | None:
        """A running request by its id."""
        return next((req for req in self.running() if req.rid == rid), None)

    def row(self, rid: str) -> torch.Tensor:
        """The page-table row of a running request; writing to it writes the table."""
        return self.req_to_token[self._running(rid).kv.req_pool_idx]

    def pages(self, rid: str) -> list[int]:
        """Pages of a running request in row order, or of a watched one that has ended."""
        if self.find(rid) is None and self.watched.get(rid):
            return self.watched[rid]
        req = self._running(rid)
        row = self.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len]
        return (row[:: self.page_size] // self.page_size).tolist()

    def has_ended(self, rid: str) -> bool:
        """Whether a watched request ran and is over."""
        return bool(self.watched.get(rid)) and self.find(rid) is None

    def note_pass(self) -> None:
        """One more pass of the loop begins: count it, and look at the watched requests."""
        self.idle_passes = self.idle_passes + 1 if self.scheduler.is_fully_idle() else 0
        if not self.watched:
            return
        for req in self.running():
            if req.rid in self.watched:
                self.watched[req.rid] = self.pages(req.rid)

    def free_pages(self) -> torch.Tensor:
        """Ids of all free pages (quarantined ones too), the next to be used first."""
        return self.allocator.get_all_free_pages()

    def slots_of(self, pages: list[int]) -> torch.Tensor:
        """All slots of these pages, in order."""
        ids = torch.tensor(pages, dtype=torch.int64, device=self.allocator.device)
        offsets = torch.arange(self.page_size, device=ids.device)
        return (ids[:, None] * self.page_size + offsets).flatten()

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Name and tensor (slots, ...) of every buffer of the pool, layer by layer."""
        pool = self.allocator.get_kvcache()
        return [
            (f"{name}[{layer}]", buffer)
            for name, buffers in (("k", pool.k_buffer), ("v", pool.v_buffer))
            for layer, buffer in enumerate(buffers)
        ]

    def _running(self, rid: str) -> Req:
        req = self.find(rid)
        if req is None:
            raise LookupError(f"request {rid} does not run")
        return req
