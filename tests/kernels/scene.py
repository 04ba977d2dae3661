"""A pool in good order, for tests that break one thing in it.

Two requests are alive. ALICE read a published page of an earlier request of her namespace
and has pages of her own; BOB is in another namespace. ``step`` is the next decode of both.
"""

from __future__ import annotations

from oracle import Chunk, Want
from sglang_kvguard.kernels import layout as L
from worlds import Worlds

ALICE, BOB = 0, 1  # batch entries
ROW = {ALICE: 2, BOB: 1}
OWNER = {ALICE: 101, BOB: 102}
NAMESPACE = {ALICE: 1, BOB: 2}
EARLIER_OWNER, EARLIER_ROW = 100, 3
SPARE_ROW = 4
SHARED_PAGE = 5


class Scene:
    def __init__(self, implementation: str, page_size: int = 4, own: int | None = None, **pool):
        ps = self.ps = page_size
        own = 2 * ps + ps // 2 if own is None else own
        pool.setdefault("capacity", ps + own + 2 * ps)
        # The reference builds it, because that is quicker.
        w = self.w = Worlds("reference", page_size=ps, **pool)
        self.locs = {ALICE: [SHARED_PAGE * ps + k for k in range(ps)], BOB: []}

        shared = self.locs[ALICE]
        w.table[EARLIER_ROW][:ps] = shared
        first = [Want(EARLIER_ROW, EARLIER_OWNER, NAMESPACE[ALICE], ps, 0, True)]
        w.stamp(first, shared)
        (verdict,) = w.fence([EARLIER_ROW], [ps], first, list(shared))
        assert verdict[L.VERDICT_REASONS] == 0
        chunk = Chunk(0, ps, EARLIER_ROW, EARLIER_OWNER, NAMESPACE[ALICE], 0, True)
        w.publish([chunk], shared, shared)

        self._pages = iter(range(SHARED_PAGE + 1, len(w.oracle.pages) + 1))
        want = self.want(own, fresh=True)
        out = self.map(want)
        for verdict in self.fence(want, out):
            assert verdict[L.VERDICT_REASONS] == 0
        w.use(implementation)

    def want(self, new: int = 1, fresh: bool = False) -> list[Want]:
        return [
            Want(ROW[who], OWNER[who], NAMESPACE[who], new, who * new, fresh)
            for who in (ALICE, BOB)
        ]

    def map(self, want: list[Want]) -> list[int]:
        """Allocate and stamp what the entries want, write it into their rows."""
        out = []
        for who, w in enumerate(want):
            locs = self.locs[who]
            for _ in range(w.new):
                if len(locs) % self.ps:
                    locs.append(locs[-1] + 1)
                else:
                    locs.append(next(self._pages) * self.ps)
            out += locs[len(locs) - w.new :]
            self.w.table[w.row][: len(locs)] = locs
        self.w.stamp(want, out)
        return out

    def fence(self, want: list[Want], out: list[int], **kwargs) -> list[list[int]]:
        """Fence with the rows and lengths that are right."""
        lengths = [len(self.locs[ALICE]), len(self.locs[BOB])]
        return self.w.fence([ROW[ALICE], ROW[BOB]], lengths, want, out, **kwargs)

    def length(self, who: int) -> int:
        return len(self.locs[who])

    def page(self, who: int, position: int) -> int:
        return self.locs[who][position] // self.ps
