"""Pools of the engine, described byte for byte or refused."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from sglang_kvguard.engine.pool_spans import UnsupportedPool, spans_of

PAGE_SIZE, PAGES, LAYERS = 16, 4, 3


def _pool(page_size: int = PAGE_SIZE) -> MHATokenToKVPool:
    return MHATokenToKVPool(
        size=PAGES * page_size,
        page_size=page_size,
        dtype=torch.float32,
        head_num=2,
        head_dim=8,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )


def covered(page_size: int) -> dict:
    """What the span table of a real pool covers, against the pool's own buffers."""
    pool = _pool(page_size)
    table = spans_of(pool, page_size, PAGES)
    buffers = [*pool.k_buffer, *pool.v_buffer]
    for buffer in buffers:
        buffer.fill_(1.0)
    for view in table.views:
        view[PAGES] = 0
    first = PAGES * page_size
    return {
        "buffers": len(table.tensors),
        "bytes_per_page": table.bytes_per_page,
        "pool_bytes_per_page": sum(b[:page_size].nbytes for b in buffers),
        "left_in_page": sum(int((b[first : first + page_size] != 0).sum()) for b in buffers),
        "lost_outside": sum(int((b[:first] == 0).sum()) for b in buffers),
    }


def refusals() -> dict[str, str]:
    """Why each of these pools is not accepted."""

    class Subclass(MHATokenToKVPool):
        pass

    extra = _pool()
    extra.per_token_scores = torch.zeros(extra.size + PAGE_SIZE)
    hidden = _pool()
    hidden.k_buffer_copies = {"layers": [torch.zeros(3)]}
    scaled = _pool()
    scaled.k_scale_buffer = [torch.zeros(extra.size)]
    hnd = _pool()
    hnd.kv_cache_layout = "hnd"
    sub = _pool()
    sub.__class__ = Subclass
    mla = MLATokenToKVPool.__new__(MLATokenToKVPool)
    pools = {
        "another class": mla, "a subclass": sub, "an extra tensor": extra,
        "a tensor in a container": hidden, "scales": scaled, "another layout": hnd,
    }  # fmt: skip
    said = {}
    for name, pool in pools.items():
        try:
            spans_of(pool, PAGE_SIZE, PAGES)
            said[name] = "accepted"
        except UnsupportedPool as error:
            said[name] = str(error)
    return said
