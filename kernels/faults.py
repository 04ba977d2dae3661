"""Appending to the ring of page faults (see ``layout``), on the device and in torch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import layout
from .constants import (
    FAULT_ACTOR,
    FAULT_FIELDS,
    FAULT_KIND,
    FAULT_PAGE,
    FAULT_PAGE_BIRTH,
    FAULT_PAGE_FLAGS,
    FAULT_PAGE_NAMESPACE,
    FAULT_PAGE_OWNER,
    FAULT_SLOTS,
)


@triton.jit
def append_faults(faults, mask, kind, page, actor, owner, namespace, birth, flags):
    """Device function: append one fault for every lane that ``mask`` selects.

    ``mask`` (int1) and ``page`` are blocks of one shape; the others, but for the pointer
    ``faults``, are such blocks or scalars. The order of lanes and programs is not defined.
    """
    # The count is one address for all lanes: leave it alone when there is nothing to say.
    if tl.max(mask.to(tl.int32), axis=0) > 0:
        count = tl.atomic_add(faults + tl.zeros_like(page), 1, mask=mask)
        record = faults + (1 + count % FAULT_SLOTS) * FAULT_FIELDS
        tl.store(record + FAULT_KIND, kind, mask=mask)
        tl.store(record + FAULT_PAGE, page, mask=mask)
        tl.store(record + FAULT_ACTOR, actor, mask=mask)
        tl.store(record + FAULT_PAGE_OWNER, owner, mask=mask)
        tl.store(record + FAULT_PAGE_NAMESPACE, namespace, mask=mask)
        tl.store(record + FAULT_PAGE_BIRTH, birth, mask=mask)
        tl.store(record + FAULT_PAGE_FLAGS, flags, mask=mask)


def append_faults_reference(
    faults: torch.Tensor,
    kind: torch.Tensor | int,
    page: torch.Tensor,
    actor: torch.Tensor,
    record: torch.Tensor,
) -> None:
    """Append one fault an element, in order.

    Args:
        faults: int64 (FAULT_SLOTS + 1, FAULT_FIELDS).
        kind: int64 (n,), or one kind for all.
        page: int64 (n,).
        actor: int64 (n,).
        record: int64 (n, PAGE_FIELDS), the pages as they were found.
    """
    new = torch.zeros((page.shape[0], layout.FAULT_FIELDS), dtype=torch.int64, device=page.device)
    new[:, layout.FAULT_KIND] = kind
    new[:, layout.FAULT_PAGE] = page
    new[:, layout.FAULT_ACTOR] = actor
    new[:, layout.FAULT_PAGE_OWNER] = record[:, layout.PAGE_OWNER]
    new[:, layout.FAULT_PAGE_NAMESPACE] = record[:, layout.PAGE_NAMESPACE]
    new[:, layout.FAULT_PAGE_BIRTH] = record[:, layout.PAGE_BIRTH]
    new[:, layout.FAULT_PAGE_FLAGS] = record[:, layout.PAGE_FLAGS]
    number = faults[0, 0] + torch.arange(page.shape[0], device=page.device)
    # A ring that is lapped within one call keeps the last lap.
    last = slice(-layout.FAULT_SLOTS, None)
    faults[1 + number[last] % layout.FAULT_SLOTS] = new[last]
    faults[0, 0] += page.shape[0]
