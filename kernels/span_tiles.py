"""How kernels walk the bytes of pages: tiles of whole 16-byte vectors, edges apart.

A launch is a grid of (buffers, programs a buffer). A program takes tiles in turns; a tile
is ``ROWS`` units of its buffer, and of each the same run of ``VECS`` vectors. Many small
units fill a tile as well as one big unit fills several.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import spans as _spans
from .spans import SpanTable

SPAN_BASE = tl.constexpr(_spans.SPAN_BASE)
SPAN_STRIDE = tl.constexpr(_spans.SPAN_STRIDE)
SPAN_BYTES = tl.constexpr(_spans.SPAN_BYTES)
SPAN_UNITS = tl.constexpr(_spans.SPAN_UNITS)
SPAN_FIELDS = tl.constexpr(_spans.SPAN_FIELDS)

# Bytes of a vector, the widest access a thread has.
VECTOR = tl.constexpr(16)

# Vectors of a tile: four for each of the 128 threads of a program, enough of them in
# flight to hide the latency of memory.
_TILE = 512
# Programs of a launch: several waves over the 132 to 160 processors of a data-centre GPU,
# so that buffers of unequal size do not leave it idle at the end.
_PROGRAMS = 8192


def geometry(spans: SpanTable, num_ids: int) -> tuple[tuple[int, int], dict[str, int | bool]]:
    """Launch grid, and the constants of the tile, for ``num_ids`` pages.

    Raises:
        ValueError: more units than a kernel counts in 32 bits.
    """
    longest = max(span for _, span in spans.shapes)
    vecs = min(_TILE, max(8, triton.next_power_of_2(triton.cdiv(longest, 16))))
    rows = _TILE // vecs
    tiles = max(
        triton.cdiv(num_ids * units, rows) * triton.cdiv(span, vecs * 16)
        for units, span in spans.shapes
    )
    if max(num_ids * units for units, _ in spans.shapes) > 2**30 or tiles > 2**30:
        raise ValueError(f"too many pages for one launch: {num_ids}")
    buffers = spans.table.shape[0]
    programs = min(tiles, max(1, _PROGRAMS // buffers))
    return (buffers, programs), {"ROWS": rows, "VECS": vecs, "ALIGNED": spans.aligned}


@triton.jit
def load_span(table, buffer):
    """Device function: (base, stride, span, units) of a buffer."""
    entry = table + buffer * SPAN_FIELDS
    base = tl.load(entry + SPAN_BASE)
    stride = tl.load(entry + SPAN_STRIDE)
    span = tl.load(entry + SPAN_BYTES)
    units = tl.load(entry + SPAN_UNITS).to(tl.int32)
    return base, stride, span, units


@triton.jit
def locate(ids, num_ids, num_pages, base, stride, span, units, first, ROWS: tl.constexpr):
    """Device function: units ``first`` and following, counted over all pages in ``ids``.

    Returns:
        (index into ids, page, whether it is to be touched, first address, address
        behind the last), blocks of ROWS.
    """
    item = first + tl.arange(0, ROWS)
    index = item // units
    page = tl.load(ids + index, mask=index < num_ids, other=0)
    valid = (page > 0) & (page <= num_pages)
    start = base + (page * units + item % units) * stride
    return index, page, valid, start, start + span


@triton.jit
def vectors(start, end, valid, first, VECS: tl.constexpr):
    """Device function: the aligned vectors ``first`` and following of each unit.

    Returns:
        (int64 pointers, mask), blocks of (ROWS, VECS, 2): two 64-bit words a vector.
    """
    aligned = (start + (VECTOR - 1)) // VECTOR * VECTOR
    vector = aligned[:, None] + (first + tl.arange(0, VECS)).to(tl.int64)[None, :] * VECTOR
    inside = (vector + VECTOR <= end[:, None]) & valid[:, None]
    word = vector[:, :, None] + (tl.arange(0, 2) * 8)[None, None, :]
    # The compiler cannot see from a raw address that both words are one aligned vector,
    # and would fall back to two accesses.
    word = tl.max_contiguous(tl.multiple_of(word, [16, 16, 16]), [1, 1, 2])
    pointer = word.to(tl.pointer_type(tl.int64))
    pointer = tl.max_contiguous(tl.multiple_of(pointer, [16, 16, 16]), [1, 1, 2])
    return pointer, tl.broadcast_to(inside[:, :, None], word.shape)


@triton.jit
def edges(start, end, valid):
    """Device function: bytes before the first and behind the last aligned vector.

    Returns:
        (uint8 pointers, mask) of the head, the same of the tail, blocks of (ROWS, 16).
    """
    byte = tl.arange(0, VECTOR)[None, :]
    aligned = (start + (VECTOR - 1)) // VECTOR * VECTOR
    head = start[:, None] + byte
    in_head = (head < tl.minimum(aligned, end)[:, None]) & valid[:, None]
    tail = (end // VECTOR * VECTOR)[:, None] + byte
    in_tail = (tail >= aligned[:, None]) & (tail < end[:, None]) & valid[:, None]
    return (
        head.to(tl.pointer_type(tl.uint8)),
        in_head,
        tail.to(tl.pointer_type(tl.uint8)),
        in_tail,
    )
