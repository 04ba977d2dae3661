"""Find pages that are not all zero at birth: somebody wrote them after they were freed."""

from __future__ import annotations

import torch

from . import layout
from .backends import uses_triton
from .checks import expect
from .faults import append_faults_reference
from .segments import is_first
from .spans import SpanTable


def _check(page_ids, pages, faults, spans) -> None:
    expect("page_ids", page_ids, (None,))
    expect("pages", pages, (spans.num_pages + 1, layout.PAGE_FIELDS))
    expect("faults", faults, (layout.FAULT_SLOTS + 1, layout.FAULT_FIELDS))


def check_zero_reference(
    spans: SpanTable, page_ids: torch.Tensor, pages: torch.Tensor, faults: torch.Tensor
) -> None:
    """Plain-torch ``check_zero``."""
    _check(page_ids, pages, faults, spans)
    page_ids = page_ids[(page_ids > 0) & (page_ids <= spans.num_pages)]
    if page_ids.shape[0] == 0:
        return
    written = torch.zeros_like(page_ids, dtype=torch.bool)
    for view in spans.views:
        written |= (view.index_select(0, page_ids) != 0).flatten(1).any(1)
    page_ids = page_ids[written]
    page_ids = page_ids[is_first(page_ids)]
    found = pages[page_ids]
    pages[page_ids, layout.PAGE_FLAGS] |= layout.DIRTY | layout.TAINTED
    new = (found[:, layout.PAGE_FLAGS] & layout.DIRTY) == 0
    append_faults_reference(
        faults, layout.F_DIRTY, page_ids[new], found[new, layout.PAGE_OWNER], found[new]
    )


def check_zero(
    spans: SpanTable, page_ids: torch.Tensor, pages: torch.Tensor, faults: torch.Tensor
) -> None:
    """Mark pages that hold any non-zero byte DIRTY and TAINTED.

    Goes after ``stamp``: the fault's actor is the owner that the page was born for, and
    the marks are to stay on the page that was born. One launch, no synchronisation.

    Args:
        spans: the buffers, on the device of ``page_ids``.
        page_ids: int64 (n,), contiguous, for example ``born`` of ``stamp``. Ids outside
            1..num_pages are skipped, repeated ids are allowed.
        pages: int64 (num_pages + 1, PAGE_FIELDS), contiguous, written.
        faults: int64 (FAULT_SLOTS + 1, FAULT_FIELDS), contiguous. One F_DIRTY a page
            that was not marked DIRTY before.

    Raises:
        TypeError, ValueError: a tensor has another dtype or shape.
    """
    op = check_zero_triton if uses_triton(page_ids) else check_zero_reference
    op(spans, page_ids, pages, faults)
