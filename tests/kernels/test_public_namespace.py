"""Published pages of the public namespace may be read by all and written by nobody."""

from __future__ import annotations

import pytest

from scene import BOB, OWNER, ROW, SHARED_PAGE
from sglang_kvguard.kernels import layout as L
from test_fence import Step, both, page_sizes, write_into_the_cache

ALICE = 0


def public(step: Step, flags: int = L.LIVE | L.PUBLISHED) -> None:
    step.w.set_page(SHARED_PAGE, namespace=L.PUBLIC_NAMESPACE, flags=flags)


@both
@page_sizes
def test_reading_it_is_clean(page_size, implementation):
    step = Step(implementation, page_size=page_size)
    public(step)
    assert step.reasons() == 0


@both
def test_an_unpublished_one_is_anothers(implementation):
    step = Step(implementation)
    public(step, L.LIVE)
    assert step.reasons() == L.R_NAMESPACE | L.R_FOREIGN


@both
@pytest.mark.parametrize(
    "flag, reason", [(L.TAINTED, L.R_TAINTED), (L.RETIRED, L.R_TAINTED), (L.DIRTY, L.R_DIRTY)]
)
def test_what_is_unfit_stays_unfit(flag, reason, implementation):
    step = Step(implementation)
    public(step, L.LIVE | L.PUBLISHED | flag)
    assert step.reasons() == reason


@both
def test_a_dead_one_is_dead(implementation):
    step = Step(implementation)
    public(step, L.PUBLISHED)
    assert step.reasons() == L.R_DEAD


@both
def test_writing_it_is_an_offence(implementation):
    step = Step(implementation)
    write_into_the_cache(step)
    page = step.alices[step.last] // step.ps
    step.w.set_page(page, namespace=L.PUBLIC_NAMESPACE)
    assert step.reasons() & L.R_WRITE_OWNER


@both
def test_the_rows_own_namespace_still_has_to_be_right(implementation):
    step = Step(implementation)
    public(step)
    step.w.set_seal(ROW[BOB], namespace=L.PUBLIC_NAMESPACE)
    _, bob = step.fence()
    assert bob[L.VERDICT_REASONS] == L.R_IDENTITY
    assert bob[L.VERDICT_OWNER] == OWNER[BOB]
