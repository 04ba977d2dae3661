"""Starts the engine's worker processes faster, when asked to.

SGLang spawns its scheduler and detokenizer as fresh interpreters, and each imports torch,
transformers and the engine again: on a small machine that is half of the start-up time.
With ``KVGUARD_CPU_REFERENCE_FORK=1`` they are forked from the parent, which has imported
everything already. Without a GPU there is no driver context that a fork would break.

Off unless asked for, because a forked worker inherits the parent's loaded plugins, whereas
a production worker loads them itself: tests of that loading must spawn.
"""

import multiprocessing
import os

FORK_VARIABLE = "KVGUARD_CPU_REFERENCE_FORK"

# Sets the start method, among other things, just before the workers are launched.
_ENGINE_STEP = "sglang.srt.entrypoints.engine._set_envs_and_config"


def load() -> None:
    """General plugin of the engine: hooks the start method if it was asked to."""
    from kvguard_cpu_reference.activation import activate

    if activate() is None or os.environ.get(FORK_VARIABLE) != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_ENGINE_STEP, _use_fork, HookType.AFTER)


def _use_fork(result, *args, **kwargs):
    """Undo the engine's choice of "spawn"; its result passes through."""
    multiprocessing.set_start_method("fork", force=True)
    return result
