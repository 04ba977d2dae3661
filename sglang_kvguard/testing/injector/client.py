"""The other end of the control socket: what tests and the demo hold."""

from __future__ import annotations

import json
import threading
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from sglang_kvguard.testing.injector.conditions import When

KEY_ENV = "SGLANG_KVGUARD_INJECTOR_KEY"


class InjectorError(RuntimeError):
    """A command failed in the server; the message is its traceback."""


class Armed:
    """A fault that waits for its moment, or had it."""

    def __init__(self, injector: Injector, ticket: int, fault: str) -> None:
        self._injector = injector
        self._ticket = ticket
        self._fault = fault

    def outcome(self, timeout: float = 60.0) -> dict[str, Any]:
        """Wait for it to happen; what it did.

        Raises:
            InjectorError: it failed, or did not happen in time.
        """
        deadline = time.monotonic() + timeout
        while (outcome := self._injector.call("outcome", ticket=self._ticket)) is None:
            if time.monotonic() > deadline:
                raise InjectorError(f"{self._fault}: its conditions were not met in {timeout} s")
            time.sleep(0.02)
        if "error" in outcome:
            raise InjectorError(outcome["error"])
        return outcome

    def fired(self) -> bool:
        """Whether it happened already."""
        return self._injector.call("outcome", ticket=self._ticket) is not None


class Injector:
    """Control of one server's injector; may be used from several threads."""

    def __init__(self, control_socket: Path, key: str) -> None:
        self._connection = Client(str(control_socket), family="AF_UNIX", authkey=key.encode())
        self._lock = threading.Lock()

    def close(self) -> None:
        self._connection.close()

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command on the scheduler's thread and wait for its answer.

        Raises:
            InjectorError: it failed there.
        """
        with self._lock:
            self._connection.send_bytes(json.dumps([command, arguments]).encode())
            answer = json.loads(self._connection.recv_bytes())
        if "error" in answer:
            raise InjectorError(answer["error"])
        return answer["result"]

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until nothing runs and the engine has done its idle work.

        Raises:
            InjectorError: it was still busy after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.call("settled"):
            if time.monotonic() > deadline:
                raise InjectorError(f"the server was not idle after {timeout:.0f} s")

    def watch(self, *rids: str) -> None:
        """Remember the pages of these requests while they run, for after they end."""
        self.call("watch", rids=rids)

    def arm(self, fault: str, when: When, **parameters: Any) -> Armed:
        """Inject a fault as soon as its conditions hold.

        Args:
            fault: name of a function in ``injector.faults``.
            when: its conditions.
            **parameters: of that function.
        """
        ticket = self.call("arm", fault=fault, when=when.to_json(), parameters=parameters)
        return Armed(self, ticket, fault)

    def disarm(self) -> None:
        """Forget everything that was armed or watched."""
        self.call("disarm")
