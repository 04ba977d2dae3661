"""Clients that say who they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from sglang_kvguard.testing.harness.server import Server

HEADER = "X-Tenant"


class Tenant:
    """One principal's view of a server. Safe to use from several threads."""

    def __init__(self, server: Server, name: str | None, *, value: Callable[[], str] | None = None):
        """
        Args:
            server: the server.
            name: sent in the header ``HEADER``; None sends none.
            value: what to send instead of the name, anew for each request.
        """
        self._value = value or (None if name is None else lambda: name)
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{server.port}", timeout=300, trust_env=False
        )

    def _headers(self) -> dict[str, str]:
        return {} if self._value is None else {HEADER: self._value()}

    def post(self, path: str, body: Any) -> httpx.Response:
        return self._http.post(path, json=body, headers=self._headers())

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path, headers=self._headers())

    def generate(self, ids: list[int], **fields: Any) -> Any:
        """``/generate``, greedy; the parsed answer.

        Raises:
            AssertionError: it failed.
        """
        reply = self.post("/generate", generate_body(ids, **fields))
        assert reply.status_code == 200, reply.text
        return reply.json()

    def cached(self, ids: list[int], **fields: Any) -> int:
        """Tokens of the prompt that came from the cache."""
        return self.generate(ids, **fields)["meta_info"]["cached_tokens"]

    def stream(self, ids: list[int], **fields: Any) -> Iterator[dict[str, Any]]:
        """Events of a streamed ``/generate``."""
        body = generate_body(ids, **fields) | {"stream": True}
        with self._http.stream("POST", "/generate", json=body, headers=self._headers()) as reply:
            assert reply.status_code == 200
            for line in reply.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))


def generate_body(ids: list[int], max_new_tokens: int = 2, n: int = 1, **fields: Any) -> dict:
    """The JSON of a greedy ``/generate`` request."""
    sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True, "n": n}
    return {"input_ids": ids, "sampling_params": sampling, **fields}
