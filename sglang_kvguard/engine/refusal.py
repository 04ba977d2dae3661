"""How the guard says no: a server that was asked to be guarded and cannot be does not start."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

PREFIX = "sglang-kvguard: refusing to start: "
EXIT_CODE = 2


class GuardRefusal(RuntimeError):
    """The guard cannot protect this server; the message is one line that says what to do."""


def exit_refusing(error: Exception) -> NoReturn:
    """Refuse before anything was started: one line on stderr, exit code 2.

    Raises:
        SystemExit: always.
    """
    _say(error)
    raise SystemExit(EXIT_CODE) from None


def end_refusing(error: Exception) -> NoReturn:
    """Refuse in the middle of the launch: one line on stderr, child processes ended, gone.

    Nothing is unwound, because half-started ZeroMQ sockets can hold an interpreter
    that tries to end in an orderly way for ever, with the schedulers already dead.
    """
    # Not at the top: the flags refuse before much of the engine is imported.
    from sglang.srt.utils import kill_process_tree

    kill_process_tree(os.getpid(), include_parent=False)
    _say(error)
    sys.stdout.flush()
    os._exit(EXIT_CODE)


def _say(error: Exception) -> None:
    print(f"{PREFIX}{error}", file=sys.stderr, flush=True)
