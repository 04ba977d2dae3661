"""Which implementation of an operation runs for a tensor.

Kernels are compiled at their first launch, which takes about a second. To keep it at that
one, every argument whose value or alignment changes from call to call is listed in its
kernel's ``do_not_specialize``: Triton would compile a variant for each otherwise, in the
middle of serving. Variants remain for dtypes, page sizes and shapes of a pool.
"""

from __future__ import annotations

import torch


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether an operation on ``tensor`` runs as a Triton kernel (CUDA devices) or as
    its plain-torch reference (everything else)."""
    return tensor.is_cuda
