"""Request ids are minted by the server; the client's is what it sees, and no more.

The engine keys everything by request id, refuses a second live one, and aborts every
request whose id *begins* with the one it was given. So a client's id could collide with,
probe for, or end another's request. A minted id is 32 random hexadecimal digits, a dot, and
the client's id: no minted id begins another, so the engine's prefix match is exact, two
clients may use one id at once, and the client's own can be read back from it.

Parallel samples get ids from the engine, 32 random digits without a dot.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from sglang_kvguard.core.identity import Namespaces, Principal

_MINTED = re.compile(r"[0-9a-f]{32}\.", re.ASCII)
_PREFIX = 33


def mint(rid: str, nonce: str | None = None) -> str:
    """The engine's id for a client's."""
    return f"{nonce or secrets.token_hex(16)}.{rid}"


def is_minted(rid: str) -> bool:
    """Whether ``rid`` is the engine's form of a client's id."""
    return _MINTED.match(rid) is not None


def client_rid(rid: str) -> str:
    """The client's id in an engine's id."""
    return rid[_PREFIX:] if is_minted(rid) else rid


def session_rid(namespaces: Namespaces, principal: Principal, session: str, rid: str) -> str:
    """The engine's id of a request in a session, which later requests may refer to.

    Args:
        session: as the client calls it.
        rid: as the client calls it.
    """
    return mint(rid, namespaces.request_nonce(principal, session, rid))


def give_back_ids(output: Any) -> None:
    """Put the client's ids into what the engine answers, in place.

    Args:
        output: one output, or a list of them for a batch.
    """
    for one in output if isinstance(output, list) else (output,):
        meta = one.get("meta_info") if isinstance(one, dict) else None
        if isinstance(meta, dict) and isinstance(meta.get("id"), str):
            meta["id"] = client_rid(meta["id"])
