"""The fence: every reason alone, what an offender leaves behind, and odd shapes.

Every call is compared with the oracle in all its effects (``worlds.Worlds.fence``); the
assertions here say what the oracle has to say.
"""

from __future__ import annotations

import random

import pytest
import torch
from oracle import Want
from scene import ALICE, BOB, NAMESPACE, OWNER, ROW, SHARED_PAGE, SPARE_ROW, Scene
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.fence import _grow_clean, _judge, fence, fence_scratch
from worlds import IMPLEMENTATIONS, Worlds, longs, table_of

both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
page_sizes = pytest.mark.parametrize("page_size", (1, 16, 64))


class Step:
    """The next decode of the scene, to be spoilt before it is fenced."""

    def __init__(self, implementation: str, **scene):
        self.scene = s = Scene(implementation, **scene)
        self.w, self.ps = s.w, s.ps
        self.want = s.want()
        s.w.use("reference")
        self.out = s.map(self.want)
        s.w.use(implementation)
        self.rows = [ROW[ALICE], ROW[BOB]]
        self.lengths = [s.length(ALICE), s.length(BOB)]
        self.last = self.lengths[ALICE] - 1
        self.alices = self.w.table[ROW[ALICE]]

    def own_page(self) -> int:
        """A page that ALICE reads and only she owns."""
        return self.scene.page(ALICE, self.ps)

    def fence(self, **kwargs) -> list[list[int]]:
        return self.w.fence(self.rows, self.lengths, self.want, self.out, **kwargs)

    def reasons(self) -> int:
        """ALICE's; BOB must not suffer."""
        alice, bob = self.fence()
        assert bob == [0, -1, 0, 0, 0, 0, 0, OWNER[BOB]]
        if self.out:
            assert self.out[self.want[BOB].offset] == self.scene.locs[BOB][-1]
        return alice[L.VERDICT_REASONS]


def other_row_with_the_same_entries(s: Step):
    s.w.table[SPARE_ROW][:] = s.alices
    s.rows[ALICE] = SPARE_ROW


def row_outside_the_table(s: Step):
    s.rows[ALICE] = len(s.w.table)


def negative_row(s: Step):
    s.rows[ALICE] = -1


def seal_of_another_owner(s: Step):
    s.w.set_seal(ROW[ALICE], owner=OWNER[BOB])


def seal_of_another_namespace(s: Step):
    s.w.set_seal(ROW[ALICE], namespace=NAMESPACE[BOB])


def one_entry_too_few(s: Step):
    s.lengths[ALICE] -= 1
    s.out[ALICE] = s.alices[s.last - 1]


def seal_of_another_length(s: Step):
    s.w.set_seal(ROW[ALICE], length=s.last + 1)


def longer_than_the_table_is_wide(s: Step):
    s.lengths[ALICE] = len(s.alices) + 1


def huge_length(s: Step):
    s.lengths[ALICE] = 2**63 - 1


def negative_length(s: Step):
    s.lengths[ALICE] = -(2**63)


def sealed_row_of_length_zero(s: Step):
    s.lengths[ALICE] = s.want[ALICE].new = 0


def bob_goes_first(s: Step):
    # A count that is too high covers what is behind it in the write set.
    s.want[BOB].offset, s.want[ALICE].offset = 0, 1
    s.out.reverse()


def more_new_than_there_are(s: Step):
    bob_goes_first(s)
    s.want[ALICE].new = s.lengths[ALICE] + 1


def negative_new(s: Step):
    s.want[ALICE].new = -1


def huge_new(s: Step):
    bob_goes_first(s)
    s.want[ALICE].new = 2**63 - 1


def most_negative_new(s: Step):
    s.want[ALICE].new = -(2**63)


def two_sealed_entries_trade_places(s: Step):
    i, j = s.ps, s.last - 1
    s.alices[i], s.alices[j] = s.alices[j], s.alices[i]


def page_reborn_for_the_same_owner(s: Step):
    s.w.set_page(s.own_page(), birth=10**6)


def write_outside_the_pool(s: Step):
    s.alices[s.last] = s.out[ALICE] = (len(s.w.oracle.pages) + 1) * s.ps


