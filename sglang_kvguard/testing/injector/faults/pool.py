"""Bytes of the pool that somebody writes who has no business there."""

from __future__ import annotations

from typing import Any

from sglang_kvguard.testing.injector.conditions import When
from sglang_kvguard.testing.injector.engine_view import EngineView

# Any value that is not zero in every dtype a pool may have.
PATTERN = 1


def write_into_free_pages(
    view: EngineView, when: When, *, count: int = 1, layer: int | None = None
) -> dict[str, Any]:
    """K and V are written into the free pages that are handed out next.

    Args:
        view: the engine.
        when: conditions only.
        count: pages.
        layer: one layer only; all by default.
    """
    pages = view.free_pages()[:count].tolist()
    slots = view.slots_of(pages)
    for name, buffer in view.buffers():
        if layer is None or name.endswith(f"[{layer}]"):
            buffer[slots] = PATTERN
    return {"pages": pages}
