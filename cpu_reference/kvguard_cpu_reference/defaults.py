"""Server arguments that a plain launch line needs on this platform.

Each rule replaces a value that SGLang's own CPU rules chose for a tuned CPU build
(AMX kernels, compiled graphs, a KV pool of most of the machine's memory). Where a user
can mean something by a setting, the user's value stays.
"""

from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

from kvguard_cpu_reference import threads

ATTENTION_BACKEND = "torch_native"

# Enough for tests and the demo, small enough to allocate at once: the engine would
# otherwise size the pool to a fraction of the host's memory and touch all of it.
MAX_TOTAL_TOKENS = 16384
MAX_RUNNING_REQUESTS = 48


def apply(server_args) -> None:
    """Fill in ``server_args``, a recorder handed over by the engine's resolver."""
    # The engine's CPU rule ran before this one and turned "not given" into the AMX
    # backend, which needs kernels that are not built here.
    if server_args.attention_backend in (None, "intel_amx"):
        server_args.attention_backend = ATTENTION_BACKEND
    if server_args.sampling_backend is None:
        server_args.sampling_backend = "pytorch"
    # "auto" means half precision for a float32 checkpoint. A reference computes exactly,
    # so that equal inputs give equal tokens whatever they are batched with.
    if server_args.dtype == "auto":
        server_args.dtype = "float32"
    # The engine's idle loop spins, which on a few cores takes one away from everything
    # else on the machine, clients and tests included.
    server_args.sleep_on_idle = True
    for phase in (Phase.DECODE, Phase.PREFILL):
        server_args.cuda_graph_config = with_phase(
            server_args.cuda_graph_config, phase, backend=Backend.DISABLED
        )
    if server_args.max_total_tokens is None:
        server_args.max_total_tokens = MAX_TOTAL_TOKENS
    if server_args.max_running_requests is None:
        server_args.max_running_requests = MAX_RUNNING_REQUESTS

    ranks = server_args.tp_size * server_args.pp_size * server_args.dp_size
    if ranks > 1:
        threads.bind_ranks(ranks)
