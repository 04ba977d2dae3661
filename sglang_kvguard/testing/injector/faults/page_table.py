"""Entries of a request's row that say something else than the engine wrote."""

from __future__ import annotations

from typing import Any

from sglang_kvguard.testing.injector.conditions import When
from sglang_kvguard.testing.injector.engine_view import EngineView


def point_at_pages_of(
    view: EngineView, when: When, *, other: str, first: int = 0, count: int = 1, expect: str
) -> dict[str, Any]:
    """The row of ``when.rid`` maps pages of another request.

    Pages ``first`` to ``first + count`` of the row become the other's pages of the
    same numbers, so that positions agree.

    Args:
        view: the engine.
        when: whose row.
        other: request that has, or had, those pages.
        first, count: in pages of the row.
        expect: ``"live"`` (the other still runs), ``"freed"`` (nobody has them) or
            ``"reallocated"`` (a third request has them); checked, so that a test cannot
            pass on another fault than it says.
    """
    pages = view.pages(other)[first : first + count]
    if len(pages) < count:
        raise LookupError(f"request {other} has no page {first + count - 1}")
    found = {_state(view, page, other) for page in pages}
    if found != {expect}:
        raise AssertionError(f"pages {pages} of {other} are {sorted(found)}, not {expect}")
    size = view.page_size
    row = view.row(when.rid)
    row[first * size : (first + count) * size] = view.slots_of(pages).to(row.dtype)
    return {"pages": pages}


def swap_entries(
    view: EngineView, when: When, *, one: int, two: int
) -> dict[str, Any]:
    """Two entries of the row of ``when.rid`` change places."""
    row = view.row(when.rid)
    row[[one, two]] = row[[two, one]]
    return {"slots": [int(row[one]), int(row[two])]}


def _state(view: EngineView, page: int, other: str) -> str:
    owners = [req.rid for req in view.running() if page in view.pages(req.rid)]
    if other in owners:
        return "live"
    if owners:
        return "reallocated"
    return "freed" if bool((view.free_pages() == page).any()) else "nowhere"
