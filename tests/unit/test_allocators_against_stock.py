"""The guarded allocators succeed, fail and count as the stock ones do."""

import random

import pytest

from tests.unit.engine_process import EngineProcess

SEEDS = [0, 1, 2, random.SystemRandom().randrange(2**31)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_same_calls_same_outcome(engine: EngineProcess, page_size: int, seed: int) -> None:
    print(f"seed {seed}")
    counts = engine.call("allocators:run", page_size, seed, 600)
    assert min(counts[call] for call in ("extend", "decode", "end", "launch")) > 0
    assert counts["early"] > 0 and counts["full"] > 0, "both ways out of the quarantine were used"


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_lost_page_is_noticed(engine: EngineProcess, page_size: int) -> None:
    assert engine.call("allocators:broken", page_size, 0, 600)
