"""Where requests get their namespace, in the process that answers clients.

Every endpoint makes a ``GenerateReqInput`` or ``EmbeddingReqInput`` and hands it to
``TokenizerManager.generate_request``; batches and parallel samples are taken apart there,
and each prompt is turned into the scheduler's form by ``_create_tokenized_object``. That is
where the namespace is set: behind every endpoint, once a prompt, ahead of the copies that
parallel sampling makes, and on an object that no response and no request log shows.

``_dispatch_to_scheduler`` is the only way out of the process for a request, and lets none
through without a namespace of the guard's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import (
    BatchTokenizedGenerateReqInput,
    TokenizedGenerateReqInput,
)
from sglang.srt.runtime_context import get_serving

from sglang_kvguard.core import principals
from sglang_kvguard.core.identity import Claims
from sglang_kvguard.core.salts import parse_salt
from sglang_kvguard.engine.callers import identity
from sglang_kvguard.engine.principal_middleware import PrincipalMiddleware
from sglang_kvguard.engine.refusal import GuardRefusal
from sglang_kvguard.engine.session_seams import rename_session

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

logger = logging.getLogger(__name__)


def run_http_server(original: Callable, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """AROUND ``http_server._setup_and_run_http_server``: every request passes the middleware.

    Raises:
        GuardRefusal: the configured source is not one for HTTP.
    """
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.tokenizer_manager import ServerStatus

    known = identity()
    if known.source.kind == principals.CALLER:
        raise GuardRefusal(
            "principal caller is for programs that use sglang.Engine; an HTTP server needs "
            "--kv-guard-principal bearer, header:NAME or signed-header:NAME"
        )
    if known.tells_apart and not get_serving().admin_api_key:
        logger.warning(
            "kv-guard: any client may use the control endpoints (flush, pause, weights, "
            "logging); set --admin-api-key"
        )

    def starting() -> bool:
        return (
            http_server.get_global_state().tokenizer_manager.server_status
            == ServerStatus.Starting
        )

    http_server.app.add_middleware(PrincipalMiddleware, identity=known, starting=starting)
    known.serves_http = True
    original(server_args, *args, **kwargs)


def create_tokenized_object(
    original: Callable, manager: TokenizerManager, obj: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND ``TokenizerManager._create_tokenized_object``: one prompt gets its namespace.

    Embeddings have no cache salt in the engine. They stay without one, and the scheduler
    gives a request without a salt a namespace that is private to it.

    Raises:
        PrincipalRequired: there is no principal, and anonymous requests are rejected.
    """
    known = identity()
    principal = known.caller().principal
    request = original(manager, obj, *args, **kwargs)
    if not isinstance(request, TokenizedGenerateReqInput):
        return request
    session = request.session_params.id if request.session_params else request.session_id
    claims = Claims(
        session=session,
        cache_salt=obj.cache_salt,
        extra_key=obj.extra_key,
        lora=obj.lora_id,
        model=manager.model_path,
        weight_version=manager.config_value("weight_version"),
    )
    salt = known.namespaces.salt(principal, claims, siblings=request.sampling_params.n)
    request.cache_salt = salt.text
    # Folded in above. The engine would append the adapter's id to it without a separator.
    request.extra_key = None
    rename_session(request, known, principal)
    return request


def dispatch_to_scheduler(original: Callable, manager: TokenizerManager, obj: Any) -> None:
    """AROUND ``TokenizerManager._dispatch_to_scheduler``.

    Raises:
        RuntimeError: a request that did not come through ``create_tokenized_object``.
    """
    if isinstance(obj, BatchTokenizedGenerateReqInput):
        requests = obj.batch
    else:
        requests = (obj,) if isinstance(obj, TokenizedGenerateReqInput) else ()
    for request in requests:
        if parse_salt(request.cache_salt) is None or request.extra_key is not None:
            raise RuntimeError("kv-guard: held back a request without a namespace of the guard's")
    original(manager, obj)
