"""What the kernels should do, said once more in plain Python, without torch.

Slow and literal: lists of dicts, one entry after the other. Kernels and references are
compared with it, so that they cannot share one misunderstanding. Field numbers and bits
are the only thing it takes from the product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sglang_kvguard.kernels import layout as L

WORD = 1 << 64


def signed(value: int) -> int:
    value %= WORD
    return value - WORD if value >= WORD // 2 else value


def _fmix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % WORD
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def mix(slot: int, birth: int, position: int, key: int) -> int:
    """An unsigned 64-bit number."""
    h = _fmix((slot * 0x9E3779B97F4A7C15 + birth * 0xBF58476D1CE4E5B9 + key) % WORD)
    return _fmix((h + position * 0x94D049BB133111EB) % WORD)


@dataclass
class Page:
    birth: int = 0
    namespace: int = 0
    owner: int = 0
    flags: int = 0
    past: list[int] = field(default_factory=lambda: [0] * L.HISTORY_FIELDS)

    def has(self, bits: int) -> bool:
        return self.flags & bits != 0


@dataclass
class Seal:
    owner: int = 0
    namespace: int = 0
    length: int = 0
    digest: int = 0
    poison: int = 0


@dataclass
class Want:
    row: int
    owner: int
    namespace: int
    new: int
    offset: int
    fresh: bool = False

    def fields(self) -> list[int]:
        return [
            self.row, self.owner, self.namespace, self.new, self.offset, int(self.fresh), 0, 0,
        ]  # fmt: skip


@dataclass
class Chunk:
    """A piece of a publication."""

    offset: int
    count: int
    row: int
    owner: int
    namespace: int
    start: int
    reseal: bool

    def fields(self) -> list[int]:
        return [
            self.offset, self.count, self.row, self.owner, self.namespace, self.start,
            int(self.reseal), 0,
        ]  # fmt: skip


class World:
    """Ledger, seals and faults of one pool, and the operations on them.

    Attributes:
        in_turn: a batch entry (or chunk) sees the taint that those before it left in the
            same call, as when the programs of a launch run one after the other. Without
            it they see none of it, as in the references. Both are allowed.
    """

    def __init__(self, num_pages: int, num_seals: int, page_size: int, key: int):
        self.page_size = page_size
        self.key = key
        self.in_turn = False
        # Page 0's record says nothing, whatever is in it.
        self.padding = [0] * L.PAGE_FIELDS
        self.pages = {number: Page() for number in range(1, num_pages + 1)}
        self.seals = {row: Seal() for row in range(num_seals)}
        self.faults: list[list[int]] = []

    # -- as the tensors have it

    def page_rows(self) -> list[list[int]]:
        rows = [[p.birth, p.namespace, p.owner, p.flags] for p in self.pages.values()]
        return [self.padding, *rows]

    def history_rows(self) -> list[list[int]]:
        return [[0] * L.HISTORY_FIELDS] + [list(p.past) for p in self.pages.values()]

    def seal_rows(self) -> list[list[int]]:
        return [
            [s.owner, s.namespace, s.length, signed(s.digest), s.poison, 0, 0, 0]
            for s in self.seals.values()
        ]

    def fault_rows(self) -> list[list[int]]:
        rows = [[0] * L.FAULT_FIELDS for _ in range(L.FAULT_SLOTS + 1)]
        rows[0][0] = len(self.faults)
        for number, fault in enumerate(self.faults):
            rows[1 + number % L.FAULT_SLOTS] = fault
        return rows

    # -- operations

    def fault(self, kind: int, number: int, actor: int, flags: int | None = None) -> None:
        page = self.pages.get(number, Page())
        self.faults.append(
            [
                kind, number, actor, page.owner, page.namespace, page.birth,
                page.flags if flags is None else flags, 0,
            ]  # fmt: skip
        )

    def stamp(self, want: Iterable[Want], locs: list[int], birth_base: int) -> list[int]:
        want = list(want)
        born = [0] * len(locs)
        for w in want:
            if w.fresh and w.row in self.seals:
                self.seals[w.row] = Seal(owner=w.owner, namespace=w.namespace)
        aliases: list[tuple[Want, int]] = []
        for w in want:
            for t in range(w.offset, w.offset + w.new):
                if locs[t] % self.page_size:
                    continue
                number = locs[t] // self.page_size
                page = self.pages.get(number)
                if page is None or page.has(L.LIVE | L.RETIRED):
                    aliases.append((w, number))
                    continue
                page.past = [page.owner, *page.past][: L.HISTORY_FIELDS]
                page.birth, page.namespace, page.owner = birth_base + t, w.namespace, w.owner
                page.flags = L.LIVE | page.flags & (L.TAINTED | L.DIRTY)
                born[t] = number
        groups = [[a for a in aliases if a[0] is w] for w in want] if self.in_turn else [aliases]
        for group in groups:
            tainted = []
            for w, number in group:
                self.fault(L.F_ALIAS, number, w.owner)
                if w.row in self.seals:
                    self.seals[w.row].poison |= L.R_ALIAS
                if number in self.pages and self.pages[number].owner == w.owner:
                    tainted.append(number)
            for number in tainted:
                self.pages[number].flags |= L.TAINTED
        return born

    def release(self, chunks: list[tuple[int, int, int]], ids: list[int]):
        """Returns (page_ids, scrub_ids) afterwards."""
        out, scrub, freed = [0] * len(ids), [0] * len(ids), set()
        found = {number: page.flags for number, page in self.pages.items()}
        for offset, count, actor in chunks:
            for n in range(offset, offset + count):
                number = ids[n]
                page = self.pages.get(number)
                if page is None:
                    self.fault(L.F_INVALID_FREE, number, actor)
                    continue
                flags = found[number]
                published = flags & L.PUBLISHED != 0
                mine = published if actor == L.TREE else page.owner == actor and not published
                if not flags & L.LIVE:
                    self.fault(L.F_DOUBLE_FREE, number, actor, flags)
                elif not mine:
                    self.fault(L.F_FOREIGN_FREE, number, actor, flags)
                elif number in freed:
                    self.fault(L.F_DOUBLE_FREE, number, actor, flags)
                else:
                    freed.add(number)
                    scrub[n] = number
                    if flags & (L.DIRTY | L.RETIRED):
                        self.fault(L.F_RETIRED, number, actor, flags)
                        page.flags = L.RETIRED
                    else:
                        page.flags = 0
                        out[n] = number
        return out, scrub

    def publish(self, chunks: list[Chunk], old: list[int], new: list[int]) -> None:
        unfit = L.TAINTED | L.RETIRED | L.DIRTY
        for c in chunks:
            for n in range(c.offset, c.offset + c.count):
                page = self.pages.get(int(new[n] / self.page_size))
                if page and page.has(L.LIVE) and not page.has(unfit):
                    if page.owner == c.owner and page.namespace == c.namespace:
                        page.flags |= L.PUBLISHED
        for c in chunks:
            seal = self.seals.get(c.row)
            reseals = c.reseal and seal is not None and seal.owner == c.owner
            last = None
            for k in range(c.count):
                n = c.offset + k
                number = int(new[n] / self.page_size)
                page = self.pages.get(number)
                right = page and page.flags & (L.LIVE | L.PUBLISHED | unfit) == L.LIVE | L.PUBLISHED
                if not right or page.namespace != c.namespace:
                    if number != last:
                        self.fault(L.F_PUBLISH, number, c.owner)
                    if reseals:
                        seal.poison |= L.R_PUBLISH
                last = number
                if reseals:
                    seal.digest += self._mix(new[n], c.start + k) - self._mix(old[n], c.start + k)

    def _mix(self, slot: int, position: int) -> int:
        page = self.pages.get(slot // self.page_size)
        return mix(slot, page.birth if page else 0, position, self.key)

    def fence(
        self,
        table: list[list[int]],
        rows: list[int],
        lengths: list[int],
        want: list[Want],
        out: list[int],
        enforce: bool,
    ) -> list[list[int]]:
        """Returns the verdicts; ``out`` is mutated."""
        verdicts, effects = [], []
        for row, length, w in zip(rows, lengths, want, strict=True):
            verdict, effect = self._judge(table, row, length, w, list(out))
            verdicts.append(verdict)
            effects.append((w, effect))
            if self.in_turn:
                self._apply(*effects.pop(), out, enforce)
        for w, effect in effects:
            self._apply(w, effect, out, enforce)
        return verdicts

    def _judge(self, table, row: int, length: int, w: Want, out: list[int]):
        seal = self.seals.get(w.row)
        s = seal or Seal()
        read = length - w.new
        reasons = s.poison
        if row != w.row or not 0 <= row < len(table) or seal is None:
            reasons |= L.R_ROW
        identified = seal is not None and w.owner != L.TREE
        identified = identified and (s.owner, s.namespace) == (w.owner, w.namespace)
        if not identified:
            reasons |= L.R_IDENTITY
        sized = 0 <= read <= length <= len(table[0])
        if not sized or (s.length != 0 and read != s.length):
            reasons |= L.R_LENGTH
        place = [-1, 0, 0, 0, 0, 0]
        digest_read = digest_new = 0
        if sized and 0 <= row < len(table):
            for j in range(length):
                slot = table[row][j]
                page = self.pages.get(slot // self.page_size)
                bad = self._entry(page, w, j >= read, first=s.length == 0)
                if j >= read:
                    t = w.offset + j - read
                    inside = w.offset >= 0 and w.offset + w.new <= len(out)
                    if not inside or out[t] != slot:
                        bad |= L.R_WRITE_TARGET
                    digest_new += self._mix(slot, j)
                else:
                    digest_read += self._mix(slot, j)
                if bad and place[0] < 0:
                    p = page or Page()
                    place = [j, slot, p.owner, p.namespace, p.birth, p.flags]
                reasons |= bad
            if s.length and s.length == read and (digest_read - s.digest) % WORD:
                reasons |= L.R_DIGEST
        effect = (reasons, identified, length, digest_read + digest_new)
        return [reasons, *place, w.owner], effect

    @staticmethod
    def _entry(page: Page | None, w: Want, is_new: bool, first: bool) -> int:
        if page is None:
            return L.R_RANGE
        bad = 0
        if not page.has(L.LIVE):
            bad |= L.R_DEAD
        if page.namespace != w.namespace:
            bad |= L.R_NAMESPACE
        if page.has(L.TAINTED | L.RETIRED):
            bad |= L.R_TAINTED
        if page.has(L.DIRTY):
            bad |= L.R_DIRTY
        own = page.owner == w.owner
        if is_new:
            if page.has(L.PUBLISHED) or not own:
                bad |= L.R_WRITE_OWNER
        elif not page.has(L.PUBLISHED) and (first or not own):
            bad |= L.R_FOREIGN
        return bad

    def _apply(self, w: Want, effect, out: list[int], enforce: bool) -> None:
        reasons, identified, length, digest = effect
        if not reasons:
            self.seals[w.row].length, self.seals[w.row].digest = length, digest
            return
        if identified:
            self.seals[w.row].length = length
            self.seals[w.row].poison |= reasons
        if not 0 <= w.offset <= len(out):
            return
        for t in range(w.offset, min(w.offset + w.new, len(out))):
            page = self.pages.get(out[t] // self.page_size)
            if page and page.flags & (L.LIVE | L.PUBLISHED) == L.LIVE and page.owner == w.owner:
                page.flags |= L.TAINTED
            if enforce:
                out[t] = 0
