"""Which bytes belong to a page: one table over all buffers of a pool.

A page of a pool is scattered over many buffers (K and V of every layer, index keys,
scales, states). The table says for each buffer where page ``p`` lies in it, so that one
kernel launch reaches all of them, whatever their dtype, stride or alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Columns of SpanTable.table, one row a buffer.
SPAN_BASE = 0  # address of page 0's first byte
SPAN_STRIDE = 1  # bytes from one unit to the next
SPAN_BYTES = 2  # bytes of one unit
SPAN_UNITS = 3  # units of one page
SPAN_FIELDS = 4


@dataclass(frozen=True)
class Span:
    """How one buffer is cut into pages.

    Page ``p`` covers, for ``u`` in ``range(units_per_page)``, the bytes
    ``[byte_offset + (p * units_per_page + u) * unit_stride, ... + unit_span)``
    counted from ``tensor.data_ptr()``.

    Attributes:
        name: what error messages call the buffer.
        tensor: any dtype, any device.
        unit_stride: bytes from the start of one unit to the start of the next.
        unit_span: bytes of a unit that belong to the page.
        units_per_page: units of a page, one after the other.
        byte_offset: where page 0 starts.
    """

    name: str
    tensor: torch.Tensor
    unit_stride: int
    unit_span: int
    units_per_page: int = 1
    byte_offset: int = 0

    @classmethod
    def of_slots(cls, name: str, tensor: torch.Tensor, page_size: int) -> Span:
        """A buffer whose dim 0 is the token slot, ``page_size`` slots a page.

        Args:
            name: for error messages.
            tensor: (slots, ...); the inner dims are contiguous, dim 0 may be strided.
            page_size: slots of a page.

        Raises:
            ValueError: page_size < 1, a row is empty or not contiguous, or rows overlap.
        """
        if page_size < 1:
            raise ValueError(f"{name}: page_size must be at least 1, got {page_size}")
        stride, row = _row_bytes(name, tensor)
        if stride == row:
            return cls(name, tensor, stride * page_size, row * page_size)
        return cls(name, tensor, stride, row, page_size)

    @classmethod
    def of_pages(cls, name: str, tensor: torch.Tensor) -> Span:
        """A buffer whose dim 0 is the page.

        Args:
            name: for error messages.
            tensor: (pages, ...); the inner dims are contiguous, dim 0 may be strided.

        Raises:
            ValueError: a page is empty or not contiguous, or pages overlap.
        """
        stride, row = _row_bytes(name, tensor)
        return cls(name, tensor, stride, row)


@dataclass(frozen=True, eq=False)
class SpanTable:
    """Where every byte of every page is. Made by ``build``; do not change it.

    Attributes:
        table: int64 (buffers, SPAN_FIELDS) on the pool's device.
        tensors: the buffers, kept alive, because ``table`` holds their addresses.
        num_pages: pages are numbered 1..num_pages; page 0 is the engine's padding.
        bytes_per_page: bytes of a page over all buffers.
        shapes: the different (units_per_page, unit_span) there are, for the launch grid.
        aligned: every unit of every buffer starts and ends at a multiple of 16 bytes.
        views: the same bytes as integers (pages, buffers, units, elements), for the
            references: one view for all buffers that lie evenly in one storage.
    """

    table: torch.Tensor
    tensors: tuple[torch.Tensor, ...]
    num_pages: int
    bytes_per_page: int
    shapes: tuple[tuple[int, int], ...]
    aligned: bool
    views: tuple[torch.Tensor, ...]

    @classmethod
    def build(
        cls, entries: Sequence[Span], num_pages: int, device: str | torch.device
    ) -> SpanTable:
        """Check every span against its buffer and put the table on ``device``.

        Args:
            entries: one a buffer.
            num_pages: pages that the allocator can hand out, numbered from 1.
            device: where the buffers are.

        Raises:
            ValueError: no entries or no pages, or a buffer (named) is on another device,
                is too small for pages 0..num_pages, or has units that are empty or
                overlap.
        """
        if not entries:
            raise ValueError("a span table needs at least one buffer: nothing would be scrubbed")
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        rows = [_checked_row(span, num_pages, torch.device(device)) for span in entries]
        return cls(
            table=torch.tensor(rows, dtype=torch.int64, device=device),
            tensors=tuple(span.tensor for span in entries),
            num_pages=num_pages,
            bytes_per_page=sum(span.unit_span * span.units_per_page for span in entries),
            shapes=tuple(sorted({(span.units_per_page, span.unit_span) for span in entries})),
            aligned=all(
                (row[SPAN_BASE] | row[SPAN_STRIDE] | row[SPAN_BYTES]) % 16 == 0 for row in rows
            ),
            views=_integer_views(entries, num_pages),
        )


def _row_bytes(name: str, tensor: torch.Tensor) -> tuple[int, int]:
    """(bytes from row to row, bytes of a row) of dim 0."""
    if tensor.dim() < 1 or tensor.numel() == 0:
        raise ValueError(f"{name}: needs at least one row of at least one byte")
    if not tensor[0].is_contiguous():
        raise ValueError(
            f"{name}: the inner dims must be contiguous, got shape {tuple(tensor.shape)} "
            f"with strides {tensor.stride()}"
        )
    row = tensor[0].numel() * tensor.element_size()
    # The stride of a dim of size 1 means nothing, not even when it is smaller than a row.
    stride = tensor.stride(0) * tensor.element_size() if tensor.shape[0] > 1 else row
    if stride < row:
        raise ValueError(f"{name}: rows of {row} bytes overlap, {stride} bytes apart")
    return stride, row


def _start(span: Span) -> int:
    """First byte of page 0 in the buffer's storage."""
    return span.tensor.storage_offset() * span.tensor.element_size() + span.byte_offset


