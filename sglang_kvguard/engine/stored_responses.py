"""Stored responses of ``/v1/responses`` belong to whoever asked for them.

The engine keeps them under an id that a client may choose, and gives them to whoever names
it: to read, to cancel, or as the beginning of a new prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from sglang_kvguard.engine.callers import identity


class OwnedStore(MutableMapping[str, Any]):
    """A mapping of which each principal sees its own entries only."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, str], Any] = {}

    def __getitem__(self, key: str) -> Any:
        return self._entries[self._owned(key)]

    def __setitem__(self, key: str, value: Any) -> None:
        self._entries[self._owned(key)] = value

    def __delitem__(self, key: str) -> None:
        del self._entries[self._owned(key)]

    def __iter__(self) -> Iterator[str]:
        principal = identity().caller().principal
        return iter([key for owner, key in self._entries if owner == principal])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @staticmethod
    def _owned(key: str) -> tuple[Any, str]:
        return identity().caller().principal, key


def responses_init(_result: None, serving: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER ``OpenAIServingResponses.__init__``."""
    for name in ("response_store", "msg_store", "background_tasks"):
        if getattr(serving, name) != {}:
            raise RuntimeError(f"kv-guard: {name} of /v1/responses is not an empty dictionary")
        setattr(serving, name, OwnedStore())
