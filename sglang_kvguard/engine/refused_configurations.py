"""Which server configurations this release cannot guard, and why.

A field of ``ServerArgs`` that is not listed here does not move, copy, share or re-lay KV,
or only together with one that is. What gets past this list is still caught in the
scheduler process by the exact classes that the pool, the allocator and the prefix cache
must have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.srt.arg_groups.model_override_base import model_config_of, resolving_view
from sglang.srt.environ import envs

from sglang_kvguard.engine.refusal import GuardRefusal

OFF = (None, False)

_RANKS = "decisions of several ranks are not agreed yet"
_OUTSIDE_COPY = "KV would leave the device pool for a copy that is not guarded"
_OTHER_POOL = "KV would be laid out in a way the guard does not know byte for byte"
_OTHER_WRITER = "KV would be written by somebody the guard cannot put in order"
_DRAFTS = "draft tokens write KV ahead of the sequence and are not fenced yet"
_OTHER_PORT = "a violation could not be told to its clients there"


@dataclass(frozen=True)
class Field:
    """One field of ``ServerArgs`` and the values that can be guarded.

    Attributes:
        name: of the field, resolved value.
        allowed: every value that is accepted.
        why: what goes unguarded otherwise.
        flag: as typed, when it is not the field's name with dashes.
    """

    name: str
    allowed: tuple[Any, ...]
    why: str
    flag: str | None = None

    @property
    def spelled(self) -> str:
        return self.flag or "--" + self.name.replace("_", "-")


FIELDS: tuple[Field, ...] = (
    # More than one process or stream that writes.
    Field("tp_size", (1,), _RANKS, "--tensor-parallel-size"),
    Field("pp_size", (1,), _RANKS, "--pipeline-parallel-size"),
    Field("dp_size", (1,), _RANKS, "--data-parallel-size"),
    Field("attn_dp_size", (1,), _RANKS, "--attention-data-parallel-size"),
    Field("enable_dp_attention", OFF, _RANKS),
    Field("ep_size", (1,), _RANKS, "--expert-parallel-size"),
    Field("moe_dp_size", (1,), _RANKS, "--moe-data-parallel-size"),
    Field("dwdp_size", (1,), _RANKS),
    Field("nnodes", (1,), _RANKS),
    Field("elastic_ep_backend", OFF, _RANKS),
    Field("ep_join_mode", OFF, _RANKS, "--elastic-ep-join-mode"),
    Field("use_ray", OFF, "Ray actors do not inherit the guard's policy"),
    Field("attn_cp_size", (1,), _OTHER_POOL, "--attention-context-parallel-size"),
    Field("dcp_size", (1,), _OTHER_POOL, "--decode-context-parallel-size"),
    Field("enable_prefill_cp", OFF, _OTHER_POOL),
    Field("enable_kv_cache_sharding", OFF, _OTHER_POOL),
    Field("enable_dsa_cache_layer_split", OFF, _OTHER_POOL),
    # Speculation.
    Field("speculative_algorithm", OFF, _DRAFTS),
    Field("decoupled_spec_role", (None, "null"), _DRAFTS),
    Field("dllm_algorithm", OFF, "diffusion decoding rewrites KV that is already sealed"),
    # KV outside the device pool.
    Field("disaggregation_mode", (None, "null"), _OTHER_WRITER),
    Field("enable_pd_role_switch", OFF, _OTHER_WRITER),
    Field("enable_pdmux", OFF, "prefill and decode would run on streams of their own"),
    Field("disaggregation_decode_enable_offload_kvcache", OFF, _OUTSIDE_COPY),
    Field("disaggregation_decode_retraction_backup", OFF, _OUTSIDE_COPY),
    Field("enable_hierarchical_cache", OFF, _OUTSIDE_COPY),
    Field("hicache_storage_backend", OFF, _OUTSIDE_COPY),
    Field("enable_unified_cache_external_linker", OFF, _OUTSIDE_COPY),
    Field("enable_hisparse", OFF, _OUTSIDE_COPY),
    Field("enable_lmcache", OFF, _OUTSIDE_COPY),
    Field("enable_flexkv", OFF, _OUTSIDE_COPY),
    Field("radix_cache_backend", OFF, "the guard brings the prefix cache itself"),
    Field("enable_memory_saver", OFF, "the pool could be released and mapped again at run time"),
    # Pools and caches of another kind.
    Field(
        "kv_cache_dtype",
        ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"),
        "its scales live in buffers of their own",
    ),
    Field("enable_unified_memory", OFF, _OTHER_POOL),
    Field("enable_page_major_kv_layout", OFF, _OTHER_POOL),
    Field("prefill_only_disable_kv_cache", OFF, _OTHER_POOL),
    Field("uses_mamba_radix_cache", OFF, "recurrent state is not guarded yet", "--model-path"),
    Field("enable_encoder_swa_bounded_replay", OFF, _OTHER_POOL),
    Field("enable_decoder_swa_bounded_replay", OFF, _OTHER_POOL),
    Field("enable_streaming_session", OFF, "a session would keep its row and KV between requests"),
    Field("enable_session_radix_cache", OFF, "a session's KV is not a namespace of its own yet"),
    # Batches and forwards of another kind.
    Field("enable_mixed_chunk", OFF, "a batch that mixes prefill and decode is not fenced yet"),
    Field("enable_two_batch_overlap", OFF, "split batches are not fenced yet"),
    Field("enable_nvidia_megakernel", OFF, "it replaces the forward pass that is fenced"),
    Field("enable_amd_monokernel", OFF, "it replaces the forward pass that is fenced"),
    Field("enable_return_routed_experts", OFF, "they are kept by slot and not fenced yet"),
    Field("enable_return_indexer_topk", OFF, "they are kept by slot and not fenced yet"),
    Field("enable_return_aux_hidden_states", OFF, "they are not withheld on a violation yet"),
    Field("kv_canary", (None, "none"), "both would wrap the same pool; the guard covers more"),
    # Models of another kind.
    Field("is_embedding", OFF, "embeddings are not withheld on a violation yet"),
    Field("enable_multimodal", OFF, "multimodal inputs are not guarded yet"),
    Field("enable_lora", OFF, "adapters are not part of a namespace yet"),
    Field("lora_paths", (*OFF, [], {}), "adapters are not part of a namespace yet"),
    Field("device", (None, "cuda", "cpu"), "its kernels run on NVIDIA GPUs and on the CPU"),
    # Other front ends.
    Field("encoder_only", OFF, "an encoder has no KV cache"),
    Field("language_only", OFF, "multimodal inputs are not guarded yet"),
    Field("grpc_port", OFF, _OTHER_PORT),
    Field("grpc_mode", OFF, _OTHER_PORT),
    Field("smg_grpc_mode", OFF, _OTHER_PORT),
    Field("tokenizer_worker_num", (1,), "further HTTP workers load no plugins; " + _OTHER_PORT),
)

# Environment variables that turn something on.
ENVIRONMENT: tuple[tuple[str, str], ...] = (
    ("SGLANG_RUST_SERVER", "the Rust front end listens inside a scheduler; " + _OTHER_PORT),
    ("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "the pool would move after it was described"),
    ("SGLANG_USE_HND_KVCACHE", _OTHER_POOL),
    ("SMG_SGLANG_ZMQ_HANDSHAKE", "the scheduler would answer past this server; " + _OTHER_PORT),
)


@dataclass(frozen=True)
class ModelTrait:
    """One thing that a model can be, and this release cannot guard."""

    holds: Callable[[Any], bool]
    what: str


MODEL_TRAITS: tuple[ModelTrait, ...] = (
    ModelTrait(lambda config: not config.is_generation, "does not generate"),
    ModelTrait(lambda config: config.is_multimodal, "is multimodal"),
    ModelTrait(lambda config: config.is_encoder_decoder, "is an encoder-decoder"),
)


def refuse_unguardable(server_args: Any) -> None:
    """Make sure that this release can guard a server.

    Args:
        server_args: SGLang's resolved ``ServerArgs``.

    Raises:
        GuardRefusal: naming the first setting that it cannot guard, the values that it
            can, and why.
    """
    resolved = resolving_view(server_args)
    for field in FIELDS:
        value = getattr(resolved, field.name)
        if value not in field.allowed:
            raise GuardRefusal(
                f"{field.spelled} {_shown(value)}: not supported with --enable-kv-guard, "
                f"because {field.why}; {_advice(field)}"
            )
    for name, why in ENVIRONMENT:
        if _is_on(name):
            raise GuardRefusal(
                f"environment variable {name}: not supported with --enable-kv-guard, "
                f"because {why}; unset it"
            )
    if str(resolved.model_path).lower() in ("none", "dummy"):
        # SGLang resolves these without a model; nothing is served from them.
        return
    config = model_config_of(server_args)
    for trait in MODEL_TRAITS:
        if trait.holds(config):
            raise GuardRefusal(
                f"--model-path {resolved.model_path}: the model {trait.what}, which "
                "--enable-kv-guard does not support yet; serve a text generation model"
            )


def _is_on(name: str) -> bool:
    # The engine's own ones know which texts mean no.
    known = getattr(envs, name, None)
    return bool(known.get() if known is not None else os.environ.get(name))


def _shown(value: Any) -> str:
    return "(on)" if value is True else str(value)


def _advice(field: Field) -> str:
    values = [value for value in field.allowed if value not in (None, False, [], {})]
    if not values:
        return "leave it out"
    return f"expected {' or '.join(str(value) for value in values)}"
