"""Which namespace a request's row is in, in the scheduler process.

The server process decided it and sent it as the cache salt (``core/salts.py``). A request
without a salt of the guard's (an embedding, or one that the engine makes itself) gets a
namespace that nobody else is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_kvguard.core.salts import GROUP, PUBLIC_SALT, SHARED, parse_salt
from sglang_kvguard.core.tags import PUBLIC_NAMESPACE

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


@dataclass(frozen=True)
class RowNamespace:
    """What the scheduler does with a request's pages.

    Attributes:
        number: of the namespace in the page ledger; None for one that only this row is in.
        publishes: whether its pages may go into the prefix cache.
    """

    number: int | None
    publishes: bool


def namespace_of(req: Req) -> RowNamespace:
    """The namespace of the row that ``req`` was given."""
    if req.cache_salt == PUBLIC_SALT:
        return RowNamespace(PUBLIC_NAMESPACE, True)
    salt = parse_salt(req.cache_salt)
    if salt is None:
        return RowNamespace(None, False)
    if salt.kind == GROUP:
        # The engine runs the prompt of parallel samples once, without generating, so
        # that the samples find it in the cache. Only that run publishes.
        return RowNamespace(salt.namespace, req.sampling_params.max_new_tokens == 0)
    return RowNamespace(salt.namespace, salt.kind == SHARED)
