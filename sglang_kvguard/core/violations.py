"""What a broken invariant is called, and the error that carries it."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_kvguard.kernels import layout as L

# Which invariant (docs/design.md, section 4) each fence reason breaks. Order matters:
# of several reasons the first listed names the violation, most specific first.
REASONS: tuple[tuple[int, str, str], ...] = (
    (L.R_ALIAS, "I3", "the allocator handed out a page that was not free"),
    (L.R_DIRTY, "I4", "a page was written between its scrub and its birth"),
    (L.R_TAINTED, "I6", "an entry maps a tainted or retired page"),
    (L.R_ROW, "I1", "the forward was given another request's row"),
    (L.R_IDENTITY, "I1", "the row is sealed for another owner or namespace"),
    (L.R_LENGTH, "I2", "the forward reads more or fewer entries than are sealed"),
    (L.R_NAMESPACE, "I1", "an entry maps a page of another namespace"),
    (L.R_WRITE_OWNER, "I3", "a write into a page that is published or not its own"),
    (L.R_WRITE_TARGET, "I3", "the write set is not what the row maps"),
    (L.R_RANGE, "I2", "an entry points outside the pool"),
    (L.R_DEAD, "I2", "an entry maps a page that is not alive"),
    (L.R_FOREIGN, "I2", "an entry maps an unpublished page of another owner"),
    (L.R_DIGEST, "I2", "the sealed entries are not the ones that were sealed"),
    (L.R_PUBLISH, "I3", "the prefix cache took a page that may not be published"),
)

# Faults that belong to a page, not to a batch entry.
FAULTS: dict[int, tuple[str, str]] = {
    L.F_ALIAS: ("I3", "allocated while alive, retired or out of range"),
    L.F_DIRTY: ("I4", "not zero at birth: written after it was freed"),
    L.F_DOUBLE_FREE: ("I2", "freed while not alive"),
    L.F_FOREIGN_FREE: ("I3", "freed by somebody who does not own it"),
    L.F_INVALID_FREE: ("I2", "freed though outside the pool"),
    L.F_RETIRED: ("I7", "retired when its holder released it"),
    L.F_PUBLISH: ("I3", "published by somebody who may not"),
}


def invariant_of(reasons: int) -> tuple[str, str]:
    """The invariant that a reason mask breaks, and the sentence for it.

    Args:
        reasons: OR of ``layout.R_*`` bits, not 0.

    Returns:
        ``("I2", "an entry maps a page that is not alive")`` for the first reason
        in the table that is set.

    Raises:
        ValueError: no known bit is set.
    """
    for bit, invariant, text in REASONS:
        if reasons & bit:
            return invariant, text
    raise ValueError(f"no known reason in {reasons:#x}")


@dataclass(frozen=True)
class Verdict:
    """What the fence found for one batch entry of one forward.

    Attributes:
        owner: tag of the row incarnation the entry should be.
        reasons: OR of ``layout.R_*`` bits, 0 if clean.
        position: lowest offending row position, -1 when no single entry is to blame.
        slot: KV slot that the page table holds there.
        page_owner, page_namespace, page_birth, page_flags: ledger record of its page.
    """

    owner: int
    reasons: int
    position: int = -1
    slot: int = 0
    page_owner: int = 0
    page_namespace: int = 0
    page_birth: int = 0
    page_flags: int = 0


class FenceViolation(RuntimeError):
    """A read or write would have crossed the fence.

    Attributes:
        verdict: what the fence found.
        invariant: ``"I1"`` to ``"I7"``.
    """

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.invariant, text = invariant_of(verdict.reasons)
        super().__init__(f"{self.invariant}: {text} (owner {verdict.owner}, "
                         f"position {verdict.position}, slot {verdict.slot})")
