"""Where requests get their ids and where they are aborted, in the process that answers clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.utils import is_health_check_generate_req
from sglang.srt.runtime_context import get_serving

from sglang_kvguard.core.identity import INTERNAL, Principal
from sglang_kvguard.engine.callers import identity
from sglang_kvguard.engine.request_ids import client_rid, give_back_ids, mint, session_rid

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

# The endpoint by which a client ends requests by id.
ABORT_DOOR = "/abort_request"


async def generate_request(
    original: Callable, manager: TokenizerManager, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """AROUND ``TokenizerManager.generate_request``: answers carry the client's ids.

    Raises:
        PrincipalRequired: there is no principal, and anonymous requests are rejected.
    """
    identity().caller()
    outputs = original(manager, obj, request)
    try:
        async for output in outputs:
            give_back_ids(output)
            yield output
    finally:
        await outputs.aclose()


def regenerate_rid(rid: Any, obj: Any) -> None:
    """AFTER ``regenerate_rid`` of both kinds of request: an id that the engine drew."""
    obj.kvguard_drawn_rid = rid


def init_req_state(
    original: Callable, manager: TokenizerManager, obj: Any, request: Any = None
) -> None:
    """AROUND ``TokenizerManager._init_req_state``: ids are minted before they are used.

    The engine has normalised the request and uses its ids from here on.
    """
    known = identity()
    principal = known.caller().principal
    # A sample's id was copied to the scheduler's form already, and no client chose it.
    drawn = getattr(obj, "kvguard_drawn_rid", None)
    if (drawn is None or drawn != obj.rid) and not _is_probe(obj, principal):
        session = (getattr(obj, "session_params", None) or {}).get("id")

        def minted(rid: Any) -> Any:
            if not isinstance(rid, str):
                return rid
            if session is None:
                return mint(rid)
            return session_rid(known.namespaces, principal, session, rid)

        obj.rid = [minted(rid) for rid in obj.rid] if isinstance(obj.rid, list) else minted(obj.rid)
    original(manager, obj, request)
    for rid in obj.rid if isinstance(obj.rid, list) else (obj.rid,):
        manager.rid_to_state[rid].kvguard_principal = principal


def abort_request(
    original: Callable, manager: TokenizerManager, rid: str = "", abort_all: bool = False
) -> None:
    """AROUND ``TokenizerManager.abort_request``: one's own requests, by their exact id.

    The engine calls it too, with its own ids, for clients that hung up and for requests
    that failed on the way; maybe from another request's context, when an abandoned
    iterator is collected there.
    """
    known = identity()
    caller = known.caller()
    at_door = caller.door == ABORT_DOOR
    if not at_door and (abort_all or rid in manager.rid_to_state):
        original(manager, rid, abort_all)
        return
    # With an admin key the endpoint is the operator's. Without a source all are equal.
    anybody = at_door and (not known.tells_apart or bool(get_serving().admin_api_key))
    if abort_all and anybody:
        original(manager, rid, abort_all)
        return
    for own, state in list(manager.rid_to_state.items()):
        if not abort_all and client_rid(own) != rid:
            continue
        if anybody or getattr(state, "kvguard_principal", None) == caller.principal:
            original(manager, own)


def _is_probe(obj: Any, principal: Principal) -> bool:
    # The engine knows its health checks by how their id begins.
    return (
        principal.kind == INTERNAL
        and isinstance(obj.rid, str)
        and is_health_check_generate_req(obj)
    )