def _checked_row(span: Span, num_pages: int, device: torch.device) -> list[int]:
    have = span.tensor.device
    # A device without an index means its current one; any index of that type may be it.
    if have.type != device.type or device.index not in (None, have.index):
        raise ValueError(f"{span.name}: is on {have}, the table is for {device}")
    if span.unit_span < 1 or span.units_per_page < 1:
        raise ValueError(
            f"{span.name}: a page is empty (unit_span={span.unit_span}, "
            f"units_per_page={span.units_per_page})"
        )
    if span.unit_stride < span.unit_span:
        raise ValueError(
            f"{span.name}: units of {span.unit_span} bytes overlap, {span.unit_stride} bytes apart"
        )
    units = (num_pages + 1) * span.units_per_page
    end = _start(span) + (units - 1) * span.unit_stride + span.unit_span
    size = span.tensor.untyped_storage().nbytes()
    if _start(span) < 0 or end > size:
        raise ValueError(
            f"{span.name}: pages 0..{num_pages} cover bytes {_start(span)}..{end} of a storage "
            f"of {size} bytes"
        )
    base = span.tensor.data_ptr() + span.byte_offset
    return [base, span.unit_stride, span.unit_span, span.units_per_page]


def _integer_views(entries: Sequence[Span], num_pages: int) -> tuple[torch.Tensor, ...]:
    groups: dict[tuple[int, int, int, int], list[Span]] = {}
    for span in entries:
        storage = span.tensor.untyped_storage().data_ptr()
        key = (storage, span.unit_stride, span.unit_span, span.units_per_page)
        groups.setdefault(key, []).append(span)
    views = []
    for group in groups.values():
        starts = sorted({_start(span) for span in group})
        steps = {after - before for before, after in zip(starts, starts[1:])}
        if len(steps) > 1:
            views += [_integer_view(group[0], num_pages, [start], 0) for start in starts]
        else:
            views.append(_integer_view(group[0], num_pages, starts, steps.pop() if steps else 0))
    return tuple(views)


def _integer_view(span: Span, num_pages: int, starts: list[int], step: int) -> torch.Tensor:
    address = span.tensor.untyped_storage().data_ptr() + starts[0]
    for dtype, size in ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2), (torch.uint8, 1)):
        if (address | starts[0] | step | span.unit_stride | span.unit_span) % size == 0:
            break
    stride = span.unit_stride // size
    units = span.units_per_page
    view = torch.empty(0, dtype=dtype, device=span.tensor.device)
    return view.set_(
        span.tensor.untyped_storage(),
        starts[0] // size,
        (num_pages + 1, len(starts), units, span.unit_span // size),
        (units * stride, step // size, stride, 1),
    )
