"""The check of one forward against ledger and seals, before it may read or write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import layout
from .backends import uses_triton
from .checks import INDEX, expect, expect_page_size, signed64
from .constants import (
    DIRTY,
    LIVE,
    PAGE_BIRTH,
    PAGE_FIELDS,
    PAGE_FLAGS,
    PAGE_NAMESPACE,
    PAGE_OWNER,
    PUBLISHED,
    R_DEAD,
    R_DIGEST,
    R_DIRTY,
    R_FOREIGN,
    R_IDENTITY,
    R_LENGTH,
    R_NAMESPACE,
    R_RANGE,
    R_ROW,
    R_TAINTED,
    R_WRITE_OWNER,
    R_WRITE_TARGET,
    RETIRED,
    SEAL_DIGEST,
    SEAL_FIELDS,
    SEAL_LENGTH,
    SEAL_NAMESPACE,
    SEAL_OWNER,
    SEAL_POISON,
    TAINTED,
    TREE,
    VERDICT_FIELDS,
    VERDICT_OWNER,
    VERDICT_PAGE_BIRTH,
    VERDICT_PAGE_FLAGS,
    VERDICT_PAGE_NAMESPACE,
    VERDICT_PAGE_OWNER,
    VERDICT_POSITION,
    VERDICT_REASONS,
    VERDICT_SLOT,
    WANT_FIELDS,
    WANT_NAMESPACE,
    WANT_NEW,
    WANT_OFFSET,
    WANT_OWNER,
    WANT_ROW,
)
from .mix import mix, mix_reference
from .segments import expand, or_into, pages_of
from .split import BLOCK, piece, split_grid

_UNFIT = layout.TAINTED | layout.RETIRED

# Columns of scratch, one row a batch entry: what the programs of an entry have found so far.
SCRATCH_READ = tl.constexpr(0)  # digest of the entries that are only read
SCRATCH_NEW = tl.constexpr(1)  # digest of the entries that are written
SCRATCH_REASONS = tl.constexpr(2)
SCRATCH_NEARNESS = tl.constexpr(3)  # capacity minus lowest offending position, 0 for none
SCRATCH_TICKET = tl.constexpr(4)  # programs that are done
_SCRATCH_FIELDS = 8
SCRATCH_FIELDS = tl.constexpr(_SCRATCH_FIELDS)


@triton.jit(
    do_not_specialize=[
        "req_to_token", "rows", "seq_lens", "out_locs", "verdict", "num_tokens", "key",
    ]  # fmt: skip
)
def _fence_kernel(
    pages,
    seals,
    req_to_token,
    row_stride,
    rows,
    rows_stride,
    seq_lens,
    lens_stride,
    want,
    out_locs,
    out_stride,
    verdict,
    scratch,
    num_pages,
    num_seals,
    num_rows,
    capacity,
    num_tokens,
    key: tl.int64,
    PAGE_SIZE: tl.constexpr,
    ENFORCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    want += entry * WANT_FIELDS
    verdict += entry * VERDICT_FIELDS
    scratch += entry * SCRATCH_FIELDS
    want_row = tl.load(want + WANT_ROW)
    want_owner = tl.load(want + WANT_OWNER)
    want_namespace = tl.load(want + WANT_NAMESPACE)
    new = tl.load(want + WANT_NEW)
    offset = tl.load(want + WANT_OFFSET)
    row = tl.load(rows + entry * rows_stride).to(tl.int64)
    length = tl.load(seq_lens + entry * lens_stride).to(tl.int64)
    read = length - new

    # -- the batch entry against the seal of its row
    sealed = (want_row >= 0) & (want_row < num_seals)
    seal = seals + tl.where(sealed, want_row, 0) * SEAL_FIELDS
    seal_owner = tl.load(seal + SEAL_OWNER, mask=sealed, other=0)
    seal_namespace = tl.load(seal + SEAL_NAMESPACE, mask=sealed, other=0)
    seal_length = tl.load(seal + SEAL_LENGTH, mask=sealed, other=0)
    seal_digest = tl.load(seal + SEAL_DIGEST, mask=sealed, other=0)
    in_table = (row >= 0) & (row < num_rows)
    sized = (length >= 0) & (length <= capacity) & (new >= 0) & (read >= 0)
    identified = sealed & (want_owner != TREE)
    identified &= (seal_owner == want_owner) & (seal_namespace == want_namespace)
    right_length = sized & ((read == seal_length) | (seal_length == 0))
    first_admission = seal_length == 0

    # -- every entry of the row against the ledger
    walks = in_table & sized
    stop = tl.where(walks, length, 0).to(tl.int32)
    table = req_to_token + tl.where(walks, row, 0) * row_stride
    covered = (offset >= 0) & (offset <= num_tokens - new)
    digest_read = tl.zeros([BLOCK], tl.int64)
    digest_new = tl.zeros([BLOCK], tl.int64)
    bad = tl.zeros([BLOCK], tl.int32)
    nearness = tl.zeros([BLOCK], tl.int32)
    for begin in range(split * BLOCK, stop, splits * BLOCK):
        position = begin + tl.arange(0, BLOCK)
        mask = position < stop
        slot = tl.load(table + position, mask=mask, other=0).to(tl.int64)
        page = slot // PAGE_SIZE
        in_range = mask & (page >= 1) & (page <= num_pages)
        record = pages + page * PAGE_FIELDS
        birth = tl.load(record + PAGE_BIRTH, mask=in_range, other=0)
        namespace = tl.load(record + PAGE_NAMESPACE, mask=in_range, other=0)
        owner = tl.load(record + PAGE_OWNER, mask=in_range, other=0)
        flags = tl.load(record + PAGE_FLAGS, mask=in_range, other=0)
        is_new = mask & (position >= read)
        published = (flags & PUBLISHED) != 0
        foreign = owner != want_owner

        wrong = tl.where((flags & LIVE) == 0, R_DEAD, 0)
        wrong |= tl.where(namespace != want_namespace, R_NAMESPACE, 0)
        wrong |= tl.where((flags & (TAINTED | RETIRED)) != 0, R_TAINTED, 0)
        wrong |= tl.where((flags & DIRTY) != 0, R_DIRTY, 0)
        # Of what a first admission reads, nothing is its own yet.
        unreadable = (published == 0) & (foreign | first_admission)
        unwritable = published | foreign
        wrong |= tl.where(
            is_new, tl.where(unwritable, R_WRITE_OWNER, 0), tl.where(unreadable, R_FOREIGN, 0)
        )
        wrong = tl.where(in_range, wrong, R_RANGE)
        target = tl.load(
            out_locs + (offset + (position - read)) * out_stride, mask=is_new & covered, other=-1
        )
        misses = is_new & ((target != slot) | (covered == 0))
        wrong |= tl.where(misses, R_WRITE_TARGET, 0)
        wrong = tl.where(mask, wrong, 0)

        bad |= wrong
        nearness = tl.maximum(nearness, tl.where(wrong != 0, capacity - position, 0))
        mixed = mix(slot, birth, position.to(tl.int64), key)
        digest_read += tl.where(mask & (is_new == 0), mixed, 0)
        digest_new += tl.where(is_new, mixed, 0)

    tl.atomic_add(scratch + SCRATCH_READ, tl.sum(digest_read, axis=0))
    tl.atomic_add(scratch + SCRATCH_NEW, tl.sum(digest_new, axis=0))
    lanes = tl.zeros([BLOCK], tl.int32)
    tl.atomic_or(scratch + SCRATCH_REASONS + lanes, bad.to(tl.int64), mask=bad != 0)
    tl.atomic_max(scratch + SCRATCH_NEARNESS + lanes, nearness.to(tl.int64), mask=bad != 0)
    # The lanes of other warps must be done before one thread draws the ticket.
    tl.debug_barrier()
    ticket = tl.atomic_add(scratch + SCRATCH_TICKET, 1)
    if ticket == splits - 1:
        # The last program of the entry sees what all of them found, and leaves the scratch
        # zeroed for the next launch.
        found_read = tl.atomic_xchg(scratch + SCRATCH_READ, 0)
        found_new = tl.atomic_xchg(scratch + SCRATCH_NEW, 0)
        reasons = tl.atomic_xchg(scratch + SCRATCH_REASONS, 0)
        nearest = tl.atomic_xchg(scratch + SCRATCH_NEARNESS, 0)
        tl.atomic_xchg(scratch + SCRATCH_TICKET, 0)

        reasons |= tl.load(seal + SEAL_POISON, mask=sealed, other=0)
        reasons |= tl.where((row == want_row) & in_table & sealed, 0, R_ROW)
        reasons |= tl.where(identified, 0, R_IDENTITY)
        reasons |= tl.where(right_length, 0, R_LENGTH)
        proven = walks & (read == seal_length) & (seal_length > 0)
        reasons |= tl.where(proven & (found_read != seal_digest), R_DIGEST, 0)

        if reasons == 0:
            tl.store(seal + SEAL_LENGTH, length)
            tl.store(seal + SEAL_DIGEST, found_read + found_new)
        else:
            # The seal of another incarnation is not the offender's to spoil.
            if identified:
                tl.store(seal + SEAL_LENGTH, length)
                tl.atomic_or(seal + SEAL_POISON, reasons)

        placed = nearest > 0
        at = tl.where(placed, capacity - nearest, -1)
        slot_at = tl.load(table + at, mask=placed, other=0).to(tl.int64)
        page_at = slot_at // PAGE_SIZE
        known = placed & (page_at >= 1) & (page_at <= num_pages)
        record_at = pages + page_at * PAGE_FIELDS
        tl.store(verdict + VERDICT_REASONS, reasons)
        tl.store(verdict + VERDICT_POSITION, at)
        tl.store(verdict + VERDICT_SLOT, slot_at)
        owner_at = tl.load(record_at + PAGE_OWNER, mask=known, other=0)
        tl.store(verdict + VERDICT_PAGE_OWNER, owner_at)
        namespace_at = tl.load(record_at + PAGE_NAMESPACE, mask=known, other=0)
        tl.store(verdict + VERDICT_PAGE_NAMESPACE, namespace_at)
        birth_at = tl.load(record_at + PAGE_BIRTH, mask=known, other=0)
        tl.store(verdict + VERDICT_PAGE_BIRTH, birth_at)
        flags_at = tl.load(record_at + PAGE_FLAGS, mask=known, other=0)
        tl.store(verdict + VERDICT_PAGE_FLAGS, flags_at)
        tl.store(verdict + VERDICT_OWNER, want_owner)

        if reasons != 0:
            # -- what an offender leaves behind
            # The verdict must have the flags as they were found.
            tl.debug_barrier()
            begin, end = piece(offset, new, num_tokens)
            for first in range(begin, end, BLOCK):
                token = first + tl.arange(0, BLOCK)
                mask = token < end
                written = tl.load(
                    out_locs + token.to(tl.int64) * out_stride, mask=mask, other=0
                ).to(tl.int64)
                page = written // PAGE_SIZE
                in_range = mask & (page >= 1) & (page <= num_pages)
                record = pages + page * PAGE_FIELDS
                flags = tl.load(record + PAGE_FLAGS, mask=in_range, other=0)
                owner = tl.load(record + PAGE_OWNER, mask=in_range, other=0)
                own = in_range & ((flags & (LIVE | PUBLISHED)) == LIVE) & (owner == want_owner)
                tl.atomic_or(record + PAGE_FLAGS, TAINTED, mask=own)
                if ENFORCE:
                    tl.store(
                        out_locs + token.to(tl.int64) * out_stride,
                        tl.zeros([BLOCK], tl.int32),
                        mask=mask,
                    )


def fence_scratch(max_batch: int, device: str | torch.device) -> torch.Tensor:
    """Scratch memory for ``fence``, reusable for ever.

    Args:
        max_batch: longest batch it has to serve.
        device: where the ledger is.

    Returns:
        int64 (max_batch, 8), zeroed; every fence leaves it zeroed.
    """
    return torch.zeros((max_batch, _SCRATCH_FIELDS), dtype=torch.int64, device=device)


def _check(
    pages, seals, req_to_token, rows, seq_lens, want, out_locs, verdict, scratch, page_size
) -> None:
    batch = want.shape[0]
    expect("pages", pages, (None, layout.PAGE_FIELDS))
    expect("seals", seals, (None, layout.SEAL_FIELDS))
    expect("req_to_token", req_to_token, (None, None), (torch.int32,), contiguous=False)
    if req_to_token.stride(1) != 1 and req_to_token.shape[1] > 1:
        raise ValueError(f"req_to_token must be dense in a row, got {req_to_token.stride()}")
    expect("rows", rows, (batch,), INDEX, contiguous=False)
    expect("seq_lens", seq_lens, (batch,), INDEX, contiguous=False)
    expect("want", want, (None, layout.WANT_FIELDS))
    expect("out_locs", out_locs, (None,), INDEX, contiguous=False)
    expect("verdict", verdict, (batch, layout.VERDICT_FIELDS))
    expect("scratch", scratch, (None, _SCRATCH_FIELDS))
    if scratch.shape[0] < batch:
        raise ValueError(f"scratch is for {scratch.shape[0]} entries, the batch has {batch}")
    expect_page_size(page_size)


def fence_triton(
    pages: torch.Tensor,
    seals: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    want: torch.Tensor,
    out_locs: torch.Tensor,
    verdict: torch.Tensor,
    scratch: torch.Tensor,
    page_size: int,
    key: int,
    enforce: bool,
    max_len: int,
) -> None:
    """``fence`` as one Triton launch."""
    _check(pages, seals, req_to_token, rows, seq_lens, want, out_locs, verdict, scratch, page_size)
    batch = want.shape[0]
    if batch == 0:
        return
    _fence_kernel[split_grid(batch, max_len)](
        pages, seals, req_to_token, req_to_token.stride(0), rows, rows.stride(0), seq_lens,
        seq_lens.stride(0), want, out_locs, out_locs.stride(0), verdict, scratch,
        pages.shape[0] - 1, seals.shape[0], *req_to_token.shape, out_locs.shape[0],
        signed64(key), PAGE_SIZE=page_size, ENFORCE=bool(enforce), BLOCK=BLOCK,
    )  # fmt: skip


def fence_reference(
    pages: torch.Tensor,
    seals: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    want: torch.Tensor,
    out_locs: torch.Tensor,
    verdict: torch.Tensor,
    scratch: torch.Tensor,
    page_size: int,
    key: int,
    enforce: bool,
    max_len: int,
) -> None:
    """Plain-torch ``fence``. Needs neither ``scratch`` nor ``max_len``."""
    _check(pages, seals, req_to_token, rows, seq_lens, want, out_locs, verdict, scratch, page_size)
    if want.shape[0] == 0:
        return
    grown = _grow_clean(
        pages, seals, req_to_token, rows, seq_lens, want, out_locs, page_size, signed64(key)
    )
    if grown is None:
        _judge(
            pages, seals, req_to_token, rows, seq_lens, want, out_locs, verdict, page_size,
            signed64(key), enforce,
        )  # fmt: skip
        return
    row = want[:, layout.WANT_ROW]
    seals[:, layout.SEAL_LENGTH].index_copy_(0, row, seq_lens.long())
    seals[:, layout.SEAL_DIGEST].index_copy_(0, row, grown)
    verdict.zero_()
    verdict[:, layout.VERDICT_POSITION].fill_(-1)
    verdict[:, layout.VERDICT_OWNER].copy_(want[:, layout.WANT_OWNER])


def _grow_clean(
    pages: torch.Tensor,
    seals: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    want: torch.Tensor,
    out_locs: torch.Tensor,
    page_size: int,
    key: int,
) -> torch.Tensor | None:
    """New digests (int64 (batch,)) if the whole batch is clean in the usual way, that is
    without a first admission that reads; None if it may not be, which ``_judge`` decides.

    A batch is nearly always clean, and to know that takes a fraction of the operations
    that it takes to say what is wrong with which entry.
    """
    capacity = req_to_token.shape[1]
    row, owner, namespace, new, offset, _, _, _ = want.unbind(1)
    rows, lengths = rows.long(), seq_lens.long()
    lowest, highest = torch.aminmax(row)
    if int(lowest) < 0 or int(highest) >= min(req_to_token.shape[0], seals.shape[0]):
        return None
    seal_owner, seal_namespace, seal_length, seal_digest, poison, _, _, _ = (
        seals.index_select(0, row).unbind(1)
    )
    read, ends = lengths - new, new.cumsum(0)
    shortest, longest = torch.aminmax(lengths)
    if not (
        torch.equal(rows, row)
        and torch.equal(seal_owner, owner)
        and torch.equal(seal_namespace, namespace)
        and torch.equal(seal_length, read)
        and torch.equal(ends - new, offset)
        and int(ends[-1]) == out_locs.shape[0]
        and bool(owner.all())
        and not bool(poison.any())
        and int(torch.minimum(new, read).min()) >= 0
        and int(shortest) >= 0
        and int(longest) <= capacity
    ):
        return None

    entry = torch.repeat_interleave(lengths)
    if entry.shape[0] == 0:
        return seal_digest
    stop = lengths.cumsum(0)
    begin = stop - lengths
    unsealed = begin + read
    index = torch.arange(entry.shape[0], device=want.device)
    # The page table as one flat list, so that finding an entry takes one index.
    stride = req_to_token.stride(0)
    table = req_to_token.as_strided(((req_to_token.shape[0] - 1) * stride + capacity,), (1,))
    slot = table.index_select(0, (row * stride - begin).index_select(0, entry).add_(index)).long()
    lowest, highest = torch.aminmax(slot)
    if int(lowest) < page_size or int(highest) >= pages.shape[0] * page_size:
        return None
    page = pages_of(slot, page_size)
    birth, page_namespace, page_owner, flags = pages.index_select(0, page).unbind(1)
    is_new = index >= unsealed.index_select(0, entry)
    usable = (page_owner == owner.index_select(0, entry)).logical_and_(flags == layout.LIVE)
    usable.logical_or_((flags == (layout.LIVE | layout.PUBLISHED)).logical_and_(~is_new))
    usable.logical_and_(page_namespace == namespace.index_select(0, entry))
    if not bool(usable.all()) or not torch.equal(slot[is_new], out_locs.long()):
        return None

    # The sum of a piece is the difference of two running sums, mod 2**64 as well.
    position = index.sub_(begin.index_select(0, entry))
    total = torch.zeros(entry.shape[0] + 1, dtype=torch.int64, device=want.device)
    torch.cumsum(mix_reference(slot, birth, position, key), 0, out=total[1:])
    before = total[begin]
    if not torch.equal(total[unsealed] - before, seal_digest):
        return None
    return total[stop] - before


def _judge(
    pages: torch.Tensor,
    seals: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    want: torch.Tensor,
    out_locs: torch.Tensor,
    verdict: torch.Tensor,
    page_size: int,
    key: int,
    enforce: bool,
) -> None:
    """The whole of ``fence``, whatever the batch."""
    batch, (num_rows, capacity) = want.shape[0], req_to_token.shape
    rows, lengths = rows.long(), seq_lens.long()
    row, owner, namespace, new, offset = want[:, : layout.WANT_OFFSET + 1].unbind(1)
    read = lengths - new

    # -- the batch entry against the seal of its row
    sealed = (row >= 0) & (row < seals.shape[0])
    seal = torch.where(sealed.unsqueeze(1), seals[torch.where(sealed, row, 0)], 0)
    seal_owner, seal_namespace, seal_length, seal_digest, poison = (
        seal[:, : layout.SEAL_POISON + 1].unbind(1)
    )
    in_table = (rows >= 0) & (rows < num_rows)
    sized = (lengths >= 0) & (lengths <= capacity) & (new >= 0) & (read >= 0)
    identified = (
        (seal_owner == owner) & (seal_namespace == namespace) & (owner != layout.TREE) & sealed
    )
    reasons = poison | torch.where((rows == row) & in_table & sealed, 0, layout.R_ROW)
    reasons |= torch.where(identified, 0, layout.R_IDENTITY)
    reasons |= torch.where(
        sized & ((read == seal_length) | (seal_length == 0)), 0, layout.R_LENGTH
    )

    # -- every entry of the row against the ledger
    count = torch.where(in_table & sized, lengths, 0)
    entry = torch.repeat_interleave(torch.arange(batch, device=want.device), count)
    begin = count.cumsum(0) - count
    total = entry.shape[0]
    first = (seal_length == 0).long()
    # Per-row numbers are spread over the row's entries in one gather.
    spread = torch.stack((rows, begin, read, owner, namespace, first, offset - read)).index_select(
        1, entry
    )
    e_row, e_begin, e_read, e_owner, e_namespace, e_first, e_shift = spread.unbind(0)
    position = torch.arange(total, device=want.device) - e_begin
    slot = req_to_token[e_row, position].long()
    page = pages_of(slot, page_size)
    in_range = (page >= 1) & (page < pages.shape[0])
    ledger = pages.index_select(0, torch.where(in_range, page, 0))
    birth, page_namespace, page_owner, flags = ledger.unbind(1)
    birth = torch.where(in_range, birth, 0)
    is_new = position >= e_read
    published = (flags & layout.PUBLISHED) != 0
    foreign = page_owner != e_owner

    bad = torch.where((flags & layout.LIVE) == 0, layout.R_DEAD, 0)
    bad |= torch.where(page_namespace != e_namespace, layout.R_NAMESPACE, 0)
    bad |= torch.where((flags & _UNFIT) != 0, layout.R_TAINTED, 0)
    bad |= torch.where((flags & layout.DIRTY) != 0, layout.R_DIRTY, 0)
    # Of what a first admission reads, nothing is its own yet.
    unreadable = ~published & (foreign | (e_first != 0))
    unwritable = published | foreign
    bad |= torch.where(
        is_new,
        torch.where(unwritable, layout.R_WRITE_OWNER, 0),
        torch.where(unreadable, layout.R_FOREIGN, 0),
    )
    bad = torch.where(in_range, bad, layout.R_RANGE)
    write = position + e_shift
    tokens = out_locs.shape[0]
    covered = (offset >= 0) & (offset <= tokens - new)
    if tokens:
        target = out_locs[write.clamp(0, tokens - 1)]
        misses = is_new & ((target != slot) | ~covered[entry])
    else:
        misses = is_new
    bad |= torch.where(misses, layout.R_WRITE_TARGET, 0)

    mixed = mix_reference(slot, birth, position, key)
    digest = torch.zeros(2 * batch, dtype=torch.int64, device=want.device)
    digest.index_add_(0, 2 * entry + is_new, mixed)
    digest_read, digest_new = digest.view(batch, 2).unbind(1)
    proven = (read == seal_length) & (seal_length > 0) & (count > 0)
    reasons |= torch.where(proven & (digest_read != seal_digest), layout.R_DIGEST, 0)

    verdict.zero_()
    verdict[:, layout.VERDICT_POSITION] = -1
    verdict[:, layout.VERDICT_OWNER] = owner
    grown = torch.stack((lengths, digest_read + digest_new), dim=1)

    # -- what offenders leave behind
    or_into(reasons, entry, bad)
    clean = reasons == 0
    seals[row[clean], layout.SEAL_LENGTH : layout.SEAL_DIGEST + 1] = grown[clean]
    # The seal of another incarnation is not the offender's to spoil.
    spoilt = ~clean & identified
    seals[row[spoilt], layout.SEAL_LENGTH] = lengths[spoilt]
    or_into(seals[:, layout.SEAL_POISON], row[spoilt], reasons[spoilt])

    verdict[:, layout.VERDICT_REASONS] = reasons
    nowhere = torch.iinfo(torch.int64).max
    lowest = torch.full_like(reasons, nowhere)
    lowest.scatter_reduce_(0, entry, torch.where(bad != 0, position, nowhere), "amin")
    placed = lowest != nowhere
    at = (begin + lowest)[placed]
    found = torch.where(in_range[at].unsqueeze(1), ledger[at], 0)
    verdict[placed, layout.VERDICT_POSITION] = lowest[placed]
    verdict[placed, layout.VERDICT_SLOT] = slot[at]
    verdict[placed, layout.VERDICT_PAGE_OWNER] = found[:, layout.PAGE_OWNER]
    verdict[placed, layout.VERDICT_PAGE_NAMESPACE] = found[:, layout.PAGE_NAMESPACE]
    verdict[placed, layout.VERDICT_PAGE_BIRTH] = found[:, layout.PAGE_BIRTH]
    verdict[placed, layout.VERDICT_PAGE_FLAGS] = found[:, layout.PAGE_FLAGS]

    piece, index = expand(offset, torch.where(clean, 0, new), tokens)
    page = pages_of(out_locs[index].long(), page_size)
    inside = (page >= 1) & (page < pages.shape[0])
    page, piece = page[inside], piece[inside]
    flags = pages[page, layout.PAGE_FLAGS]
    own = (flags & (layout.LIVE | layout.PUBLISHED)) == layout.LIVE
    own &= pages[page, layout.PAGE_OWNER] == owner[piece]
    pages[page[own], layout.PAGE_FLAGS] = flags[own] | layout.TAINTED
    if enforce:
        out_locs[index] = 0


def fence(
    pages: torch.Tensor,
    seals: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    want: torch.Tensor,
    out_locs: torch.Tensor,
    verdict: torch.Tensor,
    scratch: torch.Tensor,
    page_size: int,
    key: int,
    enforce: bool,
    max_len: int,
) -> None:
    """Check each batch entry's row, reads and writes, grow clean seals, stop offenders.

    The reasons a verdict can give are layout's ``R_*``. An entry whose row or length is
    out of bounds is refused without walking its row. A clean entry's seal afterwards
    covers ``seq_len`` entries. An offender's seal is poisoned (unless R_IDENTITY says
    that it is somebody else's), the pages of its write set that it owns and has not
    published are TAINTED, and with ``enforce`` its write set is turned to slot 0. One
    launch, no synchronisation.

    The caller has to see to it that ``want`` covers all of ``out_locs``: tokens that no
    entry claims are not looked at. Whether an entry that maps a page of another offender
    in the batch already sees its taint is not defined.

    Args:
        pages: int64 (num_pages + 1, PAGE_FIELDS), contiguous; TAINTED marks are written.
        seals: int64 (num_rows + 1, SEAL_FIELDS), contiguous, written.
        req_to_token: int32 (rows, context), the engine's page table; a row is dense, rows
            may be further apart than ``context``.
        rows: int32 or int64 (batch,), any stride: the row the forward will read.
        seq_lens: int32 or int64 (batch,), any stride: entries of the row in use, the new
            ones included.
        want: int64 (batch, WANT_FIELDS), contiguous: what each entry should be.
        out_locs: int32 or int64 (tokens,), any stride: slots that the forward will write.
            Entry i's are ``[WANT_OFFSET : WANT_OFFSET + WANT_NEW]``. Mutated if ``enforce``.
        verdict: int64 (batch, VERDICT_FIELDS), contiguous, output.
        scratch: from ``fence_scratch``, for at least this batch. One launch at a time.
        page_size: slots of a page.
        key: of the digest, any integer (taken mod 2**64).
        enforce: divert what an offender writes.
        max_len: about the longest ``seq_lens``. It only decides how many programs share
            a row; a longer row is walked to its end all the same.

    Raises:
        TypeError, ValueError: a tensor has another dtype, shape or layout.
    """
    op = fence_triton if uses_triton(pages) else fence_reference
    op(
        pages,
        seals,
        req_to_token,
        rows,
        seq_lens,
        want,
        out_locs,
        verdict,
        scratch,
        page_size,
        key,
        enforce,
        max_len,
    )
