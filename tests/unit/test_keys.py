"""The readable model: KV through keys."""

import pytest
import torch

from sglang_kvguard.core.keys import KeyedKV, KVKey
from sglang_kvguard.core.violations import FenceViolation


def test_a_key_reads_what_it_wrote() -> None:
    store = KeyedKV(num_slots=4, num_layers=2, width=3)
    first, second = store.allocate(tag=7, position=0)
    store.write(first, torch.ones(3))
    assert store.read(first).tolist() == [1, 1, 1]
    assert store.read(second).tolist() == [0, 0, 0], "never written: zeros, not a predecessor"


def test_a_stale_key_is_refused_before_and_after_reuse() -> None:
    store = KeyedKV(num_slots=1, num_layers=1, width=3)
    (old,) = store.allocate(tag=7, position=0)
    store.write(old, torch.ones(3))
    store.free(tag=7)
    with pytest.raises(FenceViolation) as freed:
        store.read(old)
    assert freed.value.invariant == "I2"
    (new,) = store.allocate(tag=8, position=0)
    assert store.read(new).tolist() == [0, 0, 0]
    with pytest.raises(FenceViolation):
        store.read(old)
    with pytest.raises(FenceViolation):
        store.write(old, torch.ones(3))


@pytest.mark.parametrize(
    "change", [{"tag": 8}, {"position": 1}, {"birth": 2}], ids=["tag", "position", "birth"]
)
def test_a_key_with_any_other_part_is_refused(change: dict) -> None:
    store = KeyedKV(num_slots=2, num_layers=1, width=3)
    (key,) = store.allocate(tag=7, position=0)
    forged = KVKey(**{**vars(key), **change})
    with pytest.raises(FenceViolation):
        store.read(forged)


def test_a_full_store_says_so() -> None:
    store = KeyedKV(num_slots=1, num_layers=1, width=3)
    store.allocate(tag=7, position=0)
    with pytest.raises(MemoryError):
        store.allocate(tag=8, position=0)
