"""Public prefixes are computed before anybody asks for them, and again after a flush."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_kvguard.core.public_prefix import FLAG, PublicPrefixes, read_declarations
from sglang_kvguard.core.salts import PUBLIC_SALT
from sglang_kvguard.engine.refusal import GuardRefusal

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)

# The engine drops answers to such ids without a word.
_RID = "HEALTH_CHECK_kvguard_public_prefix_"


def declare(scheduler: Scheduler, path: str) -> None:
    """Read the file and hand its prefixes to the prefix cache.

    Raises:
        PolicyError: the file is wrong, or a prefix is shorter than a page.
        GuardRefusal: there is no tokenizer for a text, or no prefix cache.
    """
    if scheduler.tree_cache.disable:
        raise GuardRefusal(f"{FLAG}: there is no prefix cache with --disable-radix-cache")

    def tokenize(text: str) -> list[int]:
        if scheduler.tokenizer is None:
            raise GuardRefusal(f"{FLAG}: a text needs the tokenizer; use token_ids")
        return scheduler.tokenizer.encode(text, add_special_tokens=False)

    prefixes = PublicPrefixes(read_declarations(path), scheduler.tree_cache.page_size, tokenize)
    for name, tokens in zip(prefixes.names, prefixes.tokens, strict=True):
        if len(tokens) >= scheduler.max_req_input_len:
            raise GuardRefusal(
                f"{FLAG}: prefix {name} has {len(tokens)} tokens; a request of this server may "
                f"have {scheduler.max_req_input_len - 1}"
            )
    scheduler.tree_cache.declare(prefixes)


def run_event_loop(original: Callable, scheduler: Scheduler) -> None:
    """AROUND ``Scheduler.run_event_loop``: the first requests of all are the prefixes."""
    warm(scheduler)
    original(scheduler)


def flush_cache(original: Callable, scheduler: Scheduler, *args: Any, **kwargs: Any) -> bool:
    """AROUND ``Scheduler.flush_cache``."""
    flushed = original(scheduler, *args, **kwargs)
    if flushed:
        warm(scheduler)
    return flushed


def warm(scheduler: Scheduler) -> None:
    """Queue one request for each prefix that is not in the tree.

    It computes whole pages and ends with its first token, which is thrown away.
    """
    cache = scheduler.tree_cache
    if getattr(cache, "prefixes", None) is None:
        return
    for number, tokens in enumerate(cache.prefixes.tokens):
        if number in cache.public_slots:
            continue
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        req = Req(
            rid=f"{_RID}{number}",
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=sampling,
            eos_token_ids=scheduler.model_config.hf_eos_token_id,
            vocab_size=scheduler.model_config.vocab_size,
            cache_salt=PUBLIC_SALT,
        )
        req.kvguard_prefix = number
        req.tokenizer = scheduler.tokenizer
        req.logprob_start_len = -1
        scheduler.init_req_max_new_tokens(req)
        scheduler._add_request_to_queue(req)
        logger.info(
            "kv-guard: computing public prefix %s (%d tokens)",
            cache.prefixes.names[number],
            len(tokens),
        )
