"""The engine's prefix cache with public prefixes in front and groups that end.

**Public prefixes.** The tree keys a whole path by one salt, so a path cannot be public at
first and private further on. It is cut in two. The public part is a path under the public
salt, computed once at the start, locked for good, and its slots are kept in a tensor. The
private tail is a path of its own from the root, under a salt that stands for namespace
*and* prefix (``core.salts.salt_after_public``). A match is the public slots followed by
what the tree finds for the tail; a checkpoint inserts the tail only. The native tree core
does all of it and never sees a path with two salts; pages of the public part are in the
tree once, so its accounting stays right.

Since the public part is always there, it is always a hit, whoever asked before: its timing
tells nothing about anybody. Between a flush of the cache and the rerun of the prefixes it is
always a miss.

How much of a request is public is fixed when it is matched for its row (``kvguard_lead``) and
depends on its tokens alone.

**Groups.** The prompt of parallel samples is published for the samples of that call only.
When the last of them gave its row back, it is taken out of the tree. A call of which a
sample never got a row leaves it there, where nothing leads to it, until it is evicted.
"""

from __future__ import annotations

import dataclasses
import logging
from array import array
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_kvguard.core.public_prefix import NOTHING, PublicPrefixes, Shared
from sglang_kvguard.core.salts import GROUP, PUBLIC_SALT, parse_salt, salt_after_public

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger(__name__)

# Groups of which some samples have ended; more than run at once on any server.
MOST_GROUPS = 65_536


class PublicPrefixCache(UnifiedRadixCache):
    """UnifiedRadixCache that composes a match of a public and a private part.

    Attributes:
        prefixes: the declared prefixes; None when there are none.
        public_slots: by number of the prefix, its KV slots once it is in the tree: int64
            (length,).
    """

    prefixes: PublicPrefixes | None = None
    public_slots: dict[int, torch.Tensor]
    _lead: Shared = NOTHING
    _samples_ended: dict[str, int]

    def declare(self, prefixes: PublicPrefixes) -> None:
        """Share these from the moment on that they are in the tree."""
        self.prefixes = prefixes

    def reset(self) -> None:
        # Also called by the engine's constructor, and for every flush.
        self.public_slots = {}
        self._samples_ended = {}
        super().reset()

    # -- matching -----------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        lead = self._lead_of(params.key)
        if params.req is not None:
            params.req.kvguard_lead = lead
        if not lead.length:
            return super().match_prefix(params)
        result = super().match_prefix(
            dataclasses.replace(params, key=self._tail(params.key, lead))
        )
        scanned = result.full_device_match_len
        return result._replace(
            device_prefix_len=result.device_prefix_len + lead.length,
            full_kv_hit_length=result.full_kv_hit_length + lead.length,
            full_device_match_len=None if scanned is None else scanned + lead.length,
        )

    def touch_prefix(self, key: RadixKey) -> None:
        super().touch_prefix(self._tail(key, self._lead_of(key)))

    def prefix_device_indices(self, req: Req) -> torch.Tensor:
        lead = getattr(req, "kvguard_lead", NOTHING)
        if not lead.length:
            return super().prefix_device_indices(req)
        tail = self.tree_core.collect_full_device_indices(
            req.last_node, self.root_node_handle(req.extra_key)
        )
        return torch.cat([self._slots(lead), tail])[: req.prefix_len]

    # -- inserting ----------------------------------------------------------------------

    def checkpoint_into_tree(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        self._lead = getattr(req, "kvguard_lead", NOTHING)
        try:
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        finally:
            self._lead = NOTHING
        if req.cache_salt == PUBLIC_SALT and req.finished():
            self._pin(req)

    def insert(self, params: InsertParams) -> InsertResult:
        lead = self._lead
        if not lead.length:
            return super().insert(params)
        if len(params.key) <= lead.length:
            # Nothing of it is private. The engine asks where the path ends: at the root
            # of the tail.
            return InsertResult(
                prefix_len=len(params.key),
                total_len=len(params.key),
                last_device_node=self.root_node_handle(params.key.extra_key),
            )
        result = super().insert(
            dataclasses.replace(
                params,
                key=self._tail(params.key, lead),
                value=params.value[lead.length :],
                prev_prefix_len=max(0, params.prev_prefix_len - lead.length),
                inserted_len=max(0, params.inserted_len - lead.length),
            )
        )
        return dataclasses.replace(
            result,
            prefix_len=result.prefix_len + lead.length,
            total_len=result.total_len + lead.length,
        )

    def path_device_indices(self, node: Any) -> torch.Tensor:
        path = super().path_device_indices(node)
        return torch.cat([self._slots(self._lead), path]) if self._lead.length else path

    # -- ends of groups -----------------------------------------------------------------

    def on_release(self, req: Req, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        salt = parse_salt(req.cache_salt)
        if salt is None or salt.kind != GROUP or req.sampling_params.max_new_tokens == 0:
            return
        if not req.finished():
            # Retracted: it comes back for its prompt.
            return
        ended = self._samples_ended.pop(salt.text, 0) + 1
        if ended < salt.siblings:
            self._samples_ended[salt.text] = ended
            if len(self._samples_ended) > MOST_GROUPS:
                del self._samples_ended[next(iter(self._samples_ended))]
            return
        self._forget(
            RadixKey(req.origin_input_ids, req.extra_key, cache_salt=req.cache_salt),
            getattr(req, "kvguard_lead", NOTHING),
        )

    def _forget(self, key: RadixKey, lead: Shared) -> None:
        """Take a path out of the tree, leaf by leaf; its pages are freed as the tree's."""
        tail = MatchPrefixParams(key=self._tail(key, lead))
        while (found := super().match_prefix(tail)).device_prefix_len:
            result = self.tree_core.drop_subtree_no_host(found.last_device_node)
            self._apply_eviction_result(result)
            if not result.is_dropped:
                return

    # -- helpers ------------------------------------------------------------------------

    def _lead_of(self, key: RadixKey) -> Shared:
        """The public part of a key that is in the tree."""
        if self.prefixes is None or not self.public_slots or key.cache_salt == PUBLIC_SALT:
            return NOTHING
        lead = self.prefixes.shared(key.token_ids, key._raw_len())
        return lead if lead.prefix in self.public_slots else NOTHING

    def _tail(self, key: RadixKey, lead: Shared) -> RadixKey:
        if not lead.length:
            return key
        limit = None if key.limit is None else max(0, key.limit - lead.length)
        salt = salt_after_public(key.cache_salt or "", self.prefixes.digest_of(lead))
        tokens: array = key.token_ids[lead.length :]
        return RadixKey(tokens, key.extra_key, limit=limit, cache_salt=salt)

    def _slots(self, lead: Shared) -> torch.Tensor:
        return self.public_slots[lead.prefix][: lead.length]

    def _pin(self, req: Req) -> None:
        """The public prefix that ``req`` computed is in the tree: it stays there."""
        number = req.kvguard_prefix
        path = super().path_device_indices(req.last_node)
        if len(path) != len(self.prefixes.tokens[number]):
            logger.error(
                "kv-guard: public prefix %s is not shared: %d of its %d tokens are in the cache",
                self.prefixes.names[number], len(path), len(self.prefixes.tokens[number]),
            )  # fmt: skip
            return
        self.lock(req.last_node)
        self.public_slots[number] = path
