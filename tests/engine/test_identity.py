"""Who may share with whom, asked of a real server through every endpoint it has."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_kvguard.core.signed_header import sign
from sglang_kvguard.testing import recall
from sglang_kvguard.testing.harness.server import Server
from tests.engine.tenants import HEADER, Tenant

pytestmark = pytest.mark.server

PAGE = 16
PUBLIC = [5 + n % 20 for n in range(3 * PAGE)]
_numbers = random.Random(7)


def prompt(pages: int = 4) -> list[int]:
    """A prompt that no other test has sent: whole pages and one more token."""
    return [_numbers.randrange(5, 30) for _ in range(pages * PAGE + 1)]


def serve(folder: Path, *options: str) -> Server:
    arguments = ["--model-path", str(recall.MODEL), "--page-size", str(PAGE)]
    arguments += ["--max-total-tokens", "8192", "--context-length", "2048", "--enable-cache-report"]
    arguments += ["--enable-kv-guard", "--kv-guard-ttl", "0", *options]
    return Server(arguments, log_path=folder / "server.log", inject=True)


def public_file(folder: Path) -> str:
    path = folder / "public.json"
    path.write_text(json.dumps([{"name": "system", "token_ids": PUBLIC}]))
    path.chmod(0o644)
    return str(path)


def healthy(server: Server) -> None:
    """Nothing that the tests did broke an invariant."""
    guard = server.injector.call("guard")
    assert guard["violations"] == 0 and guard["page_faults"] == {}, guard
    assert server.alive()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tenant")
    options = ["--kv-guard-scope", "tenant", "--kv-guard-principal", f"header:{HEADER}"]
    options += ["--kv-guard-public-prefix", public_file(folder), "--enable-response-store"]
    with serve(folder, *options).wait_until_ready() as running:
        yield running
        healthy(running)


@pytest.fixture(scope="module")
def alice(server: Server) -> Tenant:
    return Tenant(server, "alice")


@pytest.fixture(scope="module")
def bob(server: Server) -> Tenant:
    return Tenant(server, "bob")


class TestTenants:
    def test_a_tenant_reuses_its_own_prefix_and_nobody_elses(self, alice, bob):
        ids = prompt()
        assert alice.cached(ids) == 0
        assert alice.cached(ids) == 4 * PAGE
        assert bob.cached(ids) == 0
        assert bob.cached(ids) == 4 * PAGE

    def test_batches(self, alice, bob):
        first, second = prompt(), prompt()
        assert {r["meta_info"]["cached_tokens"] for r in alice.generate([first, second])} == {0}
        assert {r["meta_info"]["cached_tokens"] for r in alice.generate([first, second])} == {64}
        assert {r["meta_info"]["cached_tokens"] for r in bob.generate([first, second])} == {0}

    def test_each_prompt_of_a_batch_may_bring_its_own_salt(self, alice):
        ids = prompt()
        alice.generate([ids, ids], cache_salt=["one", "two"])
        assert alice.cached(ids, cache_salt="one") == 64
        assert alice.cached(ids) == 0

    def test_parallel_samples(self, alice, bob):
        ids = prompt()
        assert [r["meta_info"]["cached_tokens"] for r in alice.generate(ids, n=3)] == [64] * 3
        assert alice.cached(ids) == 64
        # The engine runs the prompt once for the samples, so they hit even for newcomers.
        assert [r["meta_info"]["cached_tokens"] for r in bob.generate(ids, n=2)] == [64] * 2

    def test_requests_without_a_principal_share_with_nobody(self, server, alice):
        ids = prompt()
        alice.generate(ids)
        anonymous = Tenant(server, None)
        assert anonymous.cached(ids) == 0
        assert anonymous.cached(ids) == 0

    def test_the_servers_own_requests_are_answered(self, alice):
        assert alice.get("/health_generate").status_code == 200
        assert alice.get("/v1/models").status_code == 200


def completions(tenant: Tenant, text: str) -> tuple[int, int]:
    body = {"model": "default", "prompt": text, "max_tokens": 2, "temperature": 0}
    return _usage(tenant.post("/v1/completions", body), "prompt_tokens_details")


def chat(tenant: Tenant, text: str) -> tuple[int, int]:
    messages = [{"role": "user", "content": text}]
    body = {"model": "default", "messages": messages, "max_tokens": 2, "temperature": 0}
    return _usage(tenant.post("/v1/chat/completions", body), "prompt_tokens_details")


def chat_streamed(tenant: Tenant, text: str) -> tuple[int, int]:
    messages = [{"role": "user", "content": text}]
    body = {"model": "default", "messages": messages, "max_tokens": 2, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    reply = tenant.post("/v1/chat/completions", body)
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
    usage = json.loads(events[-1])["usage"]
    return reply.status_code, (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def responses(tenant: Tenant, text: str) -> tuple[int, int]:
    body = {"model": str(recall.MODEL), "input": text, "max_output_tokens": 2, "temperature": 0}
    return _usage(tenant.post("/v1/responses", body), "input_tokens_details")


def messages(tenant: Tenant, text: str) -> tuple[int, int]:
    content = [{"role": "user", "content": text}]
    body = {"model": "default", "messages": content, "max_tokens": 2, "temperature": 0}
    reply = tenant.post("/v1/messages", body)
    return reply.status_code, reply.json()["usage"].get("cache_read_input_tokens") or 0


def _usage(reply: Any, details: str) -> tuple[int, int]:
    usage = reply.json()["usage"]
    return reply.status_code, (usage.get(details) or {}).get("cached_tokens") or 0


class TestDoors:
    @pytest.mark.parametrize("door", [completions, chat, chat_streamed, responses, messages])
    def test_each_endpoint_keeps_tenants_apart(self, alice, bob, door):
        text = "".join(_numbers.choice("abcdefgh") for _ in range(120))
        assert door(alice, text) == (200, 0)
        status, own = door(alice, text)
        assert status == 200 and own >= 4 * PAGE
        assert door(bob, text) == (200, 0)

    def test_endpoints_of_one_tenant_share(self, alice, bob):
        text = "".join(_numbers.choice("abcdefgh") for _ in range(120))
        chat(alice, text)
        assert messages(alice, text)[1] >= 4 * PAGE
        assert messages(bob, text)[1] == 0

    @pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
    def test_ollama(self, alice, path):
        body = {"model": "default", "stream": False, "options": {"num_predict": 2}}
        body |= {"prompt": "abc"} if path.endswith("generate") else {
            "messages": [{"role": "user", "content": "abc"}]
        }
        assert alice.post(path, body).status_code == 200

    def test_stored_responses_are_their_owners(self, alice, bob):
        body = {"model": str(recall.MODEL), "input": "abc", "max_output_tokens": 2}
        stored = alice.post("/v1/responses", body).json()["id"]
        assert alice.get(f"/v1/responses/{stored}").status_code == 200
        foreign, nonsense = bob.get(f"/v1/responses/{stored}"), bob.get("/v1/responses/resp_none")
        assert foreign.status_code == nonsense.status_code == 404
        continued = bob.post("/v1/responses", body | {"previous_response_id": stored})
        assert continued.status_code == 404
        assert "abc" not in continued.text


class TestForgery:
    def test_no_salt_of_another_leads_to_its_pages(self, alice, bob):
        ids = prompt()
        own = {"cache_salt": "team", "extra_key": "x"}
        alice.generate(ids, **own)
        assert alice.cached(ids, **own) == 64
        values = ("team", "x", "teamx", "xteam", "alice", "team|x", "team\x00x", "")
        for salt, key in itertools.product(values, repeat=2):
            assert bob.cached(ids, cache_salt=salt, extra_key=key) == 0, (salt, key)

    def test_pairs_that_concatenate_alike_are_two_namespaces(self, alice):
        ids = prompt()
        alice.generate(ids, cache_salt="a", extra_key="bc")
        assert alice.cached(ids, cache_salt="ab", extra_key="c") == 0
        assert alice.cached(ids, extra_key="abc") == 0
        assert alice.cached(ids, cache_salt="abc") == 0

    def test_answers_do_not_show_the_servers_salt(self, alice):
        ids = prompt()
        answer = json.dumps(alice.generate(ids, cache_salt="mine"))
        assert "kvg1" not in answer
        body = {"model": str(recall.MODEL), "input": "abc", "max_output_tokens": 2, "cache_salt": "mine"}
        assert "kvg1" not in alice.post("/v1/responses", body).text

    def test_a_principal_cannot_be_named_twice(self, server, alice):
        ids = prompt()
        alice.generate(ids)
        headers = [(HEADER, "bob"), (HEADER, "alice")]
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
        with httpx.Client(trust_env=False, timeout=300) as http:
            reply = http.post(
                f"http://127.0.0.1:{server.port}/generate", json=body, headers=headers
            )
        assert reply.json()["meta_info"]["cached_tokens"] == 0


class TestRequestIds:
    def test_two_clients_use_one_id_at_once(self, alice, bob):
        prompts = {alice: prompt(2), bob: prompt(2)}
        alone = {t: t.generate(ids, max_new_tokens=40)["text"] for t, ids in prompts.items()}
        together: dict[Tenant, Any] = {}

        def run(tenant: Tenant) -> None:
            together[tenant] = tenant.generate(prompts[tenant], max_new_tokens=40, rid="same")

        threads = [threading.Thread(target=run, args=(tenant,)) for tenant in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for tenant in prompts:
            assert together[tenant]["text"] == alone[tenant]
            assert together[tenant]["meta_info"]["id"] == "same"

    def test_a_hostile_id_is_only_a_name(self, alice):
        for rid in ("HEALTH_CHECK_1", "", " ", "kvg1.public", "f" * 32, "\u00e9" * 300):
            answer = alice.generate(prompt(1), rid=rid)
            assert answer["meta_info"]["completion_tokens"] == 2
            assert answer["meta_info"]["id"] == rid or not rid

    def test_aborts_reach_exact_ids_of_the_same_principal(self, alice, bob):
        events: list[dict[str, Any]] = []
        started = threading.Event()

        def run() -> None:
            for event in alice.stream(prompt(1), max_new_tokens=1500, rid="job9"):
                events.append(event)
                started.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert started.wait(60)
        for tenant, rid in ((bob, "job9"), (bob, "job"), (alice, "job"), (alice, "job99")):
            assert tenant.post("/abort_request", {"rid": rid}).status_code == 200
        assert bob.post("/abort_request", {"abort_all": True}).status_code == 200
        count = len(events)
        time.sleep(1)
        assert thread.is_alive() and len(events) > count, "somebody else's abort reached it"
        assert alice.post("/abort_request", {"rid": "job9"}).status_code == 200
        thread.join(60)
        assert not thread.is_alive()
        assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
        assert events[-1]["meta_info"]["completion_tokens"] < 1500

    def test_abort_all_is_all_of_ones_own(self, alice, bob):
        ended: dict[str, Any] = {}

        def run(tenant: Tenant, name: str, tokens: int) -> None:
            ended[name] = tenant.generate(prompt(1), max_new_tokens=tokens)["meta_info"]

        threads = [
            threading.Thread(target=run, args=(alice, "alice", 1500)),
            threading.Thread(target=run, args=(bob, "bob", 200)),
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        alice.post("/abort_request", {"abort_all": True})
        for thread in threads:
            thread.join(120)
        assert ended["alice"]["finish_reason"]["type"] == "abort"
        assert ended["bob"]["finish_reason"]["type"] == "length"


class TestSessions:
    def test_a_session_is_its_openers(self, alice, bob):
        opened = alice.post("/open_session", {"capacity_of_str_len": 1000, "session_id": "s"})
        assert opened.json() == "s"
        first = alice.generate(prompt(2), session_params={"id": "s"}, rid="turn")
        assert first["meta_info"]["id"] == "turn"
        second = alice.generate([6, 7, 8], session_params={"id": "s", "rid": "turn"})
        # The engine continued the first turn: its prompt, its answer, three tokens.
        assert second["meta_info"]["prompt_tokens"] == 2 * PAGE + 1 + 2 + 3
        answers = [
            bob.post("/generate", {"input_ids": [6], "session_params": {"id": name, "rid": "turn"}})
            for name in ("s", "nobody's")
        ]
        assert {answer.status_code for answer in answers} == {400}
        shapes = [answer.json()["error"]["message"].split("kvgs1.")[0] for answer in answers]
        assert shapes[0] == shapes[1]

    def test_two_tenants_open_sessions_of_one_name(self, alice, bob):
        body = {"capacity_of_str_len": 1000, "session_id": "twice"}
        assert alice.post("/open_session", body).json() == "twice"
        assert bob.post("/open_session", body).json() == "twice"
        assert alice.post("/open_session", body).status_code == 400
        bob.post("/close_session", {"session_id": "twice"})
        assert alice.generate(prompt(1), session_params={"id": "twice"})


class TestPublicPrefix:
    def test_it_is_there_before_anybody_asked(self, server):
        newcomer = Tenant(server, f"newcomer {time.time()}")
        assert newcomer.cached([*PUBLIC, *prompt(1)]) == len(PUBLIC)

    def test_what_follows_is_private(self, alice, bob):
        ids = [*PUBLIC, *prompt(2)]
        assert alice.cached(ids) == len(PUBLIC)
        assert alice.cached(ids) == len(PUBLIC) + 2 * PAGE
        assert bob.cached(ids) == len(PUBLIC)

    def test_it_is_there_without_a_principal_and_whatever_the_salt(self, server, bob):
        ids = [*PUBLIC, *prompt(1)]
        assert Tenant(server, None).cached(ids) == len(PUBLIC)
        assert bob.cached(ids, cache_salt="any", extra_key="thing") == len(PUBLIC)

    def test_answers_are_what_they_are_without_it(self, server, alice):
        ids = [*PUBLIC, *prompt(1)]
        cached = alice.generate(ids, max_new_tokens=24)
        # An input logprob from the start makes the engine compute the whole prompt.
        whole = alice.generate(ids, max_new_tokens=24, return_logprob=True, logprob_start_len=0)
        assert whole["meta_info"]["cached_tokens"] == 0
        assert cached["output_ids"] == whole["output_ids"]

    def test_parallel_samples_after_it(self, alice):
        ids = [*PUBLIC, *prompt(1)]
        assert [r["meta_info"]["cached_tokens"] for r in alice.generate(ids, n=2)] == [64] * 2

    def test_it_comes_back_after_a_flush(self, server, alice):
        ids = [*PUBLIC, *prompt(1)]
        server.client.flush_cache()
        deadline = time.monotonic() + 30
        while alice.cached([*PUBLIC, *prompt(1)]) != len(PUBLIC):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert alice.cached(ids) == len(PUBLIC)


@pytest.fixture(scope="module")
def request_scope(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("request")
    options = ["--kv-guard-public-prefix", public_file(folder)]
    with serve(folder, *options).wait_until_ready() as running:
        yield running
        healthy(running)


class TestRequestScope:
    def test_nothing_is_reused(self, request_scope):
        client = Tenant(request_scope, None)
        ids = prompt()
        assert [client.cached(ids) for _ in range(3)] == [0, 0, 0]
        assert client.cached(ids, cache_salt="same") == 0

    def test_samples_of_one_call_share_their_prompt_and_leave_nothing(self, request_scope):
        client = Tenant(request_scope, None)
        ids = prompt()
        for _ in range(2):
            answers = client.generate(ids, n=3)
            assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [64] * 3
        assert client.cached(ids) == 0
        deadline = time.monotonic() + 30
        while True:
            state = request_scope.injector.call("state")
            if state["available"] + len(PUBLIC) == state["size"]:
                break
            assert time.monotonic() < deadline, f"a sample's prompt is still in the cache: {state}"
            time.sleep(0.2)

    def test_public_prefixes_are_shared_all_the_same(self, request_scope):
        client = Tenant(request_scope, None)
        ids = [*PUBLIC, *prompt(1)]
        assert [client.cached(ids) for _ in range(2)] == [len(PUBLIC)] * 2


class TestReject:
    def test_a_server_that_insists_starts_and_answers_401(self, tmp_path):
        key = tmp_path / "key"
        key.write_bytes(b"k" * 32)
        key.chmod(0o600)
        options = ["--kv-guard-scope", "tenant", "--kv-guard-principal", f"signed-header:{HEADER}"]
        options += ["--kv-guard-anonymous", "reject", "--kv-guard-signing-key-file", str(key)]
        with serve(tmp_path, *options).wait_until_ready() as server:
            ids = prompt()

            def signed(name: bytes) -> Tenant:
                return Tenant(server, "", value=lambda: sign(b"k" * 32, name, int(time.time())))

            assert signed(b"alice").cached(ids) == 0
            assert signed(b"alice").cached(ids) == 64
            assert signed(b"bob").cached(ids) == 0
            for stranger in (
                Tenant(server, None),
                Tenant(server, "alice"),
                Tenant(server, "", value=lambda: sign(b"x" * 32, b"alice", int(time.time()))),
                Tenant(server, "", value=lambda: sign(b"k" * 32, b"alice", int(time.time()) - 120)),
            ):
                reply = stranger.post("/generate", {"input_ids": ids})
                assert reply.status_code == 401
                assert reply.json()["error"]["type"] == "KvGuardPrincipalRequired"
            assert Tenant(server, None).get("/health").status_code == 200
            healthy(server)
