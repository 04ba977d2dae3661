"""Where forwards are launched: nothing runs on request rows without its fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_kvguard.engine.runtime import GuardFailure, current
from sglang_kvguard.engine.step import Step

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


def run_batch(original: Callable, scheduler: Scheduler, batch: ScheduleBatch, *args: Any, **kwargs: Any):
    """AROUND ``Scheduler.run_batch``: says which requests the coming forward is for.

    Raises:
        GuardFailure: a batch that was not allocated through the seams, or whose forward
            was not fenced.
    """
    runtime = current()
    if runtime is None or batch.forward_mode.is_idle():
        return original(scheduler, batch, *args, **kwargs)
    allocation = getattr(batch, "kvguard_allocation", None)
    if allocation is None or allocation.reqs != batch.reqs:
        raise GuardFailure(
            "KV guard: a batch reached run_batch with requests other than those its slots "
            "were allocated for"
        )
    batch.kvguard_allocation = None
    step = runtime.step = Step(
        allocation.reqs,
        allocation.owners,
        allocation.want,
        allocation.tokens,
        int(batch.seq_lens_cpu.max()),
    )
    try:
        result = original(scheduler, batch, *args, **kwargs)
    finally:
        runtime.step = None
    if step.report is None:
        raise GuardFailure("KV guard: a forward ran without being fenced")
    result.kvguard_step = step
    return result


def forward(
    original: Callable, runner: ModelRunner, forward_batch: ForwardBatch, *args: Any, **kwargs: Any
):
    """AROUND ``ModelRunner.forward``: fences exactly what this forward was given.

    This is the last place ahead of padding, graphs and attention planning, and it runs
    on the launch stream.

    Raises:
        GuardFailure: a forward outside ``run_batch``, a second one in it, or one of
            another size than its batch.
    """
    runtime = current()
    if runtime is None or forward_batch.forward_mode.is_idle():
        return original(runner, forward_batch, *args, **kwargs)
    step = runtime.step
    if step is None or step.report is not None:
        raise GuardFailure("KV guard: a forward that no scheduled batch asked for")
    tokens = forward_batch.out_cache_loc.numel()
    if forward_batch.batch_size != len(step.reqs) or tokens != step.tokens:
        raise GuardFailure(
            f"KV guard: a forward of {forward_batch.batch_size} entries and {tokens} tokens "
            f"for a batch of {len(step.reqs)} requests and {step.tokens} tokens"
        )
    plan = forward_batch.kv_loc_plan
    if (
        plan.req_pool_indices is not forward_batch.req_pool_indices
        or plan.seq_lens is not forward_batch.seq_lens
        or plan.write_physical is not forward_batch.out_cache_loc
    ):
        # Attention backends read rows, lengths and write set from the plan.
        raise GuardFailure("KV guard: a forward whose plan is not what it says it reads")
    step.report = runtime.guard.fence(
        want=step.want,
        req_to_token=runtime.scheduler.req_to_token_pool.req_to_token,
        rows=forward_batch.req_pool_indices,
        seq_lens=forward_batch.seq_lens,
        out_locs=forward_batch.out_cache_loc,
        max_len=step.max_len,
    )
    return original(runner, forward_batch, *args, **kwargs)