def write_to_the_padding_page(s: Step):
    s.alices[s.last] = s.out[ALICE] = s.ps - 1


def write_to_a_padding_page_that_claims_to_be_its_own(s: Step):
    s.w.oracle.padding = [9, NAMESPACE[ALICE], OWNER[ALICE], L.LIVE]
    s.w.pages[0] = longs(s.w.oracle.padding)
    s.alices[s.last] = s.out[ALICE] = 0


def write_to_a_negative_slot(s: Step):
    s.alices[s.last] = s.out[ALICE] = -1


def write_to_the_most_negative_slot(s: Step):
    s.alices[s.last] = s.out[ALICE] = -(2**31)


def write_to_the_highest_slot(s: Step):
    s.alices[s.last] = s.out[ALICE] = 2**31 - 1


def page_freed(s: Step):
    s.w.set_page(s.own_page(), flags=0)


def page_of_another_namespace(s: Step):
    s.w.set_page(SHARED_PAGE, namespace=NAMESPACE[BOB])


def cache_page_no_longer_published(s: Step):
    s.w.set_page(SHARED_PAGE, flags=L.LIVE)


def own_page_now_of_somebody_else(s: Step):
    s.w.set_page(s.own_page(), owner=OWNER[BOB])


def write_set_says_another_slot(s: Step):
    s.out[ALICE] = s.alices[0]


def write_set_says_a_slot_of_bob(s: Step):
    s.out[ALICE] = s.scene.locs[BOB][-1]


def write_set_too_short(s: Step):
    s.want[ALICE].offset = 2


def write_set_before_the_start(s: Step):
    s.want[ALICE].offset = -1


def write_set_at_a_huge_offset(s: Step):
    s.want[ALICE].offset = 2**63 - 1


def write_set_at_the_most_negative_offset(s: Step):
    s.want[ALICE].offset = -(2**63)


def write_into_the_cache(s: Step):
    page = s.scene.page(ALICE, s.last)
    s.w.set_page(page, flags=L.LIVE | L.PUBLISHED)


def read_page_tainted(s: Step):
    s.w.mark(s.own_page(), L.TAINTED)


def cache_page_tainted(s: Step):
    s.w.mark(SHARED_PAGE, L.TAINTED)


def read_page_retired(s: Step):
    s.w.mark(s.own_page(), L.RETIRED)


def written_page_tainted(s: Step):
    s.w.mark(s.scene.page(ALICE, s.last), L.TAINTED)


def page_dirty(s: Step):
    s.w.mark(s.own_page(), L.DIRTY)


def alias_remembered(s: Step):
    s.w.set_seal(ROW[ALICE], poison=L.R_ALIAS)


def bad_publication_remembered(s: Step):
    s.w.set_seal(ROW[ALICE], poison=L.R_PUBLISH)


ABUSES = {
    other_row_with_the_same_entries: L.R_ROW,
    row_outside_the_table: L.R_ROW,
    negative_row: L.R_ROW,
    seal_of_another_owner: L.R_IDENTITY,
    seal_of_another_namespace: L.R_IDENTITY,
    one_entry_too_few: L.R_LENGTH,
    seal_of_another_length: L.R_LENGTH,
    longer_than_the_table_is_wide: L.R_LENGTH,
    huge_length: L.R_LENGTH,
    negative_length: L.R_LENGTH,
    sealed_row_of_length_zero: L.R_LENGTH,
    more_new_than_there_are: L.R_LENGTH,
    negative_new: L.R_LENGTH,
    huge_new: L.R_LENGTH,
    most_negative_new: L.R_LENGTH,
    two_sealed_entries_trade_places: L.R_DIGEST,
    page_reborn_for_the_same_owner: L.R_DIGEST,
    write_outside_the_pool: L.R_RANGE,
    write_to_the_padding_page: L.R_RANGE,
    write_to_a_padding_page_that_claims_to_be_its_own: L.R_RANGE,
    write_to_a_negative_slot: L.R_RANGE,
    write_to_the_most_negative_slot: L.R_RANGE,
    write_to_the_highest_slot: L.R_RANGE,
    page_freed: L.R_DEAD,
    page_of_another_namespace: L.R_NAMESPACE,
    cache_page_no_longer_published: L.R_FOREIGN,
    own_page_now_of_somebody_else: L.R_FOREIGN,
    write_set_says_another_slot: L.R_WRITE_TARGET,
    write_set_says_a_slot_of_bob: L.R_WRITE_TARGET,
    write_set_too_short: L.R_WRITE_TARGET,
    write_set_before_the_start: L.R_WRITE_TARGET,
    write_set_at_a_huge_offset: L.R_WRITE_TARGET,
    write_set_at_the_most_negative_offset: L.R_WRITE_TARGET,
    write_into_the_cache: L.R_WRITE_OWNER,
    read_page_tainted: L.R_TAINTED,
    cache_page_tainted: L.R_TAINTED,
    read_page_retired: L.R_TAINTED,
    written_page_tainted: L.R_TAINTED,
    page_dirty: L.R_DIRTY,
    alias_remembered: L.R_ALIAS,
    bad_publication_remembered: L.R_PUBLISH,
}


