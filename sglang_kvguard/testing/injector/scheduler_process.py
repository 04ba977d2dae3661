"""The scheduler process of a server with the injector in it."""

from __future__ import annotations

import os
from typing import Any


def run(control_socket: str, removed_seam: str | None, *args: Any, **kwargs: Any) -> None:
    """In place of ``run_scheduler_process``.

    Args:
        control_socket: path to listen on.
        removed_seam: target of a hook to take out again, as if it had never been applied.
        *args, **kwargs: for the engine's function.
    """
    # Here and not at the top: the server process imports this module too, and only
    # the scheduler process needs the engine's scheduler.
    from sglang.srt.managers.scheduler import run_scheduler_process
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_kvguard.testing.injector.client import KEY_ENV
    from sglang_kvguard.testing.injector.stock import Stock
    from sglang_kvguard.testing.injector.workbench import Workbench

    # Taken out of the environment, so that nothing the engine starts inherits it.
    workbench = Workbench(control_socket, os.environ.pop(KEY_ENV))
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.ingest_requests",
        workbench.before_ingest,
        HookType.BEFORE,
    )
    HookRegistry.register(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        workbench.after_forward_batch,
        HookType.AFTER,
    )
    stock = Stock(removed_seam) if removed_seam else None
    load_plugins()
    # In a forked process load_plugins() has run before and does nothing.
    HookRegistry.apply_hooks()
    if stock is not None:
        stock.put_back()
    run_scheduler_process(*args, **kwargs)
