"""The quarantine against a plain list of pages."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sglang_kvguard.core.quarantine import Quarantine

TTL = 30.0


class QuarantineMachine(RuleBasedStateMachine):
    """Random frees, burials, scrubs and releases; the model keeps (page, since) in order."""

    def __init__(self) -> None:
        super().__init__()
        self.quarantine = Quarantine(TTL)
        self.quarantine.settled = 1
        self.now = 0.0
        self.next_page = 1
        self.pending: list[int] = []
        self.limbo: list[int] = []
        self.resting: list[tuple[int, float]] = []

    @rule(count=st.integers(1, 5))
    def free(self, count: int) -> None:
        pages = list(range(self.next_page, self.next_page + count))
        self.next_page += count
        self.quarantine.free(torch.tensor(pages), actor=7)
        self.pending += pages

    @rule()
    def bury(self) -> None:
        batches = self.quarantine.take_pending()
        assert [p for b in batches for p in b.ids.tolist()] == self.pending
        assert all(b.actor == 7 for b in batches)
        for batch in batches:
            self.quarantine.bury(batch.ids, batch.ids.clone(), release=1)
        self.limbo += self.pending
        self.pending = []

    @rule(at_most=st.integers(0, 7))
    def scrub(self, at_most: int) -> None:
        batches = self.quarantine.take_limbo(at_most)
        taken = [p for b in batches for p in b.scrub_ids.tolist()]
        assert taken == self.limbo[:at_most]
        for batch in batches:
            self.quarantine.rest(batch.ids, self.now)
        self.resting += [(p, self.now) for p in taken]
        self.limbo = self.limbo[at_most:]

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take_aged(self) -> None:
        taken = [p for ids in self.quarantine.take_aged(self.now) for p in ids.tolist()]
        expected = [p for p, since in self.resting if since + TTL <= self.now]
        assert taken == expected
        self.resting = self.resting[len(expected) :]

    @rule(count=st.integers(0, 6))
    def take_early(self, count: int) -> None:
        taken = [p for ids in self.quarantine.take_early(count) for p in ids.tolist()]
        assert taken == [p for p, _ in self.resting[:count]], "oldest first, scrubbed only"
        self.resting = self.resting[count:]

    @rule(index=st.integers(0, 100))
    def refuse_one(self, index: int) -> None:
        """The release kernel zeroed an id; it is dropped wherever it is by now."""
        batches = [b for b in (*self.quarantine.limbo, *self.quarantine.resting) if len(b)]
        if not batches:
            return
        batch = batches[index % len(batches)]
        page = int(batch.ids[0])
        batch.ids[0] = 0
        unscrubbed = [p for ids in self.quarantine.drop_refused() for p in ids.tolist()]
        assert unscrubbed == ([page] if page in self.limbo else [])
        self.limbo = [p for p in self.limbo if p != page]
        self.resting = [(p, since) for p, since in self.resting if p != page]

    @invariant()
    def counts_agree(self) -> None:
        quarantine = self.quarantine
        assert quarantine.num_pending == len(self.pending)
        assert quarantine.num_limbo == len(self.limbo)
        assert quarantine.num_resting == len(self.resting)
        assert len(quarantine) == len(self.pending) + len(self.limbo) + len(self.resting)
        ids = [p for ids in quarantine.all_ids() for p in ids.tolist()]
        assert sorted(ids) == sorted([*self.pending, *self.limbo, *(p for p, _ in self.resting)])


def test_pages_of_a_release_that_was_not_read_are_not_taken() -> None:
    quarantine = Quarantine(ttl=0.0)
    for number in (1, 2):
        quarantine.free(torch.tensor([number]), actor=7)
        (batch,) = quarantine.take_pending()
        quarantine.bury(batch.ids, batch.ids.clone(), release=number)
    for batch in quarantine.take_limbo(2):
        quarantine.rest(batch.ids, now=0.0, release=batch.release)
    assert quarantine.take_aged(1.0) == [] and quarantine.take_early(2) == []
    quarantine.settled = 1
    assert [ids.tolist() for ids in quarantine.take_aged(1.0)] == [[1]]
    quarantine.settled = 2
    assert [ids.tolist() for ids in quarantine.take_early(2)] == [[2]]


TestQuarantine = QuarantineMachine.TestCase
TestQuarantine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
