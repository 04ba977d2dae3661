"""One stock and one guarded server, with the fault injector, for all abuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_kvguard.testing import random_moe
from sglang_kvguard.testing.harness.server import Server
from tests.faults.stage import Stage

# A small pool, so that pages come round again. No prefix cache, so that pages are freed
# when their request ends; one namespace for all, so that only tags can tell them apart.
ARGUMENTS = [
    "--page-size", "16", "--max-total-tokens", "1280", "--context-length", "1024",
    "--chunked-prefill-size", "256", "--disable-radix-cache",
]  # fmt: skip
GUARD = ["--enable-kv-guard", "--kv-guard-scope", "shared", "--kv-guard-ttl", "0"]

# A stock server would end itself over some of the faults when it is idle.
NO_IDLE_CHECK = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "0"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments that name a model whose every token depends on every byte of its KV."""
    return ["--model-path", str(random_moe.make(tmp_path_factory.mktemp("model")))]


@pytest.fixture(scope="session")
def stock_server(
    model: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("stock") / "server.log"
    server = Server([*model, *ARGUMENTS], log_path=log, environment=NO_IDLE_CHECK, inject=True)
    with server.wait_until_ready():
        yield server


@pytest.fixture(scope="session")
def guarded_server(
    model: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """With the engine's idle checks on: a wrong count would end it."""
    log = tmp_path_factory.mktemp("guarded") / "server.log"
    server = Server([*model, *ARGUMENTS, *GUARD], log_path=log, inject=True)
    with server.wait_until_ready():
        yield server


@pytest.fixture
def stock(stock_server: Server) -> Iterator[Stage]:
    """What the fault does without the guard."""
    stage = Stage(stock_server)
    yield stage
    stage.clear()


@pytest.fixture
def guarded(guarded_server: Server) -> Iterator[Stage]:
    """What the fault does with it; afterwards the server has to be sound."""
    stage = Stage(guarded_server)
    yield stage
    stage.clear()
    stage.check_sound()
