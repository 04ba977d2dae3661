"""The engine's prefix cache, telling the guard what it publishes.

The tree itself stays the engine's native one. A backend of this name is registered
through ``register_radix_cache_backend`` and selected when the guard is on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.registry import (
    TreeCacheBuildContext,
    create_unified_radix_cache,
    register_radix_cache_backend,
    registered_radix_cache_backends,
)
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_kvguard.core.guard import KVGuard

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

BACKEND = "kvguard"


class GuardedRadixCache(UnifiedRadixCache):
    """UnifiedRadixCache whose checkpoints are stamped as published.

    Attributes:
        guard: None until the scheduler attached it.
    """

    guard: KVGuard | None = None
    _path: torch.Tensor | None = None

    def attach(self, guard: KVGuard) -> None:
        self.guard = guard

    def checkpoint(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        if self.guard is None:
            super().checkpoint(req, up_to=up_to, **kwargs)
            return
        if req.inflight_middle_chunks > 0 and not req.finished():
            # A chunk was launched and its verdict is not known yet. What it wrote may
            # not be published before it is (I6); the next checkpoint takes it along.
            return
        with self.guard.acting(req.kvguard_tag.owner):
            super().checkpoint(req, up_to=up_to, **kwargs)

    def checkpoint_into_tree(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        guard = self.guard
        if guard is None or self.disable:
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
            return
        start = req.kv.cache_protected_len
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        before = row[start:up_to].clone()
        super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        end = req.kv.cache_protected_len
        if end > start:
            guard.publish(
                req.kvguard_tag,
                start,
                before[: end - start],
                self._path[start:end],
                reseal=not req.finished(),
            )
        self._path = None

    def path_device_indices(self, node: Any) -> torch.Tensor:
        path = super().path_device_indices(node)
        # What the tree says it holds, kept for the checkpoint that is being made: the
        # guard publishes that, not what the row says afterwards.
        self._path = path
        return path


def register_backend() -> None:
    """Make the cache selectable as ``--radix-cache-backend kvguard``; idempotent."""

    def build(context: TreeCacheBuildContext) -> UnifiedRadixCache:
        return create_unified_radix_cache(context, cache_class=GuardedRadixCache)

    if BACKEND not in registered_radix_cache_backends():
        register_radix_cache_backend(BACKEND, build)
