"""Where a freed page waits before it may be handed out again.

    freed -> pending -> limbo -> resting -> taken by the allocator
             (host)     (dead in  (all zero,
                         ledger)   ageing)

Pages move in batches: one tensor of page ids and its length, which the host knows
without asking the device. Nothing here reads an id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch


@dataclass
class PageBatch:
    """Page ids that travel together.

    Attributes:
        ids: int64 (n,), on the pool's device.
        scrub_ids: int64 (n,) of limbo batches: ``ids``, and where the release kernel
            retired a page (0 in ``ids``) that page, which is to be zeroed all the same.
        since: clock reading when their scrub was enqueued; 0.0 before that.
        actor: owner tag on whose behalf they were freed (pending batches only).
        release: number of the release launch that buried them; 0 for pages that no
            release had a say in.
    """

    ids: torch.Tensor
    scrub_ids: torch.Tensor | None = None
    since: float = 0.0
    actor: int = 0
    release: int = 0

    def __len__(self) -> int:
        return self.ids.numel()

    def split(self, count: int) -> tuple[PageBatch, PageBatch]:
        """The first ``count`` ids and the rest."""
        head, tail = replace(self, ids=self.ids[:count]), replace(self, ids=self.ids[count:])
        if self.scrub_ids is not None:
            head.scrub_ids, tail.scrub_ids = self.scrub_ids[:count], self.scrub_ids[count:]
        return head, tail


class Quarantine:
    """Pending, limbo and resting pages of one address space, oldest first.

    Attributes:
        ttl: seconds that a page rests after its scrub was enqueued.
        settled: number of the last release launch whose page faults were read. Until then
            an id may be one that the release refused, so later batches are not taken.
        early_releases: pages taken before their time was up (elastic policy).
        full_releases: pages that rested their full time.
    """

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.settled = 0
        self.pending: list[PageBatch] = []
        self.limbo: deque[PageBatch] = deque()
        self.resting: deque[PageBatch] = deque()
        self.num_pending = 0
        self.num_limbo = 0
        self.num_resting = 0
        self.early_releases = 0
        self.full_releases = 0

    def __len__(self) -> int:
        return self.num_pending + self.num_limbo + self.num_resting

    def free(self, ids: torch.Tensor, actor: int) -> None:
        """A holder gave pages back; the ledger does not know yet."""
        self.pending.append(PageBatch(ids, actor=actor))
        self.num_pending += ids.numel()

    def take_pending(self) -> list[PageBatch]:
        """Everything freed since the last call, for the release kernel."""
        batches, self.pending = self.pending, []
        self.num_pending = 0
        return batches

    def bury(self, ids: torch.Tensor, scrub_ids: torch.Tensor, release: int) -> None:
        """Release launch number ``release`` was enqueued for these pages."""
        self.limbo.append(PageBatch(ids, scrub_ids, release=release))
        self.num_limbo += ids.numel()

    def take_limbo(self, at_most: int) -> list[PageBatch]:
        """Up to ``at_most`` buried pages for the scrubber, oldest first."""
        taken = []
        while self.limbo and at_most > 0:
            batch = self.limbo.popleft()
            if len(batch) > at_most:
                batch, rest = batch.split(at_most)
                self.limbo.appendleft(rest)
            taken.append(batch)
            at_most -= len(batch)
            self.num_limbo -= len(batch)
        return taken

    def rest(self, ids: torch.Tensor, now: float, release: int = 0) -> None:
        """The scrub of these pages was enqueued; their time to live starts."""
        self.resting.append(PageBatch(ids, since=now, release=release))
        self.num_resting += ids.numel()

    @property
    def next_is_settled(self) -> bool:
        """Whether the oldest resting pages may be taken."""
        return bool(self.resting) and self.resting[0].release <= self.settled

    def take_aged(self, now: float) -> list[torch.Tensor]:
        """All settled pages whose time to live has passed, oldest first."""
        taken = []
        while self.next_is_settled and self.resting[0].since + self.ttl <= now:
            batch = self.resting.popleft()
            self.num_resting -= len(batch)
            self.full_releases += len(batch)
            taken.append(batch.ids)
        return taken

    def take_early(self, count: int) -> list[torch.Tensor]:
        """Up to ``count`` settled pages whose time is not up, oldest first."""
        taken = []
        while self.next_is_settled and count > 0:
            batch = self.resting.popleft()
            if len(batch) > count:
                batch, rest = batch.split(count)
                self.resting.appendleft(rest)
            taken.append(batch.ids)
            count -= len(batch)
            self.num_resting -= len(batch)
            self.early_releases += len(batch)
        return taken

    def drop_refused(self) -> list[torch.Tensor]:
        """Forget ids that the release kernel set to 0, because it refused or retired them.

        Reads the device (it waits), so it is called only after a fault was seen.

        Returns:
            Ids of dropped pages that still await their scrub.
        """
        unscrubbed = []
        for batch in self.limbo:
            kept = batch.ids != 0
            unscrubbed.append(batch.scrub_ids[~kept])
            batch.ids, batch.scrub_ids = batch.ids[kept], batch.scrub_ids[kept]
        for batch in self.resting:
            batch.ids = batch.ids[batch.ids != 0]
        self.num_limbo = sum(len(batch) for batch in self.limbo)
        self.num_resting = sum(len(batch) for batch in self.resting)
        return unscrubbed

    def clear(self) -> None:
        """The whole pool was flushed: no page is freed any more."""
        self.pending.clear()
        self.limbo.clear()
        self.resting.clear()
        self.num_pending = self.num_limbo = self.num_resting = 0

    def all_ids(self) -> Iterator[torch.Tensor]:
        """Ids of every page in quarantine, for the engine's own census."""
        for queue in (self.resting, self.limbo, self.pending):
            for batch in queue:
                yield batch.ids
