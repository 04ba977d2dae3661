"""Pages that are freed, or handed out, when they must not be."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import Any

import torch

from sglang_kvguard.testing.injector.conditions import When
from sglang_kvguard.testing.injector.engine_view import EngineView


def free_pages_of(
    view: EngineView,
    when: When,
    *,
    other: str,
    first: int = 0,
    count: int = 1,
    as_owner: bool = False,
) -> dict[str, Any]:
    """Free pages of a request: of one that runs on, or once more of one that has ended.

    Args:
        view: the engine.
        when: conditions only.
        other: whose pages.
        first, count: which of them, in row order.
        as_owner: in the owner's name, as a bug in its own release would do; otherwise in
            nobody's. The same for a stock engine, which does not ask who frees.
    """
    pages = view.pages(other)[first : first + count]
    slots = view.slots_of(pages)
    with _acting_for(view, other) if as_owner else contextlib.nullcontext():
        view.allocator.free_segment(slots, start_pos=first * view.page_size)
    return {"pages": pages}


def hand_out_again(
    view: EngineView, when: When, *, other: str, page: int = 0
) -> dict[str, Any]:
    """A page that a running request holds is put in front of the free list.

    Args:
        view: the engine.
        when: conditions only.
        other: who holds it.
        page: which of its pages, in row order.
    """
    allocator = view.allocator
    again = torch.tensor(
        [view.pages(other)[page]], dtype=allocator.free_pages.dtype, device=allocator.device
    )
    allocator.free_pages = torch.cat((again, allocator.free_pages))
    return {"pages": again.tolist()}


def _acting_for(view: EngineView, rid: str) -> AbstractContextManager:
    module = sys.modules.get("sglang_kvguard.engine.runtime")
    runtime = module.current() if module is not None else None
    if runtime is None:
        return contextlib.nullcontext()
    return runtime.guard.acting(view.find(rid).kvguard_tag.owner)
