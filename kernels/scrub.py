"""Zero every byte of given pages, in every buffer of the pool, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .backends import uses_triton
from .checks import expect
from .span_tiles import edges, geometry, load_span, locate, vectors
from .spans import SpanTable


@triton.jit(do_not_specialize=["ids", "num_ids"])
def _scrub_kernel(
    table,
    ids,
    num_ids,
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
        _, _, valid, start, end = locate(
            ids, num_ids, num_pages, base, stride, span, units, tile // chunks * ROWS, ROWS
        )
        pointer, inside = vectors(start, end, valid, chunk * VECS, VECS)
        tl.store(pointer, tl.zeros([ROWS, VECS, 2], tl.int64), mask=inside)
        if not ALIGNED:
            head, in_head, tail, in_tail = edges(start, end, valid & (chunk == 0))
            tl.store(head, tl.zeros([ROWS, 16], tl.uint8), mask=in_head)
            tl.store(tail, tl.zeros([ROWS, 16], tl.uint8), mask=in_tail)


def scrub_triton(spans: SpanTable, page_ids: torch.Tensor) -> None:
    """``scrub`` as one Triton launch."""
    expect("page_ids", page_ids, (None,))
    num_ids = page_ids.shape[0]
    if num_ids:
        grid, tile = geometry(spans, num_ids)
        _scrub_kernel[grid](spans.table, page_ids, num_ids, spans.num_pages, **tile)


def scrub_reference(spans: SpanTable, page_ids: torch.Tensor) -> None:
    """Plain-torch ``scrub``."""
    expect("page_ids", page_ids, (None,))
    page_ids = page_ids[(page_ids > 0) & (page_ids <= spans.num_pages)]
    if page_ids.shape[0]:
        for view in spans.views:
            view.index_fill_(0, page_ids, 0)


def scrub(spans: SpanTable, page_ids: torch.Tensor) -> None:
    """Zero every byte that the given pages address, in all buffers.

    Bytes between and around the pages keep their value. One launch, no synchronisation.

    Args:
        spans: the buffers, on the device of ``page_ids``.
        page_ids: int64 (n,), contiguous. Ids outside 1..num_pages are skipped, repeated
            ids are allowed.

    Raises:
        TypeError, ValueError: ``page_ids`` has another dtype or shape.
    """
    op = scrub_triton if uses_triton(page_ids) else scrub_reference
    op(spans, page_ids)
