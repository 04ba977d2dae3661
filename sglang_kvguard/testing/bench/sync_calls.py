"""Counts calls that make the host wait for a GPU, or would if the tensors were on one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# aten operations whose result, or its size, the host needs before it can go on.
_WAITING_OPS = {
    "aten::_local_scalar_dense": "item / bool / int",
    "aten::nonzero": "nonzero",
    "aten::nonzero_numpy": "nonzero",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::masked_select": "boolean mask",
    "aten::repeat_interleave": "repeat_interleave",
    "aten::equal": "equal",
}
_WAITING_METHODS = ("tolist", "cpu", "numpy", "item")


class SyncCounter(TorchDispatchMode):
    """Inside, every waiting call on a tensor of the *device* is counted by kind.

    There is no GPU here, so the caller says which tensors stand for device tensors.
    Reading a host tensor (a report that has landed) waits for nothing.
    """

    def __init__(self, on_device: set[int]) -> None:
        """
        Args:
            on_device: storage addresses of tensors that stand for device memory.
        """
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._on_device = on_device
        self._functions = _Methods(self)

    def is_device(self, tensor: object) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.untyped_storage().data_ptr() in self._on_device
        )

    def __enter__(self) -> SyncCounter:
        self._functions.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._functions.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        touches = any(self.is_device(a) for a in args)
        name = func.name().split(".")[0]
        if touches and name in _WAITING_OPS:
            self.calls[_WAITING_OPS[name]] += 1
        if touches and name in ("aten::index", "aten::index_put_"):
            indices = args[1]
            if any(i is not None and i.dtype == torch.bool for i in indices):
                self.calls["boolean mask"] += 1
        if touches and isinstance(result, torch.Tensor) and name != "aten::copy_":
            # What is computed from device tensors is on the device as well; what they are
            # copied into is where it was.
            self._on_device.add(result.untyped_storage().data_ptr())
        return result


class _Methods(TorchFunctionMode):
    """Python-level calls that never reach the dispatcher as themselves."""

    def __init__(self, counter: SyncCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in _WAITING_METHODS and args and self._counter.is_device(args[0]):
            self._counter.calls[name] += 1
        return func(*args, **(kwargs or {}))
