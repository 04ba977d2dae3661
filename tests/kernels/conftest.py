"""These tests run the Triton kernels in Triton's interpreter, on a CPU.

Triton decides when it is imported, and when a kernel is defined, whether it interprets;
so this happens here, before any test module of this folder is imported, and needs a
pytest process of its own: ``pytest tests/kernels``. The environment says so only now and
while a test of this folder runs, so that what other tests start does not inherit it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

import pytest

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError(
        "triton was imported by other tests before its interpreter could be switched on; "
        "run `pytest tests/kernels` as a process of its own"
    )

_before = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"
try:
    from sglang_kvguard import kernels

    for _module in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"{kernels.__name__}.{_module.name}")
finally:
    if _before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = _before


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
