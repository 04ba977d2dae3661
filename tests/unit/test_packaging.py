"""What a wheel holds: an editable install would hide a package that it lacks."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def _declared() -> dict:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_folder_is_declared() -> None:
    folders = {
        ".".join(path.parent.relative_to(REPOSITORY).parts)
        for path in (REPOSITORY / "sglang_kvguard").rglob("__init__.py")
    }
    moved = set(_declared()["package-dir"])
    assert set(_declared()["packages"]) == folders | moved


def test_no_top_level_import_name_but_the_product() -> None:
    assert {name.split(".")[0] for name in _declared()["packages"]} == {"sglang_kvguard"}
