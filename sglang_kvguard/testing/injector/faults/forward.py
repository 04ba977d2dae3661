"""Arguments of one forward that are not what the scheduler planned.

The tensors are replaced and not written to: the scheduler's batch holds the same ones
and is not to be damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_kvguard.testing.injector.conditions import When
from sglang_kvguard.testing.injector.engine_view import EngineView

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


def use_row_of(
    view: EngineView,
    forward: ForwardBatch,
    batch: ScheduleBatch,
    runner: ModelRunner,
    when: When,
    *,
    other: str,
) -> dict[str, Any]:
    """The batch entry of ``when.rid`` is given another request's row."""
    entry, row = forward.rids.index(when.rid), view.find(other).kv.req_pool_idx
    forward.req_pool_indices = forward.req_pool_indices.clone()
    forward.req_pool_indices[entry] = row
    _plan_anew(forward, runner)
    return {"row": row}


def read_past_the_end(
    view: EngineView,
    forward: ForwardBatch,
    batch: ScheduleBatch,
    runner: ModelRunner,
    when: When,
    *,
    tokens: int = 16,
) -> dict[str, Any]:
    """The entry of ``when.rid`` reads more entries than its row has."""
    entry = forward.rids.index(when.rid)
    for name in ("seq_lens", "seq_lens_cpu"):
        lengths = getattr(forward, name).clone()
        lengths[entry] += tokens
        setattr(forward, name, lengths)
    forward.seq_lens_sum += tokens
    _plan_anew(forward, runner)
    return {"length": int(forward.seq_lens_cpu[entry])}


def write_into_pages_of(
    view: EngineView,
    forward: ForwardBatch,
    batch: ScheduleBatch,
    runner: ModelRunner,
    when: When,
    *,
    other: str,
    position: int = 0,
) -> dict[str, Any]:
    """The token of ``when.rid`` is written where another request keeps its own.

    Only for a decode step, where each entry writes one slot.
    """
    if not forward.forward_mode.is_decode():
        raise AssertionError(f"a decode step was expected, not {forward.forward_mode}")
    slot = int(view.row(other)[position])
    forward.out_cache_loc = forward.out_cache_loc.clone()
    forward.out_cache_loc[forward.rids.index(when.rid)] = slot
    _plan_anew(forward, runner)
    return {"slot": slot}


def _plan_anew(forward: ForwardBatch, runner: ModelRunner) -> None:
    """Rebuild what the engine derived from the arguments, as if they had come so."""
    translator = runner.kv_index_translator
    translator.own_plan(forward).bind(forward, translator)
