"""Stand-ins for kernel launches, so that host cost can be measured where no GPU is.

The launch wrappers run as they do on a GPU, argument checks included; only the last
step, Triton's own launch, is replaced by a counter. What is missing from a time taken
this way is therefore Triton's launch overhead times the number of launches reported.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterator
from unittest import mock

_OPS = ("stamp", "check_zero", "publish", "release", "scrub", "fence")


class _Recorder:
    """Looks like a compiled Triton kernel; counts instead of launching."""

    def __init__(self, name: str, launched: Counter[str]) -> None:
        self._name = name
        self._launched = launched

    def __getitem__(self, grid: object) -> _Recorder:
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        self._launched[self._name] += 1


@contextlib.contextmanager
def recorded() -> Iterator[Counter[str]]:
    """Inside, the guard's operations take their GPU path and launch nothing.

    Yields:
        Launches so far, by kernel name.
    """
    launched: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for op in _OPS:
            module = importlib.import_module(f"sglang_kvguard.kernels.{op}")
            stack.enter_context(mock.patch.object(module, "uses_triton", lambda tensor: True))
            for name in vars(module).copy():
                if name.endswith("_kernel"):
                    recorder = _Recorder(name.strip("_"), launched)
                    stack.enter_context(mock.patch.object(module, name, recorder))
        yield launched
