"""How the guard says no: a server that was asked to be guarded and cannot be does not start."""

from __future__ import annotations

import sys
from typing import NoReturn

PREFIX = "sglang-kvguard: refusing to start: "
EXIT_CODE = 2


class GuardRefusal(RuntimeError):
    """The guard cannot protect this server; the message is one line that says what to do."""


def exit_refusing(error: Exception) -> NoReturn:
    """Print one line on stderr and end the process with exit code 2.

    ``SystemExit`` rather than ``os._exit``: SGLang's launchers kill their child
    processes in a ``finally`` block.

    Raises:
        SystemExit: always.
    """
    print(f"{PREFIX}{error}", file=sys.stderr, flush=True)
    raise SystemExit(EXIT_CODE) from None
