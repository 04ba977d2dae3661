"""Seams of SGLang 0.5.23."""

from sglang_kvguard.engine.seam import Seam

VERSIONS = ("0.5.23",)

_ARGS = "sglang.srt.server_args.ServerArgs"
_ENGINE = "sglang.srt.entrypoints.engine"
_HTTP = "sglang.srt.entrypoints.http_server"
_OPENAI = "sglang.srt.entrypoints.openai"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_MEM = "sglang.srt.mem_cache"

# In every process that is guarded, as soon as the guard is asked for.
LAUNCH_SEAMS: tuple[Seam, ...] = (
    Seam(
        f"{_ARGS}.resolve_once",
        "after",
        "sglang_kvguard.engine.activation:when_resolved",
        ("self",),
        "a configuration that cannot be guarded would start",
    ),
)

# In the process that starts the schedulers and answers clients.
SERVER_SEAMS: tuple[Seam, ...] = (
    Seam(
        f"{_ENGINE}._wait_for_scheduler_ready",
        "around",
        "sglang_kvguard.engine.handshake:require_confirmations",
        ("scheduler_pipe_readers", "scheduler_procs"),
        "the server would listen although a scheduler process is unguarded",
    ),
    Seam(
        f"{_TOKENIZER}._handle_abort_finish_reason",
        "around",
        "sglang_kvguard.engine.http_errors:raise_violation",
        ("self", "out", "state", "is_stream"),
        "a client could take a violation for an ordinary abort",
    ),
    Seam(
        f"{_HTTP}._create_error_response",
        "around",
        "sglang_kvguard.engine.http_errors:native_response",
        ("e",),
        "/generate would answer a violation with 400 and without its incident id",
    ),
    Seam(
        f"{_HTTP}.dumps_json",
        "around",
        "sglang_kvguard.engine.http_errors:native_event",
        ("content",),
        "a /generate stream would end a violation as a client's bad request",
    ),
    Seam(
        f"{_OPENAI}.serving_base.OpenAIServingBase.create_error_response",
        "around",
        "sglang_kvguard.engine.http_errors:openai_response",
        ("self", "message", "err_type", "status_code", "param"),
        "the OpenAI endpoints would answer a violation with 400",
    ),
    Seam(
        f"{_OPENAI}.serving_base.OpenAIServingBase.create_streaming_error_response",
        "around",
        "sglang_kvguard.engine.http_errors:openai_event",
        ("self", "message", "err_type", "status_code"),
        "an OpenAI stream would end a violation as a client's bad request",
    ),
    Seam(
        f"{_OPENAI}.serving_responses.OpenAIServingResponses.create_error_response",
        "around",
        "sglang_kvguard.engine.http_errors:openai_response",
        ("self", "message", "err_type", "status_code", "param"),
        "/v1/responses has an error builder of its own",
    ),
    Seam(
        "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
        "._convert_openai_error_response",
        "around",
        "sglang_kvguard.engine.http_errors:anthropic_response",
        ("self", "response"),
        "/v1/messages would hide the incident id behind 'Internal server error'",
    ),
)

# In every scheduler process.
SEAMS: tuple[Seam, ...] = (
    Seam(
        f"{_SCHEDULER}.get_init_info",
        "after",
        "sglang_kvguard.engine.handshake:confirm",
        ("self",),
        "the parent process could not tell that this scheduler is guarded",
    ),
    Seam(
        f"{_SCHEDULER}.__init__",
        "around",
        "sglang_kvguard.engine.lifecycle_seams:scheduler_init",
        ("self", "server_args", "port_args"),
        "no guard would be built",
    ),
    Seam(
        "sglang.srt.beam_search.coordinator.BeamCoordinator.validate_and_init",
        "around",
        "sglang_kvguard.engine.beam_seams:validate_and_init",
        ("self", "req", "recv_req"),
        "members of a beam would share pages that the fence gives to one of them",
    ),
    Seam(
        f"{_SCHEDULER}.run_batch",
        "around",
        "sglang_kvguard.engine.forward_seams:run_batch",
        ("self", "batch", "pp_proxy_tensors"),
        "a forward could not be held against the requests it is for",
    ),
    Seam(
        f"{_RUNNER}.forward",
        "around",
        "sglang_kvguard.engine.forward_seams:forward",
        (
            "self",
            "forward_batch",
            "skip_attn_backend_init",
            "pp_proxy_tensors",
            "reinit_attn_backend",
            "split_forward_count",
        ),
        "forwards would not be fenced",
    ),
    Seam(
        f"{_SCHEDULER}.process_batch_result",
        "around",
        "sglang_kvguard.engine.result_seams:process_batch_result",
        ("self", "batch", "result"),
        "tokens would leave before their verdict is read",
    ),
    Seam(
        f"{_SCHEDULER}.on_idle",
        "around",
        "sglang_kvguard.engine.lifecycle_seams:on_idle",
        ("self",),
        "pages freed last would not be scrubbed before the next request",
    ),
    Seam(
        f"{_MEM}.allocation.alloc_for_extend",
        "around",
        "sglang_kvguard.engine.allocation_seams:alloc_for_extend",
        ("batch",),
        "pages of a prefill would have no owner",
    ),
    Seam(
        f"{_MEM}.allocation.alloc_for_decode",
        "around",
        "sglang_kvguard.engine.allocation_seams:alloc_for_decode",
        ("batch", "token_per_req"),
        "pages of a decode step would have no owner",
    ),
    Seam(
        f"{_MEM}.common.release_kv_cache",
        "around",
        "sglang_kvguard.engine.allocation_seams:release_kv_cache",
        ("req", "tree_cache", "checkpoint"),
        "it would not be known on whose behalf pages are freed",
    ),
    Seam(
        f"{_MEM}.allocator.token.TokenToKVPoolAllocator",
        "replace",
        "sglang_kvguard.engine.allocators:GuardedTokenAllocator",
        ("size", "dtype", "device", "kvcache", "need_sort"),
        "slots would be reused without scrub and quarantine",
    ),
    Seam(
        f"{_MEM}.allocator.paged.PagedTokenToKVPoolAllocator",
        "replace",
        "sglang_kvguard.engine.allocators:GuardedPagedAllocator",
        ("size", "page_size", "dtype", "device", "kvcache", "need_sort"),
        "pages would be reused without scrub and quarantine",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.invariant_checker"
        ".SchedulerInvariantChecker._check_pool_invariant",
        "around",
        "sglang_kvguard.engine.lifecycle_seams:check_pool_invariant",
        (
            "pool_name",
            "available",
            "evictable",
            "protected",
            "session_held",
            "total",
            "uncached",
        ),
        "a retired page would be taken for a leak and end the server",
    ),
)
