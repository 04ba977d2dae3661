"""The engine's own prefix cache, native tree and all, without a server around it."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from sglang_kvguard.core.public_prefix import Declared, PublicPrefixes
from sglang_kvguard.core.salts import PUBLIC_SALT
from sglang_kvguard.engine.public_prefix_cache import PublicPrefixCache

PAGE = 4
PUBLIC = list(range(100, 112))  # three pages
ALICE = "kvg1.s." + "a" * 64
BOB = "kvg1.s." + "b" * 64
GROUP = "kvg1.g2." + "c" * 64


class _Allocator:
    """Hands out pages in order and remembers what came back."""

    page_size = PAGE
    device = "cpu"

    def __init__(self, num_pages: int) -> None:
        self.size = self.size_full = num_pages * PAGE
        self.pages = list(range(1, num_pages + 1))
        self.freed: list[int] = []

    def alloc(self, tokens: int) -> torch.Tensor:
        ids = [self.pages.pop(0) for _ in range(-(-tokens // PAGE))]
        return (torch.tensor(ids)[:, None] * PAGE + torch.arange(PAGE)).flatten()[:tokens]

    def available_size(self) -> int:
        return len(self.pages) * PAGE

    def free_segment(self, indices: torch.Tensor, start_pos: int = 0) -> None:
        ids = sorted(set((indices // PAGE).tolist()))
        assert not set(ids) & set(self.pages), "freed twice"
        self.freed += ids
        self.pages += ids

    def free_segments(self, segments: Any) -> None:
        for indices, start in segments:
            self.free_segment(indices, start)

    def get_kvcache(self) -> Any:
        return SimpleNamespace()


class World:
    """A cache and requests that live through it the way the scheduler lets them."""

    def __init__(self, num_pages: int = 64) -> None:
        self.allocator = _Allocator(num_pages)
        self.rows = ReqToTokenPool(8, 256, "cpu", enable_memory_saver=False)
        self.cache = PublicPrefixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=PAGE,
                tree_components=(ComponentType.FULL,),
            )
        )

    def declare(self, *prefixes: list[int]) -> None:
        entries = [Declared(str(n), token_ids=tuple(ids)) for n, ids in enumerate(prefixes)]
        self.cache.declare(PublicPrefixes(entries, PAGE, list))

    def warm(self) -> None:
        for number, tokens in enumerate(self.cache.prefixes.tokens):
            req = self.start(list(tokens), PUBLIC_SALT)
            req.kvguard_prefix = number
            self.end(req)

    def start(self, tokens: list[int], salt: str, row: int = 1, **fields: Any) -> Any:
        """Match a prompt and fill its row."""
        req = SimpleNamespace(
            rid="r",
            origin_input_ids=array("q", tokens),
            output_ids=array("q"),
            full_untruncated_fill_ids=array("q", tokens),
            extra_key=None,
            cache_salt=salt,
            session=None,
            session_id=None,
            priority=0,
            kv_rotation_base=None,
            finished_reason=None,
            lock=None,
            last_node=None,
            sampling_params=SimpleNamespace(max_new_tokens=8),
            kv=SimpleNamespace(
                req_pool_idx=row, cache_protected_len=0, cache_inserted_len=0, holds_kv=True
            ),
            _compute_max_prefix_len=lambda length: length - 1,
            finished=lambda: req.finished_reason is not None,
        )
        vars(req).update(fields)
        match_kv_cache(req, self.cache, req.origin_input_ids, max_prefix_len=len(tokens) - 1)
        req.lock = self.cache.lock(req.last_node)
        req.kv.cache_protected_len = req.prefix_len
        table = self.rows.req_to_token
        table[row, : req.prefix_len] = self.cache.prefix_device_indices(req).int()
        rest = self.allocator.alloc(len(tokens) - req.prefix_len // PAGE * PAGE)
        table[row, req.prefix_len : len(tokens)] = rest.int()
        return req

    def end(self, req: Any, *, publish: bool = True) -> None:
        """Release a request as ``release_kv_cache`` does."""
        req.finished_reason = FINISH_LENGTH(0)
        owned = len(req.full_untruncated_fill_ids)
        if publish:
            self.cache.checkpoint(req, up_to=owned)
        row = self.rows.req_to_token[req.kv.req_pool_idx]
        start = req.kv.cache_protected_len
        if owned > start:
            self.allocator.free_segment(row[start:owned].long(), start)
        self.cache.unlock(req.lock)
        self.cache.on_release(req, checkpointed=publish)

    def hit(self, tokens: list[int], salt: str) -> int:
        key = RadixKey(array("q", tokens), cache_salt=salt)
        return self.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len

    def row(self, req: Any) -> list[int]:
        return self.rows.req_to_token[req.kv.req_pool_idx, : len(req.origin_input_ids)].tolist()

    def accounted(self) -> bool:
        """The engine's leak equation."""
        cache = self.cache
        held = cache.full_evictable_size() + cache.full_protected_size()
        return self.allocator.available_size() + held == self.allocator.size


