"""The guard's command line flags, for ``sglang serve``, ``launch_server`` and ``--config``.

``ServerArgs`` drops what is not a field of its own, so the flags are read from the
parsed arguments on their way into it.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

from sglang_kvguard.core import policy as settings
from sglang_kvguard.core.policy import GuardPolicy, PolicyError
from sglang_kvguard.engine import seams
from sglang_kvguard.engine.activation import activate
from sglang_kvguard.engine.refusal import GuardRefusal, exit_refusing
from sglang_kvguard.engine.releases import CLI_SEAMS
from sglang_kvguard.engine.seam import SeamError

logger = logging.getLogger(__name__)

# Argument of GuardPolicy -> its flag.
FLAGS: dict[str, str] = {
    "mode": "--kv-guard-mode",
    "scope": "--kv-guard-scope",
    "ttl": "--kv-guard-ttl",
    "ttl_policy": "--kv-guard-ttl-policy",
    "verify_zero": "--kv-guard-verify-zero",
    "allow_unverified_engine": "--kv-guard-allow-unverified-engine",
}
SWITCH = "--enable-kv-guard"


def offer_flags(_result: None, parser: argparse.ArgumentParser) -> None:
    """Hook behind ``ServerArgs.add_cli_args``: adds the group "KV guard" to the parser.

    Values are checked by ``GuardPolicy`` and not by argparse, which would print
    SGLang's whole usage in front of the one line that matters. Absent flags leave no
    attribute, so that one given without the switch is noticed.
    """
    try:
        seams.verify_seams(CLI_SEAMS)
    except SeamError as error:
        # Unknown flags are refused by argparse; known ones that nobody reads are not.
        logger.error("kv-guard: its flags are not offered: %s", error)
        return
    group = parser.add_argument_group(
        "KV guard",
        "Makes the KV cache of one request unreadable and unwritable by every other "
        "(plugin sglang-kvguard). The server refuses to start where it cannot guard.",
    )

    def add(flag: str, help: str, **how) -> None:
        group.add_argument(flag, default=argparse.SUPPRESS, help=help, **how)

    def choice(flag: str, values: tuple[str, ...], help: str) -> None:
        add(flag, help, metavar="{" + ",".join(values) + "}")

    add(SWITCH, "Guard this server's KV cache.", action="store_true")
    choice(
        FLAGS["mode"],
        settings.MODES,
        "enforce (default): end a request that breaks an invariant with an error that carries "
        "an incident id; observe: only record it.",
    )
    choice(
        FLAGS["scope"],
        settings.SCOPES,
        "Who may share KV. request (default): nobody, at the price of all prefix reuse between "
        "requests; shared: everybody. session and tenant need an identity source, which this "
        "release does not have.",
    )
    add(
        FLAGS["ttl"],
        "Seconds that a freed page rests, zeroed, before it is used again. Default 30.",
        metavar="SECONDS",
    )
    choice(
        FLAGS["ttl_policy"],
        settings.TTL_POLICIES,
        "elastic (default): when the pool runs out, resting pages are used early, oldest first. "
        "strict is not in this release.",
    )
    choice(
        FLAGS["verify_zero"],
        settings.VERIFY_ZERO,
        "Check that a page is all zero when it is used again, which finds writes after its "
        "release: always (default), sampled or off.",
    )
    add(
        FLAGS["allow_unverified_engine"],
        "Start on an SGLang version that the guard was not tested with. Recorded as a warning.",
        action="store_true",
    )


def take_flags(original: Callable, cls: type, args: argparse.Namespace):
    """Hook around ``ServerArgs.from_cli_args``: turns the guard on when the switch is given.

    Raises:
        SystemExit: with one line on stderr, for a wrong value, a flag without the
            switch, an unknown engine version, or an engine that cannot be hooked.
    """
    given = {
        name: getattr(args, _dest(flag))
        for name, flag in FLAGS.items()
        if hasattr(args, _dest(flag))
    }
    try:
        if getattr(args, _dest(SWITCH), False):
            if given.get("verify_zero") == "false":
                # YAML reads a bare `off` as false.
                given["verify_zero"] = "off"
            activate(GuardPolicy(**given), "command line")
        elif given:
            raise PolicyError(
                f"{FLAGS[next(iter(given))]}: has no effect without {SWITCH}; "
                f"add {SWITCH} or drop the flag"
            )
    except (PolicyError, GuardRefusal, SeamError) as error:
        exit_refusing(error)
    return original(cls, args)


def _dest(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")
