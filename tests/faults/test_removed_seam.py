"""One of the guard's own hooks is taken out again: the server refuses to start.

Class: the guard itself not being active.
"""

import pytest

from sglang_kvguard.engine.refusal import EXIT_CODE, PREFIX
from sglang_kvguard.testing.harness.server import Server
from tests.faults.conftest import ARGUMENTS, GUARD

pytestmark = pytest.mark.server

TARGET = "sglang.srt.model_executor.model_runner.ModelRunner.forward"


def test_server_refuses_to_start(model: list[str], tmp_path) -> None:
    server = Server(
        [*model, *ARGUMENTS, *GUARD], log_path=tmp_path / "server.log", remove_seam=TARGET
    )
    assert server.wait_until_exited() == EXIT_CODE
    (line,) = [line for line in server.log().splitlines() if line.startswith(PREFIX)]
    assert TARGET in line
