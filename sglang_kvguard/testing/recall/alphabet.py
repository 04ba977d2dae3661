"""The characters the model reads, one token each.

One token a character keeps positions countable by eye: the token count of a prompt is its
length, so a test can say "the secret sits in the second page" and be right.
"""

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
PAD, BOS, EOS, UNK = range(4)

CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))

VOCABULARY_SIZE = 128
"""Rows of the embedding; the ids above the last character are never used."""

_IDS = {char: len(SPECIALS) + index for index, char in enumerate(CHARACTERS)}


def vocabulary() -> dict[str, int]:
    """Every token and its id, specials first."""
    return {special: index for index, special in enumerate(SPECIALS)} | _IDS


def encode(text: str) -> list[int]:
    """Token ids of ``text``; a character outside the alphabet is a KeyError."""
    return [_IDS[char] for char in text]


def decode(ids: list[int]) -> str:
    """Text of ``ids``, leaving out specials and unused ids."""
    first, last = len(SPECIALS), len(SPECIALS) + len(CHARACTERS)
    return "".join(CHARACTERS[index - first] for index in ids if first <= index < last)
