"""Handing pages to the prefix cache, and a row's seal over to what the cache mapped."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import layout
from .backends import uses_triton
from .checks import expect, expect_page_size, signed64
from .constants import (
    DIRTY,
    F_PUBLISH,
    LIVE,
    PAGE_BIRTH,
    PAGE_FIELDS,
    PAGE_FLAGS,
    PAGE_NAMESPACE,
    PAGE_OWNER,
    PUBLISH_COUNT,
    PUBLISH_FIELDS,
    PUBLISH_NAMESPACE,
    PUBLISH_OFFSET,
    PUBLISH_OWNER,
    PUBLISH_RESEAL,
    PUBLISH_ROW,
    PUBLISH_START,
    PUBLISHED,
    R_PUBLISH,
    RETIRED,
    SEAL_DIGEST,
    SEAL_FIELDS,
    SEAL_OWNER,
    SEAL_POISON,
    TAINTED,
)
from .faults import append_faults, append_faults_reference
from .mix import mix, mix_reference
from .segments import expand, or_into
from .split import BLOCK, piece, split_grid

_UNFIT = layout.TAINTED | layout.RETIRED | layout.DIRTY


@triton.jit(do_not_specialize=["new_locs", "num_tokens"])
def _publish_mark_kernel(
    pages,
    chunks,
    new_locs,
    num_tokens,
    num_pages,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = chunks + tl.program_id(0) * PUBLISH_FIELDS
    split = tl.program_id(1)
    chunk_owner = tl.load(chunk + PUBLISH_OWNER)
    chunk_namespace = tl.load(chunk + PUBLISH_NAMESPACE)
    begin, end = piece(
        tl.load(chunk + PUBLISH_OFFSET), tl.load(chunk + PUBLISH_COUNT), num_tokens
    )
    for first in range(begin + split * BLOCK, end, tl.num_programs(1) * BLOCK):
        token = first + tl.arange(0, BLOCK)
        page = tl.load(new_locs + token, mask=token < end, other=0) // PAGE_SIZE
        in_range = (page >= 1) & (page <= num_pages)
        record = pages + page * PAGE_FIELDS
        namespace = tl.load(record + PAGE_NAMESPACE, mask=in_range, other=0)
        owner = tl.load(record + PAGE_OWNER, mask=in_range, other=0)
        flags = tl.load(record + PAGE_FLAGS, mask=in_range, other=0)
        fit = (flags & (LIVE | TAINTED | RETIRED | DIRTY)) == LIVE
        given = in_range & fit & (namespace == chunk_namespace) & (owner == chunk_owner)
        given = given & ((flags & PUBLISHED) == 0)
        tl.atomic_or(record + PAGE_FLAGS, PUBLISHED, mask=given)


# A launch of its own: an entry may point at a page that another chunk publishes.
@triton.jit(do_not_specialize=["old_locs", "new_locs", "key", "num_tokens"])
def _publish_settle_kernel(
    pages,
    seals,
    faults,
    chunks,
    old_locs,
    new_locs,
    key: tl.int64,
    num_tokens,
    num_pages,
    num_seals,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = chunks + tl.program_id(0) * PUBLISH_FIELDS
    split = tl.program_id(1)
    row = tl.load(chunk + PUBLISH_ROW)
    chunk_owner = tl.load(chunk + PUBLISH_OWNER)
    chunk_namespace = tl.load(chunk + PUBLISH_NAMESPACE)
    start = tl.load(chunk + PUBLISH_START)
    reseals = (tl.load(chunk + PUBLISH_RESEAL) != 0) & (row >= 0) & (row < num_seals)
    seal = seals + tl.where(reseals, row, 0) * SEAL_FIELDS
    reseals = reseals & (tl.load(seal + SEAL_OWNER) == chunk_owner)

    begin, end = piece(
        tl.load(chunk + PUBLISH_OFFSET), tl.load(chunk + PUBLISH_COUNT), num_tokens
    )
    change = tl.zeros([BLOCK], tl.int64)
    any_wrong = tl.zeros([BLOCK], tl.int32)
    for first in range(begin + split * BLOCK, end, tl.num_programs(1) * BLOCK):
        token = first + tl.arange(0, BLOCK)
        mask = token < end
        new = tl.load(new_locs + token, mask=mask, other=0)
        page = new // PAGE_SIZE
        in_range = (page >= 1) & (page <= num_pages)
        record = pages + page * PAGE_FIELDS
        birth = tl.load(record + PAGE_BIRTH, mask=in_range, other=0)
        namespace = tl.load(record + PAGE_NAMESPACE, mask=in_range, other=0)
        owner = tl.load(record + PAGE_OWNER, mask=in_range, other=0)
        flags = tl.load(record + PAGE_FLAGS, mask=in_range, other=0)
        fit = (flags & (LIVE | PUBLISHED | TAINTED | RETIRED | DIRTY)) == (LIVE | PUBLISHED)
        wrong = mask & ((fit & (namespace == chunk_namespace)) == 0)
        any_wrong |= wrong.to(tl.int32)

        before = tl.load(new_locs + token - 1, mask=mask & (token > begin), other=0) // PAGE_SIZE
        told = wrong & ((token == begin) | (before != page))
        append_faults(
            faults, told, F_PUBLISH, page,
            chunk_owner, owner, namespace, birth, flags,
        )  # fmt: skip

        if reseals:
            old = tl.load(old_locs + token, mask=mask, other=0)
            old_page = old // PAGE_SIZE
            old_birth = tl.load(
                pages + old_page * PAGE_FIELDS + PAGE_BIRTH,
                mask=(old_page >= 1) & (old_page <= num_pages),
                other=0,
            )
            position = start + token - begin
            moved = mix(new, birth, position, key) - mix(old, old_birth, position, key)
            change += tl.where(mask, moved, 0)

    if reseals:
        tl.atomic_add(seal + SEAL_DIGEST, tl.sum(change, axis=0))
        if tl.max(any_wrong, axis=0) > 0:
            tl.atomic_or(seal + SEAL_POISON, R_PUBLISH)


def _check(pages, seals, faults, chunks, old_locs, new_locs, page_size) -> None:
    expect("pages", pages, (None, layout.PAGE_FIELDS))
    expect("seals", seals, (None, layout.SEAL_FIELDS))
    expect("faults", faults, (layout.FAULT_SLOTS + 1, layout.FAULT_FIELDS))
    expect("chunks", chunks, (None, layout.PUBLISH_FIELDS))
    expect("old_locs", old_locs, (None,))
    expect("new_locs", new_locs, (old_locs.shape[0],))
    expect_page_size(page_size)


def publish_triton(
    pages: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    chunks: torch.Tensor,
    old_locs: torch.Tensor,
    new_locs: torch.Tensor,
    page_size: int,
    key: int,
) -> None:
    """``publish`` as two Triton launches."""
    _check(pages, seals, faults, chunks, old_locs, new_locs, page_size)
    num_chunks, tokens = chunks.shape[0], new_locs.shape[0]
    if num_chunks == 0 or tokens == 0:
        return
    grid = split_grid(num_chunks, tokens)
    num_pages, num_seals = pages.shape[0] - 1, seals.shape[0]
    _publish_mark_kernel[grid](
        pages, chunks, new_locs, tokens, num_pages, PAGE_SIZE=page_size, BLOCK=BLOCK
    )
    _publish_settle_kernel[grid](
        pages, seals, faults, chunks, old_locs, new_locs, signed64(key), tokens, num_pages,
        num_seals, PAGE_SIZE=page_size, BLOCK=BLOCK,
    )  # fmt: skip


def publish_reference(
    pages: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    chunks: torch.Tensor,
    old_locs: torch.Tensor,
    new_locs: torch.Tensor,
    page_size: int,
    key: int,
) -> None:
    """Plain-torch ``publish``."""
    _check(pages, seals, faults, chunks, old_locs, new_locs, page_size)
    offset = chunks[:, layout.PUBLISH_OFFSET]
    chunk, index = expand(offset, chunks[:, layout.PUBLISH_COUNT], new_locs.shape[0])
    k = index - offset[chunk]
    row, owner, namespace, start, reseal = (
        chunks[chunk, layout.PUBLISH_ROW : layout.PUBLISH_RESEAL + 1].unbind(1)
    )
    new, old = new_locs[index], old_locs[index]

    page = torch.div(new, page_size, rounding_mode="trunc")
    in_range = (page >= 1) & (page < pages.shape[0])
    safe = torch.where(in_range, page, 0)
    found = pages[safe]
    flags = found[:, layout.PAGE_FLAGS]
    fit = in_range & (found[:, layout.PAGE_NAMESPACE] == namespace)
    fit &= (flags & (layout.LIVE | _UNFIT)) == layout.LIVE
    given = page[fit & (found[:, layout.PAGE_OWNER] == owner)]
    pages[given, layout.PAGE_FLAGS] = pages[given, layout.PAGE_FLAGS] | layout.PUBLISHED

    published = (pages[safe, layout.PAGE_FLAGS] & layout.PUBLISHED) != 0
    wrong = ~(fit & published)
    exists = (reseal != 0) & (row >= 0) & (row < seals.shape[0])
    resealed = exists & (seals[torch.where(exists, row, 0), layout.SEAL_OWNER] == owner)

    old_page = torch.div(old, page_size, rounding_mode="trunc")
    old_in_range = (old_page >= 1) & (old_page < pages.shape[0])
    old_birth = torch.where(
        old_in_range, pages[torch.where(old_in_range, old_page, 0), layout.PAGE_BIRTH], 0
    )
    new_birth = torch.where(in_range, found[:, layout.PAGE_BIRTH], 0)
    key, position = signed64(key), start + k
    change = mix_reference(new, new_birth, position, key) - mix_reference(
        old, old_birth, position, key
    )
    seals[:, layout.SEAL_DIGEST].index_add_(0, row[resealed], change[resealed])

    if bool(wrong.any()):
        before = torch.where(k == 0, torch.iinfo(torch.int64).min, page.roll(1))
        told = wrong & (page != before)
        found = torch.where(in_range.unsqueeze(1), pages[safe], 0)
        append_faults_reference(faults, layout.F_PUBLISH, page[told], owner[told], found[told])
        row = row[wrong & resealed]
        or_into(seals[:, layout.SEAL_POISON], row, torch.full_like(row, layout.R_PUBLISH))


def publish(
    pages: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    chunks: torch.Tensor,
    old_locs: torch.Tensor,
    new_locs: torch.Tensor,
    page_size: int,
    key: int,
) -> None:
    """Mark pages as readable by their namespace and carry seals over to them.

    An owner publishes live pages of its own and of the chunk's namespace that are
    neither tainted, dirty nor retired. An entry whose page is then not published, or of
    another namespace, or unfit is a fault: one F_PUBLISH for every run of such entries in
    one page, and the row that carries its seal over is poisoned (R_PUBLISH). Two
    launches, no synchronisation.

    Args:
        pages: int64 (num_pages + 1, PAGE_FIELDS), contiguous, written.
        seals: int64 (num_rows + 1, SEAL_FIELDS), contiguous, written. Only the seal of a
            chunk with PUBLISH_RESEAL whose SEAL_OWNER is the chunk's owner is touched:
            a row that was taken by somebody else since must not suffer.
        faults: int64 (FAULT_SLOTS + 1, FAULT_FIELDS), contiguous, written.
        chunks: int64 (chunks, PUBLISH_FIELDS), contiguous, one a piece of a row.
        old_locs: int64 (tokens,), contiguous, what the row mapped.
        new_locs: int64 (tokens,), contiguous, what the row maps from now on.
        page_size: slots of a page.
        key: of the digest, any integer (taken mod 2**64).

    Raises:
        TypeError, ValueError: a tensor has another dtype or shape, or page_size < 1.
    """
    op = publish_triton if uses_triton(pages) else publish_reference
    op(pages, seals, faults, chunks, old_locs, new_locs, page_size, key)
