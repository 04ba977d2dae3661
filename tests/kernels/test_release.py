"""Deaths: who may give a page back, and what becomes of it."""

from __future__ import annotations

import random

import pytest
import torch
from oracle import Want
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.release import release
from worlds import IMPLEMENTATIONS, Worlds, longs

both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)

OWNER, OTHER = 10, 11


@pytest.fixture
def w(implementation):
    """Pages 1..4 belong to OWNER, of which 3 and 4 are published; the rest is dead."""
    worlds = Worlds(implementation, page_size=1)
    worlds.stamp([Want(1, OWNER, 1, 4, 0, True)], [1, 2, 3, 4])
    worlds.mark(3, L.PUBLISHED)
    worlds.mark(4, L.PUBLISHED)
    return worlds


@both
def test_an_owner_gives_back_its_own_and_the_tree_what_is_published(w, implementation):
    assert w.release([(0, 2, OWNER), (2, 2, L.TREE)], [1, 2, 3, 4]) == ([1, 2, 3, 4],) * 2
    assert not w.oracle.faults
    # It still says whose data it was.
    assert w.oracle.page_rows()[1] == [1, 1, OWNER, 0]


@both
@pytest.mark.parametrize(
    ("actor", "page", "kind"),
    (
        (OWNER, 0, L.F_INVALID_FREE),
        (OWNER, -1, L.F_INVALID_FREE),
        (OWNER, 25, L.F_INVALID_FREE),
        (OWNER, 2**63 - 1, L.F_INVALID_FREE),
        (OWNER, -(2**63), L.F_INVALID_FREE),
        (OWNER, 5, L.F_DOUBLE_FREE),
        (L.TREE, 5, L.F_DOUBLE_FREE),
        (OTHER, 1, L.F_FOREIGN_FREE),
        (OTHER, 3, L.F_FOREIGN_FREE),
        (OWNER, 3, L.F_FOREIGN_FREE),
        (L.TREE, 1, L.F_FOREIGN_FREE),
    ),
)
def test_refused(actor, page, kind, w, implementation):
    before = w.oracle.page_rows()
    assert w.release([(0, 1, actor)], [page]) == ([0], [0])
    assert w.oracle.page_rows() == before
    (fault,) = w.oracle.faults
    assert fault[: L.FAULT_ACTOR + 1] == [kind, page, actor]


@both
@pytest.mark.parametrize("mark", (L.DIRTY, L.RETIRED, L.TAINTED | L.DIRTY))
def test_a_marked_page_is_withheld_but_scrubbed(mark, w, implementation):
    w.mark(1, mark)
    w.mark(3, mark)
    chunks = [(0, 2, OWNER), (2, 1, L.TREE)]
    assert w.release(chunks, [1, 2, 3]) == ([0, 2, 0], [1, 2, 3])
    assert [w.oracle.pages[n].flags for n in (1, 2, 3)] == [L.RETIRED, 0, L.RETIRED]
    assert [f[L.FAULT_KIND] for f in w.oracle.faults] == [L.F_RETIRED] * 2
    # A second time it is not alive any more.
    assert w.release(chunks, [1, 2, 3]) == ([0, 0, 0],) * 2


@both
def test_a_tainted_page_is_freed_like_any_other(w, implementation):
    w.mark(1, L.TAINTED)
    assert w.release([(0, 1, OWNER)], [1]) == ([1], [1])
    assert w.oracle.pages[1].flags == 0 and w.oracle.faults == []


@both
def test_the_first_of_several_releases_in_one_call_counts(w, implementation):
    ids = [1, 1, 2, 1, 3, 3]
    chunks = [(0, 2, OWNER), (2, 2, OWNER), (4, 2, L.TREE)]
    assert w.release(chunks, ids) == ([1, 0, 2, 0, 3, 0],) * 2
    assert [f[L.FAULT_KIND] for f in w.oracle.faults] == [L.F_DOUBLE_FREE] * 3


@both
def test_a_refused_release_does_not_shadow_an_entitled_one(w, implementation):
    chunks = [(0, 1, OTHER), (1, 1, L.TREE), (2, 1, OWNER)]
    assert w.release(chunks, [1, 1, 1]) == ([0, 0, 1],) * 2
    assert [f[L.FAULT_KIND] for f in w.oracle.faults] == [L.F_FOREIGN_FREE] * 2


@both
def test_nothing_to_release(w, implementation):
    assert w.release([], []) == ([], [])
    assert w.release([(0, 0, OWNER)], []) == ([], [])
    assert w.release([(0, 0, OWNER), (0, 1, OWNER)], [1]) == ([1], [1])


@both
def test_more_pages_than_a_program_takes_at_once(implementation):
    seed = random.randrange(2**32)
    print(f"{seed=}")
    rng = random.Random(seed)
    w = Worlds(implementation, num_pages=600, page_size=1)
    w.stamp([Want(1, OWNER, 1, 600, 0, True)], list(range(1, 601)))
    ids = list(range(1, 601))
    rng.shuffle(ids)
    for _ in range(30):
        ids[rng.randrange(600)] = rng.choice(ids)
    w.release([(0, 520, OWNER), (520, 80, OWNER)], ids)


@both
def test_last_page_of_the_pool(implementation):
    w = Worlds(implementation, num_pages=3, page_size=16)
    w.stamp([Want(1, OWNER, 1, 1, 0, True)], [48])
    assert w.release([(0, 2, OWNER)], [3, 4]) == ([3, 0],) * 2


@both
def test_the_fault_ring_wraps(implementation):
    w = Worlds(implementation)
    for n in range(4):
        w.release([(0, 40, OWNER)], list(range(-40 * n - 39, -40 * n + 1)))
    assert w.faults[0, 0] == 160


def test_the_reference_laps_the_ring_within_one_call():
    w = Worlds("reference")
    w.release([(0, 200, OWNER)], list(range(-199, 1)))
    assert w.faults[0, 0] == 200


def test_refuses_arguments_that_it_would_misread():
    ids = longs([1])
    pages = torch.zeros((4, L.PAGE_FIELDS), dtype=torch.int64)
    seals = torch.zeros((3, L.SEAL_FIELDS), dtype=torch.int64)
    faults = torch.zeros((L.FAULT_SLOTS + 1, L.FAULT_FIELDS), dtype=torch.int64)
    chunks = torch.zeros((1, L.RELEASE_FIELDS), dtype=torch.int64)
    with pytest.raises(ValueError, match="scrub_ids"):
        release(pages, seals, faults, chunks, ids, longs([1, 2]))
    with pytest.raises(ValueError, match="faults"):
        release(pages, seals, faults[1:], chunks, ids, ids.clone())
    with pytest.raises(TypeError, match="page_ids"):
        release(pages, seals, faults, chunks, ids.int(), ids.clone())
