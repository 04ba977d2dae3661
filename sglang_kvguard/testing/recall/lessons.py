"""What the model is trained on.

Two kinds of rows: questions about planted pairs, the task itself, and strings that repeat
parts of themselves, which teach the step the task is made of: find the earlier place
that looks like this one, and copy what came next.
"""

import random
import string
from dataclasses import dataclass

from sglang_kvguard.testing.recall import alphabet, prompts

FIRST_DIGIT_WEIGHT = 2.0
"""The first digit is where the pair has to be found; the others follow by copying."""

TOKENS_A_STEP = 4096

_CONTEXT = 6
"""Longest stretch of text that must be enough to know what comes next in a repetition."""


@dataclass
class Row:
    """Text, and how much the prediction of each of its characters counts."""

    text: str
    weights: list[float]
    first_digits: list[int]
    """Positions of first digits, on which progress is measured."""


@dataclass
class Level:
    """How hard the questions are, from 0 to 1."""

    value: float = 0.0

    def between(self, easy: int, hard: int) -> int:
        return round(easy + (hard - easy) * self.value)

    def raise_by(self, amount: float) -> None:
        self.value = min(1.0, self.value + amount)


def questions(rng: random.Random, level: Level) -> Row:
    """Pairs, then queries about them.

    Keys are queried with replacement: if each was asked once, the last answers could be
    found by elimination instead of by looking them up.
    """
    count = rng.randint(1, level.between(4, 12))
    digits = level.between(1, 4)
    keys = prompts.random_keys(rng, count, longest=level.between(2, 6))
    # Secrets repeat now and then; only their places tell them apart.
    pairs = {key: f"{rng.randrange(10**digits):0{digits}d}" for key in keys}
    filler = prompts.filler_text(rng, rng.randint(0, level.between(0, 150)))
    row = Row(prompts.plant(pairs, filler), [], [])
    row.weights = [0.0] * len(row.text)
    for _ in range(min(10, count + 2)):
        key = rng.choice(keys)
        question = prompts.ask(key)
        row.first_digits.append(len(row.text) + len(question))
        row.text += f"{question}{pairs[key]};"
        row.weights += [0.0] * len(question)
        row.weights += [FIRST_DIGIT_WEIGHT] + [1.0] * digits
    return row


def repetition(rng: random.Random) -> Row:
    """A random string, then pieces of it; what the context determines counts."""
    symbols = rng.sample(string.ascii_lowercase + string.digits + "=;?", rng.randint(6, 24))
    text = "".join(rng.choice(symbols) for _ in range(rng.randint(20, 80)))
    followers: dict[str, set[str]] = {}
    for end in range(1, len(text)):
        for length in range(1, min(_CONTEXT, end) + 1):
            followers.setdefault(text[end - length : end], set()).add(text[end])
    row = Row(text, [0.0] * len(text), [])
    for _ in range(rng.randint(4, 12)):
        start = rng.randrange(len(text) - 4)
        piece = text[start : start + rng.randint(4, 16)]
        row.text += piece
        for index in range(len(piece)):
            context = piece[max(0, index - _CONTEXT) : index]
            known = index > 0 and len(followers[context]) == 1
            row.weights.append(1.0 if known else 0.0)
    return row


def batch(rng: random.Random, level: Level, repetitions: float) -> list[Row]:
    """Rows of one training step, a share ``repetitions`` of them repetitions."""
    rows: list[Row] = []
    longest = 0
    while True:
        row = repetition(rng) if rng.random() < repetitions else questions(rng, level)
        longest = max(longest, len(row.text))
        if rows and longest * (len(rows) + 1) > TOKENS_A_STEP:
            return rows
        rows.append(row)


def tensors(rows: list[Row]):
    """``(tokens, weights, first)``, each (rows, longest); padding weighs nothing.

    ``weights[r, i]`` belongs to the prediction *of* token i; ``first`` marks first digits.
    """
    import torch

    longest = max(len(row.text) for row in rows)
    tokens = torch.full((len(rows), longest), alphabet.PAD)
    weights = torch.zeros(len(rows), longest)
    first = torch.zeros(len(rows), longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row.text)] = torch.tensor(alphabet.encode(row.text))
        weights[index, : len(row.text)] = torch.tensor(row.weights)
        first[index, row.first_digits] = True
    return tokens, weights, first
