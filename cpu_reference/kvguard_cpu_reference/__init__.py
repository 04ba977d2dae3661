"""SGLang on a plain CPU, operator by operator in PyTorch.

The reference platform of sglang-kvguard: the real scheduler, allocators, prefix cache
and HTTP API run without an accelerator, so that isolation can be shown and tested
anywhere. It is slow and meant for tiny models.

Switched on by name only: ``SGLANG_PLATFORM=cpu_reference``.
"""

__version__ = "0.1.0"
