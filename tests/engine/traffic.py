"""Mixed requests, and what a stock server answers to each of them alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sglang_kvguard.testing.harness.client import Client

CLIENTS = 16
REQUESTS = 200
SEED = 20261201

_LETTERS = "abcdefghijklmnopqrstuvwxyz ,."


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        kind: short, long, shared (prefix), parallel (n = 4) or aborted.
        prompt: text.
        tokens: how many to generate.
    """

    kind: str
    prompt: str
    tokens: int


def mixed(seed: int = SEED, count: int = REQUESTS) -> list[Ask]:
    """``count`` requests of all kinds; the same seed gives the same ones."""
    print(f"traffic seed {seed}")
    rng = random.Random(seed)

    def text(length: int) -> str:
        return "".join(rng.choices(_LETTERS, k=length))

    prefixes = [text(96), text(200), text(333)]
    # Every prompt is asked about twice, so that half the answers can come from a cache.
    kinds = {
        "short": [Ask("short", f"{text(3)}={n};?{n % 10}=", 6 + n % 9) for n in range(25)],
        "long": [Ask("long", text(280 + 7 * n), 10 + n) for n in range(20)],
        "shared": [Ask("shared", prefixes[n % 3] + text(1 + n), 8 + n) for n in range(25)],
        "parallel": [Ask("parallel", prefixes[n % 3][:150] + text(4), 12) for n in range(8)],
        "aborted": [Ask("aborted", text(40 + 9 * n), 120) for n in range(15)],
    }
    weights = {"short": 25, "long": 20, "shared": 30, "parallel": 10, "aborted": 15}
    drawn = rng.choices(list(weights), weights.values(), k=count)
    return [rng.choice(kinds[kind]) for kind in drawn]


def alone(client: Client, asks: list[Ask]) -> dict[Ask, str]:
    """Ask each distinct request by itself, on an empty cache."""
    answers = {}
    for ask in dict.fromkeys(asks):
        if ask.kind != "aborted":
            client.flush_cache()
            answers[ask] = client.generate(ask.prompt, max_new_tokens=ask.tokens).text
    return answers


def in_company(
    client: Client, asks: list[Ask], expected: dict[Ask, str], violated: Callable[[], int]
) -> Counter[str]:
    """Send everything from ``CLIENTS`` clients and hold each answer against its own alone.

    Args:
        client: guarded server.
        asks: requests.
        expected: from ``alone``.
        violated: how many violations the guard has recorded.

    Returns:
        Completed requests by kind.

    Raises:
        AssertionError: an answer differs, a request failed, or a violation was recorded.
    """

    def send(ask: Ask) -> str:
        if ask.kind == "aborted":
            stream = client.stream(ask.prompt, hang_up_after=2, max_new_tokens=ask.tokens)
            assert stream.status == 200 and stream.error is None, stream.raw
        elif ask.kind == "parallel":
            reply = client.generate(ask.prompt, max_new_tokens=ask.tokens, n=4)
            assert reply.status == 200, reply.raw
            assert [item["text"] for item in reply.body] == 4 * [expected[ask]], ask
        else:
            reply = client.generate(ask.prompt, max_new_tokens=ask.tokens)
            assert reply.text == expected[ask], ask
        return ask.kind

    with ThreadPoolExecutor(CLIENTS) as clients:
        done = Counter(clients.map(send, asks))
    assert violated() == 0
    return done
