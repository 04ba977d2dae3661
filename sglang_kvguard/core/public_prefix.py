"""Prefixes that the operator declares public: ``--kv-guard-public-prefix FILE``.

The file is JSON, a list of objects with a ``name`` and either the ``token_ids`` or the
``text`` of a prefix::

    [{"name": "support", "token_ids": [151331, 151333, 198, ...]},
     {"name": "coder", "text": "[gMASK]<sop><|system|>\\nYou are ..."}]

Token ids are exact. Text is tokenized on its own, so it has to be what the chat template
makes of a system prompt, control tokens included; where its last token would merge with
what follows, the prefix simply ends before it.

Only whole pages are shared, and every page of a prefix that a prompt starts with: a
prompt that leaves the prefix half way shares the pages before that point. What follows is
private.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_kvguard.core.fields import join
from sglang_kvguard.core.policy_error import PolicyError

FLAG = "--kv-guard-public-prefix"


@dataclass(frozen=True)
class Declared:
    """One entry of the file: exactly one of ``text`` and ``token_ids`` is given."""

    name: str
    text: str | None = None
    token_ids: tuple[int, ...] | None = None


def read_declarations(path: str) -> tuple[Declared, ...]:
    """The entries of a file.

    Raises:
        PolicyError: it cannot be read, may be written by others than its owner (who could
            make private text public), or is not as described above.
    """
    try:
        mode = os.stat(path).st_mode
        content = Path(path).read_bytes()
    except OSError as error:
        raise PolicyError(f"{FLAG} {path}: cannot be read ({error.strerror})") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PolicyError(
            f"{FLAG} {path}: others may write it (mode {stat.S_IMODE(mode):03o}); chmod go-w it"
        )
    try:
        entries = json.loads(content)
    except ValueError as error:
        raise PolicyError(f"{FLAG} {path}: expected JSON ({error})") from error
    if not isinstance(entries, list) or not entries:
        raise PolicyError(f"{FLAG} {path}: expected a list of at least one prefix")
    declared = tuple(_declared(entry, f"{FLAG} {path}: entry {i}") for i, entry in enumerate(entries))
    names = [entry.name for entry in declared]
    if len(set(names)) != len(names):
        raise PolicyError(f"{FLAG} {path}: two prefixes have the same name")
    return declared


def _declared(entry: object, where: str) -> Declared:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise PolicyError(f"{where}: expected an object with a name")
    if set(entry) == {"name", "text"} and isinstance(entry["text"], str) and entry["text"]:
        return Declared(entry["name"], text=entry["text"])
    if set(entry) == {"name", "token_ids"}:
        ids = entry["token_ids"]
        # bool is an int to Python, but not a token.
        if isinstance(ids, list) and ids and all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
            return Declared(entry["name"], token_ids=tuple(ids))
    raise PolicyError(
        f"{where} ({entry['name']}): expected either text or token_ids beside the name, "
        "not empty"
    )


@dataclass(frozen=True)
class Shared:
    """How much of a prompt is public.

    Attributes:
        prefix: which prefix.
        length: tokens, a multiple of the page size; 0 when no page is.
    """

    prefix: int
    length: int


NOTHING = Shared(0, 0)


class PublicPrefixes:
    """The declared prefixes as token ids, cut to whole pages.

    Attributes:
        tokens: one array of token ids a prefix.
        names: of the prefixes.
    """

    def __init__(
        self,
        declared: Sequence[Declared],
        page_size: int,
        tokenize: Callable[[str], Sequence[int]],
    ) -> None:
        """
        Args:
            declared: entries of the file.
            page_size: token slots a page.
            tokenize: text to token ids, without adding special tokens.

        Raises:
            PolicyError: a prefix is shorter than a page.
        """
        self.page_size = page_size
        self.names = tuple(entry.name for entry in declared)
        self.tokens: list[array] = []
        for entry in declared:
            ids = entry.token_ids if entry.token_ids is not None else tokenize(entry.text)
            whole = array("q", ids)[: len(ids) // page_size * page_size]
            if not whole:
                raise PolicyError(
                    f"{FLAG}: prefix {entry.name} has {len(ids)} tokens, less than a page "
                    f"({page_size}); nothing of it could be shared"
                )
            self.tokens.append(whole)
        self._digests: dict[Shared, bytes] = {}

    def shared(self, tokens: array, limit: int) -> Shared:
        """The longest public part that a prompt starts with.

        Args:
            tokens: token ids, array of type "q".
            limit: how many of them may be taken from a cache.
        """
        best = NOTHING
        for number, prefix in enumerate(self.tokens):
            length = self._common(prefix, tokens, min(limit, len(tokens)))
            if length > best.length:
                best = Shared(number, length)
        return best

    def digest_of(self, shared: Shared) -> bytes:
        """32 bytes that stand for the tokens of ``shared``."""
        digest = self._digests.get(shared)
        if digest is None:
            lead = self.tokens[shared.prefix][: shared.length]
            digest = hashlib.sha256(join("sglang-kvguard public prefix v1", lead.tobytes())).digest()
            self._digests[shared] = digest
        return digest

    def _common(self, prefix: array, tokens: array, limit: int) -> int:
        page = self.page_size
        most = min(len(prefix), limit) // page
        if most < 1 or prefix[:page] != tokens[:page]:
            return 0
        # Slices are compared in C, and nearly every prompt that has the first page of a
        # prefix has all of it.
        if prefix[: most * page] == tokens[: most * page]:
            return most * page
        least = 1
        while most - least > 1:
            middle = (least + most) // 2
            if prefix[: middle * page] == tokens[: middle * page]:
                least = middle
            else:
                most = middle
        return least * page
