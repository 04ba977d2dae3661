"""How kernels share out a flat list that is cut into pieces of unequal length.

A launch is a grid of (pieces, splits): the splits of a piece take its blocks in turns, so
that one long piece is not one long program. The host knows the length of the list only.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Elements a program takes at a time: two for each of its 128 threads.
BLOCK = 256
# Programs of a launch, if that many have something to do.
_PROGRAMS = 1024


def split_grid(pieces: int, longest: int, block: int = BLOCK) -> tuple[int, int]:
    """Launch grid for ``pieces`` of which one may have ``longest`` elements."""
    wanted = triton.cdiv(max(longest, 1), block)
    return pieces, min(wanted, max(1, _PROGRAMS // pieces))


@triton.jit
def piece(offset, count, size):
    """Device function: (begin, end) of a piece of a list of ``size`` elements, int32.

    A piece that starts outside the list is empty; another one is cut at its end.
    """
    inside = (offset >= 0) & (offset <= size)
    begin = tl.where(inside, offset, 0)
    count = tl.where(inside, tl.minimum(tl.maximum(count, 0), size - begin), 0)
    return begin.to(tl.int32), (begin + count).to(tl.int32)
