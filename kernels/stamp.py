"""The birth of pages: the allocator handed out slots, and to whom."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import layout
from .backends import uses_triton
from .checks import expect, expect_page_size
from .constants import (
    DIRTY,
    F_ALIAS,
    HISTORY_FIELDS,
    LIVE,
    PAGE_BIRTH,
    PAGE_FIELDS,
    PAGE_FLAGS,
    PAGE_NAMESPACE,
    PAGE_OWNER,
    R_ALIAS,
    RETIRED,
    SEAL_FIELDS,
    SEAL_NAMESPACE,
    SEAL_OWNER,
    SEAL_POISON,
    TAINTED,
    WANT_FIELDS,
    WANT_FRESH,
    WANT_NAMESPACE,
    WANT_NEW,
    WANT_OFFSET,
    WANT_OWNER,
    WANT_ROW,
)
from .faults import append_faults, append_faults_reference
from .segments import is_first, or_into
from .split import BLOCK, piece, split_grid

# Two programs that are handed one page must not both believe that they won, and the same
# one must win on every rank. So a birth takes two launches: the first lets every token bid
# for its page, with an atomic maximum on PAGE_BIRTH, the second looks who won. A bid is
# above all births (birth_base + tokens and up), and the lower the token, the higher its bid.


@triton.jit(do_not_specialize=["locs", "born", "birth_base", "num_tokens"])
def _stamp_claim_kernel(
    pages,
    seals,
    want,
    locs,
    born,
    birth_base: tl.int64,
    num_tokens,
    num_pages,
    num_seals,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    want += entry * WANT_FIELDS
    row = tl.load(want + WANT_ROW)
    fresh = tl.load(want + WANT_FRESH)
    if (split == 0) & (fresh != 0) & (row >= 0) & (row < num_seals):
        field = tl.arange(0, SEAL_FIELDS)
        seal = tl.where(field == SEAL_OWNER, tl.load(want + WANT_OWNER), 0)
        seal = tl.where(field == SEAL_NAMESPACE, tl.load(want + WANT_NAMESPACE), seal)
        tl.store(seals + row * SEAL_FIELDS + field, seal)

    # Tokens that no entry claims give birth to nothing, so all of the output is cleared.
    program = entry * splits + split
    for first in range(program * BLOCK, num_tokens, tl.num_programs(0) * splits * BLOCK):
        token = first + tl.arange(0, BLOCK)
        tl.store(born + token, tl.zeros([BLOCK], tl.int64), mask=token < num_tokens)

    begin, end = piece(tl.load(want + WANT_OFFSET), tl.load(want + WANT_NEW), num_tokens)
    for first in range(begin + split * BLOCK, end, splits * BLOCK):
        token = first + tl.arange(0, BLOCK)
        loc = tl.load(locs + token, mask=token < end, other=1)
        page = loc // PAGE_SIZE
        starts = (token < end) & (loc % PAGE_SIZE == 0) & (page >= 1) & (page <= num_pages)
        record = pages + page * PAGE_FIELDS
        flags = tl.load(record + PAGE_FLAGS, mask=starts, other=LIVE)
        bids = starts & ((flags & (LIVE | RETIRED)) == 0)
        bid = birth_base + 2 * num_tokens - 1 - token
        tl.atomic_max(record + PAGE_BIRTH, bid, mask=bids)


@triton.jit(do_not_specialize=["locs", "born", "birth_base", "num_tokens", "batch"])
def _stamp_settle_kernel(
    pages,
    history,
    seals,
    faults,
    want,
    locs,
    born,
    birth_base: tl.int64,
    num_tokens,
    batch,
    num_pages,
    num_seals,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry = want + tl.program_id(0) * WANT_FIELDS
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    row = tl.load(entry + WANT_ROW)
    owner = tl.load(entry + WANT_OWNER)
    namespace = tl.load(entry + WANT_NAMESPACE)
    begin, end = piece(tl.load(entry + WANT_OFFSET), tl.load(entry + WANT_NEW), num_tokens)
    for first in range(begin + split * BLOCK, end, splits * BLOCK):
        token = first + tl.arange(0, BLOCK)
        loc = tl.load(locs + token, mask=token < end, other=1)
        starts = (token < end) & (loc % PAGE_SIZE == 0)
        page = loc // PAGE_SIZE
        in_range = starts & (page >= 1) & (page <= num_pages)
        record = pages + page * PAGE_FIELDS
        birth = tl.load(record + PAGE_BIRTH, mask=in_range, other=0)
        flags = tl.load(record + PAGE_FLAGS, mask=in_range, other=0)
        before = tl.load(record + PAGE_OWNER, mask=in_range, other=0)
        wins = in_range & (birth == birth_base + 2 * num_tokens - 1 - token)

        past = history + page * HISTORY_FIELDS
        moved = before
        for field in tl.static_range(HISTORY_FIELDS):
            next_moved = tl.load(past + field, mask=wins, other=0)
            tl.store(past + field, moved, mask=wins)
            moved = next_moved
        tl.store(record + PAGE_OWNER, owner, mask=wins)
        tl.store(record + PAGE_NAMESPACE, namespace, mask=wins)
        tl.store(record + PAGE_BIRTH, birth_base + token, mask=wins)
        # Marks of a page that nobody had alive can only mean that it was written: keep
        # them. An alias of the same page may be adding one right now, so this only turns
        # the bits that nobody else touches.
        tl.atomic_xor(record + PAGE_FLAGS, (flags & ~(TAINTED | DIRTY)) ^ LIVE, mask=wins)
        tl.store(born + token, page, mask=wins)

        alias = starts & ~wins
        if tl.max(alias.to(tl.int32), axis=0) > 0:
            namespace_before = tl.load(record + PAGE_NAMESPACE, mask=in_range, other=0)
            # A page that another token of this launch won is just being written, so what
            # it will say is taken from the winner's entry instead.
            lost = alias & (birth >= birth_base)
            last = birth_base + num_tokens
            winner = tl.where(birth >= last, last + num_tokens - 1 - birth, birth - birth_base)
            for other in range(batch):
                rival = want + other * WANT_FIELDS
                low, high = piece(
                    tl.load(rival + WANT_OFFSET), tl.load(rival + WANT_NEW), num_tokens
                )
                mine = lost & (winner >= low) & (winner < high)
                before = tl.where(mine, tl.load(rival + WANT_OWNER), before)
                namespace_before = tl.where(
                    mine, tl.load(rival + WANT_NAMESPACE), namespace_before
                )
            birth = tl.where(lost, birth_base + winner, birth)
            flags = tl.where(lost, (flags & (TAINTED | DIRTY)) | LIVE, flags)
            append_faults(
                faults, alias, F_ALIAS, page, owner,
                before, namespace_before, birth, flags,
            )  # fmt: skip
            own = alias & in_range & (before == owner)
            tl.atomic_or(record + PAGE_FLAGS, TAINTED, mask=own)
            if (row >= 0) & (row < num_seals):
                tl.atomic_or(seals + row * SEAL_FIELDS + SEAL_POISON, R_ALIAS)


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


def stamp_triton(
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
    """``stamp`` as two Triton launches."""
    _check(pages, history, seals, faults, want, locs, born, birth_base, page_size)
    batch, tokens = want.shape[0], locs.shape[0]
    if batch == 0:
        born.zero_()
        return
    grid = split_grid(batch, tokens)
    num_pages, num_seals = pages.shape[0] - 1, seals.shape[0]
    _stamp_claim_kernel[grid](
        pages, seals, want, locs, born, birth_base, tokens, num_pages, num_seals,
        PAGE_SIZE=page_size, BLOCK=BLOCK,
    )  # fmt: skip
    if tokens:
        _stamp_settle_kernel[grid](
            pages, history, seals, faults, want, locs, born, birth_base, tokens, batch,
            num_pages, num_seals, PAGE_SIZE=page_size, BLOCK=BLOCK,
        )  # fmt: skip


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
    if token.shape[0] == 0 or want.shape[0] == 0:
        return
    # The entry of a token is the first one that ends behind it, unless there is a gap.
    offset = want[:, layout.WANT_OFFSET].contiguous()
    end = offset + want[:, layout.WANT_NEW].clamp(min=0)
    entry = torch.searchsorted(end, token, right=True)
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
