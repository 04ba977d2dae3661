"""Which engine version is hooked where: one table a release line of SGLang."""

from __future__ import annotations

import logging
from types import ModuleType

from sglang_kvguard.engine.refusal import GuardRefusal
from sglang_kvguard.engine.releases import v0_5_23
from sglang_kvguard.engine.seam import Seam

logger = logging.getLogger(__name__)

# The only seams that are hooked while the guard is off, whatever the version: without
# them the flag could not be known, nor an unknown version be refused.
CLI_SEAMS: tuple[Seam, ...] = (
    Seam(
        "sglang.srt.server_args.ServerArgs.add_cli_args",
        "after",
        "sglang_kvguard.engine.flags:offer_flags",
        ("parser",),
        "the flag would be unknown",
    ),
    Seam(
        "sglang.srt.server_args.ServerArgs.from_cli_args",
        "around",
        "sglang_kvguard.engine.flags:take_flags",
        ("cls", "args"),
        "the flag would be accepted and do nothing",
    ),
)

# Newest last.
TABLES: tuple[ModuleType, ...] = (v0_5_23,)


def table_for(version: str, allow_unverified: bool = False) -> ModuleType:
    """The seam table for an engine version.

    Args:
        version: ``sglang.__version__``.
        allow_unverified: take the newest table for a version that no table names;
            the choice is recorded as a warning. Its seams are still checked.

    Returns:
        A module with ``VERSIONS``, ``LAUNCH_SEAMS``, ``SERVER_SEAMS`` and ``SEAMS``.

    Raises:
        GuardRefusal: no table names the version and ``allow_unverified`` is false.
    """
    for table in TABLES:
        if version in table.VERSIONS:
            return table
    known = ", ".join(v for table in TABLES for v in table.VERSIONS)
    if not allow_unverified:
        raise GuardRefusal(
            f"SGLang {version} is not a version the guard was tested with (known: {known}); "
            "install one of those, or accept the risk with --kv-guard-allow-unverified-engine"
        )
    newest = TABLES[-1]
    logger.warning(
        "kv-guard: SGLang %s is unverified (known: %s); using the seams of %s because "
        "--kv-guard-allow-unverified-engine was given",
        version,
        known,
        newest.VERSIONS[-1],
    )
    return newest
