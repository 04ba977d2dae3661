"""What an ordinary client may send must not end a guarded server, nor harm a bystander."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_kvguard.testing import recall
from sglang_kvguard.testing.harness.server import Server

pytestmark = pytest.mark.server

# Beam search exists at page size 1 only.
ARGUMENTS = [
    "--model-path", str(recall.MODEL), "--page-size", "1", "--max-total-tokens", "4096",
    "--context-length", "1024", "--enable-kv-guard", "--kv-guard-scope", "shared",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("odd") / "server.log"
    with Server(ARGUMENTS, log_path=log, inject=True).wait_until_ready() as server:
        yield server


@pytest.fixture(autouse=True)
def sound(server: Server) -> Iterator[None]:
    """Afterwards nothing was recorded, nothing is lost, and the server answers."""
    before = server.injector.call("guard")
    yield
    server.client.flush_cache()
    after = server.injector.call("guard")
    assert after["violations"] == before["violations"]
    assert after["page_faults"] == before["page_faults"] and after["retired"] == 0
    assert server.injector.call("free_bytes")["not_zero"] == 0
    assert server.client.generate("bob=1234;?bob=").status == 200


def test_beam_search_is_refused_request_by_request(server: Server) -> None:
    body = {"text": "bob=1234;?bob=", "sampling_params": {"max_new_tokens": 4, "beam_width": 2}}
    reply = server.client.post("/generate", body)
    assert reply.status == 400 and "Beam search is not supported" in reply.raw


@pytest.mark.parametrize("flush", [False, True], ids=["keep cache", "flush"])
@pytest.mark.parametrize("count", [1, 6])
def test_requests_that_were_all_retracted_go_on(server: Server, count: int, flush: bool) -> None:
    prompts = [f"k{n}=12{n}4;" + "abcdefgh"[n:] * 6 + f";?k{n}=" for n in range(count)]
    alone = [server.client.generate(p, max_new_tokens=120).text for p in prompts]
    with ThreadPoolExecutor(count) as clients:
        replies = [
            clients.submit(server.client.generate, p, max_new_tokens=120) for p in prompts
        ]
        deadline = time.monotonic() + 30
        # Some may have ended before the last one starts.
        while len(server.injector.call("running")) < (count + 1) // 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert server.client.post("/pause_generation", {"mode": "retract"}).status == 200
        if flush:
            # At once: with a timeout the engine would wait for the paused requests.
            assert "flushed" in server.client.post("/flush_cache", {}).raw
        assert server.client.post("/continue_generation", {}).status == 200
        assert [reply.result().text for reply in replies] == alone


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 1},
        {"max_new_tokens": 8, "n": 3, "temperature": 1.0},
        {"max_new_tokens": 8, "stop": ["3", ";"]},
        {"max_new_tokens": 8, "regex": "[0-9]{4};"},
        {"max_new_tokens": 900},
    ],
    ids=lambda sampling: ",".join(sampling),
)
@pytest.mark.parametrize("length", [1, 16, 33], ids=lambda length: f"{length} tokens")
def test_unusual_sampling(server: Server, sampling: dict, length: int) -> None:
    prompt = ("bob=1234;?bob=" * 4)[-length:]
    body = {"text": prompt, "sampling_params": sampling, "return_logprob": True}
    reply = server.client.post("/generate", body)
    assert reply.status == 200, reply.raw
