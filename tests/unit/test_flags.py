"""The command line, the YAML file, ``enable()``, and what child processes inherit."""

import json
import subprocess
import sys

import pytest

from sglang_kvguard.core.policy import GuardPolicy
from tests.unit.conftest import TURN_ON
from tests.unit.engine_process import EngineProcess

ON = "--enable-kv-guard"


def _one_line(refusal: dict) -> str:
    assert refusal["code"] == 2 and not refusal["turned_on"]
    line = refusal["stderr"].strip()
    assert line.startswith("sglang-kvguard: refusing to start: ") and "\n" not in line
    return line.removeprefix("sglang-kvguard: refusing to start: ")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((ON, "--kv-guard-mode", "warn"), "--kv-guard-mode warn: expected"),
        ((ON, "--kv-guard-scope", "tenant"), "--kv-guard-scope tenant: comes with"),
        ((ON, "--kv-guard-ttl", "-3"), "--kv-guard-ttl -3: expected"),
        ((ON, "--kv-guard-ttl", "soon"), "--kv-guard-ttl soon: expected"),
        ((ON, "--kv-guard-ttl-policy", "strict"), "--kv-guard-ttl-policy strict: comes with"),
        ((ON, "--kv-guard-verify-zero", "on"), "--kv-guard-verify-zero on: expected"),
        (("--kv-guard-ttl", "5"), "--kv-guard-ttl: has no effect without --enable-kv-guard"),
        (
            ("--kv-guard-allow-unverified-engine",),
            "--kv-guard-allow-unverified-engine: has no effect without --enable-kv-guard",
        ),
    ],
)
def test_wrong_flag_is_one_line(engine: EngineProcess, flags: tuple, named: str) -> None:
    assert _one_line(engine.call("flags:refusal", *flags)).startswith(named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("enable-kv-guard: true\nkv-guard-scope: session\n", "--kv-guard-scope session"),
        ("enable-kv-guard: false\nkv-guard-ttl: 5\n", "--kv-guard-ttl: has no effect"),
        ("enable-kv-guard: true\nkv-guard-ttl: true\n", "--kv-guard-ttl true: expected"),
    ],
)
def test_wrong_value_in_a_config_file(engine: EngineProcess, text: str, named: str) -> None:
    assert _one_line(engine.call("flags:refusal_of_config", text)).startswith(named)


@pytest.mark.parametrize(
    ("value", "refused_for"),
    [("off", "SGLang 0.9.9 is not a version"), ("yes", "--kv-guard-verify-zero true: expected")],
)
def test_bare_off_in_a_config_file_is_off(
    engine: EngineProcess, value: str, refused_for: str
) -> None:
    # YAML reads both as truth values. Settings are checked before the engine's version.
    text = f"enable-kv-guard: true\nkv-guard-verify-zero: {value}\n"
    assert _one_line(engine.call("flags:unverified_of_config", text)).startswith(refused_for)


def test_flags_are_in_a_group_of_their_own(engine: EngineProcess) -> None:
    group = engine.call("flags:help_group")
    assert group["title"] == "KV guard"
    assert group["options"] == [
        "--enable-kv-guard",
        "--kv-guard-mode",
        "--kv-guard-scope",
        "--kv-guard-ttl",
        "--kv-guard-ttl-policy",
        "--kv-guard-verify-zero",
        "--kv-guard-allow-unverified-engine",
    ]


def test_unknown_engine_version_is_refused(engine: EngineProcess) -> None:
    line = _one_line(engine.call("flags:unverified", ON))
    assert line.startswith("SGLang 0.9.9 is not a version the guard was tested with (known: 0.5")
    assert "--kv-guard-allow-unverified-engine" in line


def test_command_line_turns_the_guard_on_and_hands_it_on(guarded: EngineProcess) -> None:
    state = guarded.call("flags:turn_on", *TURN_ON)
    policy = GuardPolicy(scope="shared", ttl=5)
    assert GuardPolicy.from_json(state["policy"]) == policy
    handed = json.loads(state["env"])
    assert handed["writer"] == state["pid"]
    assert GuardPolicy.from_dict(handed["policy"]) == policy


def test_a_process_has_one_policy(guarded: EngineProcess) -> None:
    answer = guarded.call("flags:turn_on_otherwise")
    assert answer.startswith("GuardRefusal: the guard is already on in this process")


def test_configuration_that_cannot_be_guarded_is_refused_at_resolution(
    guarded: EngineProcess,
) -> None:
    refusal = guarded.call("flags:refusal", ON, *TURN_ON, "--kv-canary", "log")
    assert _one_line(refusal).startswith("--kv-canary log: not supported with --enable-kv-guard")


HANDED = GuardPolicy(scope="shared", ttl=1)


def _env(writer: int) -> str:
    return json.dumps({"writer": writer, "policy": json.loads(HANDED.to_json())})


def test_child_takes_what_its_parent_wrote(engine: EngineProcess) -> None:
    child = engine.call("flags:inherited", _env(writer=77), 77)
    assert GuardPolicy.from_json(child["policy"]) == HANDED and child["left"]


@pytest.mark.parametrize(
    ("env", "parent"),
    [
        pytest.param(_env(writer=77), None, id="not a child: exported by a shell"),
        pytest.param(_env(writer=77), 78, id="written by another process than the parent"),
        pytest.param("1", 77, id="not what we write"),
        pytest.param("{", 77, id="not JSON"),
        pytest.param("", 77, id="empty"),
    ],
)
def test_stale_environment_does_nothing_and_is_removed(
    engine: EngineProcess, env: str, parent: int | None
) -> None:
    assert engine.call("flags:inherited", env, parent) == {"policy": None, "left": False}


def test_parent_that_hands_on_nonsense_is_an_error(engine: EngineProcess) -> None:
    env = json.dumps({"writer": 77, "policy": {"mode": "enforce"}})
    with pytest.raises(RuntimeError, match="PolicyError: guard policy: expected exactly"):
        engine.call("flags:inherited", env, 77)


def test_importing_the_package_imports_neither_torch_nor_sglang() -> None:
    script = "import sys, sglang_kvguard; print({'torch', 'sglang'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