@both
@pytest.mark.parametrize("abuse", ABUSES, ids=lambda abuse: abuse.__name__)
def test_each_reason_alone(abuse, implementation):
    step = Step(implementation)
    abuse(step)
    assert step.reasons() == ABUSES[abuse]


@both
@page_sizes
def test_each_reason_alone_at_other_page_sizes(page_size, implementation):
    for abuse, reason in random.Random(page_size).sample(list(ABUSES.items()), 6):
        step = Step(implementation, page_size=page_size)
        if abuse is write_into_the_cache and page_size == 1:
            continue  # the page has just been born: there is nothing before it to publish
        abuse(step)
        assert step.reasons() == reason, abuse.__name__


@both
@page_sizes
def test_clean_batches_stay_clean(page_size, implementation):
    scene = Scene(implementation, page_size=page_size, num_pages=40)
    for new in (1, 1, 0, page_size + 1):
        want = scene.want(new)
        if scene.length(ALICE) + new > len(scene.w.table[0]):
            break
        for verdict in scene.fence(want, scene.map(want)):
            assert verdict[L.VERDICT_REASONS] == 0


@both
def test_several_reasons_at_once(implementation):
    step = Step(implementation)
    step.alices[1] = -5
    step.w.mark(step.own_page(), L.DIRTY | L.TAINTED)
    step.w.set_page(step.scene.page(ALICE, step.last), owner=OWNER[BOB])
    step.out[ALICE] = 0
    assert step.reasons() == (  # fmt: skip
        L.R_RANGE | L.R_DIGEST | L.R_DIRTY | L.R_TAINTED | L.R_FOREIGN
        | L.R_WRITE_OWNER | L.R_WRITE_TARGET
    )


@both
@pytest.mark.parametrize("slot", (0, 3, -1, -4, -(2**31), 2**31 - 1, 25 * 4))
def test_a_read_outside_the_pool_is_seen_where_it_is(slot, implementation):
    step = Step(implementation)
    step.alices[6] = slot
    step.alices[8] = slot
    alice, _ = step.fence()
    assert alice[:7] == [L.R_RANGE | L.R_DIGEST, 6, slot, 0, 0, 0, 0]


@both
def test_verdict_names_the_page_of_the_lowest_offence(implementation):
    step = Step(implementation)
    page = step.own_page()
    step.w.set_page(page, namespace=7, owner=55, flags=L.LIVE | L.TAINTED)
    alice, _ = step.fence()
    assert alice == [
        L.R_NAMESPACE | L.R_FOREIGN | L.R_TAINTED, 4, page * 4, 55, 7,
        step.w.oracle.pages[page].birth, L.LIVE | L.TAINTED, OWNER[ALICE],
    ]  # fmt: skip


@both
def test_poison_sticks(implementation):
    step = Step(implementation)
    step.out[ALICE] = 0
    assert step.reasons() == L.R_WRITE_TARGET
    scene = step.scene
    want = scene.want()
    alice, bob = scene.fence(want, scene.map(want))
    # The page it had wanted to write was tainted, and it is what it now writes on.
    assert alice[L.VERDICT_REASONS] & L.R_WRITE_TARGET
    assert bob[L.VERDICT_REASONS] == 0


