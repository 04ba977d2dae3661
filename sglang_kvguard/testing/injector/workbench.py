"""Everything the injector does inside the scheduler process, called by two hooks."""

from __future__ import annotations

import itertools
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_kvguard.testing.injector import queries
from sglang_kvguard.testing.injector.channel import Channel
from sglang_kvguard.testing.injector.conditions import When
from sglang_kvguard.testing.injector.engine_view import EngineView
from sglang_kvguard.testing.injector.faults import FORWARD_FAULTS, STATE_FAULTS

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass
class _ArmedFault:
    ticket: int
    fault: str
    when: When
    parameters: dict[str, Any]


class Workbench:
    """Faults that wait, the outcomes of those that happened, and the control socket."""

    def __init__(self, control_socket: str, key: str) -> None:
        self._socket, self._key = control_socket, key
        self._channel: Channel | None = None
        self._view: EngineView | None = None
        self._armed: list[_ArmedFault] = []
        self._outcomes: dict[int, dict[str, Any]] = {}
        self._tickets = itertools.count(1)

    # -- hooks ------------------------------------------------------------------------------

    def before_ingest(self, scheduler: Scheduler, *_args: Any, **_kwargs: Any) -> None:
        """BEFORE ``Scheduler.ingest_requests``: between two steps of the loop."""
        if self._channel is None:
            self._open(scheduler)
        self._view.note_pass()
        self._channel.serve(self._execute)
        self._fire(STATE_FAULTS, None)

    def after_forward_batch(
        self, forward: ForwardBatch, _cls: type, batch: ScheduleBatch, runner: ModelRunner, **_: Any
    ) -> None:
        """AFTER ``ForwardBatch.init_new``: a forward's arguments are ready, nobody used them."""
        if self._armed:
            self._fire(FORWARD_FAULTS, (forward, batch, runner))

    def _open(self, scheduler: Scheduler) -> None:
        self._view = EngineView(scheduler)
        self._channel = Channel(self._socket, self._key)
        if scheduler.idle_sleeper is not None:
            # An idle scheduler sleeps until something arrives; a command is something.
            scheduler.idle_sleeper.poller.register(self._channel.wake_fd)

    def _fire(self, faults: dict, forward: tuple | None) -> None:
        for armed in list(self._armed):
            if armed.fault not in faults or not armed.when.holds(self._view):
                continue
            if forward is not None and armed.when.rid not in forward[0].rids:
                continue
            self._armed.remove(armed)
            subjects = (self._view,) if forward is None else (self._view, *forward)
            try:
                did = faults[armed.fault](*subjects, armed.when, **armed.parameters)
                self._outcomes[armed.ticket] = {"did": did}
            except Exception:  # told to whoever armed it; the server goes on
                self._outcomes[armed.ticket] = {"error": traceback.format_exc()}

    # -- commands -----------------------------------------------------------------------------

    def _execute(self, command: str, **arguments: Any) -> Any:
        if command in queries.QUERIES:
            return queries.QUERIES[command](self._view, **arguments)
        return getattr(self, f"_do_{command}")(**arguments)

    def _do_watch(self, rids: list[str]) -> None:
        self._view.watched |= {rid: [] for rid in rids}

    def _do_arm(self, fault: str, when: dict[str, Any], parameters: dict[str, Any]) -> int:
        if fault not in STATE_FAULTS and fault not in FORWARD_FAULTS:
            raise LookupError(f"no fault {fault!r}")
        ticket = next(self._tickets)
        self._armed.append(_ArmedFault(ticket, fault, When(**when), parameters))
        return ticket

    def _do_outcome(self, ticket: int) -> dict[str, Any] | None:
        return self._outcomes.get(ticket)

    def _do_disarm(self) -> None:
        self._armed.clear()
        self._view.watched.clear()
