"""Which bytes each page of an engine pool addresses."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import KVCache, MHATokenToKVPool

from sglang_kvguard.kernels.spans import Span, SpanTable


class UnsupportedPool(RuntimeError):
    """The engine built a pool that the guard does not know byte for byte."""


def spans_of(pool: KVCache, page_size: int, num_pages: int) -> SpanTable:
    """Describe every buffer of ``pool`` that holds request data.

    Only the exact classes known here are accepted: a subclass may add buffers.

    Args:
        pool: the engine's device pool.
        page_size: slots a page.
        num_pages: pages that the allocator can hand out.

    Raises:
        UnsupportedPool: another class, another layout, or an unknown buffer.
    """
    if type(pool) is not MHATokenToKVPool:
        raise UnsupportedPool(
            f"KV pool {type(pool).__module__}.{type(pool).__qualname__} is not supported "
            "by --enable-kv-guard; expected MHATokenToKVPool (GLM-4 to GLM-4.7 without KV "
            "quantisation to fp4). Serve another model or leave the flag out"
        )
    if pool.kv_cache_layout != "nhd":
        raise UnsupportedPool(
            f"KV layout {pool.kv_cache_layout!r} is not supported by --enable-kv-guard; "
            "expected 'nhd'. Unset SGLANG_USE_HND_KVCACHE or leave the flag out"
        )
    if pool.k_scale_buffer is not None or pool.v_scale_buffer is not None:
        raise UnsupportedPool(
            "KV scale buffers are not supported by --enable-kv-guard; set "
            "--kv-cache-dtype to auto, bf16 or fp8_e4m3 without block scales"
        )
    _refuse_unknown_tensors(pool)
    spans = [
        Span.of_slots(f"{name}[{layer}]", buffer, page_size)
        for name, buffers in (("k", pool.k_buffer), ("v", pool.v_buffer))
        for layer, buffer in enumerate(buffers)
    ]
    return SpanTable.build(spans, num_pages, pool.k_buffer[0].device)


# Tensors of the pool object that hold addresses and strides, no request data.
_BOOKKEEPING = frozenset({"k_data_ptrs", "v_data_ptrs", "data_ptrs", "data_strides"})
_COVERED = frozenset({"k_buffer", "v_buffer", "kv_buffer"})


def _refuse_unknown_tensors(pool: KVCache) -> None:
    def holds_tensor(value: object) -> bool:
        if isinstance(value, torch.Tensor):
            return True
        if isinstance(value, (list, tuple)):
            return any(holds_tensor(item) for item in value)
        if isinstance(value, dict):
            return any(holds_tensor(item) for item in value.values())
        return False

    covered = {
        buffer.untyped_storage().data_ptr() for buffer in (*pool.k_buffer, *pool.v_buffer)
    }

    def is_covered(value: object) -> bool:
        tensors = [value] if isinstance(value, torch.Tensor) else list(value)
        return all(
            isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() in covered
            for t in tensors
        )

    unknown = [
        name
        for name, value in vars(pool).items()
        if holds_tensor(value)
        and name not in _BOOKKEEPING
        and not (name in _COVERED and is_covered(value))
    ]
    if unknown:
        raise UnsupportedPool(
            f"{type(pool).__qualname__} holds tensors the guard does not know: "
            f"{', '.join(sorted(unknown))}; this engine build is not supported by "
            "--enable-kv-guard"
        )
