"""The oracle and one implementation side by side: every operation runs in both, and then
everything that they know must be equal."""

from __future__ import annotations

import random

import torch
from oracle import Chunk, Want, World
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.fence import fence_reference, fence_scratch, fence_triton
from sglang_kvguard.kernels.publish import publish_reference, publish_triton
from sglang_kvguard.kernels.release import release_reference, release_triton
from sglang_kvguard.kernels.stamp import stamp_reference, stamp_triton

IMPLEMENTATIONS = {
    "reference": (stamp_reference, release_reference, publish_reference, fence_reference),
    "triton": (stamp_triton, release_triton, publish_triton, fence_triton),
}


def longs(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def table_of(rows, fields: int) -> torch.Tensor:
    return longs([row.fields() for row in rows]).reshape(-1, fields)


def spaced(values, dtype: torch.dtype, gap: int) -> torch.Tensor:
    """The values with ``gap`` foreign numbers between neighbours."""
    tensor = torch.full((len(values), 1 + gap), -77, dtype=dtype)
    tensor[:, 0] = longs(values)
    return tensor[:, 0]


class Worlds:
    """Oracle and tensors of one pool.

    Args:
        implementation: key of IMPLEMENTATIONS.
        rng: chooses dtypes and strides of the tensors that may vary.
    """

    def __init__(
        self,
        implementation: str,
        *,
        num_pages: int = 24,
        num_rows: int = 6,
        page_size: int = 4,
        capacity: int = 32,
        key: int = 0x1234_5678_9ABC_DEF1,
        rng: random.Random | None = None,
    ):
        self.rng = rng or random.Random(0)
        self.page_size, self.key = page_size, key
        self.oracle = World(num_pages, num_rows + 1, page_size, key)
        self.use(implementation)
        self.pages = longs(self.oracle.page_rows())
        self.history = longs(self.oracle.history_rows())
        self.seals = longs(self.oracle.seal_rows())
        self.faults = longs(self.oracle.fault_rows())
        self.scratch = fence_scratch(2 * num_rows + 2, "cpu")
        self.table = [[0] * capacity for _ in range(num_rows + 1)]
        self.births = 1

    def use(self, implementation: str) -> None:
        """From now on, run this one."""
        self.calls = IMPLEMENTATIONS[implementation]
        # In the interpreter, programs run one after the other.
        self.oracle.in_turn = implementation == "triton"

    def check(self) -> None:
        assert self.pages.tolist() == self.oracle.page_rows()
        assert self.history.tolist() == self.oracle.history_rows()
        assert self.seals.tolist() == self.oracle.seal_rows()
        assert self.faults.tolist() == self.oracle.fault_rows()
        assert not self.scratch.any()

    def set_page(self, number: int, **fields: int) -> None:
        """Change a page's record behind the operations' back."""
        page = self.oracle.pages[number]
        for name, value in fields.items():
            setattr(page, name, value)
        self.pages[number] = longs([page.birth, page.namespace, page.owner, page.flags])

    def set_seal(self, row: int, **fields: int) -> None:
        """Change a row's seal behind the operations' back."""
        for name, value in fields.items():
            setattr(self.oracle.seals[row], name, value)
        self.seals[row] = longs(self.oracle.seal_rows()[row])

    def mark(self, number: int, flags: int) -> None:
        """Add flags to a page behind the operations' back."""
        self.set_page(number, flags=self.oracle.pages[number].flags | flags)

    def stamp(self, want: list[Want], locs: list[int]) -> list[int]:
        born = torch.full((len(locs),), -5)
        self.calls[0](
            self.pages, self.history, self.seals, self.faults, table_of(want, L.WANT_FIELDS),
            longs(locs), born, self.births, self.page_size,
        )  # fmt: skip
        expected = self.oracle.stamp(want, locs, self.births)
        self.births += len(locs)
        assert born.tolist() == expected
        self.check()
        return expected

    def release(self, chunks: list[tuple[int, int, int]], ids: list[int]) -> tuple[list, list]:
        page_ids, scrub_ids = longs(ids), torch.full((len(ids),), -5)
        records = longs([[*chunk, 0] for chunk in chunks]).reshape(-1, L.RELEASE_FIELDS)
        self.calls[1](self.pages, self.seals, self.faults, records, page_ids, scrub_ids)
        expected = self.oracle.release(chunks, ids)
        assert (page_ids.tolist(), scrub_ids.tolist()) == expected
        self.check()
        return expected

    def publish(self, chunks: list[Chunk], old: list[int], new: list[int]) -> None:
        self.calls[2](
            self.pages, self.seals, self.faults, table_of(chunks, L.PUBLISH_FIELDS), longs(old),
            longs(new), self.page_size, self.key,
        )  # fmt: skip
        self.oracle.publish(chunks, old, new)
        self.check()

    def fence(
        self,
        rows: list[int],
        lengths: list[int],
        want: list[Want],
        out: list[int],
        *,
        enforce: bool = True,
        max_len: int | None = None,
    ) -> list[list[int]]:
        """Returns the verdicts; ``out`` is mutated as the implementation does it."""
        capacity, rng = len(self.table[0]), self.rng
        width = capacity + rng.choice((0, 3))
        storage = torch.full((len(self.table), width), -99, dtype=torch.int32)
        storage[:, :capacity] = torch.tensor(self.table, dtype=torch.int32)

        def varied(values: list[int]) -> torch.Tensor:
            wide = any(abs(value) >= 2**31 for value in values)
            dtype = torch.int64 if wide else rng.choice((torch.int32, torch.int64))
            return spaced(values, dtype, rng.choice((0, 1)))

        out_locs = varied(out)
        verdict = torch.full((len(want), L.VERDICT_FIELDS), -5)
        if max_len is None:
            max_len = max((n for n in lengths if n <= capacity), default=1)
        self.calls[3](
            self.pages, self.seals, storage[:, :capacity], varied(rows), varied(lengths),
            table_of(want, L.WANT_FIELDS), out_locs, verdict, self.scratch, self.page_size,
            self.key, enforce, max_len,
        )  # fmt: skip
        expected = self.oracle.fence(self.table, rows, lengths, want, out, enforce)
        assert verdict.tolist() == expected
        assert out_locs.tolist() == out
        assert (storage[:, :capacity] == torch.tensor(self.table)).all()
        self.check()
        return expected