@both
def test_a_fresh_incarnation_of_a_poisoned_row_is_clean(implementation):
    step = Step(implementation)
    step.out[ALICE] = 0
    step.fence()
    want = [Want(ROW[ALICE], 500, 3, 1, 0, True)]
    step.w.table[ROW[ALICE]][0] = 20 * 4
    step.w.stamp(want, [80])
    (verdict,) = step.w.fence([ROW[ALICE]], [1], want, [80])
    assert verdict[L.VERDICT_REASONS] == 0


@both
@pytest.mark.parametrize("enforce", (True, False))
def test_an_offender_taints_its_own_pages_and_is_diverted(enforce, implementation):
    scene = Scene(implementation)
    want = scene.want(6)
    out = scene.map(want)
    mine = {slot // 4 for slot in out[:6]}
    victim = scene.page(BOB, 0)
    out[2] = victim * 4
    out[3] = SHARED_PAGE * 4
    before = list(out)
    scene.fence(want, out, enforce=enforce)
    pages = scene.w.oracle.pages
    assert all(pages[number].flags == L.LIVE | L.TAINTED for number in mine)
    assert pages[victim].flags == L.LIVE
    assert pages[SHARED_PAGE].flags == L.LIVE | L.PUBLISHED
    assert out == ([0] * 6 if enforce else before[:6]) + before[6:]


@both
def test_an_offender_is_refused_its_write_even_when_its_row_is_not_walked(implementation):
    step = Step(implementation)
    step.rows[ALICE] = 10**6
    page = step.scene.page(ALICE, step.last)
    step.fence()
    assert step.out[ALICE] == 0
    assert step.w.oracle.pages[page].flags == L.LIVE | L.TAINTED


@both
def test_an_offender_does_not_spoil_the_seal_of_the_rows_new_holder(implementation):
    step = Step(implementation)
    step.want[ALICE].owner = 77
    before = step.w.oracle.seal_rows()[ROW[ALICE]]
    assert step.reasons() & L.R_IDENTITY
    assert step.w.oracle.seal_rows()[ROW[ALICE]] == before


@both
def test_owner_zero_is_nobody(implementation):
    for row in (0, 1):
        w = Worlds(implementation)
        w.set_page(1, flags=L.LIVE)
        w.table[row][0] = 4
        (verdict,) = w.fence([row], [1], [Want(row, L.TREE, 0, 1, 0)], [4])
        assert verdict[L.VERDICT_REASONS] == L.R_IDENTITY


@both
def test_row_zero_is_a_row_like_others_once_sealed(implementation):
    w = Worlds(implementation)
    want = [Want(0, 9, 1, 2, 0, True)]
    w.table[0][:2] = [4, 5]
    w.stamp(want, [4, 5])
    assert w.fence([0], [2], want, [4, 5])[0][L.VERDICT_REASONS] == 0


@both
def test_row_without_a_seal_record(implementation):
    step = Step(implementation)
    step.want[ALICE].row = step.rows[ALICE] = len(step.w.oracle.seals)
    step.w.table.append(list(step.alices))
    assert step.reasons() == L.R_ROW | L.R_IDENTITY | L.R_FOREIGN


@both
def test_first_admission_reads_published_pages_only(implementation):
    scene = Scene(implementation)
    own = scene.locs[BOB][:4]
    for owner, locs, reason in (
        (201, scene.locs[ALICE][:4], 0),
        (202, scene.locs[ALICE][:5], L.R_FOREIGN),
        # Not even its own: a row that was sealed for nothing has read nothing yet.
        (OWNER[BOB], own, L.R_FOREIGN),
    ):
        namespace = NAMESPACE[BOB] if locs is own else NAMESPACE[ALICE]
        want = [Want(SPARE_ROW, owner, namespace, 0, 0, True)]
        scene.w.table[SPARE_ROW][: len(locs)] = locs
        scene.w.stamp(want, [])
        (verdict,) = scene.w.fence([SPARE_ROW], [len(locs)], want, [])
        assert verdict[L.VERDICT_REASONS] == reason


@both
def test_nothing_to_read_and_nothing_to_write(implementation):
    w = Worlds(implementation)
    want = [Want(1, 9, 1, 0, 0, True)]
    w.stamp(want, [])
    assert w.fence([1], [0], want, [])[0][L.VERDICT_REASONS] == 0
    assert w.oracle.seals[1].length == 0


@both
def test_empty_batch(implementation):
    w = Worlds(implementation)
    assert w.fence([], [], [], []) == []
    assert w.stamp([], []) == []


@both
def test_read_only_forward(implementation):
    scene = Scene(implementation)
    want = scene.want(0)
    assert [v[L.VERDICT_REASONS] for v in scene.fence(want, [])] == [0, 0]
    scene.w.table[ROW[BOB]][1] += 1
    assert [v[L.VERDICT_REASONS] for v in scene.fence(want, [])] == [0, L.R_DIGEST]


@both
def test_a_write_without_a_write_set(implementation):
    step = Step(implementation)
    step.out = []
    step.want[BOB].new, step.lengths[BOB] = 0, step.lengths[BOB] - 1
    alice, bob = step.fence()
    assert alice[L.VERDICT_REASONS] == L.R_WRITE_TARGET
    assert bob[L.VERDICT_REASONS] == 0


@both
def test_one_row_twice_in_a_batch(implementation):
    step = Step(implementation)
    want = step.want[ALICE]
    step.want = [want, Want(want.row, want.owner, want.namespace, 1, 1)]
    step.rows, step.lengths = [want.row] * 2, [step.lengths[ALICE]] * 2
    step.out = [step.out[ALICE], 0]
    step.fence()
    assert step.w.oracle.seals[want.row].poison & L.R_WRITE_TARGET
    assert step.out == [step.scene.locs[ALICE][-1], 0]


@both
def test_row_of_full_context_length(implementation):
    scene = Scene(implementation, own=6, capacity=10)
    want = scene.want(0)
    assert scene.length(ALICE) == len(scene.w.table[0])
    assert [v[L.VERDICT_REASONS] for v in scene.fence(want, [])] == [0, 0]


@both
def test_one_token_more_than_the_table_is_wide(implementation):
    """What a walk over the end of the row would find is the next row, here in good order."""
    scene = Scene(implementation, own=6, capacity=10)
    slot = scene.locs[ALICE][-1] + 1
    scene.w.table[ROW[ALICE] + 1][0] = slot
    want = [Want(ROW[ALICE], OWNER[ALICE], NAMESPACE[ALICE], 1, 0)]
    for _ in range(4):  # of different strides
        (verdict,) = scene.w.fence([ROW[ALICE]], [11], want, [slot], enforce=False)
        assert verdict[:2] == [L.R_LENGTH, -1]
        scene.w.set_page(slot // 4, flags=L.LIVE)
        scene.w.set_seal(ROW[ALICE], length=10, poison=0)


@both
def test_a_first_admission_that_takes_tokens_back(implementation):
    scene = Scene(implementation)
    want = [Want(SPARE_ROW, 201, NAMESPACE[ALICE], -1, 0, True)]
    scene.w.table[SPARE_ROW][:4] = scene.locs[ALICE][:4]
    scene.w.stamp(want, [])
    (verdict,) = scene.w.fence([SPARE_ROW], [3], want, [])
    assert verdict[L.VERDICT_REASONS] == L.R_LENGTH


@both
def test_what_is_behind_the_row_does_not_matter(implementation):
    step = Step(implementation)
    step.alices[step.last + 1] = -(2**31)
    assert step.reasons() == 0


@both
def test_last_page_of_the_pool(implementation):
    w = Worlds(implementation, num_pages=3, page_size=16)
    want = [Want(1, 9, 1, 16, 0, True)]
    locs = list(range(48, 64))
    w.table[1][:16] = locs
    w.stamp(want, locs)
    assert w.fence([1], [16], want, locs)[0][L.VERDICT_REASONS] == 0
    w.table[1][15] = locs[15] = 64
    want = [Want(2, 10, 1, 1, 0, True)]
    w.table[2][0] = 64
    w.stamp(want, [64])
    assert w.fence([2], [1], want, [64])[0][L.VERDICT_REASONS] == L.R_RANGE | L.R_ALIAS


@both
@pytest.mark.parametrize(("max_len", "page_size"), ((1, 16), (3000, 1)))
def test_rows_longer_than_a_program_takes_at_once(max_len, page_size, implementation):
    step = Step(
        implementation, page_size=page_size, own=1024, capacity=1100, num_pages=2200 // page_size
    )
    assert [v[L.VERDICT_REASONS] for v in step.fence(max_len=max_len)] == [0, 0]
    for position in (step.last, 255):
        step.alices[position] = -1
        alice, _ = step.fence(max_len=max_len)
        assert alice[L.VERDICT_REASONS] & L.R_RANGE
        assert alice[L.VERDICT_POSITION] == position


@both
def test_stale_row_of_a_page_that_went_to_somebody_else(implementation):
    """Use after free: the row still maps a page that was released and born again."""
    step = Step(implementation)
    page = step.own_page()
    step.w.release([(0, 1, OWNER[ALICE])], [page])
    want = [Want(SPARE_ROW, 300, NAMESPACE[ALICE], 4, 0, True)]
    step.w.stamp(want, [page * 4 + k for k in range(4)])
    assert step.reasons() == L.R_FOREIGN | L.R_DIGEST


def test_short_cut_of_the_reference_grows_what_the_long_way_grows():
    scene = Scene("reference", page_size=4, num_pages=40)
    for new in (1, 0, 5, 3):
        want = scene.want(new)
        if scene.length(ALICE) + new > len(scene.w.table[0]):
            break
        out = scene.map(want)
        rows = longs([ROW[ALICE], ROW[BOB]])
        lengths = longs([scene.length(ALICE), scene.length(BOB)])
        table = torch.tensor(scene.w.table, dtype=torch.int32)
        records = table_of(want, L.WANT_FIELDS)
        args = (table, rows, lengths, records, longs(out))
        key = scene.w.key
        grown = _grow_clean(scene.w.pages, scene.w.seals, *args, 4, key)
        seals, verdict = scene.w.seals.clone(), torch.full((2, L.VERDICT_FIELDS), -5)
        _judge(scene.w.pages, seals, *args, verdict, 4, key, True)
        assert verdict[:, L.VERDICT_REASONS].tolist() == [0, 0]
        assert grown.tolist() == seals[rows, L.SEAL_DIGEST].tolist()
        scene.fence(want, out)


def call(**changes):
    """A correct call on a CPU, with some arguments changed."""
    args = {
        "pages": torch.zeros((4, L.PAGE_FIELDS), dtype=torch.int64),
        "seals": torch.zeros((3, L.SEAL_FIELDS), dtype=torch.int64),
        "req_to_token": torch.zeros((3, 8), dtype=torch.int32),
        "rows": longs([1]),
        "seq_lens": longs([0]),
        "want": torch.zeros((1, L.WANT_FIELDS), dtype=torch.int64),
        "out_locs": longs([]),
        "verdict": torch.zeros((1, L.VERDICT_FIELDS), dtype=torch.int64),
        "scratch": fence_scratch(1, "cpu"),
        "page_size": 1,
        "key": 0,
        "enforce": True,
        "max_len": 1,
    }
    fence(**{**args, **changes})


@pytest.mark.parametrize(
    ("error", "change"),
    (
        (TypeError, {"pages": torch.zeros((4, L.PAGE_FIELDS), dtype=torch.int32)}),
        (TypeError, {"req_to_token": torch.zeros((3, 8), dtype=torch.int64)}),
        (TypeError, {"rows": torch.zeros(1)}),
        (ValueError, {"rows": longs([1, 2])}),
        (ValueError, {"seq_lens": longs([[1]])}),
        (ValueError, {"seals": torch.zeros((L.SEAL_FIELDS, 3), dtype=torch.int64).t()}),
        (ValueError, {"req_to_token": torch.zeros((8, 3), dtype=torch.int32).t()}),
        (ValueError, {"verdict": torch.zeros((2, L.VERDICT_FIELDS), dtype=torch.int64)}),
        (ValueError, {"scratch": fence_scratch(0, "cpu")}),
        (ValueError, {"page_size": 0}),
    ),
)
def test_refuses_arguments_that_it_would_misread(error, change):
    call()
    with pytest.raises(error, match=next(iter(change))):
        call(**change)
