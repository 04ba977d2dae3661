"""The fault injector's control socket: who may use it, and what a failed command does."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path

import pytest

from sglang_kvguard.testing.injector.channel import Channel
from sglang_kvguard.testing.injector.client import KEY_ENV, Injector, InjectorError
from sglang_kvguard.testing.injector.conditions import When

KEY = "a secret of the starter's"


def _execute(command: str, **arguments):
    if command == "fail":
        raise LookupError("no such thing")
    return [command, arguments]


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[Path]:
    """Of a channel that is served by another thread, as a scheduler's loop does."""
    path = tmp_path / "control"
    channel = Channel(str(path), KEY)
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(0.001):
            channel.serve(_execute)

    thread = threading.Thread(target=loop)
    thread.start()
    yield path
    stop.set()
    thread.join()


def test_a_command_is_answered(socket_path: Path) -> None:
    injector = Injector(socket_path, KEY)
    assert injector.call("count", rids=["a", "b"]) == ["count", {"rids": ["a", "b"]}]
    injector.close()


def test_a_failed_command_tells_why_and_the_next_one_works(socket_path: Path) -> None:
    injector = Injector(socket_path, KEY)
    with pytest.raises(InjectorError, match="no such thing"):
        injector.call("fail")
    assert injector.call("still there") == ["still there", {}]
    injector.close()


def test_a_stranger_is_turned_away_and_others_are_not(socket_path: Path) -> None:
    with pytest.raises((AuthenticationError, EOFError)):
        Injector(socket_path, "guessed")
    injector = Injector(socket_path, KEY)
    assert injector.call("hello") == ["hello", {}]
    injector.close()


def test_an_arriving_command_wakes_a_sleeping_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "control"
    channel = Channel(str(path), KEY)
    asked = threading.Thread(target=lambda: Injector(path, KEY).call("wake up"))
    asked.start()
    os.set_blocking(channel.wake_fd, True)
    assert os.read(channel.wake_fd, 1) == b"!"
    # Handed back, because serving takes one byte a command.
    os.write(channel._wake, b"!")
    channel.serve(_execute)
    asked.join(10)
    assert not asked.is_alive()


def test_the_server_does_not_start_without_a_secret(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != KEY_ENV}
    done = subprocess.run(
        [sys.executable, "-m", "sglang_kvguard.testing.injector.server"]
        + ["--control-socket", str(tmp_path / "control"), "--", "--model-path", "none"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and KEY_ENV in done.stderr


def test_no_entry_point_of_the_product_leads_to_it() -> None:
    distribution = importlib.metadata.distribution("sglang-kvguard")
    assert not [entry for entry in distribution.entry_points if "testing" in entry.value]


def test_conditions_survive_their_journey() -> None:
    when = When(rid="b", produced=3, beside="a", after="c")
    assert When(**json.loads(json.dumps(when.to_json()))) == when
