"""SGLang logs and swallows a hook that it cannot apply; the guard does not."""

import ast
import pathlib

from tests.unit.engine_process import EngineProcess

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def test_every_kind_of_seam_is_seen_to_be_hooked(engine: EngineProcess) -> None:
    result = engine.call("seam_checks:install_every_kind")
    assert result["before"].count("the guard's hook is not in place") == 4
    assert [entry["state"] for entry in result["report"]] == ["ok"] * 4
    assert result["works"] == [3, 3, 4]
    assert result["signatures"] is None


def test_what_is_wrong_is_named(engine: EngineProcess) -> None:
    errors = engine.call("seam_checks:refusals")
    every = errors["all bad ones"]
    assert "toys.gone: not found in this engine" in every
    assert "toys.never_hooked: takes (a), expected (a, b)" in every
    assert "nowhere.f: not found in this engine" in every
    unapplied = errors["unapplied"]
    assert "never_hooked: the guard's hook is not in place (the test says so)" in unapplied


def test_target_that_another_plugin_took_first_is_a_failure(engine: EngineProcess) -> None:
    # SGLang ignores later hooks on a target it has patched.
    assert "taken_by_another: the guard's hook is not in place" in (
        engine.call("seam_checks:refusals")["taken"] or ""
    )


def test_release_table_fits_the_installed_engine(engine: EngineProcess) -> None:
    table = engine.call("seam_checks:release_table")
    assert table["signatures"] is None
    assert table["hooks"] == []
    assert table["no_reason"] == []


def test_digest_is_of_the_set_of_seams(engine: EngineProcess) -> None:
    table = engine.call("seam_checks:release_table")
    assert table["digest"] == table["digest_backwards"] != table["digest_of_less"]


def test_release_tables_are_plain_tables() -> None:
    # A reader must be able to see every seam without running anything.
    for path in (REPOSITORY / "sglang_kvguard/engine/releases").glob("v*.py"):
        allowed = (ast.Assign, ast.AnnAssign, ast.Expr, ast.ImportFrom)
        assert all(isinstance(node, allowed) for node in ast.parse(path.read_text()).body), path
