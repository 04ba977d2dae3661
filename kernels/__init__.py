"""Triton kernels of the guard, each beside the plain-torch reference it must equal.

Imported as ``sglang_kvguard.kernels``. Depends on torch and triton only.
"""
