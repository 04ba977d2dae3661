"""The keyed 64-bit hash of one page-table entry, of which a seal's digest is the sum.

    h = fmix(slot * MIX_SLOT + birth * MIX_BIRTH + key)
    mix = fmix(h + position * MIX_POSITION)                         (all mod 2**64)

A sum can grow by a token, lose a rejected draft or have entries replaced without
reading the rest of the row. Two rounds keep position apart from (slot, birth), so that
two entries that trade places change the sum. ``key`` is a secret of the process.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import layout
from .constants import MIX_BIRTH, MIX_POSITION, MIX_SLOT


@triton.jit
def _fmix(x):
    x = x ^ (x.to(tl.uint64) >> 30).to(tl.int64)
    x = x * MIX_BIRTH
    x = x ^ (x.to(tl.uint64) >> 27).to(tl.int64)
    x = x * MIX_POSITION
    return x ^ (x.to(tl.uint64) >> 31).to(tl.int64)


@triton.jit
def mix(slot, birth, position, key):
    """Device function: int64 blocks (or scalars) of any one shape to int64."""
    h = _fmix(slot * MIX_SLOT + birth * MIX_BIRTH + key)
    return _fmix(h + position * MIX_POSITION)


# (shift, mask, factor) of each step. int64 shifts are arithmetic in torch; the masks make
# them logical. Tensors, because a Python number is made into one at every use, which takes
# as long as the arithmetic at the sizes that the reference serves.
_STEPS = tuple(
    (torch.tensor(shift), torch.tensor((1 << (64 - shift)) - 1), factor)
    for shift, factor in (
        (30, torch.tensor(layout.MIX_BIRTH)),
        (27, torch.tensor(layout.MIX_POSITION)),
        (31, None),
    )
)


def _fmix_reference_(x: torch.Tensor, spare: torch.Tensor) -> None:
    for shift, mask, factor in _STEPS:
        torch.bitwise_right_shift(x, shift, out=spare)
        x.bitwise_xor_(spare.bitwise_and_(mask))
        if factor is not None:
            x.mul_(factor)


def mix_reference(
    slot: torch.Tensor, birth: torch.Tensor, position: torch.Tensor, key: int
) -> torch.Tensor:
    """Hash page-table entries.

    Args:
        slot: int64 (n,), what the page table says.
        birth: int64 (n,), birth of the slot's page.
        position: int64 (n,), index in the row.
        key: signed 64-bit key.

    Returns:
        int64 (n,).
    """
    h = slot * layout.MIX_SLOT
    spare = birth * layout.MIX_BIRTH
    h.add_(spare).add_(key)
    _fmix_reference_(h, spare)
    torch.mul(position, layout.MIX_POSITION, out=spare)
    h.add_(spare)
    _fmix_reference_(h, spare)
    return h
