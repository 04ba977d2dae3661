"""The record of a violation: one structured log line, no prompt text, no token ids."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_kvguard.core.policy import GuardPolicy
from sglang_kvguard.core.verdicts import PageFault
from sglang_kvguard.core.violations import FAULTS, Verdict, invariant_of
from sglang_kvguard.kernels import layout as L

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger("sglang_kvguard.incidents")

# Names of the reason bits in a log line.
_REASON_NAMES = {
    value: name.removeprefix("R_").lower()
    for name, value in vars(L).items()
    if name.startswith("R_")
}
_FAULT_NAMES = {
    value: name.removeprefix("F_").lower()
    for name, value in vars(L).items()
    if name.startswith("F_")
}


@dataclass(frozen=True)
class Incident:
    """What a client and an operator are told.

    Attributes:
        incident_id: unguessable, so that knowing one says nothing about others.
        invariant: ``"I1"`` to ``"I7"``.
        text: one sentence, the same for every request.
    """

    incident_id: str
    invariant: str
    text: str


class IncidentLog:
    """Writes incidents and counts them.

    Attributes:
        violations: requests that broke an invariant.
        page_faults: page faults by name.
    """

    def __init__(self, policy: GuardPolicy) -> None:
        self._policy = policy
        self.violations = 0
        self.page_faults: dict[str, int] = {}

    def violation(self, req: Req, verdict: Verdict, *, zombie: bool) -> Incident:
        """A batch entry broke an invariant.

        Args:
            req: whose entry.
            verdict: what the fence found.
            zombie: the request had ended already; this is its last overlapped forward.
        """
        invariant, text = invariant_of(verdict.reasons)
        incident = Incident(f"kvg-{uuid.uuid4().hex[:16]}", invariant, text)
        self.violations += 1
        self._write(
            "kv_guard_violation",
            incident_id=incident.incident_id,
            invariant=invariant,
            text=text,
            mode=self._policy.mode,
            action="recorded" if zombie or self._policy.mode == "observe" else "aborted",
            rid=req.rid,
            tokens_sent=len(req.output_ids),
            reasons=[name for bit, name in _REASON_NAMES.items() if verdict.reasons & bit],
            owner=verdict.owner,
            position=verdict.position,
            slot=verdict.slot,
            page_owner=verdict.page_owner,
            page_namespace=verdict.page_namespace,
            page_birth=verdict.page_birth,
            page_flags=verdict.page_flags,
        )
        return incident

    def page_fault(self, fault: PageFault) -> None:
        """A page was allocated, freed or published by somebody who may not."""
        name = _FAULT_NAMES[fault.kind]
        invariant, text = FAULTS[fault.kind]
        self.page_faults[name] = self.page_faults.get(name, 0) + 1
        self._write(
            "kv_guard_page_fault",
            incident_id=f"kvg-{uuid.uuid4().hex[:16]}",
            invariant=invariant,
            text=text,
            fault=name,
            page=fault.page,
            actor=fault.actor,
            page_owner=fault.owner,
            page_namespace=fault.namespace,
            page_birth=fault.birth,
            page_flags=fault.flags,
        )

    @staticmethod
    def _write(event: str, **fields: object) -> None:
        logger.error(json.dumps({"event": event, **fields}, separators=(",", ":")))
