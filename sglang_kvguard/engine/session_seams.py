"""Sessions belong to whoever opened them.

The engine finds a session by the id that a request sends, whoever sends it, and continues
its text. Here the engine's id is derived from principal and client's id, so another
principal's request does not find it, and is told what it is told about any id that nobody
opened.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_kvguard.core.identity import Principal
from sglang_kvguard.engine.callers import Identity, identity
from sglang_kvguard.engine.request_ids import session_rid

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager


async def open_session(
    original: Callable, manager: TokenizerManager, obj: Any, request: Any = None
) -> str | None:
    """AROUND ``TokenizerManager.open_session``: the client keeps the id it knows."""
    known = identity()
    principal = known.caller().principal
    # The engine draws an id when there is none; it is drawn here, to be told to the client.
    name = obj.session_id if obj.session_id is not None else uuid.uuid4().hex
    renamed = msgspec.structs.replace(obj, session_id=known.namespaces.session(principal, name))
    opened = await original(manager, renamed, request)
    return None if opened is None else name


async def close_session(
    original: Callable, manager: TokenizerManager, obj: Any, request: Any = None
) -> None:
    """AROUND ``TokenizerManager.close_session``."""
    known = identity()
    name = known.namespaces.session(known.caller().principal, obj.session_id)
    await original(manager, msgspec.structs.replace(obj, session_id=name), request)


def rename_session(request: Any, known: Identity, principal: Principal) -> None:
    """Make a tokenized request refer to the engine's names of its session and of the
    earlier request that it continues."""
    params = request.session_params
    if params is not None and params.id is not None:
        earlier = params.rid
        if earlier is not None:
            earlier = session_rid(known.namespaces, principal, params.id, earlier)
        name = known.namespaces.session(principal, params.id)
        request.session_params = msgspec.structs.replace(params, id=name, rid=earlier)
    if request.session_id is not None:
        request.session_id = known.namespaces.session(principal, request.session_id)
