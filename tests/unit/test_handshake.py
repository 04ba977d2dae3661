"""The server does not listen before every scheduler process said that it is guarded."""

import pytest

from tests.unit.engine_process import EngineProcess

REFUSING = "sglang-kvguard: refusing to start: "


def test_all_confirmed(guarded: EngineProcess) -> None:
    result = guarded.call("handshake:command_line", {}, {})
    assert result == {"exit": 0, "outcome": "2 ready", "stderr": "", "alive": 2}


@pytest.mark.parametrize(
    ("second", "line"),
    [
        (None, "scheduler 1: did not confirm that it is guarded; SGLang left the plugin out"),
        ({"policy": "0" * 16}, "scheduler 1: confirmed another policy"),
        ({"seams": "0" * 16}, "scheduler 1: confirmed another seams"),
        ({"version": "0.0.9"}, "scheduler 1: confirmed another version"),
        ({"self_test": "failed"}, "scheduler 1: its self-test did not pass (failed)"),
        ({"error": "a seam is missing"}, "scheduler 1: a seam is missing"),
    ],
)
def test_one_of_two_is_not_enough(guarded: EngineProcess, second: dict | None, line: str) -> None:
    result = guarded.call("handshake:command_line", {}, second)
    assert result["exit"] == 2 and result["outcome"] is None
    assert result["stderr"].startswith(REFUSING + line) and result["stderr"].count("\n") == 1
    assert result["alive"] == 0


def test_python_gets_an_exception_instead_of_an_exit(guarded: EngineProcess) -> None:
    result = guarded.call("handshake:python", None)
    assert result["outcome"].startswith("GuardRefusal: scheduler 0: did not confirm")
    assert result["alive"] == 0


def test_scheduler_that_refused_itself_ends_in_one_line(guarded: EngineProcess) -> None:
    result = guarded.call("handshake:died", 2)
    assert result["exit"] == 2 and result["alive"] == 0
    assert result["stderr"].startswith(REFUSING + "a scheduler process refused")


def test_scheduler_that_died_otherwise_is_the_engines_business(guarded: EngineProcess) -> None:
    result = guarded.call("handshake:died", 1)
    assert result["outcome"].startswith("RuntimeError: Rank 0 scheduler died")
    assert result["stderr"] == ""


def test_scheduler_confirms_what_its_parent_expects(guarded: EngineProcess) -> None:
    ready = guarded.call("handshake:ready")
    assert ready["problem"] is None
    assert ready["message"]["status"] == "ready"


def test_scheduler_without_its_hooks_says_which(guarded: EngineProcess) -> None:
    problem = guarded.call("handshake:unhooked")["problem"]
    assert "Scheduler.get_init_info: the guard's hook is not in place" in problem


def test_scheduler_without_a_guard_does_not_confirm(guarded: EngineProcess) -> None:
    problem = guarded.call("handshake:unbuilt")["problem"]
    assert problem == "the guard was not built in this scheduler process"
