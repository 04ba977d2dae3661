"""Where results are used: verdicts are read first, offenders end here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang_kvguard.core.violations import Verdict
from sglang_kvguard.engine.http_errors import ERR_TYPE, STATUS, abort_message
from sglang_kvguard.engine.runtime import GuardFailure, Runtime, current

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler


def process_batch_result(
    original: Callable, scheduler: Scheduler, batch: ScheduleBatch, result: Any
) -> None:
    """AROUND ``Scheduler.process_batch_result``.

    Raises:
        GuardFailure: a result that no fence stands for.
    """
    runtime = current()
    if runtime is None or batch.forward_mode.is_idle():
        original(scheduler, batch, result)
        return
    step = getattr(result, "kvguard_step", None)
    if step is None or step.reqs != batch.reqs:
        raise GuardFailure("KV guard: a result arrived that no fenced forward stands for")
    copy_done = getattr(result, "copy_done", None)
    step.report.wait(None if copy_done is None else copy_done.synchronize)
    if not step.report.is_of(step.owners):
        raise GuardFailure("KV guard: a report arrived that is not of this forward")
    runtime.settle_faults(step.report)
    violations = step.report.violations()
    if not violations:
        original(scheduler, batch, result)
        return
    offenders = _record(runtime, step.reqs, violations)
    if runtime.policy.mode == "observe" or not offenders:
        original(scheduler, batch, result)
    elif batch.forward_mode.is_decode():
        _process_decode_without(original, scheduler, batch, result, offenders)
    else:
        _process_prefill_without(original, scheduler, batch, result, offenders)


def _record(runtime: Runtime, reqs: list[Req], violations: list[tuple[int, Verdict]]) -> list[Req]:
    """Write incidents; the requests that have to end because of them."""
    offenders = []
    for index, verdict in violations:
        req = reqs[index]
        # Under overlap a request that ended is in one more forward. It was told already,
        # or its answer was complete before this forward; nothing is released twice.
        # The same for an earlier incarnation of a request that was retracted and is back.
        tag = getattr(req, "kvguard_tag", None)
        zombie = req.finished() or req.is_retracted or tag is None or tag.owner != verdict.owner
        if getattr(req, "kvguard_incident", None) is None:
            incident = runtime.incidents.violation(req, verdict, zombie=zombie)
            if not zombie:
                req.kvguard_incident = incident
        if not zombie:
            offenders.append(req)
    return offenders


def _abort_reason(req: Req) -> FINISH_ABORT:
    incident = req.kvguard_incident
    return FINISH_ABORT(
        abort_message(incident.invariant, incident.incident_id, incident.text),
        STATUS,
        ERR_TYPE,
    )


def _process_decode_without(
    original: Callable,
    scheduler: Scheduler,
    batch: ScheduleBatch,
    result: Any,
    offenders: list[Req],
) -> None:
    """End the offenders before the engine appends this forward's tokens."""
    processor = scheduler.batch_result_processor
    for req in offenders:
        req.to_finish = _abort_reason(req)
        req.update_finish_state(0)
        # The engine's own way out for a request whose sampled token must not be used.
        processor._handle_sampling_mask_abort(req)
    # The decode loop passes over requests that are finished, but only under overlap,
    # where that is normal; without overlap it has to be told to.
    scheduler.batch_result_processor = dataclasses.replace(processor, enable_overlap=True)
    try:
        original(scheduler, batch, result)
    finally:
        scheduler.batch_result_processor = processor


def _process_prefill_without(
    original: Callable,
    scheduler: Scheduler,
    batch: ScheduleBatch,
    result: Any,
    offenders: list[Req],
) -> None:
    """Let the engine discard this forward's output for the offenders.

    A request between chunks keeps the reason until its last chunk, and no further
    chunk is launched for it.
    """
    for req in offenders:
        req.discard_output_reason = _abort_reason(req)
        _purge(req)
        if scheduler.chunked_req is req:
            scheduler._pending_chunked_abort_req = req
    original(scheduler, batch, result)
    for req in offenders:
        _purge(req)


def _purge(req: Req) -> None:
    """Forget what earlier chunks of the same prompt left for the answer."""
    req.input_token_logprobs = None
    req.temp_input_top_logprobs_val = None
    req.temp_input_top_logprobs_idx = None
    req.temp_input_token_ids_logprobs_val = None
    req.temp_input_token_ids_logprobs_idx = None
    req.hidden_states = []
