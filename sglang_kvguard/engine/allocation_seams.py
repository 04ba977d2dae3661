"""Where slots are allocated for requests: rows are tagged and pages stamped here.

Only these sites know both the locations that the allocator returned and the request
each one is for. The page table is never read back to learn it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from sglang_kvguard.engine.runtime import GuardFailure, current
from sglang_kvguard.engine.step import Allocation

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch


def alloc_for_extend(original: Callable, batch: ScheduleBatch):
    """AROUND ``sglang.srt.mem_cache.allocation.alloc_for_extend``."""
    runtime = current()
    if runtime is None:
        return original(batch)
    reqs = list(batch.reqs)
    fresh = [not req.kv.holds_kv for req in reqs]
    allocated = original(batch)
    locs, _, rows = allocated
    for req, row, is_fresh in zip(reqs, rows.tolist(), fresh, strict=True):
        if is_fresh:
            runtime.take_row(req, row)
    tags = [req.kvguard_tag for req in reqs]
    want = runtime.guard.want(tags, batch.extend_lens, fresh)
    runtime.guard.stamp(want, locs)
    batch.kvguard_allocation = Allocation(reqs, [tag.owner for tag in tags], want, locs.numel())
    return allocated


def alloc_for_decode(original: Callable, batch: ScheduleBatch, token_per_req: int) -> torch.Tensor:
    """AROUND ``sglang.srt.mem_cache.allocation.alloc_for_decode``.

    Raises:
        GuardFailure: the engine decodes several tokens at once.
    """
    runtime = current()
    if runtime is None:
        return original(batch, token_per_req)
    if token_per_req != 1:
        raise GuardFailure(f"KV guard: cannot fence a decode of {token_per_req} tokens a request")
    locs = original(batch, token_per_req)
    # Comparing the lists is identity per request in C; the table is made anew only when
    # somebody joined or left the batch.
    if runtime.decode_reqs != batch.reqs:
        tags = [req.kvguard_tag for req in batch.reqs]
        runtime.decode_reqs = list(batch.reqs)
        runtime.decode_owners = [tag.owner for tag in tags]
        runtime.decode_want = runtime.guard.want(tags, [1] * len(tags), [False] * len(tags))
    if runtime.scheduler.token_to_kv_pool_allocator.decode_births:
        # Most decode steps of few requests stay on pages that were stamped before.
        runtime.guard.stamp(runtime.decode_want, locs)
    batch.kvguard_allocation = Allocation(
        runtime.decode_reqs, runtime.decode_owners, runtime.decode_want, locs.numel()
    )
    return locs


def release_kv_cache(original: Callable, req, tree_cache, *, checkpoint: bool) -> None:
    """AROUND ``sglang.srt.mem_cache.common.release_kv_cache``.

    What is freed inside is freed on behalf of ``req``. An offender publishes nothing,
    and pages that its row lost on the way are withheld.
    """
    runtime, tag = current(), getattr(req, "kvguard_tag", None)
    if runtime is None or tag is None:
        original(req, tree_cache, checkpoint=checkpoint)
        return
    offender = (
        runtime.policy.mode == "enforce" and getattr(req, "kvguard_incident", None) is not None
    )
    with runtime.guard.acting(tag.owner):
        original(req, tree_cache, checkpoint=checkpoint and not offender)
    runtime.give_back_row(req)
    if offender:
        runtime.retire_orphans()
