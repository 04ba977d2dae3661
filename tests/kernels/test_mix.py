"""The digest's hash: fixed vectors, and torch, Triton and Python integers agree."""

from __future__ import annotations

import random

import oracle
import torch
import triton.language as tl
from sglang_kvguard.kernels.checks import signed64
from sglang_kvguard.kernels.mix import mix, mix_reference
from triton.runtime.interpreter import InterpretedFunction

EXTREMES = (0, 1, 2, -1, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))

# Pinned: a change of the hash must not go unnoticed.
VECTORS = {
    (0, 0, 0, 0): 0x0000_0000_0000_0000,
    (1, 0, 0, 0): 0x4821_8226_FF3C_D4BF,
    (16, 7, 3, 0x1234_5678_9ABC_DEF1): 0xD961_633B_1314_3458,
    (-1, 2**63 - 1, 2**31, -1): 0x7A28_A08C_6A08_1348,
}


@InterpretedFunction
def _mix_kernel(slot, birth, position, out, key: tl.int64, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    mixed = mix(tl.load(slot + lane), tl.load(birth + lane), tl.load(position + lane), key)
    tl.store(out + lane, mixed)


def by_triton(slot, birth, position, key: int) -> list[int]:
    out = torch.zeros_like(slot)
    _mix_kernel[(1,)](slot, birth, position, out, key, BLOCK=slot.shape[0])
    return out.tolist()


def test_pinned_vectors():
    for (slot, birth, position, key), expected in VECTORS.items():
        assert oracle.mix(slot, birth, position, key) == expected
        args = [torch.tensor([n]) for n in (slot, birth, position)]
        assert mix_reference(*args, key).tolist() == [oracle.signed(expected)]


def test_agrees_with_python_integers():
    seed = random.randrange(2**32)
    print(f"{seed=}")
    rng = random.Random(seed)
    draw = [
        [rng.choice((rng.choice(EXTREMES), rng.getrandbits(64) - 2**63)) for _ in range(3)]
        for _ in range(256)
    ]
    slot, birth, position = torch.tensor(draw).t().contiguous().unbind(0)
    for key in (0, -1, 2**63, rng.getrandbits(64)):
        expected = [oracle.signed(oracle.mix(*entry, key)) for entry in draw]
        assert mix_reference(slot, birth, position, signed64(key)).tolist() == expected
        assert by_triton(slot, birth, position, signed64(key)) == expected


def test_leaves_its_arguments_alone():
    args = [torch.arange(8) * n for n in (1, 3, 5)]
    before = [arg.clone() for arg in args]
    mix_reference(*args, 9)
    assert all(torch.equal(a, b) for a, b in zip(args, before))


def test_entries_that_trade_places_change_the_sum():
    slots, births = torch.tensor([16, 32]), torch.tensor([5, 6])
    position = torch.arange(2)
    straight = mix_reference(slots, births, position, 1).sum()
    crossed = mix_reference(slots.flip(0), births.flip(0), position, 1).sum()
    assert straight != crossed
