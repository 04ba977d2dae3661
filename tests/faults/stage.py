"""Requests that run beside each other on a server, while a fault is injected."""

from __future__ import annotations

import itertools
import json
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sglang_kvguard.testing.harness.client import Reply, Stream
from sglang_kvguard.testing.harness.server import Server
from sglang_kvguard.testing.injector.client import Armed
from sglang_kvguard.testing.injector.conditions import When

_LETTERS = "abcdefghijklmnopqrstuvwxyz ,."
_numbers = itertools.count(1)

# Answers of an undisturbed server, by prompt and length; greedy and float32, so they hold.
_alone: dict[tuple[str, int], str] = {}


class Stage:
    """One server and the requests of one test.

    Attributes:
        server: stock or guarded.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._clients = ThreadPoolExecutor(8)
        self._log_start = len(server.log())
        self._before = self.counts()

    # -- requests -------------------------------------------------------------------------

    def prompt(self, name: str, length: int = 80) -> str:
        """Text of ``length`` tokens; the same name gives the same text."""
        return "".join(random.Random(f"prompt {name}").choices(_LETTERS, k=length))

    def rid(self, name: str) -> str:
        """A request id that no other test uses."""
        return f"{name}-{next(_numbers)}"

    def alone(self, prompt: str, tokens: int) -> str:
        """The answer when nothing else runs and nothing is injected."""
        if (prompt, tokens) not in _alone:
            _alone[prompt, tokens] = self.server.client.generate(
                prompt, max_new_tokens=tokens
            ).text
        return _alone[prompt, tokens]

    def send(self, prompt: str, tokens: int, rid: str) -> Future[Reply]:
        """Ask in the background."""
        return self._clients.submit(
            self.server.client.generate, prompt, max_new_tokens=tokens, rid=rid
        )

    def stream(self, prompt: str, tokens: int, rid: str) -> Future[Stream]:
        """Ask in the background, streamed."""
        return self._clients.submit(
            self.server.client.stream, prompt, max_new_tokens=tokens, rid=rid
        )

    def until_producing(self, rid: str, timeout: float = 60.0) -> None:
        """Wait until this request has produced a token, so that what is sent next runs beside it.

        Raises:
            TimeoutError: it did not.
        """
        deadline = time.monotonic() + timeout
        while not any(r["rid"] == rid and r["produced"] for r in self.ask("running")):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{rid} produced nothing in {timeout:.0f} s")
            time.sleep(0.005)

    def arm(self, fault: str, when: When, **parameters: Any) -> Armed:
        return self.server.injector.arm(fault, when, **parameters)

    def watch(self, *rids: str) -> None:
        self.server.injector.watch(*rids)

    def ask(self, query: str, **arguments: Any) -> Any:
        return self.server.injector.call(query, **arguments)

    # -- what came of it --------------------------------------------------------------------

    def counts(self) -> dict[str, Any]:
        """The guard's counters; empty on a stock server."""
        return self.server.injector.call("guard") or {}

    def new_violations(self) -> int:
        return self.counts()["violations"] - self._before["violations"]

    def new_page_faults(self) -> dict[str, int]:
        before = self._before["page_faults"]
        now = self.counts()["page_faults"]
        return {name: n - before.get(name, 0) for name, n in now.items() if n > before.get(name, 0)}

    def incidents(self) -> list[dict[str, Any]]:
        """Structured lines that the server logged since the test began."""
        lines = self.server.log()[self._log_start :].splitlines()
        return [
            json.loads(line[line.index('{"event"') :])
            for line in lines
            if '{"event":"kv_guard_' in line
        ]

    def incident(self, incident_id: str) -> dict[str, Any]:
        """The line of one incident."""
        (found,) = [line for line in self.incidents() if line["incident_id"] == incident_id]
        return found

    def expect_violation(self, reply: Reply, invariant: str, prompt: str) -> dict[str, Any]:
        """``reply`` is the error of a violation, and the log tells the same incident.

        Returns:
            The log line.
        """
        assert reply.status == 500, reply.raw
        error = reply.violation
        assert error is not None, reply.raw
        assert error["invariant"] == invariant, (error, self.incidents())
        assert error["retryable"] is True and error["code"] == 500
        line = self.incident(error["incident_id"])
        assert line["invariant"] == invariant and line["action"] == "aborted"
        assert prompt not in json.dumps(line) and "text_ids" not in line
        return line

    # -- afterwards ---------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget what is armed, wait for what runs, and empty the cache."""
        self.server.injector.disarm()
        self._clients.shutdown(wait=True)
        self.server.client.flush_cache()

    def check_sound(self) -> None:
        """A guarded server after a fault: alive, nothing lost, nothing left behind."""
        assert self.server.alive(), self.server.log_tail()
        state, counts = self.ask("state"), self.counts()
        assert state["free_pages_listed_twice"] == 0
        pages = state["size"] // state["page_size"]
        assert state["free_pages"] + counts["retired"] == pages, (state, counts)
        assert self.ask("free_bytes")["not_zero"] == 0
        prompt = self.prompt("sound")
        assert self.server.client.generate(prompt, max_new_tokens=8).text == self.alone(prompt, 8)
