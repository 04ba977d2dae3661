"""Seams on toy targets, through SGLang's real hook registry."""

from __future__ import annotations

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_kvguard.engine import seams
from sglang_kvguard.engine.releases import CLI_SEAMS, v0_5_23
from sglang_kvguard.engine.seam import Seam, SeamError
from tests.unit.in_engine import toys

_TOYS = "tests.unit.in_engine.toys"


def _seam(target: str, kind: str, signature: tuple[str, ...], hook: str = "") -> Seam:
    hook = hook or kind
    return Seam(f"{_TOYS}.{target}", kind, f"{_TOYS}:{hook}", signature, "the test says so")


def _error(action: Any, *args: Any) -> str | None:
    try:
        action(*args)
    except SeamError as error:
        return str(error)
    return None


def install_every_kind() -> dict[str, Any]:
    """Before, after, around and replace; on a method, a class method and a static one."""
    good = (
        _seam("Toy.method", "around", ("self", "a", "b")),
        _seam("Toy.of", "before", ("cls", "a")),
        _seam("Toy.plain", "after", ("a",)),
        _seam("Replaced", "replace", ("size",), "Replacement"),
    )
    before = _error(seams.verify_seams, good)
    seams.install(good)
    return {
        "before": before,
        "report": seams.seam_report(good),
        "works": [toys.Toy().method(1, 2), toys.Toy.of(3), toys.Toy.plain(4)],
        "signatures": _error(seams.check_signatures, good),
    }


def refusals() -> dict[str, str | None]:
    """What is said about each way a seam can be wrong."""
    missing = _seam("gone", "around", ("a",))
    other = _seam("never_hooked", "around", ("a", "b"))
    module = Seam("tests.unit.nowhere.f", "around", f"{_TOYS}:around", ("a",), "the test says so")
    HookRegistry.register(f"{_TOYS}.taken_by_another", toys.before, HookType.BEFORE)
    HookRegistry.apply_hooks()
    return {
        "all bad ones": _error(seams.check_signatures, (missing, other, module)),
        "unapplied": _error(seams.verify_seams, (_seam("never_hooked", "around", ("a",)),)),
        "taken": _error(seams.install, (_seam("taken_by_another", "around", ("a",)),)),
    }


def release_table() -> dict[str, Any]:
    """The real table against the installed engine."""
    groups = (CLI_SEAMS, v0_5_23.LAUNCH_SEAMS, v0_5_23.SERVER_SEAMS, v0_5_23.SEAMS)
    every = [seam for group in groups for seam in group]
    return {
        "signatures": _error(seams.check_signatures, every),
        "hooks": [seam.hook for seam in every if not callable(seam.load_hook())],
        "no_reason": [seam.target for seam in every if not seam.why],
        "digest": seams.seam_digest(every),
        "digest_of_less": seams.seam_digest(every[1:]),
        "digest_backwards": seams.seam_digest(every[::-1]),
    }