def public_then_private() -> dict[str, Any]:
    """Two tenants with the same public prefix and the same private tail."""
    world = World()
    world.declare(PUBLIC)
    world.warm()
    public = world.cache.public_slots[0].tolist()
    tail = list(range(200, 210))
    alice = world.start(PUBLIC + tail, ALICE)
    seen = {"first": alice.prefix_len, "same slots": world.row(alice)[:12] == public}
    world.end(alice)
    again = world.start(PUBLIC + tail, ALICE, row=2)
    seen |= {"again": again.prefix_len, "again slots": world.row(again)[:20] == world.row(alice)[:20]}
    bob = world.start(PUBLIC + tail, BOB, row=3)
    seen |= {"other tenant": bob.prefix_len, "bob slots": world.row(bob)[:12] == public}
    shared = set(world.row(bob)[12:]) & set(world.row(alice)[12:])
    world.end(again)
    world.end(bob)
    freed = set(world.allocator.freed)
    return seen | {
        "private slots shared": sorted(shared),
        "public page freed": bool(freed & {slot // PAGE for slot in public}),
        "accounted": world.accounted(),
    }


def leaving_half_way() -> dict[str, Any]:
    """Prompts that share a part of the prefix, end with it, or are shorter."""
    world = World()
    world.declare(PUBLIC)
    world.warm()
    seen = {}
    for name, tokens in {
        "half": PUBLIC[:6] + [7] * 6,
        "exactly": list(PUBLIC),
        "one more": [*PUBLIC, 7],
        "short": PUBLIC[:3],
        "unrelated": [7] * 20,
    }.items():
        req = world.start(tokens, ALICE)
        seen[name] = req.prefix_len
        world.end(req)
    return seen | {"accounted": world.accounted(), "public": len(world.cache.public_slots[0])}


def eviction_and_reset() -> dict[str, Any]:
    """Public pages are not evicted; a flush forgets them until they are computed again."""
    world = World()
    world.declare(PUBLIC)
    before = world.hit([*PUBLIC, 1], ALICE)
    world.warm()
    req = world.start(PUBLIC + [5] * 9, ALICE)
    world.end(req)
    world.cache.evict(EvictParams(num_tokens=1000))
    evicted = world.hit([*PUBLIC, *[5] * 9], ALICE)
    accounted = world.accounted()
    world.cache.reset()
    return {
        "before": before,
        "after eviction": evicted,
        "accounted": accounted,
        "after reset": world.hit([*PUBLIC, 1], ALICE),
    }


def overlapping_prefixes() -> dict[str, Any]:
    """One prefix begins with another: the second run reuses the first one's pages."""
    world = World()
    longer = [*PUBLIC, *range(300, 308)]
    world.declare(PUBLIC, longer)
    world.warm()
    slots = world.cache.public_slots
    return {
        "shared": slots[1].tolist()[:12] == slots[0].tolist(),
        "long": world.hit([*longer, 1], ALICE),
        "short": world.hit([*PUBLIC, 1], BOB),
        "accounted": world.accounted(),
    }


def group_ends() -> dict[str, Any]:
    """Two samples of one prompt: they share it, and nothing is left of it."""
    world = World()
    prompt = list(range(20, 40))
    first = world.start(prompt, GROUP, sampling_params=SimpleNamespace(max_new_tokens=0))
    world.end(first)
    samples = [world.start(prompt, GROUP, row=row) for row in (2, 3)]
    seen = {"samples": [sample.prefix_len for sample in samples]}
    world.end(samples[0], publish=False)
    seen["while one runs"] = world.hit([*prompt, 1], GROUP)
    world.end(samples[1], publish=False)
    return seen | {
        "afterwards": world.hit([*prompt, 1], GROUP),
        "all free": world.allocator.available_size() == world.allocator.size,
        "accounted": world.accounted(),
    }


def no_prefixes() -> dict[str, Any]:
    """Without declared prefixes the cache is the engine's."""
    world = World()
    prompt = list(range(20, 40))
    world.end(world.start(prompt, ALICE))
    return {"own": world.hit(prompt, ALICE), "other": world.hit(prompt, BOB)}


def tree_core() -> str:
    """Which tree the tests above ran on."""
    return type(World().cache.tree_core).__name__
