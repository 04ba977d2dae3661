"""Random lives of requests, with random abuse: oracle and implementation never differ.

A small engine admits requests (with and without a cached prefix), prefills in chunks,
decodes, publishes, substitutes, releases and reuses pages. Now and then it does one of
the things that an engine with a bug would do.
"""

from __future__ import annotations

import random

import pytest
from oracle import Chunk, Want
from sglang_kvguard.kernels import layout as L
from worlds import Worlds

LIVES = {"reference": 40, "triton": 3}
STEPS = 40


class Request:
    def __init__(self, row: int, owner: int, namespace: int):
        self.row, self.owner, self.namespace = row, owner, namespace
        self.locs: list[int] = []
        self.published = 0  # leading entries
        self.fresh = True


class Engine:
    def __init__(self, implementation: str, seed: int):
        self.rng = rng = random.Random(seed)
        page_size = rng.choice((1, 2, 4, 16))
        self.w = Worlds(
            implementation,
            num_pages=rng.randint(6, 40),
            num_rows=rng.randint(1, 6),
            page_size=page_size,
            capacity=rng.choice((1, 3, 4)) * page_size + rng.randint(0, 5),
            key=rng.getrandbits(64),
            rng=rng,
        )
        self.ps = page_size
        self.capacity = len(self.w.table[0])
        self.num_pages = len(self.w.oracle.pages)
        self.free_pages = list(range(1, self.num_pages + 1))
        self.free_rows = list(range(1, len(self.w.table)))
        self.running: list[Request] = []
        self.cached: dict[int, list[list[int]]] = {1: [], 2: []}
        self.owners = 100
        self.verdicts: set[int] = set()

    def abuse(self, chance: float = 0.025) -> bool:
        return self.rng.random() < chance

    def admit(self) -> None:
        if not self.free_rows:
            return
        self.owners += 1
        request = Request(self.free_rows.pop(), self.owners, self.rng.choice((1, 2)))
        known = self.cached[self.rng.choice((1, 2)) if self.abuse() else request.namespace]
        if known and self.rng.random() < 0.7:
            request.locs = list(self.rng.choice(known))[: self.capacity]
            request.published = len(request.locs)
            self.w.table[request.row][: len(request.locs)] = request.locs
        self.running.append(request)

    def grow(self, request: Request, count: int) -> list[int] | None:
        """Slots for more tokens, or None if there are none."""
        new, taken = [], []
        for position in range(len(request.locs), len(request.locs) + count):
            if position % self.ps == 0:
                if not self.free_pages:
                    self.free_pages += taken
                    return None
                taken.append(self.free_pages.pop(self.rng.randrange(len(self.free_pages))))
                new.append(taken[-1] * self.ps)
            else:
                new.append((new or request.locs)[-1] + 1)
        return new

    def batch(self) -> None:
        rng = self.rng
        entries, locs = [], []
        for request in rng.sample(self.running, rng.randint(0, len(self.running))):
            room = self.capacity - len(request.locs)
            count = min(room, rng.choice((0, 1, 1, 1, self.ps, 2 * self.ps, self.ps + 1)))
            new = self.grow(request, count)
            if new is None:
                continue
            start = len(request.locs)
            request.locs += new
            self.w.table[request.row][start : start + count] = new
            want = Want(
                request.row, request.owner, request.namespace, count, len(locs), request.fresh
            )
            request.fresh = False
            entries.append((request, want))
            locs += new
        if locs and self.abuse():
            locs[rng.randrange(len(locs))] = rng.choice(
                (rng.choice(locs), self.ps * rng.randint(-1, self.num_pages + 2), -self.ps)
            )
        want = [entry[1] for entry in entries]
        self.w.stamp(want, locs)
        if self.abuse(0.05):
            mark = rng.choice((L.TAINTED, L.DIRTY, L.PUBLISHED))
            self.w.mark(rng.randint(1, self.num_pages), mark)

        rows = [request.row for request, _ in entries]
        lengths = [len(request.locs) for request, _ in entries]
        out = list(locs)
        for i in range(len(entries)):
            if self.abuse():
                rows[i] = rng.choice((rng.choice(rows), 0, -1, len(self.w.table)))
            if self.abuse():
                near = (lengths[i] - 1, lengths[i] + 1)
                lengths[i] = rng.choice((*near, 0, -1, self.capacity + 1, 2**40))
            if self.abuse():
                field, value = rng.choice(
                    (("owner", L.TREE), ("owner", 100), ("namespace", 9), ("row", -1), ("row", 99))
                )
                setattr(want[i], field, value)
            if self.abuse():
                place = rng.randrange(self.capacity)
                self.w.table[entries[i][0].row][place] = rng.choice(
                    (rng.randrange((self.num_pages + 1) * self.ps), -1, 0, 2**31 - 1, -(2**31))
                )
        if out and self.abuse():
            out[rng.randrange(len(out))] = rng.randrange((self.num_pages + 2) * self.ps)
        max_len = rng.choice((None, 1, self.capacity, 10 * self.capacity))
        for verdict in self.w.fence(
            rows, lengths, want, out, enforce=rng.random() < 0.8, max_len=max_len
        ):
            self.verdicts.add(verdict[L.VERDICT_REASONS])

    def publish(self) -> None:
        rng = self.rng
        chunks, old, new = [], [], []
        for request in rng.sample(self.running, rng.randint(0, len(self.running))):
            full = len(request.locs) // self.ps * self.ps
            begin, end = request.published // self.ps * self.ps, full
            if begin >= end:
                continue
            before = request.locs[begin:end]
            after = list(before)
            known = [c for c in self.cached[request.namespace] if len(c) >= end]
            if known and rng.random() < 0.5:
                after = rng.choice(known)[begin:end]
            if self.abuse():
                after[rng.randrange(len(after))] = rng.randrange(-3, (self.num_pages + 2) * self.ps)
            owner = rng.choice((request.owner, 100)) if self.abuse() else request.owner
            reseal = rng.random() < 0.8
            chunks.append(
                Chunk(len(new), end - begin, request.row, owner, request.namespace, begin, reseal)
            )
            old += before
            new += after
            if reseal:
                request.locs[begin:end] = after
                self.w.table[request.row][begin:end] = after
            request.published = end
            self.cached[request.namespace].append(request.locs[:end])
        self.w.publish(chunks, old, new)

    def release(self) -> None:
        rng = self.rng
        chunks, ids = [], []
        for request in [r for r in self.running if rng.random() < 0.25]:
            self.running.remove(request)
            self.free_rows.insert(0, request.row)
            own = sorted({slot // self.ps for slot in request.locs[request.published :]})
            actor = rng.choice((L.TREE, 100, request.owner + 1)) if self.abuse() else request.owner
            chunks.append((len(ids), len(own), actor))
            ids += own
        if rng.random() < 0.3:
            shared = [c for known in self.cached.values() for c in known]
            pages = sorted({slot // self.ps for c in shared for slot in c})
            chunks.append((len(ids), len(pages), L.TREE))
            ids += pages
            self.cached = {1: [], 2: []}
        for n in range(len(ids)):
            if self.abuse():
                ids[n] = rng.choice((0, -1, self.num_pages + 1, 2**40, rng.choice(ids)))
        page_ids, scrub_ids = self.w.release(chunks, ids)
        assert not set(page_ids) - set(scrub_ids) - {0}
        self.free_pages += [number for number in page_ids if number]

    def live(self, steps: int) -> None:
        acts = (self.admit, self.batch, self.batch, self.batch, self.publish, self.release)
        for _ in range(steps):
            self.rng.choice(acts)()


@pytest.mark.parametrize("implementation", LIVES)
def test_oracle_and_implementation_agree(implementation):
    seen = set()
    for _ in range(LIVES[implementation]):
        seed = random.randrange(2**32)
        print(f"{seed=}")
        engine = Engine(implementation, seed)
        engine.live(STEPS)
        seen |= engine.verdicts
    assert 0 in seen and len(seen) > 1, "these lives were all good or all bad"
