"""The scrub: every byte of a page, and not one byte beside it."""

from __future__ import annotations

import random

import pools
import pytest
import torch
from sglang_kvguard.kernels.scrub import scrub, scrub_reference, scrub_triton
from sglang_kvguard.kernels.span_tiles import geometry

both = pytest.mark.parametrize("implementation", (scrub_reference, scrub_triton))


def check(pool: pools.Pool, ids: list[int], implementation) -> None:
    pool.fill()
    expected = {address: storage.clone() for address, storage in pool.storages.items()}
    for page in {page for page in ids if 1 <= page <= pool.num_pages}:
        for address, offset in pool.bytes_of(page):
            expected[address][offset] = 0
    implementation(pool.spans, torch.tensor(ids, dtype=torch.int64))
    for address, storage in pool.storages.items():
        assert torch.equal(storage, expected[address])


@both
def test_random_pools(implementation):
    for _ in range(60 if implementation is scrub_reference else 12):
        seed = random.randrange(2**32)
        print(f"{seed=}")
        rng = random.Random(seed)
        pool = pools.random_pool(rng)
        check(pool, pools.random_ids(rng, pool.num_pages), implementation)


@both
@pytest.mark.parametrize("ids", ([], [1], [3], [3, 3, 1], [0], [-1, 4, 2**62], [0, 2, 99]))
def test_ids(ids, implementation):
    check(pools.aligned_pool(3, 48, 2), ids, implementation)


@both
@pytest.mark.parametrize("page_bytes", (16, 2048, 8192, 8208, 20000))
def test_pages_smaller_and_bigger_than_a_tile(page_bytes, implementation):
    check(pools.aligned_pool(3, page_bytes, 2), [3, 1], implementation)


@both
@pytest.mark.parametrize("span", range(1, 36, 3))
def test_every_alignment_of_a_short_span(span, implementation):
    tensor = torch.zeros(200, dtype=torch.uint8)
    for offset in (0, 1, 8, 15):
        entry = pools.Span("b", tensor, 37, span, byte_offset=offset)
        check(pools.Pool([entry], 3), [1, 3], implementation)


def test_grid_covers_the_work_and_is_bounded():
    pool = pools.aligned_pool(3, 20000, 4)
    (buffers, programs), tile = geometry(pool.spans, 1)
    assert (buffers, programs) == (4, 3)
    assert (tile["ROWS"], tile["VECS"]) == (1, 512)
    (buffers, programs), _ = geometry(pool.spans, 10**6)
    assert buffers * programs <= 8192
    with pytest.raises(ValueError, match="too many pages"):
        geometry(pool.spans, 2**31)


def test_refuses_ids_that_it_would_misread():
    pool = pools.aligned_pool(3, 16, 1)
    with pytest.raises(TypeError, match="page_ids"):
        scrub(pool.spans, torch.tensor([1], dtype=torch.int32))
    with pytest.raises(ValueError, match="page_ids"):
        scrub(pool.spans, torch.tensor([[1]]))
    with pytest.raises(ValueError, match="contiguous"):
        scrub(pool.spans, torch.tensor([1, 2, 3, 2])[::2])
