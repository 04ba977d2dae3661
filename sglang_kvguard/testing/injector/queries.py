"""Read-only questions about a server, answered between two steps of its loop."""

from __future__ import annotations

import sys
from typing import Any

import torch

from sglang_kvguard.testing.injector.engine_view import EngineView


# Passes after which everything that a request left behind was dealt with: one that
# processes its last result, one that finds no batch, one that runs the idle work.
_SETTLED = 4


def settled(view: EngineView) -> bool:
    """Whether nothing runs and the engine has done its idle work since."""
    return view.idle_passes >= _SETTLED


def free_slots(view: EngineView, rids: list[str] | None = None) -> dict[str, int]:
    """How many free slots there are, and how many of them hold a byte that is not zero.

    Args:
        view: the engine.
        rids: count only slots that one of these watched requests had.
    """
    pages = set(view.free_pages().tolist())
    if rids is not None:
        pages &= {page for rid in rids for page in view.pages(rid)}
    slots = view.slots_of(sorted(pages))
    used = torch.zeros(slots.numel(), dtype=torch.bool, device=slots.device)
    for _, buffer in view.buffers():
        used |= (_bytes(buffer, slots) != 0).any(dim=1)
    return {"free": slots.numel(), "not_zero": int(used.sum())}


def free_bytes(view: EngineView) -> dict[str, Any]:
    """Bytes of all free pages that are not zero: their number, and by buffer."""
    pages = view.free_pages().unique()
    slots = view.slots_of(pages.tolist())
    found = {name: int(_bytes(buffer, slots).count_nonzero()) for name, buffer in view.buffers()}
    return {
        "pages": pages.numel(),
        "not_zero": sum(found.values()),
        "by_buffer": {name: count for name, count in found.items() if count},
    }


def fresh_allocation(view: EngineView, pages: int) -> dict[str, int]:
    """Allocate pages, look at their bytes before anybody writes, and undo it.

    Undone by hand and not by ``free``: nobody owned them, so for the guard there is
    nothing that could be freed.
    """
    allocator = view.allocator
    slots = allocator.alloc(pages * view.page_size)
    if slots is None:
        raise RuntimeError(f"the pool cannot serve {pages} pages")
    not_zero = sum(int(_bytes(buffer, slots).count_nonzero()) for _, buffer in view.buffers())
    taken = slots[:: view.page_size] // view.page_size
    allocator.free_pages = torch.cat((taken, allocator.free_pages))
    return {"pages": taken.numel(), "not_zero": not_zero}


def running(view: EngineView) -> list[dict[str, Any]]:
    """Requests that hold a row: id, row, slots held, tokens produced, pages."""
    return [
        {
            "rid": req.rid,
            "row": req.kv.req_pool_idx,
            "allocated": req.kv.kv_allocated_len,
            "produced": len(req.output_ids),
            "pages": view.pages(req.rid),
        }
        for req in view.running()
    ]


def pages(view: EngineView, rid: str) -> list[int]:
    """Pages of a request that runs, or was watched while it ran, in row order."""
    return view.pages(rid)


def state(view: EngineView) -> dict[str, Any]:
    """The scheduler's counts."""
    scheduler, allocator = view.scheduler, view.allocator
    free = view.free_pages()
    return {
        "running": len(view.running()),
        "waiting": len(scheduler.waiting_queue),
        "idle": scheduler.is_fully_idle(),
        "page_size": view.page_size,
        "size": allocator.size,
        "available": allocator.available_size(),
        "free_pages": free.numel(),
        "free_pages_listed_twice": free.numel() - free.unique().numel(),
    }


def guard(view: EngineView) -> dict[str, Any] | None:
    """The guard's counts; None in a stock server."""
    # Not imported: a stock server must stay one.
    module = sys.modules.get("sglang_kvguard.engine.runtime")
    runtime = module.current() if module is not None else None
    if runtime is None:
        return None
    core = runtime.guard
    return {
        "violations": runtime.incidents.violations,
        "page_faults": dict(runtime.incidents.page_faults),
        "retired": core.retired,
        "quarantined": len(core.quarantine),
        "early_releases": core.quarantine.early_releases,
        "full_releases": core.quarantine.full_releases,
        "scrubbed": core.num_scrubbed_pages,
    }


QUERIES = {
    query.__name__: query
    for query in (settled, free_slots, free_bytes, fresh_allocation, running, pages, state, guard)
}


def _bytes(buffer: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """uint8 (slots, bytes of a slot)."""
    return buffer[slots].reshape(slots.numel(), -1).contiguous().view(torch.uint8)
