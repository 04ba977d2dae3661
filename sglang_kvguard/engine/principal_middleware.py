"""The HTTP side of the identity: headers become a caller, or 401.

A plain ASGI middleware, not Starlette's ``BaseHTTPMiddleware``, which would hide client
disconnects from the engine.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sglang_kvguard.core.identity import INTERNAL, nobody
from sglang_kvguard.engine.callers import Caller, Identity, calling

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable, Callable], Awaitable[None]]

# What probes and scrapers read. None of it runs what a client sent; ``/health_generate``
# runs one token of the server's own.
PROBES = frozenset(
    ("/health", "/health_generate", "/ready", "/ping", "/metrics", "/metrics/", "/model_info",
     "/get_model_info", "/v1/models", "/openapi.json", "/docs", "/")
)  # fmt: skip


class PrincipalMiddleware:
    """Finds the principal of each request before anything else sees the request."""

    def __init__(self, app: App, identity: Identity, starting: Callable[[], bool]) -> None:
        """
        Args:
            app: what comes behind.
            identity: of this process.
            starting: whether the server is still warming up. Its own warm-up request comes
                over HTTP and cannot name a principal, so what is anonymous until then is
                taken as internal: never rejected, and in a namespace of its own.
        """
        self._app = app
        self._identity = identity
        self._starting = starting

    async def __call__(self, scope: Scope, receive: Callable, send: Callable) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        caller = self._caller(scope)
        if caller is None:
            await self._reject(scope, receive, send)
            return
        with calling(caller):
            await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        method = scope.get("method", "")
        if method == "OPTIONS" or (method in ("GET", "HEAD") and path in PROBES):
            return Caller(nobody(INTERNAL), path)
        principal = self._identity.of_headers(scope["headers"])
        if principal is None and self._starting():
            principal = nobody(INTERNAL)
        return None if principal is None else Caller(principal, path)

    async def _reject(self, scope: Scope, receive: Callable, send: Callable) -> None:
        if scope["type"] == "websocket":
            # RFC 6455: policy violation. Servers answer 403 to a close before the accept.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": self._identity.how()})
            return
        error = {
            "message": self._identity.how(),
            "type": "KvGuardPrincipalRequired",
            "code": 401,
            "param": None,
            "retryable": False,
        }
        # Anthropic's clients look for a type beside the error.
        body = json.dumps({"type": "error", "error": error}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"www-authenticate", b"Bearer" if self._identity.source.kind == "bearer" else b"KvGuard"),
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})
