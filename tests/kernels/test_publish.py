"""Publication: what may enter the prefix cache, and how a row's seal follows."""

from __future__ import annotations

import random

import pytest
import torch
from oracle import Chunk, Want
from scene import (
    ALICE,
    BOB,
    EARLIER_OWNER,
    EARLIER_ROW,
    NAMESPACE,
    OWNER,
    ROW,
    SHARED_PAGE,
    Scene,
)
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.publish import publish
from worlds import IMPLEMENTATIONS, Worlds, longs

both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def chunk(
    start: int, count: int, who: int = ALICE, *, offset: int = 0, reseal: bool = True, **changes
) -> Chunk:
    args = {"row": ROW[who], "owner": OWNER[who], "namespace": NAMESPACE[who], **changes}
    return Chunk(offset, count, start=start, reseal=reseal, **args)


def fence(scene: Scene) -> list[int]:
    return [v[L.VERDICT_REASONS] for v in scene.fence(scene.want(0), [])]


@both
@pytest.mark.parametrize("page_size", (1, 16, 64))
def test_a_published_row_stays_clean(page_size, implementation):
    scene = Scene(implementation, page_size=page_size)
    mine = scene.locs[ALICE][page_size : 2 * page_size]
    scene.w.publish([chunk(page_size, page_size)], mine, mine)
    assert scene.w.oracle.pages[mine[0] // page_size].flags == L.LIVE | L.PUBLISHED
    assert fence(scene) == [0, 0]


@both
def test_a_substituted_page_carries_the_seal_over(implementation):
    scene = Scene(implementation)
    w, locs = scene.w, scene.locs[ALICE]
    old, new = locs[4:8], w.table[EARLIER_ROW][:4]
    w.publish([chunk(4, 4)], old, new)
    assert not w.oracle.faults
    w.table[ROW[ALICE]][4:8] = new
    assert fence(scene) == [0, 0]
    # The page that was substituted is hers to give back.
    assert w.release([(0, 1, OWNER[ALICE])], [old[0] // 4]) == ([old[0] // 4],) * 2


@both
def test_without_reseal_the_seal_stays(implementation):
    scene = Scene(implementation)
    before = scene.w.oracle.seal_rows()
    old, new = scene.locs[ALICE][4:8], scene.w.table[EARLIER_ROW][:4]
    scene.w.publish([chunk(4, 4, reseal=False)], old, new)
    assert scene.w.oracle.seal_rows() == before


@both
def test_the_seal_of_the_rows_next_holder_is_left_alone(implementation):
    scene = Scene(implementation)
    before = scene.w.oracle.seal_rows()
    bad = [0, -1, 2**31, 30 * 4]
    scene.w.publish([chunk(4, 4, owner=EARLIER_OWNER)], scene.locs[ALICE][4:8], bad)
    assert scene.w.oracle.seal_rows() == before
    assert len(scene.w.oracle.faults) == 3


def wrong(scene: Scene, page: int, **changes: int) -> int:
    """Publish a page of ALICE's after a change of its record; returns its flags."""
    w = scene.w
    w.set_page(page, **changes)
    locs = [page * 4 + k for k in range(4)]
    w.publish([chunk(4, 4)], scene.locs[ALICE][4:8], locs)
    (fault,) = w.oracle.faults
    assert fault[: L.FAULT_ACTOR + 1] == [L.F_PUBLISH, page, OWNER[ALICE]]
    assert w.oracle.seals[ROW[ALICE]].poison == L.R_PUBLISH
    assert w.oracle.seals[ROW[BOB]].poison == 0
    return w.oracle.pages[page].flags


@both
@pytest.mark.parametrize(
    "changes",
    (
        {"flags": 0},
        {"flags": L.LIVE | L.TAINTED},
        {"flags": L.LIVE | L.DIRTY},
        {"flags": L.LIVE | L.RETIRED},
        {"flags": L.RETIRED},
        {"namespace": 2},
        {"owner": 102},
    ),
    ids=str,
)
def test_a_page_that_may_not_be_published(changes, implementation):
    scene = Scene(implementation)
    assert not wrong(scene, scene.page(ALICE, 4), **changes) & L.PUBLISHED


@both
@pytest.mark.parametrize("flags", (L.TAINTED, L.DIRTY, L.RETIRED))
def test_a_published_page_that_may_not_be_substituted(flags, implementation):
    wrong(Scene(implementation), SHARED_PAGE, flags=L.LIVE | L.PUBLISHED | flags)


@both
def test_a_published_page_of_another_namespace(implementation):
    wrong(Scene(implementation), SHARED_PAGE, namespace=NAMESPACE[BOB])


@both
def test_one_fault_for_a_run_of_entries_in_one_page(implementation):
    scene = Scene(implementation)
    new = [0, 1, 40, 41, 0, 4 * 25, -1, -5]
    scene.w.publish([chunk(0, 8)], scene.locs[ALICE][:8], new)
    assert [f[L.FAULT_PAGE] for f in scene.w.oracle.faults] == [0, 10, 0, 25, 0, -1]


@both
def test_a_page_that_another_chunk_of_the_call_publishes(implementation):
    scene = Scene(implementation)
    w = scene.w
    new = list(range(80, 84))
    w.stamp([Want(EARLIER_ROW, EARLIER_OWNER, NAMESPACE[ALICE], 4, 0, False)], new)
    old = scene.locs[ALICE][4:8]
    later = chunk(4, 4, row=EARLIER_ROW, owner=EARLIER_OWNER, offset=4, reseal=False)
    w.publish([chunk(4, 4), later], old + new, new + new)
    assert not w.oracle.faults
    w.table[ROW[ALICE]][4:8] = new
    assert fence(scene) == [0, 0]


@both
def test_what_was_not_sealed_cannot_be_carried_over(implementation):
    scene = Scene(implementation)
    old = scene.locs[ALICE][4:8]
    scene.w.publish([chunk(4, 4)], [slot + 4 for slot in old], old)
    assert fence(scene)[ALICE] & L.R_DIGEST


@both
@pytest.mark.parametrize("row", (-1, 7, 2**40))
def test_a_row_that_does_not_exist(row, implementation):
    scene = Scene(implementation)
    locs = scene.locs[ALICE][4:8]
    scene.w.publish([chunk(4, 4, row=row)], locs, [0] * 4)


@both
def test_nothing_to_publish(implementation):
    w = Worlds(implementation)
    w.publish([], [], [])
    w.publish([chunk(0, 0)], [], [])


@both
def test_more_entries_than_a_program_takes_at_once(implementation):
    seed = random.randrange(2**32)
    print(f"{seed=}")
    rng = random.Random(seed)
    scene = Scene(implementation, page_size=16, own=600, num_pages=100)
    locs = scene.locs[ALICE][16:592]
    new = list(locs)
    for _ in range(5):
        new[rng.randrange(len(new))] = rng.randrange(-20, 102 * 16)
    half = len(locs) // 2 // 16 * 16
    chunks = [chunk(16, half), chunk(16 + half, len(locs) - half, offset=half)]
    scene.w.publish(chunks, locs, new)


def test_refuses_arguments_that_it_would_misread():
    locs = longs([1])
    pages = torch.zeros((4, L.PAGE_FIELDS), dtype=torch.int64)
    seals = torch.zeros((3, L.SEAL_FIELDS), dtype=torch.int64)
    faults = torch.zeros((L.FAULT_SLOTS + 1, L.FAULT_FIELDS), dtype=torch.int64)
    chunks = torch.zeros((1, L.PUBLISH_FIELDS), dtype=torch.int64)
    with pytest.raises(ValueError, match="new_locs"):
        publish(pages, seals, faults, chunks, locs, longs([1, 2]), 1, 0)
    with pytest.raises(TypeError, match="old_locs"):
        publish(pages, seals, faults, chunks, locs.int(), locs, 1, 0)
    with pytest.raises(ValueError, match="page_size"):
        publish(pages, seals, faults, chunks, locs, locs, -1, 0)
