"""I12: with the plugin installed and its flag not given, SGLang is stock SGLang.

The engine process looks every seam's target up before and after ``load_plugins()`` and a
complete parse without the flag; objects are compared by identity.
"""

from tests.unit.engine_process import EngineProcess

CLI = [
    "sglang.srt.server_args.ServerArgs.add_cli_args",
    "sglang.srt.server_args.ServerArgs.from_cli_args",
]


def test_nothing_but_the_command_line_is_hooked(engine: EngineProcess) -> None:
    report = engine.call("off:report")
    assert len(report["targets"]) > 20
    assert report["replaced"] == CLI
    assert report["patched"] == CLI


def test_parser_gains_flags_and_changes_none(engine: EngineProcess) -> None:
    report = engine.call("off:report")
    assert all("kv-guard" in option for option in report["options_added"])
    assert report["options_changed"] == []
    assert report["same_args"]


def test_a_variable_left_in_the_environment_is_removed(engine: EngineProcess) -> None:
    assert engine.call("off:report")["policy_env"] is None


def test_the_guard_itself_is_not_even_imported(engine: EngineProcess) -> None:
    assert engine.call("off:report")["heavy_modules"] == []
