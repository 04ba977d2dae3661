"""Secrets that an operator keeps in a file."""

from __future__ import annotations

import os
import secrets
import stat

from sglang_kvguard.core.policy_error import PolicyError

LEAST_BYTES = 32
MOST_BYTES = 4096


def read_secret(path: str, flag: str) -> bytes:
    """The whole file, as it is; a trailing newline is part of it.

    Symbolic links are followed, as secret stores mount files through them; what they
    lead to is checked.

    Args:
        path: of the file.
        flag: that named it, for the error message.

    Raises:
        PolicyError: it cannot be read, is not a regular file, is not ours alone, or is
            shorter than 32 or longer than 4,096 bytes.
    """
    try:
        # Non-blocking, so that a pipe is refused below instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PolicyError(f"{flag} {path}: cannot be opened ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PolicyError(f"{flag} {path}: is not a regular file")
        if status.st_uid != os.geteuid():
            raise PolicyError(
                f"{flag} {path}: belongs to user id {status.st_uid}; expected the user that "
                f"runs the server ({os.geteuid()})"
            )
        if status.st_mode & 0o077:
            raise PolicyError(
                f"{flag} {path}: others may access it (mode {stat.S_IMODE(status.st_mode):03o}); "
                "chmod 600 it"
            )
        secret = os.read(descriptor, MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
        raise PolicyError(
            f"{flag} {path}: expected {LEAST_BYTES} to {MOST_BYTES} bytes, got "
            f"{len(secret) if len(secret) <= MOST_BYTES else 'more'}; "
            "e.g. head -c 32 /dev/urandom > FILE"
        )
    return secret


def random_secret() -> bytes:
    """A secret for this start only: namespaces of two starts have nothing in common."""
    return secrets.token_bytes(LEAST_BYTES)
