"""The kernels compile for the GPUs they are meant for, and into the code they are meant
to be: 128-bit accesses where bytes are moved, nothing spilled to local memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ARCHITECTURES = (80, 90, 100)  # Ampere, Hopper, Blackwell


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, dict]]:
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, script, *map(str, ARCHITECTURES)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_without_spills(architecture, report):
    built = report[str(architecture)]
    assert len(built) >= 9
    for variant, found in built.items():
        print(architecture, variant, found)
        assert found["stack"] == found["local"] == found["spills"] == 0, variant
        # Eight programs of 128 threads on a multiprocessor of 65536 registers.
        assert found["registers"] <= 64, variant


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scrub_stores_and_check_zero_loads_128_bits(architecture, report):
    for variant, found in report[str(architecture)].items():
        if variant.startswith("scrub"):
            assert found["wide_stores"] >= 4, variant
        if variant.startswith("check_zero"):
            assert found["wide_loads"] >= 4, variant


# Arguments that change from call to call.
VARYING = set(
    "ids num_ids locs born birth_base num_tokens batch page_ids scrub_ids old_locs new_locs key "
    "req_to_token rows seq_lens out_locs verdict".split()
)


def test_nothing_that_changes_from_call_to_call_is_compiled_in(report):
    for variant, found in report["90"].items():
        assert not VARYING & set(found["specialized"]), variant


def test_numbers_beyond_32_bits_are_always_passed_as_64(report):
    wide = {variant: found["wide_arguments"] for variant, found in report["90"].items()}
    assert wide["fence"] == wide["publish_settle"] == ["key"]
    assert wide["stamp_claim"] == wide["stamp_settle"] == ["birth_base"]
