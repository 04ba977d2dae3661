"""Births: who gets a page, what stays of its past, and pages that are handed out twice."""

from __future__ import annotations

import random

import pytest
import torch
from oracle import Want
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.stamp import stamp
from worlds import IMPLEMENTATIONS, Worlds, longs, table_of

both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def kinds(w: Worlds) -> list[tuple[int, int, int]]:
    return [(f[L.FAULT_KIND], f[L.FAULT_PAGE], f[L.FAULT_ACTOR]) for f in w.oracle.faults]


@both
@pytest.mark.parametrize("page_size", (1, 16, 64))
def test_a_page_is_born_where_its_first_slot_is_handed_out(page_size, implementation):
    w = Worlds(implementation, num_pages=5, page_size=page_size)
    locs = [5 * page_size + k for k in range(page_size)] + [page_size]
    born = w.stamp([Want(1, 10, 1, page_size, 0, True), Want(2, 11, 2, 1, page_size, True)], locs)
    assert born == [5] + [0] * (page_size - 1) + [1]
    assert w.oracle.page_rows()[5] == [1, 1, 10, L.LIVE]


@both
def test_history_keeps_previous_owners_newest_first(implementation):
    w = Worlds(implementation)
    for owner in (10, 11, 12, 13):
        w.stamp([Want(1, owner, 1, 1, 0, True)], [8])
        w.release([(0, 1, owner)], [2])
    assert w.oracle.history_rows()[2] == [12, 11]


@both
@pytest.mark.parametrize("row", (-1, 7, 2**40, -(2**63)))
def test_a_row_that_does_not_exist_gets_no_seal(row, implementation):
    w = Worlds(implementation)
    w.stamp([Want(row, 10, 1, 1, 0, True)], [8])
    # Nor is it poisoned.
    w.stamp([Want(row, 10, 1, 1, 0, True)], [8])
    assert kinds(w) == [(L.F_ALIAS, 2, 10)]


@both
def test_a_fresh_seal_forgets_the_row_before(implementation):
    w = Worlds(implementation)
    w.set_seal(1, owner=5, namespace=6, length=7, digest=8, poison=L.R_DEAD)
    w.stamp([Want(1, 10, 1, 0, 0, True)], [])
    assert w.oracle.seal_rows()[1] == [10, 1, 0, 0, 0, 0, 0, 0]
    w.stamp([Want(1, 11, 2, 0, 0, False)], [])
    assert w.oracle.seal_rows()[1][L.SEAL_OWNER] == 10


@both
@pytest.mark.parametrize(
    ("loc", "page"), ((0, 0), (100, 25), (-4, -1), (2**40, 2**38), (-(2**63), -(2**61)))
)
def test_alias_outside_the_pool(loc, page, implementation):
    w = Worlds(implementation)
    assert w.stamp([Want(1, 10, 1, 1, 0, True)], [loc]) == [0]
    assert kinds(w) == [(L.F_ALIAS, page, 10)]
    assert w.oracle.seals[1].poison == L.R_ALIAS


@both
def test_alias_of_somebody_elses_page_leaves_it_alone(implementation):
    w = Worlds(implementation)
    w.stamp([Want(1, 10, 1, 1, 0, True)], [8])
    before = w.oracle.page_rows()[2]
    w.stamp([Want(2, 11, 2, 1, 0, True)], [8])
    assert w.oracle.page_rows()[2] == before
    assert w.oracle.faults == [[L.F_ALIAS, 2, 11, 10, 1, 1, L.LIVE, 0]]
    assert w.oracle.seals[1].poison == 0
    assert w.oracle.seals[2].poison == L.R_ALIAS


@both
def test_alias_of_its_own_page_taints_it(implementation):
    w = Worlds(implementation)
    want = [Want(1, 10, 1, 1, 0, True)]
    w.stamp(want, [8])
    w.stamp(want, [8])
    assert w.oracle.pages[2].flags == L.LIVE | L.TAINTED


