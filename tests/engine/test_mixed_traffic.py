"""A busy guarded server answers exactly what a stock server answers to each request alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_kvguard.testing import random_moe, recall
from sglang_kvguard.testing.harness.server import Server
from tests.engine.traffic import REQUESTS, Ask, alone, in_company, mixed

pytestmark = pytest.mark.server

# Less than sixteen clients can fill, so that requests queue and the cache is evicted.
POOL = ["--max-total-tokens", "3072", "--context-length", "1024", "--chunked-prefill-size", "128"]

# The engine's own equation of its pool, checked after every step; a leak ends the server.
CHECKS = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}

# Every third step the engine retracts a request, whether it has to or not.
RETRACT = {"SGLANG_TEST_RETRACT": "1"}

SHARED = ["--kv-guard-scope", "shared"]
CASES = {
    "page 1, radix": (["--page-size", "1", *SHARED], {}),
    "page 1, no radix": (["--page-size", "1", "--disable-radix-cache"], {}),
    "page 16, radix, retraction": (["--page-size", "16", *SHARED], RETRACT),
    "page 16, no radix": (["--page-size", "16", "--disable-radix-cache"], {}),
    "page 64, radix, no overlap": (
        ["--page-size", "64", "--disable-overlap-schedule", *SHARED],
        {},
    ),
}


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    return mixed()


@pytest.fixture(scope="module")
def solo(asks: list[Ask], tmp_path_factory: pytest.TempPathFactory) -> dict[Ask, str]:
    return _solo(str(recall.MODEL), asks, tmp_path_factory.mktemp("solo"))


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_moe.make(tmp_path_factory.mktemp("moe"))


def _solo(model: str, asks: list[Ask], folder: Path) -> dict[Ask, str]:
    arguments = ["--model-path", model, "--page-size", "16"]
    with Server(arguments, log_path=folder / "stock.log").wait_until_ready() as server:
        return alone(server.client, asks)


def _serve_and_compare(
    model: str, options: list[str], environment: dict, asks: list[Ask], solo: dict, folder: Path
) -> None:
    arguments = ["--model-path", model, *POOL, "--enable-kv-guard", *options]
    server = Server(
        arguments, log_path=folder / "guarded.log", environment=CHECKS | environment, inject=True
    )
    with server.wait_until_ready():
        injector = server.injector
        done = in_company(
            server.client, asks, solo, lambda: injector.call("guard")["violations"]
        )
        assert sum(done.values()) == len(asks)
        print(dict(done), injector.call("guard"))

        server.client.flush_cache()
        assert injector.call("guard")["page_faults"] == {}
        free = injector.call("free_bytes")
        state = injector.call("state")
        assert free["pages"] == state["size"] // state["page_size"], "every page is free again"
        assert free["not_zero"] == 0, free
        assert injector.call("fresh_allocation", pages=8)["not_zero"] == 0
        assert server.alive()
        if environment:
            assert "retraction" in server.log(), "the engine did retract"


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_each_request_alone(
    case: str, asks: list[Ask], solo: dict[Ask, str], tmp_path: Path
) -> None:
    options, environment = CASES[case]
    assert len(asks) == REQUESTS
    _serve_and_compare(str(recall.MODEL), options, environment, asks, solo, tmp_path)


def test_mixture_of_experts_answers_are_those_of_each_request_alone(
    asks: list[Ask], moe: Path, tmp_path: Path
) -> None:
    few = asks[:80]
    solo = _solo(str(moe), few, tmp_path)
    _serve_and_compare(str(moe), ["--page-size", "16", *SHARED], {}, few, solo, tmp_path)
