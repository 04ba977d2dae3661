"""The reference platform takes part only when it is named, and never hides the guard.

Two traps of SGLang's plugin loader are tested. Without ``SGLANG_PLATFORM`` it activates
every platform that answers, so ours has to keep quiet on a GPU machine. With it, it drops
the general plugins of every distribution that ships another platform, so the guard may
not share a distribution with a platform.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest.importorskip("kvguard_cpu_reference")

from kvguard_cpu_reference import activation, process_start  # noqa: E402

PLATFORM_DISTRIBUTION = "sglang-kvguard-cpu-reference"
GUARD_DISTRIBUTION = "sglang-kvguard"

# Asked of the real loader, once, in a process of its own: it keeps what it loaded.
_LOADER_ANSWERS = """
import json, os
from sglang.srt import platforms, plugins

def resolved(name):
    os.environ.pop("SGLANG_PLATFORM", None)
    if name is not None:
        os.environ["SGLANG_PLATFORM"] = name
    try:
        platform = platforms._resolve_platform()
    except RuntimeError:
        return "refused", sorted(plugins._get_excluded_dists())
    return type(platform).__name__, sorted(plugins._get_excluded_dists())

print(json.dumps({str(name): resolved(name) for name in (None, "", "foreign", "cpu_reference")}))
"""


@pytest.fixture(scope="module")
def loader():
    """``{SGLANG_PLATFORM: (platform class, excluded distributions)}``."""
    pytest.importorskip("sglang")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SGLANG_PLATFORM", "SGLANG_PLUGINS")
    }
    done = subprocess.run(
        [sys.executable, "-c", _LOADER_ANSWERS],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("value", [None, "", "cuda", "cpu", "CPU_REFERENCE", "cpu_reference "])
def test_stays_out_unless_named_exactly(monkeypatch, value):
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    if value is not None:
        monkeypatch.setenv("SGLANG_PLATFORM", value)
    assert activation.activate() is None


def test_answers_when_named(monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "cpu_reference")
    module, _, name = activation.activate().partition(":")
    assert (module, name) == ("kvguard_cpu_reference.platform", "CpuReferencePlatform")


def test_activation_loads_no_heavy_module():
    """It runs on every SGLang start of a machine that has the package."""
    script = (
        "import sys; from kvguard_cpu_reference.activation import activate; activate();"
        "print([name for name in ('torch', 'sglang', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("platform", [None, "foreign"])
def test_worker_start_is_left_alone_on_other_platforms(monkeypatch, platform):
    """Asking for forked workers means nothing where the platform is not ours."""
    monkeypatch.setenv(process_start.FORK_VARIABLE, "1")
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    if platform:
        monkeypatch.setenv("SGLANG_PLATFORM", platform)
    # Beyond this point it imports the engine; None in its place turns that into an error.
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", None)
    process_start.load()


def test_platform_and_guard_are_two_distributions():
    by_name = {entry.name: entry.dist.name for entry in entry_points(group="sglang.srt.platforms")}
    assert by_name["cpu_reference"] == PLATFORM_DISTRIBUTION
    assert GUARD_DISTRIBUTION not in by_name.values()


def test_loader_does_not_pick_it_by_itself(loader):
    for unset in ("None", ""):
        platform, excluded = loader[unset]
        assert platform != "CpuReferencePlatform"
        assert excluded == []


def test_loader_picks_it_by_name_and_keeps_the_guard(loader):
    platform, excluded = loader["cpu_reference"]
    assert platform == "CpuReferencePlatform"
    assert PLATFORM_DISTRIBUTION not in excluded
    assert GUARD_DISTRIBUTION not in excluded


def test_guard_survives_a_foreign_platform(loader):
    """The platform's own distribution is dropped there; the guard's must not be."""
    _, excluded = loader["foreign"]
    assert PLATFORM_DISTRIBUTION in excluded
    assert GUARD_DISTRIBUTION not in excluded
