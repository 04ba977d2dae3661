"""HTTP requests to a server, and what came back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

# Generous: a request may wait behind many others on a slow machine.
_TIMEOUT = 300.0


@dataclass(frozen=True)
class Reply:
    """The answer to a request that was not streamed.

    Attributes:
        status: HTTP status.
        body: parsed JSON; an object, or a list of them for several completions.
        raw: the bytes as text, for searching them for what must not be there.
    """

    status: int
    body: Any
    raw: str

    @property
    def text(self) -> str:
        """What was generated.

        Raises:
            AssertionError: the request failed.
        """
        assert self.status == 200, f"HTTP {self.status}: {self.raw}"
        return self.body["text"]

    @property
    def violation(self) -> dict[str, Any] | None:
        """The error object, if this is a violation of the guard."""
        return _violation(self.body) if self.status == 500 else None


@dataclass
class Stream:
    """A streamed answer.

    Attributes:
        status: HTTP status.
        text: what was generated, as far as it came.
        error: error object of an error event.
        ended: the stream was closed by the server with its end marker.
        raw: everything received.
    """

    status: int
    text: str = ""
    error: dict[str, Any] | None = None
    ended: bool = False
    raw: list[str] = field(default_factory=list)

    @property
    def violation(self) -> dict[str, Any] | None:
        """The error object, if the stream ended in a violation of the guard."""
        return _violation({"error": self.error}) if self.error else None


class Client:
    """Talks to one server; may be used from several threads."""

    def __init__(self, url: str) -> None:
        # Without a proxy even when the environment names one: the server is local.
        self._http = httpx.Client(
            base_url=url,
            timeout=_TIMEOUT,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, timeout: float = _TIMEOUT) -> httpx.Response:
        """A plain GET."""
        return self._http.get(path, timeout=timeout)

    def post(self, path: str, body: dict[str, Any]) -> Reply:
        """A JSON POST."""
        response = self._http.post(path, json=body)
        try:
            parsed = response.json()
        except ValueError:
            parsed = None
        return Reply(response.status_code, parsed, response.text)

    def generate(self, prompt: str, **settings: Any) -> Reply:
        """``/generate`` with greedy sampling; see ``generate_body`` for the settings."""
        return self.post("/generate", generate_body(prompt, **settings))

    def complete(self, prompt: str, max_tokens: int = 8, **fields: Any) -> Reply:
        """The OpenAI completions endpoint, greedy."""
        body = {"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self.post("/v1/completions", body | fields)

    def chat(self, content: str, max_tokens: int = 8, **fields: Any) -> Reply:
        """The OpenAI chat endpoint with one user message, greedy."""
        message = {"role": "user", "content": content}
        body = {"model": "default", "messages": [message], "max_tokens": max_tokens}
        return self.post("/v1/chat/completions", body | {"temperature": 0} | fields)

    def stream(self, prompt: str, hang_up_after: int | None = None, **settings: Any) -> Stream:
        """``/generate`` as a stream.

        Args:
            prompt: text.
            hang_up_after: close the connection after so many events with text, which
                makes the server abort the request.
            **settings: see ``generate_body``.
        """
        body = generate_body(prompt, **settings) | {"stream": True}
        with self._http.stream("POST", "/generate", json=body) as response:
            stream = Stream(response.status_code)
            for number, event in enumerate(_events(response, stream), start=1):
                if "error" in event:
                    stream.error = event["error"]
                else:
                    stream.text = event["text"]
                if number == hang_up_after:
                    break
        return stream

    def flush_cache(self) -> None:
        """Empty the server's cache; waits until it is idle enough to do so.

        Raises:
            AssertionError: the server refused.
        """
        reply = self._http.post("/flush_cache", params={"timeout": 60})
        assert reply.status_code == 200, reply.text


def generate_body(
    prompt: str,
    *,
    max_new_tokens: int = 8,
    stop: str | None = None,
    n: int = 1,
    rid: str | None = None,
    ignore_eos: bool = True,
) -> dict[str, Any]:
    """The JSON of a greedy ``/generate`` request."""
    sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
    sampling |= {"stop": stop} if stop else {}
    sampling |= {"n": n} if n > 1 else {}
    return {"text": prompt, "sampling_params": sampling} | ({"rid": rid} if rid else {})


def _events(response: httpx.Response, stream: Stream) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        stream.raw.append(line)
        if line == "data: [DONE]":
            stream.ended = True
        elif line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _violation(body: Any) -> dict[str, Any] | None:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("kv_guard_violation"):
        return error
    return None
