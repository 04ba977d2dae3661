"""The death of pages: somebody gives them back, and may or may not be entitled to."""

from __future__ import annotations

import torch

from . import layout
from .backends import uses_triton
from .checks import expect
from .faults import append_faults_reference
from .segments import expand, is_first

# A page with one of these is withheld from allocation when its holder lets go of it.
_WITHHELD = layout.TAINTED | layout.DIRTY | layout.RETIRED


def _check(pages, seals, faults, chunks, page_ids, scrub_ids) -> None:
    expect("pages", pages, (None, layout.PAGE_FIELDS))
    expect("seals", seals, (None, layout.SEAL_FIELDS))
    expect("faults", faults, (layout.FAULT_SLOTS + 1, layout.FAULT_FIELDS))
    expect("chunks", chunks, (None, layout.RELEASE_FIELDS))
    expect("page_ids", page_ids, (None,))
    expect("scrub_ids", scrub_ids, (page_ids.shape[0],))


def release_reference(
    pages: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    chunks: torch.Tensor,
    page_ids: torch.Tensor,
    scrub_ids: torch.Tensor,
) -> None:
    """Plain-torch ``release``."""
    _check(pages, seals, faults, chunks, page_ids, scrub_ids)
    chunk, index = expand(
        chunks[:, layout.RELEASE_OFFSET], chunks[:, layout.RELEASE_COUNT], page_ids.shape[0]
    )
    actor = chunks[chunk, layout.RELEASE_ACTOR]
    page = page_ids[index]
    in_range = (page >= 1) & (page < pages.shape[0])
    found = torch.where(in_range.unsqueeze(1), pages[torch.where(in_range, page, 0)], 0)
    flags = found[:, layout.PAGE_FLAGS]
    published = (flags & layout.PUBLISHED) != 0
    own = found[:, layout.PAGE_OWNER] == actor
    entitled = torch.where(actor == layout.TREE, published, own & ~published)
    kind = torch.where(entitled, 0, layout.F_FOREIGN_FREE)
    kind = torch.where((flags & layout.LIVE) != 0, kind, layout.F_DOUBLE_FREE)
    kind = torch.where(in_range, kind, layout.F_INVALID_FREE)
    # Refused entries get keys of their own, so that they do not count as a first release.
    key = torch.where(kind == 0, page, -1 - index)
    kind = torch.where(is_first(key), kind, layout.F_DOUBLE_FREE)

    freed = kind == 0
    withheld = freed & ((flags & _WITHHELD) != 0)
    pages[page[freed], layout.PAGE_FLAGS] = torch.where(withheld[freed], layout.RETIRED, 0)
    scrub_ids[index] = torch.where(freed, page, 0)
    page_ids[index] = torch.where(freed & ~withheld, page, 0)
    kind = torch.where(withheld, layout.F_RETIRED, kind)
    fault = kind != 0
    append_faults_reference(faults, kind[fault], page[fault], actor[fault], found[fault])


def release(
    pages: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    chunks: torch.Tensor,
    page_ids: torch.Tensor,
    scrub_ids: torch.Tensor,
) -> None:
    """Take pages back from those who may give them back.

    An owner gives back what it owns and has not published, TREE what is published.
    Anything else is refused with a fault (F_INVALID_FREE, F_DOUBLE_FREE, F_FOREIGN_FREE)
    and the page is left as it is. A tainted or dirty page is RETIRED (F_RETIRED) instead
    of freed. Of several releases of one page in one call the first entitled one in
    ``page_ids`` counts, on every rank. Birth, namespace and owner stay with the page:
    they say whose data it held. Two launches, no synchronisation.

    Args:
        pages: int64 (num_pages + 1, PAGE_FIELDS), contiguous, written.
        seals: int64 (num_rows + 1, SEAL_FIELDS), contiguous. Not read: a row may hand
            its pages over to another one before it ends.
        faults: int64 (FAULT_SLOTS + 1, FAULT_FIELDS), contiguous, written.
        chunks: int64 (chunks, RELEASE_FIELDS), contiguous; together they cover
            ``page_ids`` exactly once, in order.
        page_ids: int64 (n,), contiguous, mutated: refused and retired ids become 0.
        scrub_ids: int64 (n,), contiguous, output: ids of freed and of retired pages,
            0 for refused ones.

    Raises:
        TypeError, ValueError: a tensor has another dtype or shape.
    """
    op = release_triton if uses_triton(pages) else release_reference
    op(pages, seals, faults, chunks, page_ids, scrub_ids)
