"""One of the guard's own hooks is taken out again: the server refuses to start.

Class: the guard itself not being active.
"""

import pytest

from sglang_kvguard.engine.refusal import EXIT_CODE, PREFIX
from sglang_kvguard.testing.harness.environment import FORK
from sglang_kvguard.testing.harness.server import Server
from tests.faults.conftest import ARGUMENTS, GUARD

pytestmark = pytest.mark.server

TARGET = "sglang.srt.model_executor.model_runner.ModelRunner.forward"


def test_server_refuses_to_start(model: list[str], tmp_path) -> None:
    server = Server(
        [*model, *ARGUMENTS, *GUARD],
        log_path=tmp_path / "server.log",
        # A spawned process, as in production: a forked one has its hooks from the start.
        environment={FORK: ""},
        remove_seam=TARGET,
    )
    assert server.wait_until_exited() == EXIT_CODE
    # The scheduler process says what is missing, the server process that it refused.
    said = [line for line in server.log().splitlines() if line.startswith(PREFIX)]
    assert TARGET in said[0]
    assert "Uvicorn running" not in server.log(), "nobody ever listened"
