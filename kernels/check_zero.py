"""Find pages that are not all zero at birth: somebody wrote them after they were freed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import layout
from .backends import uses_triton
from .checks import expect
from .constants import (
    DIRTY,
    F_DIRTY,
    PAGE_BIRTH,
    PAGE_FIELDS,
    PAGE_FLAGS,
    PAGE_NAMESPACE,
    PAGE_OWNER,
    TAINTED,
)
from .faults import append_faults, append_faults_reference
from .segments import is_first
from .span_tiles import edges, geometry, load_span, locate, vectors
from .spans import SpanTable


@triton.jit(do_not_specialize=["ids", "num_ids"])
def _check_zero_kernel(
    table,
    ids,
    num_ids,
    pages,
    faults,
    num_pages,
    ROWS: tl.constexpr,
    VECS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    base, stride, span, units = load_span(table, tl.program_id(0))
    chunks = tl.cdiv(span, VECS * 16).to(tl.int32)
    tiles = tl.cdiv(num_ids * units, ROWS) * chunks
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        chunk = tile % chunks
        _, page, valid, start, end = locate(
            ids, num_ids, num_pages, base, stride, span, units, tile // chunks * ROWS, ROWS
        )
        pointer, inside = vectors(start, end, valid, chunk * VECS, VECS)
        words = tl.load(pointer, mask=inside, other=0)
        written = tl.max(tl.max((words != 0).to(tl.int32), axis=2), axis=1)
        if not ALIGNED:
            head, in_head, tail, in_tail = edges(start, end, valid & (chunk == 0))
            bytes_ = tl.load(head, mask=in_head, other=0) | tl.load(tail, mask=in_tail, other=0)
            written |= tl.max((bytes_ != 0).to(tl.int32), axis=1)
        if tl.max(written, axis=0) > 0:
            record = pages + page * PAGE_FIELDS
            before = tl.atomic_or(record + PAGE_FLAGS, DIRTY | TAINTED, mask=written > 0)
            # Many units of a page may be written: whoever marks it first reports it.
            first = (written > 0) & ((before & DIRTY) == 0)
            owner = tl.load(record + PAGE_OWNER, mask=first, other=0)
            namespace = tl.load(record + PAGE_NAMESPACE, mask=first, other=0)
            birth = tl.load(record + PAGE_BIRTH, mask=first, other=0)
            append_faults(
                faults, first, F_DIRTY, page, owner, owner, namespace,
                birth, before,
            )  # fmt: skip


def _check(page_ids, pages, faults, spans) -> None:
    expect("page_ids", page_ids, (None,))
    expect("pages", pages, (spans.num_pages + 1, layout.PAGE_FIELDS))
    expect("faults", faults, (layout.FAULT_SLOTS + 1, layout.FAULT_FIELDS))


def check_zero_triton(
    spans: SpanTable, page_ids: torch.Tensor, pages: torch.Tensor, faults: torch.Tensor
) -> None:
    """``check_zero`` as one Triton launch."""
    _check(page_ids, pages, faults, spans)
    num_ids = page_ids.shape[0]
    if num_ids:
        grid, tile = geometry(spans, num_ids)
        _check_zero_kernel[grid](
            spans.table, page_ids, num_ids, pages, faults, spans.num_pages, **tile
        )


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
