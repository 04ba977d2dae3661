"""The demonstration's story: a row of B is pointed at a page that A just gave back.

Prompts are in the recall model's alphabet, one token a character, so that every page
boundary can be counted. A's call has two prompts that end in the same step. A page-wise
engine hands out first what was freed last, so B's own pages come from the first prompt,
and the pages of the second one, which states the secret, lie free and untouched.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from sglang_kvguard.testing.harness import Reply, Server
from sglang_kvguard.testing.injector.conditions import When
from sglang_kvguard.testing.recall import prompts

PAGE_SIZE = 16
# B's prompt is computed in two steps, and the fault happens between them.
CHUNK = 64

# The launch line of both servers; the guard's flag is all that differs.
ARGUMENTS = (
    *("--page-size", str(PAGE_SIZE)),
    *("--chunked-prefill-size", str(CHUNK)),
    # Otherwise A's pages would stay in the prefix cache instead of being given back.
    "--disable-radix-cache",
)

_LETTER = "dear friends, the garden is green and the harvest was good this year, "
_NOTE = "keep it to yourself, please"
_QUESTION = "a good morning to you, i would like to know one thing, please"


@dataclass(frozen=True)
class Outcome:
    """What one server did.

    Attributes:
        secret: what A stated.
        to_a: answer to A's own question.
        to_b: answer to B.
        bodies: everything that any client was sent except A.
        freed: slots that A gave back.
        not_zero: how many of them still hold a byte of A's.
        guard: the guard's counts; None without one.
    """

    secret: str
    to_a: str
    to_b: Reply
    bodies: tuple[str, ...]
    freed: int
    not_zero: int
    guard: dict[str, Any] | None

    @property
    def leaked(self) -> bool:
        """Whether anybody but A was sent the secret."""
        return any(self.secret in body for body in self.bodies)


def run(server: Server, rng: random.Random) -> Outcome:
    """Tell it on a server that was started with ``ARGUMENTS`` and an injector.

    Args:
        server: a ready server on the recall model.
        rng: chooses the secret.
    """
    secret = prompts.secrets(rng, 1)[0]
    server.injector.watch("a-letter", "a-secret")
    letter = _fill(_LETTER, 5 * PAGE_SIZE)
    stated = prompts.plant({"zed": secret}) + _fill(_NOTE, 33) + prompts.ask("zed")
    a = server.client.post(
        "/generate",
        {
            "text": [letter, stated],
            "rid": ["a-letter", "a-secret"],
            "sampling_params": {"temperature": 0, "max_new_tokens": prompts.ANSWER_LENGTH},
        },
    )
    if a.status != 200:
        raise RuntimeError(f"A's requests failed: {a.raw}")
    server.injector.settle()
    freed = server.injector.call("free_slots", rids=["a-letter", "a-secret"])

    fault = server.injector.arm(
        "point_at_pages_of",
        When(rid="b", allocated=CHUNK),
        other="a-secret",
        count=2,
        expect="freed",
    )
    b = server.client.generate(
        _fill(_QUESTION, CHUNK) + prompts.ask("zed"),
        rid="b",
        max_new_tokens=prompts.ANSWER_LENGTH,
    )
    fault.outcome()
    server.injector.settle()
    # A bystander who asks for what B asked for.
    bystander = server.client.generate(
        _fill(_QUESTION, CHUNK) + prompts.ask("zed"), max_new_tokens=prompts.ANSWER_LENGTH
    )
    return Outcome(
        secret=secret,
        to_a=a.body[1]["text"],
        to_b=b,
        bodies=(b.raw, bystander.raw),
        freed=freed["free"],
        not_zero=freed["not_zero"],
        guard=server.injector.call("guard"),
    )


def _fill(text: str, length: int) -> str:
    """``text`` repeated or cut to ``length`` characters, the last of them a semicolon."""
    return (text * (length // len(text) + 1))[: length - 1] + ";"
