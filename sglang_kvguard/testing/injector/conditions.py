"""When a fault happens."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_kvguard.testing.injector.engine_view import EngineView


@dataclass(frozen=True)
class When:
    """All of this has to hold at one time.

    Attributes:
        rid: the request that the fault happens to; it has to run.
        produced: tokens that it has produced, or more.
        allocated: slots that its row holds, or more.
        beside: another request that has to run and to have produced a token.
        beside_produced: tokens that the other request has produced, or more.
        after: watched request that ran and has ended.
    """

    rid: str | None = None
    produced: int = 0
    allocated: int = 0
    beside: str | None = None
    beside_produced: int = 1
    after: str | None = None

    def holds(self, view: EngineView) -> bool:
        if self.rid is not None:
            req = view.find(self.rid)
            if req is None or len(req.output_ids) < self.produced:
                return False
            if req.kv.kv_allocated_len < self.allocated:
                return False
        if self.beside is not None:
            other = view.find(self.beside)
            if other is None or len(other.output_ids) < self.beside_produced:
                return False
        return self.after is None or view.has_ended(self.after)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
