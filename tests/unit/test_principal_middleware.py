"""Headers become a caller, or 401; and the caller stays with what the request starts."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import httpx
import pytest
from fastapi import BackgroundTasks, FastAPI
from fastapi.responses import StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

from sglang_kvguard.core.identity import ANONYMOUS, EVERYBODY, INTERNAL, TENANT
from sglang_kvguard.core.signed_header import sign
from sglang_kvguard.engine import callers
from sglang_kvguard.engine.callers import Identity, PrincipalRequired
from sglang_kvguard.engine.principal_middleware import PrincipalMiddleware

KEY = b"k" * 32


def identity(principal="header:X-Tenant", anonymous="isolate", key_file=None) -> Identity:
    return Identity(
        SimpleNamespace(
            scope="tenant",
            principal=principal,
            anonymous=anonymous,
            secret_file=None,
            signing_key_file=key_file,
        )
    )


class Site:
    """A small application behind the middleware.

    Attributes:
        seen: callers that its parts saw, in order.
    """

    def __init__(self, known: Identity, starting: bool = False) -> None:
        self.seen: list[callers.Caller] = []
        self.starting = starting
        app = FastAPI()

        def look() -> None:
            self.seen.append(known.caller())

        @app.post("/plain")
        async def plain() -> str:
            look()
            return "ok"

        @app.post("/stream")
        async def stream(tasks: BackgroundTasks) -> StreamingResponse:
            async def items():
                for _ in range(2):
                    look()
                    await asyncio.sleep(0)
                    yield b"x"

            async def later() -> None:
                look()

            tasks.add_task(later)
            return StreamingResponse(items(), background=tasks)

        @app.post("/tasks")
        async def in_tasks() -> str:
            async def one() -> None:
                look()

            await asyncio.gather(one(), asyncio.create_task(one()))
            return "ok"

        @app.get("/health")
        async def health() -> str:
            look()
            return "ok"

        # As the engine does for its metrics: such a middleware runs the rest in a task.
        async def around(request, call_next):
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=around)
        app.add_middleware(PrincipalMiddleware, identity=known, starting=lambda: self.starting)
        self.app = app

    def post(self, path: str, headers=(), method="POST") -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
                return await client.request(method, path, headers=list(headers))

        return asyncio.run(send())


@pytest.mark.parametrize("path, looks", [("/plain", 1), ("/stream", 3), ("/tasks", 2)])
def test_everything_that_a_request_starts_has_its_caller(path, looks):
    known = identity()
    site = Site(known)
    assert site.post(path, [("X-Tenant", "a")]).status_code == 200
    assert site.post(path, [("x-tenant", "b")]).status_code == 200
    assert [caller.door for caller in site.seen] == [path] * looks * 2
    principals = [caller.principal for caller in site.seen]
    expected = [known.namespaces.principal("header", name) for name in (b"a", b"b")]
    assert principals == [p for p in expected for _ in range(looks)]


def test_concurrent_requests_keep_theirs_apart():
    known = identity()
    seen = {}
    app = FastAPI()

    @app.post("/{name}")
    async def slow(name: str) -> None:
        await asyncio.sleep(0.01)
        seen[name] = known.caller().principal

    app.add_middleware(PrincipalMiddleware, identity=known, starting=lambda: False)

    async def run() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
            await asyncio.gather(
                *(client.post(f"/{n}", headers={"X-Tenant": str(n)}) for n in range(20))
            )

    asyncio.run(run())
    assert seen == {
        str(n): known.namespaces.principal("header", str(n).encode()) for n in range(20)
    }


def test_anonymous_requests_are_nobody_twice():
    site = Site(identity())
    site.post("/plain")
    site.post("/plain", [("X-Tenant", "a"), ("X-Tenant", "b")])
    first, second = (caller.principal for caller in site.seen)
    assert first.kind == second.kind == ANONYMOUS
    assert first != second


def test_reject_answers_401_with_a_body_that_says_what_to_send():
    site = Site(identity(anonymous="reject"))
    reply = site.post("/plain")
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "KvGuard"
    assert reply.json() == {
        "type": "error",
        "error": {
            "message": "this server requires a principal: send the header x-tenant",
            "type": "KvGuardPrincipalRequired",
            "code": 401,
            "param": None,
            "retryable": False,
        },
    }
    assert site.seen == []
    assert site.post("/plain", [("X-Tenant", "a")]).status_code == 200


def test_missing_and_wrong_are_answered_alike(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    site = Site(identity("signed-header:X-Tenant", "reject", str(key)))
    now = int(time.time())
    forged = sign(b"x" * 32, b"a", now)
    old = sign(KEY, b"a", now - 1000)
    replies = [site.post("/plain", h) for h in ([], [("X-Tenant", forged)], [("X-Tenant", old)])]
    assert {reply.status_code for reply in replies} == {401}
    assert len({reply.text for reply in replies}) == 1
    assert site.post("/plain", [("X-Tenant", sign(KEY, b"a", now))]).status_code == 200
    assert site.seen[0].principal.kind == TENANT


def test_probes_and_preflights_need_no_principal():
    site = Site(identity(anonymous="reject"))
    assert site.post("/health", method="GET").status_code == 200
    assert site.seen[0].principal.kind == INTERNAL
    assert site.post("/plain", method="OPTIONS").status_code == 405
    assert site.post("/health", method="POST").status_code == 401


def test_the_warm_up_of_the_server_itself_is_internal():
    site = Site(identity(anonymous="reject"), starting=True)
    assert site.post("/plain").status_code == 200
    assert site.seen[0].principal.kind == INTERNAL
    # Who names a principal is taken by its word then too.
    site.post("/plain", [("X-Tenant", "a")])
    assert site.seen[1].principal.kind == TENANT


def test_without_a_source_all_are_one():
    site = Site(identity("none"))
    site.post("/plain", [("Authorization", "Bearer a")])
    assert site.seen[0].principal == EVERYBODY


def test_web_sockets_are_rejected_before_they_are_accepted():
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    middleware = PrincipalMiddleware(None, identity(anonymous="reject"), lambda: False)
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": []}
    asyncio.run(middleware(scope, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


class TestOffline:
    @pytest.fixture(autouse=True)
    def configured(self, monkeypatch):
        self.known = identity("caller")
        monkeypatch.setattr(callers, "_identity", self.known)

    def test_a_program_says_for_whom_it_generates(self):
        with callers.principal("a"):
            first = self.known.caller().principal
        with callers.principal("b"):
            second = self.known.caller().principal
        assert first == self.known.namespaces.principal("caller", b"a")
        assert second == self.known.namespaces.principal("caller", b"b")

    def test_it_reaches_a_loop_that_is_run_inside(self):
        async def look():
            return self.known.caller().principal

        loop = asyncio.new_event_loop()
        with callers.principal("a"):
            inside = loop.run_until_complete(look())
        outside = loop.run_until_complete(look())
        loop.close()
        assert inside.kind == TENANT
        assert outside.kind == ANONYMOUS

    def test_without_one_nothing_is_shared(self):
        assert self.known.caller().principal != self.known.caller().principal

    def test_reject_raises(self, monkeypatch):
        with pytest.raises(PrincipalRequired, match="sglang_kvguard.principal"):
            identity("caller", "reject").caller()

    def test_an_empty_name_is_refused(self):
        with pytest.raises(ValueError, match="name"), callers.principal(""):
            pass

    def test_a_process_that_was_not_told_refuses(self, monkeypatch):
        monkeypatch.setattr(callers, "_identity", identity("none"))
        with pytest.raises(RuntimeError, match='principal="caller"'), callers.principal("a"):
            pass


def test_a_server_without_a_caller_works_for_itself():
    known = identity(anonymous="reject")
    known.serves_http = True
    assert known.caller().principal.kind == INTERNAL