@both
def test_alias_of_a_retired_page(implementation):
    w = Worlds(implementation)
    w.set_page(2, flags=L.RETIRED, owner=9)
    assert w.stamp([Want(1, 10, 1, 1, 0, True)], [8]) == [0]
    assert w.oracle.pages[2].flags == L.RETIRED


@both
def test_one_page_for_two_requests_of_one_call(implementation):
    w = Worlds(implementation)
    w.set_page(2, owner=9, birth=0)
    want = [Want(1, 10, 1, 2, 0, True), Want(2, 11, 2, 1, 2, True)]
    assert w.stamp(want, [12, 8, 8]) == [3, 2, 0]
    assert w.oracle.page_rows()[2] == [2, 1, 10, L.LIVE]
    assert w.oracle.history_rows()[2] == [9, 0]
    assert w.oracle.faults == [[L.F_ALIAS, 2, 11, 10, 1, 2, L.LIVE, 0]]


@both
def test_one_page_twice_for_one_request(implementation):
    w = Worlds(implementation)
    assert w.stamp([Want(1, 10, 1, 3, 0, True)], [8, 8, 8]) == [2, 0, 0]
    assert w.oracle.pages[2].flags == L.LIVE | L.TAINTED
    assert len(w.oracle.faults) == 2


@both
def test_marks_of_a_dead_page_survive_its_birth(implementation):
    w = Worlds(implementation)
    w.set_page(2, flags=L.DIRTY | L.TAINTED | L.PUBLISHED)
    w.stamp([Want(1, 10, 1, 1, 0, True)], [8])
    assert w.oracle.pages[2].flags == L.LIVE | L.DIRTY | L.TAINTED


@both
def test_more_tokens_than_a_program_takes_at_once(implementation):
    seed = random.randrange(2**32)
    print(f"{seed=}")
    rng = random.Random(seed)
    w = Worlds(implementation, num_pages=700, page_size=1)
    locs = rng.sample(range(1, 701), 600)
    # Every page at most twice: whether a third taker sees the taint that the second one
    # left in this very launch is not defined.
    taken = rng.sample(range(600), 60)
    for again, first in zip(taken[:30], taken[30:]):
        locs[again] = locs[first]
    w.stamp([Want(1, 10, 1, 550, 0, True), Want(2, 11, 1, 50, 550, True)], locs)


@both
def test_tokens_that_nobody_claims_give_birth_to_nothing(implementation):
    w = Worlds(implementation)
    assert w.stamp([Want(1, 10, 1, 1, 1, True)], [4, 8, 12]) == [0, 2, 0]
    assert w.stamp([], [16]) == [0]


def test_refuses_arguments_that_it_would_misread():
    def call(born=longs([0]), birth_base=1, page_size=1, history=None):
        stamp(
            torch.zeros((4, L.PAGE_FIELDS), dtype=torch.int64),
            torch.zeros((4, L.HISTORY_FIELDS), dtype=torch.int64) if history is None else history,
            torch.zeros((3, L.SEAL_FIELDS), dtype=torch.int64),
            torch.zeros((L.FAULT_SLOTS + 1, L.FAULT_FIELDS), dtype=torch.int64),
            table_of([Want(1, 10, 1, 1, 0)], L.WANT_FIELDS),
            longs([1]), born, birth_base, page_size,
        )  # fmt: skip

    call()
    with pytest.raises(ValueError, match="birth_base"):
        call(birth_base=0)
    with pytest.raises(ValueError, match="page_size"):
        call(page_size=0)
    with pytest.raises(ValueError, match="born"):
        call(born=longs([0, 0]))
    with pytest.raises(TypeError, match="born"):
        call(born=torch.zeros(1, dtype=torch.int32))
    with pytest.raises(ValueError, match="history"):
        call(history=torch.zeros((3, L.HISTORY_FIELDS), dtype=torch.int64))
