"""Many seams at once: check them, hook them, and prove that they are hooked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

from sglang_kvguard.engine.seam import Seam, SeamError

# So that SGLang's own log lines about our hooks name us.
SOURCE = HookSource(plugin_name="kvguard", dist_name="sglang-kvguard")

_registered: set[Seam] = set()


def register(seams: Iterable[Seam]) -> None:
    """Hand the hooks to SGLang; seams already registered in this process are left alone.

    Nothing is hooked before ``HookRegistry.apply_hooks()`` runs, which SGLang does
    at the end of ``load_plugins()``.

    Raises:
        SeamError: a target does not have the signature it was written for.
    """
    new = [seam for seam in seams if seam not in _registered]
    check_signatures(new)
    for seam in new:
        HookRegistry.register(
            seam.target, seam.load_hook(), HookType(seam.kind), source=SOURCE
        )
        _registered.add(seam)


def is_registered(seams: Iterable[Seam]) -> bool:
    """Whether all of these were handed to SGLang in this process."""
    return _registered.issuperset(seams)


def install(seams: Iterable[Seam]) -> None:
    """Register, hook now, and verify.

    Raises:
        SeamError: a target is missing, has another shape, or could not be hooked.
    """
    seams = tuple(seams)
    register(seams)
    HookRegistry.apply_hooks()
    verify_seams(seams)


def check_signatures(seams: Iterable[Seam]) -> None:
    """Compare every target with the signature it was written for.

    Raises:
        SeamError: naming every seam that does not match.
    """
    _all(Seam.check_signature, seams)


def verify_seams(seams: Iterable[Seam]) -> None:
    """Make sure that the engine really calls the guard at every seam.

    Raises:
        SeamError: naming every seam that is not hooked.
    """
    _all(Seam.check_applied, seams)


def seam_digest(seams: Iterable[Seam]) -> str:
    """Sixteen hexadecimal digits over targets, kinds, hooks and signatures."""
    lines = sorted(
        f"{seam.target} {seam.kind} {seam.hook} {' '.join(seam.signature)}" for seam in seams
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def seam_report(seams: Iterable[Seam]) -> list[dict[str, str]]:
    """One entry a seam for logs and evidence: target, kind, and ``ok`` or what is wrong."""
    report = []
    for seam in seams:
        try:
            seam.check_applied()
            state = "ok"
        except SeamError as error:
            state = str(error)
        report.append({"target": seam.target, "kind": seam.kind, "state": state})
    return report


def _all(check: Callable[[Seam], None], seams: Iterable[Seam]) -> None:
    bad = []
    for seam in seams:
        try:
            check(seam)
        except SeamError as error:
            bad.append(str(error))
    if bad:
        raise SeamError("; ".join(bad))
