"""Owner tags and namespaces: minted by the guard, never taken from a request."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from sglang_kvguard.kernels import layout as L

# Every request may read what its namespace published. Under scope "shared" all
# requests are in this one.
SHARED_NAMESPACE = 1


@dataclass(frozen=True)
class RowTag:
    """Identity of one row incarnation: a request from taking its row to giving it back.

    Attributes:
        owner: unique over the whole run, never ``layout.TREE``.
        namespace: whose published pages it may read.
        row: request row that it holds.
    """

    owner: int
    namespace: int
    row: int


class Mint:
    """Source of owner tags and of private namespaces.

    Tags are a plain counter: every rank runs the same scheduler decisions, so every
    rank mints the same tag for the same row, and no two row incarnations share one.
    """

    def __init__(self) -> None:
        self._next = itertools.count(max(L.TREE, SHARED_NAMESPACE) + 1)

    def tag(self, row: int, namespace: int | None) -> RowTag:
        """A fresh tag for ``row``.

        Args:
            row: request row.
            namespace: namespace to join; None makes one that nobody else is in.
        """
        owner = next(self._next)
        return RowTag(owner, owner if namespace is None else namespace, row)
