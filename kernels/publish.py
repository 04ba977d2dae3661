"""Handing pages to the prefix cache, and a row's seal over to what the cache mapped."""

from __future__ import annotations

import torch

from . import layout
from .backends import uses_triton
from .checks import expect, expect_page_size, signed64
from .faults import append_faults_reference
from .mix import mix_reference
from .segments import expand, or_into

_UNFIT = layout.TAINTED | layout.RETIRED | layout.DIRTY


def _check(pages, seals, faults, chunks, old_locs, new_locs, page_size) -> None:
    expect("pages", pages, (None, layout.PAGE_FIELDS))
    expect("seals", seals, (None, layout.SEAL_FIELDS))
    expect("faults", faults, (layout.FAULT_SLOTS + 1, layout.FAULT_FIELDS))
    expect("chunks", chunks, (None, layout.PUBLISH_FIELDS))
    expect("old_locs", old_locs, (None,))
    expect("new_locs", new_locs, (old_locs.shape[0],))
    expect_page_size(page_size)


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
