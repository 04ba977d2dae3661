"""Which implementation of an operation runs for a tensor."""

from __future__ import annotations

import torch


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether an operation on ``tensor`` runs as a Triton kernel (CUDA devices) or as
    its plain-torch reference (everything else)."""
    return tensor.is_cuda
