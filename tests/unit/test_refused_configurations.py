"""What this release cannot guard does not start, and says so in one line."""

import pytest

from tests.unit.engine_process import EngineProcess

REFUSED = [
    ({"tp_size": 2}, "--tensor-parallel-size 2"),
    ({"pp_size": 2}, "--pipeline-parallel-size 2"),
    ({"dp_size": 2}, "--data-parallel-size 2"),
    ({"enable_dp_attention": True}, "--enable-dp-attention (on)"),
    ({"dcp_size": 2}, "--decode-context-parallel-size 2"),
    ({"nnodes": 2}, "--nnodes 2"),
    ({"use_ray": True}, "--use-ray (on)"),
    ({"enable_kv_cache_sharding": True}, "--enable-kv-cache-sharding (on)"),
    ({"speculative_algorithm": "NGRAM"}, "--speculative-algorithm NGRAM"),
    ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm LowConfidence"),
    ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode"),
    ({"enable_pdmux": True}, "--enable-pdmux (on)"),
    ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache (on)"),
    ({"hicache_storage_backend": "file"}, "--hicache-storage-backend file"),
    (
        {"enable_unified_cache_external_linker": True},
        "--enable-unified-cache-external-linker (on)",
    ),
    ({"enable_hisparse": True}, "--enable-hisparse (on)"),
    ({"enable_lmcache": True}, "--enable-lmcache (on)"),
    ({"enable_flexkv": True}, "--enable-flexkv (on)"),
    ({"radix_cache_backend": "flexkv"}, "--radix-cache-backend flexkv"),
    ({"enable_memory_saver": True}, "--enable-memory-saver (on)"),
    ({"kv_cache_dtype": "nvfp4"}, "--kv-cache-dtype nvfp4"),
    ({"kv_cache_dtype": "mxfp8"}, "--kv-cache-dtype mxfp8"),
    ({"enable_unified_memory": True}, "--enable-unified-memory (on)"),
    ({"enable_streaming_session": True}, "--enable-streaming-session (on)"),
    ({"enable_session_radix_cache": True}, "--enable-session-radix-cache (on)"),
    ({"enable_mixed_chunk": True}, "--enable-mixed-chunk (on)"),
    ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap (on)"),
    ({"kv_canary": "raise"}, "--kv-canary raise"),
    ({"is_embedding": True}, "--is-embedding (on)"),
    ({"enable_multimodal": True}, "--enable-multimodal (on)"),
    ({"enable_lora": True}, "--enable-lora (on)"),
    ({"lora_paths": ["a=/adapters/a"]}, "--lora-paths ['a=/adapters/a']"),
    ({"device": "npu"}, "--device npu"),
    ({"encoder_only": True}, "--encoder-only (on)"),
    ({"grpc_port": 31298}, "--grpc-port 31298"),
    ({"smg_grpc_mode": True}, "--smg-grpc-mode (on)"),
    ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num 2"),
]

ACCEPTED = [
    {},
    {"device": "cuda", "kv_cache_dtype": "auto", "page_size": 1, "attention_backend": "fa3"},
    {"device": "cpu", "attention_backend": "torch_native", "page_size": 16},
    {"kv_cache_dtype": "fp8_e4m3"},
    {"disable_radix_cache": True, "chunked_prefill_size": 64},
    {"disable_overlap_schedule": True, "enable_priority_scheduling": True},
    {"radix_eviction_policy": "lfu", "enable_metrics": True, "api_key": "secret"},
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_refused(engine: EngineProcess, fields: dict, named: str) -> None:
    line = engine.call("configurations:refusal", fields)
    assert line.startswith(f"{named}: not supported with --enable-kv-guard, because ")
    assert line.rpartition("; ")[2].startswith(("leave it out", "expected "))
    assert "\n" not in line


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_accepted(engine: EngineProcess, fields: dict) -> None:
    assert engine.call("configurations:refusal", fields) is None


@pytest.mark.parametrize(
    ("name", "on", "off"),
    [
        ("SGLANG_RUST_SERVER", "1", "0"),
        ("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "true", "false"),
        ("SGLANG_USE_HND_KVCACHE", "1", "0"),
        ("SMG_SGLANG_ZMQ_HANDSHAKE", "tcp://127.0.0.1:31298", ""),
    ],
)
def test_environment_of_the_engine(engine: EngineProcess, name: str, on: str, off: str) -> None:
    line = engine.call("configurations:refusal", {}, {name: on})
    assert line.startswith(f"environment variable {name}: not supported") and "unset it" in line
    assert engine.call("configurations:refusal", {}, {name: off}) is None


@pytest.mark.parametrize(
    ("traits", "what"),
    [
        ({"is_generation": False}, "does not generate"),
        ({"is_multimodal": True}, "is multimodal"),
        ({"is_encoder_decoder": True}, "is an encoder-decoder"),
    ],
)
def test_model_of_another_kind(engine: EngineProcess, traits: dict, what: str) -> None:
    line = engine.call("configurations:refusal_of_model", traits)
    assert line.startswith(f"--model-path /models/some: the model {what}")


def test_text_generation_model_is_accepted(engine: EngineProcess) -> None:
    assert engine.call("configurations:refusal_of_model", {}) is None


def test_every_flag_that_is_named_exists(engine: EngineProcess) -> None:
    assert engine.call("configurations:unknown_flags") == []
