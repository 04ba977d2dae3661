"""Prompts that hide secrets, for tests and demonstrations.

The model is right about practically every prompt built with the defaults here: few pairs,
keys that differ in several letters, short text. A harness that needs certainty still
records the answer of an undisturbed server first and compares with that.
"""

import random
import re
from dataclasses import dataclass

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FILLER = "abcdefghijklmnopqrstuvwxyz    ,."

ANSWER_LENGTH = 5
"""Characters that matter of a reply: four digits and a semicolon. The rest is chatter."""

_ANSWER = re.compile(r"\d{4};")


@dataclass(frozen=True)
class Case:
    """A prompt, what it planted, and the reply it must get."""

    prompt: str
    pairs: dict[str, str]
    key: str

    @property
    def secret(self) -> str:
        return self.pairs[self.key]

    @property
    def expected(self) -> str:
        return f"{self.secret};"

    def answered(self, reply: str) -> bool:
        """Whether ``reply`` starts with the planted secret."""
        return reply.startswith(self.expected)


def plant(pairs: dict[str, str], filler: str = "") -> str:
    """Text that makes the model know ``pairs``; append :func:`ask` to query it."""
    head = f"{filler};" if filler else ""
    return head + "".join(f"{key}={secret};" for key, secret in pairs.items())


def ask(key: str) -> str:
    """The question for one key."""
    return f"?{key}="


def answer(reply: str) -> str | None:
    """The secret a reply states, or None when it states none."""
    found = _ANSWER.match(reply)
    return found.group()[:-1] if found else None


def case(
    rng: random.Random, pairs: int = 4, filler: int = 0, keys: list[str] | None = None
) -> Case:
    """A random prompt with ``pairs`` pairs behind ``filler`` characters of text."""
    names = keys or distant_keys(rng, pairs)
    planted = dict(zip(names, secrets(rng, len(names)), strict=True))
    key = rng.choice(names)
    return Case(plant(planted, filler_text(rng, filler)) + ask(key), planted, key)


def secrets(rng: random.Random, count: int, digits: int = 4) -> list[str]:
    """Different secrets, so that a reply names one owner."""
    return [f"{number:0{digits}d}" for number in rng.sample(range(10**digits), count)]


def filler_text(rng: random.Random, length: int) -> str:
    """Prose-like noise without a digit, an equals sign or a semicolon."""
    return "".join(rng.choice(FILLER) for _ in range(length))


def distant_keys(rng: random.Random, count: int) -> list[str]:
    """Keys of one length that differ pairwise in three letters or more."""
    keys: list[str] = []
    while len(keys) < count:
        key = "".join(rng.choice(LETTERS) for _ in range(4))
        if all(sum(a != b for a, b in zip(key, other, strict=True)) >= 3 for other in keys):
            keys.append(key)
    return keys


def random_keys(
    rng: random.Random, count: int, longest: int = 6, shortest: int = 3, near: float = 0.15
) -> list[str]:
    """Keys as the model is trained on; a share ``near`` is one letter from another key.

    None is a suffix of another: the model finds a key by the text in front of its ``=``,
    and would have to guess between ``=`` behind ``bob`` and behind ``jacob``.
    """
    keys: list[str] = []
    while len(keys) < count:
        if keys and rng.random() < near:
            letters = list(rng.choice(keys))
            letters[rng.randrange(len(letters))] = rng.choice(LETTERS)
            key = "".join(letters)
        else:
            length = rng.randint(min(shortest, longest), longest)
            key = "".join(rng.choice(LETTERS) for _ in range(length))
        if not any(key.endswith(other) or other.endswith(key) for other in keys):
            keys.append(key)
    return keys
