"""Who may import whom (docs/design.md, section 6), read from the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = REPOSITORY / "sglang_kvguard"


def _imports(path: Path) -> Iterator[str]:
    """Absolute module names that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


def _is(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _files(*folders: Path) -> list[Path]:
    found = sorted(path for folder in folders for path in folder.rglob("*.py"))
    assert found
    return found


def _id(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("path", _files(PRODUCT / "core"), ids=_id)
def test_core_knows_torch_and_kernels_but_no_engine(path: Path) -> None:
    allowed = ("torch", "sglang_kvguard.core", "sglang_kvguard.kernels", *sys.stdlib_module_names)
    assert [name for name in _imports(path) if not _is(name, *allowed)] == []


@pytest.mark.parametrize("path", _files(REPOSITORY / "kernels"), ids=_id)
def test_kernels_know_torch_and_triton_only(path: Path) -> None:
    allowed = ("torch", "triton", "sglang_kvguard.kernels", *sys.stdlib_module_names)
    assert [name for name in _imports(path) if not _is(name, *allowed)] == []


@pytest.mark.parametrize("path", _files(PRODUCT), ids=_id)
def test_only_the_engine_layer_imports_sglang(path: Path) -> None:
    layer = path.relative_to(PRODUCT).parts[0]
    if layer not in ("engine", "testing"):
        assert [name for name in _imports(path) if _is(name, "sglang")] == []


@pytest.mark.parametrize("path", _files(PRODUCT / "engine"), ids=_id)
def test_engine_layer_knows_nothing_of_people(path: Path) -> None:
    above = ("sglang_kvguard.cli", "sglang_kvguard.evidence", "sglang_kvguard.testing")
    assert [name for name in _imports(path) if _is(name, *above)] == []


def test_kernels_and_patches_are_no_top_level_import_names() -> None:
    files = _files(PRODUCT, REPOSITORY / "kernels", REPOSITORY / "tests")
    shadowing = ("kernels", "patches")
    assert [_id(path) for path in files for name in _imports(path) if _is(name, *shadowing)] == []


def test_no_file_is_named_after_nothing() -> None:
    vague = ("utils.py", "util.py", "helpers.py", "common.py", "misc.py")
    roots = (PRODUCT, REPOSITORY / "kernels", REPOSITORY / "tests", REPOSITORY / "scripts")
    assert [_id(path) for root in roots for path in root.rglob("*.py") if path.name in vague] == []
