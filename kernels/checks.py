"""Argument checks that all operations share. They look at shapes and dtypes only, never
at values, so they never wait for a device."""

from __future__ import annotations

import torch

INT64 = (torch.int64,)
INDEX = (torch.int32, torch.int64)


def expect(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...] = INT64,
    contiguous: bool = True,
) -> None:
    """Refuse a tensor that a kernel would misread.

    Args:
        name: what the caller calls it, for the message.
        tensor: to be checked.
        shape: expected sizes; None stands for any.
        dtypes: allowed element types.
        contiguous: whether it must be contiguous.

    Raises:
        TypeError: another element type.
        ValueError: another shape, or not contiguous.
    """
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name} must be one of {dtypes}, got {tensor.dtype}")
    have = tensor.shape
    if len(have) != len(shape) or any(
        want is not None and want != size for want, size in zip(shape, have)
    ):
        raise ValueError(f"{name} must have shape {shape}, got {tuple(have)}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")


def expect_page_size(page_size: int) -> None:
    """Raise ValueError unless ``page_size`` is a positive number of slots."""
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, got {page_size}")


def signed64(value: int) -> int:
    """``value`` mod 2**64 as a signed 64-bit integer, the form torch and Triton take."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
