"""Small vectorised steps that the references share: flat lists of unequal pieces."""

from __future__ import annotations

import torch

# Bits that or_into keeps apart: all of layout's flags and reasons.
BITS = 16


def pages_of(slot: torch.Tensor, page_size: int) -> torch.Tensor:
    """Page of each slot (int64 (n,)), rounded down: below 0 for what is below slot 0."""
    if page_size & (page_size - 1):
        return torch.div(slot, page_size, rounding_mode="floor")
    # A shift takes a tenth of a division's time.
    return slot >> (page_size.bit_length() - 1)


def expand(
    offset: torch.Tensor, count: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flatten pieces ``[offset, offset + count)`` of a list of ``size`` elements.

    Pieces that start outside the list are empty; others are cut at its end.

    Args:
        offset: int64 (n,).
        count: int64 (n,).
        size: length of the list.

    Returns:
        (piece, index), int64 (total,) each: which piece, and where in the list.
    """
    inside = (offset >= 0) & (offset <= size)
    count = torch.where(inside, torch.minimum(count.clamp(min=0), size - offset), 0)
    pieces = torch.arange(offset.shape[0], device=offset.device)
    piece = torch.repeat_interleave(pieces, count)
    shift = offset - (count.cumsum(0) - count)
    return piece, torch.arange(piece.shape[0], device=offset.device) + shift[piece]


def is_first(key: torch.Tensor) -> torch.Tensor:
    """bool (n,): whether no earlier element of ``key`` (int64 (n,)) is the same."""
    ordered, order = torch.sort(key, stable=True)
    first = torch.ones_like(key, dtype=torch.bool)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first


def or_into(target: torch.Tensor, index: torch.Tensor, bits: torch.Tensor) -> None:
    """``target[index[k]] |= bits[k]`` for all k, repeated indices included.

    Args:
        target: int64 (m,), any stride, written.
        index: int64 (n,), 0..m-1.
        bits: int64 (n,), below 2**BITS.
    """
    weights = 1 << torch.arange(BITS, device=bits.device)
    planes = ((bits.unsqueeze(1) & weights) != 0).to(torch.uint8)
    where, slot = torch.unique(index, return_inverse=True)
    merged = planes.new_zeros((where.shape[0], BITS))
    merged.scatter_reduce_(0, slot.unsqueeze(1).expand(-1, BITS), planes, "amax")
    target[where] |= (merged * weights).sum(1)
