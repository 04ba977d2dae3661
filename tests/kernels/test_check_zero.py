"""The zero check: one byte anywhere in a page gives it away, and its neighbours not."""

from __future__ import annotations

import random

import pools
import pytest
import torch
from sglang_kvguard.kernels import layout as L
from sglang_kvguard.kernels.check_zero import check_zero, check_zero_reference, check_zero_triton
from sglang_kvguard.kernels.scrub import scrub_reference

both = pytest.mark.parametrize("implementation", (check_zero_reference, check_zero_triton))

MARKS = L.DIRTY | L.TAINTED


def ledger(num_pages: int) -> torch.Tensor:
    pages = torch.zeros((num_pages + 1, L.PAGE_FIELDS), dtype=torch.int64)
    for number in range(1, num_pages + 1):
        pages[number] = torch.tensor([1000 + number, number % 3, 100 + number, L.LIVE])
    return pages


def check(pool: pools.Pool, ids: list[int], dirty: set[int], implementation, known=()) -> None:
    """``dirty`` pages are to be found; those in ``known`` were marked before."""
    pages = ledger(pool.num_pages)
    for number in known:
        pages[number, L.PAGE_FLAGS] |= L.DIRTY
    expected = pages.clone()
    faults = torch.zeros((L.FAULT_SLOTS + 1, L.FAULT_FIELDS), dtype=torch.int64)
    implementation(pool.spans, torch.tensor(ids, dtype=torch.int64), pages, faults)
    reports = []
    for number in dirty & set(ids):
        birth, namespace, owner, flags = expected[number].tolist()
        if number not in known:
            reports.append([L.F_DIRTY, number, owner, owner, namespace, birth, flags, 0])
        expected[number, L.PAGE_FLAGS] |= MARKS
    assert torch.equal(pages, expected)
    count = int(faults[0, 0])
    assert sorted(faults[1 : 1 + count].tolist()) == sorted(reports)
    assert not faults[1 + count :].any()


@both
def test_one_byte_of_random_pools(implementation):
    for _ in range(60 if implementation is check_zero_reference else 12):
        seed = random.randrange(2**32)
        print(f"{seed=}")
        rng = random.Random(seed)
        pool = pools.random_pool(rng)
        # Everything that is no page's stays full of other numbers.
        pool.fill()
        scrub_reference(pool.spans, torch.arange(1, pool.num_pages + 1))
        count = rng.randint(0, min(2, pool.num_pages))
        dirty = set(rng.sample(range(1, pool.num_pages + 1), count))
        for page in dirty:
            address, offset = rng.choice(pool.bytes_of(page))
            pool.storages[address][offset] = rng.choice((1, 128, 255))
        check(pool, pools.random_ids(rng, pool.num_pages), dirty, implementation)


@both
def test_each_byte_of_a_page(implementation):
    tensor = torch.zeros(150, dtype=torch.uint8)
    pool = pools.Pool([pools.Span("b", tensor, 36, 35, byte_offset=3)], 3)
    for offset in range(0, 35, 1 if implementation is check_zero_reference else 3):
        tensor.zero_()
        tensor[3 + 2 * 36 + offset] = 1
        check(pool, [1, 2, 3], {2}, implementation)


@both
def test_a_page_dirty_in_many_buffers_and_asked_for_twice_is_reported_once(implementation):
    pool = pools.aligned_pool(3, 10000, 3)
    pool.fill()
    check(pool, [2, 2, 3, 2], {1, 2, 3}, implementation)


@both
def test_a_page_known_to_be_dirty_is_not_reported_again(implementation):
    pool = pools.aligned_pool(3, 48, 1)
    pool.fill()
    check(pool, [2, 3], {2, 3}, implementation, known=(2,))


@both
@pytest.mark.parametrize("ids", ([], [0], [-1, 4, 2**40], [0, 3, 0]))
def test_ids(ids, implementation):
    pool = pools.aligned_pool(3, 48, 1)
    pool.fill()
    check(pool, ids, {3}, implementation)


@both
def test_negative_zero_is_a_written_byte(implementation):
    tensor = torch.zeros(4, 8)
    tensor[2, 5] = -0.0
    check(pools.Pool([pools.Span.of_pages("k", tensor)], 3), [1, 2, 3], {2}, implementation)


def test_refuses_arguments_that_it_would_misread():
    pool = pools.aligned_pool(3, 16, 1)
    faults = torch.zeros((L.FAULT_SLOTS + 1, L.FAULT_FIELDS), dtype=torch.int64)
    with pytest.raises(ValueError, match="pages"):
        check_zero(pool.spans, torch.tensor([1]), ledger(4), faults)
    with pytest.raises(TypeError, match="page_ids"):
        check_zero(pool.spans, torch.tensor([1.0]), ledger(3), faults)
