"""Zero every byte of given pages, in every buffer of the pool, in one launch."""

from __future__ import annotations

import torch

from .backends import uses_triton
from .checks import expect
from .spans import SpanTable


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
