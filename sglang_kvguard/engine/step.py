"""One forward, from its launch to the moment its results may be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sglang_kvguard.core.verdicts import Report

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


@dataclass
class Step:
    """What the scheduler says a forward is, and what the fence said of it.

    Attributes:
        reqs: requests of the batch, in batch order.
        owners: their owner tags when the batch was allocated.
        want: int64 (batch, WANT_FIELDS), their identities on the device.
        tokens: how many slots the forward writes.
        max_len: longest row of the batch.
        report: set by the fence; None means that the forward was never fenced.
    """

    reqs: list[Req]
    owners: list[int]
    want: torch.Tensor
    tokens: int
    max_len: int
    report: Report | None = None


@dataclass
class Allocation:
    """Left on a ScheduleBatch by the allocation seams for the launch that follows."""

    reqs: list[Req]
    owners: list[int]
    want: torch.Tensor
    tokens: int
