"""The death of pages: somebody gives them back, and may or may not be entitled to."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import layout
from .backends import uses_triton
from .checks import expect
from .constants import (
    DIRTY,
    F_DOUBLE_FREE,
    F_FOREIGN_FREE,
    F_INVALID_FREE,
    F_RETIRED,
    LIVE,
    PAGE_BIRTH,
    PAGE_FIELDS,
    PAGE_FLAGS,
    PAGE_NAMESPACE,
    PAGE_OWNER,
    PUBLISHED,
    RELEASE_ACTOR,
    RELEASE_COUNT,
    RELEASE_FIELDS,
    RELEASE_OFFSET,
    RETIRED,
    TREE,
)
from .faults import append_faults, append_faults_reference
from .segments import expand, is_first
from .split import BLOCK, piece, split_grid

# A page with one of these is withheld from allocation when its holder lets go of it. A taint
# is no reason: it marks what an offender wrote, and the scrub takes care of that.
_WITHHELD = layout.DIRTY | layout.RETIRED

# A page given back twice in one call must be freed by the same entry on every rank, or
# their free lists part. So a release takes two launches: the first judges every entry
# against the ledger as it was and lets the entitled ones bid for their page, with an
# atomic maximum on the bits of PAGE_FLAGS above the flags; the second looks who won.
# In between, scrub_ids holds each entry's judgement: (kind of fault << 8) | flags.
_SHIFT = tl.constexpr(8)
_FLAGS = tl.constexpr(255)


@triton.jit(do_not_specialize=["page_ids", "scrub_ids", "num_ids"])
def _release_judge_kernel(
    pages,
    chunks,
    page_ids,
    scrub_ids,
    num_ids,
    num_pages,
    BLOCK: tl.constexpr,
):
    chunk = chunks + tl.program_id(0) * RELEASE_FIELDS
    split = tl.program_id(1)
    actor = tl.load(chunk + RELEASE_ACTOR)
    begin, end = piece(tl.load(chunk + RELEASE_OFFSET), tl.load(chunk + RELEASE_COUNT), num_ids)
    for first in range(begin + split * BLOCK, end, tl.num_programs(1) * BLOCK):
        index = first + tl.arange(0, BLOCK)
        mask = index < end
        page = tl.load(page_ids + index, mask=mask, other=0)
        in_range = (page >= 1) & (page <= num_pages)
        record = pages + page * PAGE_FIELDS
        flags = tl.load(record + PAGE_FLAGS, mask=in_range, other=0) & _FLAGS
        owner = tl.load(record + PAGE_OWNER, mask=in_range, other=0)
        published = (flags & PUBLISHED) != 0
        if actor == TREE:
            entitled = published
        else:
            entitled = (owner == actor) & (published == 0)
        kind = tl.where(entitled, 0, F_FOREIGN_FREE)
        kind = tl.where((flags & LIVE) != 0, kind, F_DOUBLE_FREE)
        kind = tl.where(in_range, kind, F_INVALID_FREE).to(tl.int64)
        bid = ((num_ids - index).to(tl.int64) << _SHIFT) | flags
        tl.atomic_max(record + PAGE_FLAGS, bid, mask=mask & (kind == 0))
        tl.store(scrub_ids + index, (kind << _SHIFT) | flags, mask=mask)


@triton.jit(do_not_specialize=["page_ids", "scrub_ids", "num_ids"])
def _release_settle_kernel(
    pages,
    faults,
    chunks,
    page_ids,
    scrub_ids,
    num_ids,
    num_pages,
    BLOCK: tl.constexpr,
):
    chunk = chunks + tl.program_id(0) * RELEASE_FIELDS
    split = tl.program_id(1)
    actor = tl.load(chunk + RELEASE_ACTOR)
    begin, end = piece(tl.load(chunk + RELEASE_OFFSET), tl.load(chunk + RELEASE_COUNT), num_ids)
    for first in range(begin + split * BLOCK, end, tl.num_programs(1) * BLOCK):
        index = first + tl.arange(0, BLOCK)
        mask = index < end
        page = tl.load(page_ids + index, mask=mask, other=0)
        judged = tl.load(scrub_ids + index, mask=mask, other=0)
        kind = judged >> _SHIFT
        flags = judged & _FLAGS
        record = pages + page * PAGE_FIELDS
        bid = tl.load(record + PAGE_FLAGS, mask=mask & (kind == 0), other=0) >> _SHIFT
        freed = mask & (kind == 0) & (bid == num_ids - index)
        kind = tl.where((kind == 0) & (freed == 0), F_DOUBLE_FREE, kind)
        withheld = freed & ((flags & (DIRTY | RETIRED)) != 0)
        after = tl.where(withheld, RETIRED, 0).to(tl.int64)
        tl.store(record + PAGE_FLAGS, after, mask=freed)
        tl.store(scrub_ids + index, tl.where(freed, page, 0), mask=mask)
        tl.store(page_ids + index, tl.where(withheld | (freed == 0), 0, page), mask=mask)

        kind = tl.where(withheld, F_RETIRED, kind)
        fault = mask & (kind != 0)
        if tl.max(fault.to(tl.int32), axis=0) > 0:
            known = fault & (page >= 1) & (page <= num_pages)
            owner = tl.load(record + PAGE_OWNER, mask=known, other=0)
            namespace = tl.load(record + PAGE_NAMESPACE, mask=known, other=0)
            birth = tl.load(record + PAGE_BIRTH, mask=known, other=0)
            append_faults(
                faults, fault, kind, page, actor, owner, namespace, birth,
                flags,
            )  # fmt: skip


def _check(pages, seals, faults, chunks, page_ids, scrub_ids) -> None:
    expect("pages", pages, (None, layout.PAGE_FIELDS))
    expect("seals", seals, (None, layout.SEAL_FIELDS))
    expect("faults", faults, (layout.FAULT_SLOTS + 1, layout.FAULT_FIELDS))
    expect("chunks", chunks, (None, layout.RELEASE_FIELDS))
    expect("page_ids", page_ids, (None,))
    expect("scrub_ids", scrub_ids, (page_ids.shape[0],))


def release_triton(
    pages: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    chunks: torch.Tensor,
    page_ids: torch.Tensor,
    scrub_ids: torch.Tensor,
) -> None:
    """``release`` as two Triton launches."""
    _check(pages, seals, faults, chunks, page_ids, scrub_ids)
    num_chunks, num_ids = chunks.shape[0], page_ids.shape[0]
    if num_chunks == 0 or num_ids == 0:
        return
    grid = split_grid(num_chunks, num_ids)
    num_pages = pages.shape[0] - 1
    _release_judge_kernel[grid](
        pages, chunks, page_ids, scrub_ids, num_ids, num_pages, BLOCK=BLOCK
    )
    _release_settle_kernel[grid](
        pages, faults, chunks, page_ids, scrub_ids, num_ids, num_pages, BLOCK=BLOCK
    )


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
    and the page is left as it is. A dirty page is RETIRED (F_RETIRED) instead
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
