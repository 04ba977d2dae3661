"""The birth of pages: the allocator handed out slots, and to whom."""

from __future__ import annotations

import torch

from . import layout
from .backends import uses_triton
from .checks import expect, expect_page_size
from .faults import append_faults_reference
from .segments import is_first, or_into


def _check(pages, history, seals, faults, want, locs, born, birth_base, page_size) -> None:
    expect("pages", pages, (None, layout.PAGE_FIELDS))
    expect("history", history, (pages.shape[0], layout.HISTORY_FIELDS))
    expect("seals", seals, (None, layout.SEAL_FIELDS))
    expect("faults", faults, (layout.FAULT_SLOTS + 1, layout.FAULT_FIELDS))
    expect("want", want, (None, layout.WANT_FIELDS))
    expect("locs", locs, (None,))
    expect("born", born, (locs.shape[0],))
    expect_page_size(page_size)
    if birth_base < 1:
        raise ValueError(f"birth_base must be at least 1 (0 means never born), got {birth_base}")


def _open_seals(seals: torch.Tensor, want: torch.Tensor) -> None:
    row = want[:, layout.WANT_ROW]
    want = want[(row >= 0) & (row < seals.shape[0])]
    seal = torch.zeros((want.shape[0], layout.SEAL_FIELDS), dtype=torch.int64, device=seals.device)
    seal[:, layout.SEAL_OWNER] = want[:, layout.WANT_OWNER]
    seal[:, layout.SEAL_NAMESPACE] = want[:, layout.WANT_NAMESPACE]
    seals[want[:, layout.WANT_ROW]] = seal


def stamp_reference(
    pages: torch.Tensor,
    history: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    want: torch.Tensor,
    locs: torch.Tensor,
    born: torch.Tensor,
    birth_base: int,
    page_size: int,
) -> None:
    """Plain-torch ``stamp``."""
    _check(pages, history, seals, faults, want, locs, born, birth_base, page_size)
    fresh = want[:, layout.WANT_FRESH] != 0
    if bool(fresh.any()):
        _open_seals(seals, want[fresh])
    born.zero_()
    token = (locs % page_size == 0).nonzero().flatten()
    if token.shape[0] == 0:
        return
    # The entry of a token is the first one that ends behind it, unless there is a gap.
    offset = want[:, layout.WANT_OFFSET].contiguous()
    entry = torch.searchsorted(offset + want[:, layout.WANT_NEW], token, right=True)
    claimed = entry < want.shape[0]
    claimed &= offset[torch.where(claimed, entry, 0)] <= token
    entry, token = entry[claimed], token[claimed]
    page = locs[token] // page_size
    in_range = (page >= 1) & (page < pages.shape[0])
    flags = pages[torch.where(in_range, page, 0), layout.PAGE_FLAGS]
    wins = in_range & ((flags & (layout.LIVE | layout.RETIRED)) == 0)
    wins &= is_first(page)

    winner, owner = page[wins], want[entry[wins]]
    history[winner, 1:] = history[winner, :-1]
    history[winner, 0] = pages[winner, layout.PAGE_OWNER]
    pages[winner] = torch.stack(
        (
            birth_base + token[wins],
            owner[:, layout.WANT_NAMESPACE],
            owner[:, layout.WANT_OWNER],
            # Marks of a page that nobody had alive can only mean that it was written: keep them.
            (flags[wins] & (layout.TAINTED | layout.DIRTY)) | layout.LIVE,
        ),
        dim=1,
    )
    born[token[wins]] = winner
    if bool(wins.all()):
        return

    alias = ~wins
    entry, page, in_range = entry[alias], page[alias], in_range[alias]
    actor = want[entry, layout.WANT_OWNER]
    found = torch.where(in_range.unsqueeze(1), pages[torch.where(in_range, page, 0)], 0)
    append_faults_reference(faults, layout.F_ALIAS, page, actor, found)
    own = page[in_range & (found[:, layout.PAGE_OWNER] == actor)]
    or_into(pages[:, layout.PAGE_FLAGS], own, torch.full_like(own, layout.TAINTED))
    row = want[entry, layout.WANT_ROW]
    row = row[(row >= 0) & (row < seals.shape[0])]
    or_into(seals[:, layout.SEAL_POISON], row, torch.full_like(row, layout.R_ALIAS))


def stamp(
    pages: torch.Tensor,
    history: torch.Tensor,
    seals: torch.Tensor,
    faults: torch.Tensor,
    want: torch.Tensor,
    locs: torch.Tensor,
    born: torch.Tensor,
    birth_base: int,
    page_size: int,
) -> None:
    """Give pages that were just handed out their owner, and fresh rows their seal.

    A slot at the start of a page is the birth of that page. A page that is alive,
    retired or outside the pool must not be handed out: that is an F_ALIAS fault, poisons
    the row (R_ALIAS) and leaves the page alone, except that it is TAINTED if it already
    belongs to the same owner. Of several births of one page in one call the first in
    ``locs`` is right, on every rank. Two launches, no synchronisation.

    Args:
        pages: int64 (num_pages + 1, PAGE_FIELDS), contiguous, written.
        history: int64 (num_pages + 1, HISTORY_FIELDS), contiguous, written: previous
            owners, newest first.
        seals: int64 (num_rows + 1, SEAL_FIELDS), contiguous, written.
        faults: int64 (FAULT_SLOTS + 1, FAULT_FIELDS), contiguous, written.
        want: int64 (batch, WANT_FIELDS), contiguous. Entry i owns
            ``locs[WANT_OFFSET : WANT_OFFSET + WANT_NEW]``; entries do not overlap and
            offsets ascend.
        locs: int64 (tokens,), contiguous, slots from the allocator.
        born: int64 (tokens,), contiguous, output: the page where ``locs`` gave birth
            to one, else 0.
        birth_base: the page born at ``locs[t]`` gets birth ``birth_base + t``; every
            birth in ``pages`` is lower. At least 1.
        page_size: slots of a page.

    Raises:
        TypeError, ValueError: a tensor has another dtype or shape, or a number is too
            small.
    """
    op = stamp_triton if uses_triton(pages) else stamp_reference
    op(pages, history, seals, faults, want, locs, born, birth_base, page_size)
