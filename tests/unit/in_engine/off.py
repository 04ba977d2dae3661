"""SGLang before and after the plugin was loaded without its flag.

Imported first: what it finds before ``load_plugins()`` is stock SGLang.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
from typing import Any

from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs, prepare_server_args

from tests.unit.in_engine import http

# Names of the guard's modules that the plugin does not need while it is off.
_HEAVY = ("sglang_kvguard.core.guard", "sglang_kvguard.engine.runtime", "sglang_kvguard.kernels")
ARGV = ["--model-path", "dummy", "--port", "31299", "--page-size", "16", "--log-level", "error"]


def _look_up(target: str) -> Any:
    """The object at a dotted path, without the modules of the guard being asked."""
    parts = target.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:-1]:
            found = getattr(found, name)
        return inspect.getattr_static(found, parts[-1])
    raise AssertionError(target)


def _options() -> dict[str, str]:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {
        option: f"{type(action).__name__} {action.dest} {action.default!r} {action.help}"
        for action in parser._actions
        for option in action.option_strings
    }


def _targets() -> dict[str, Any]:
    from sglang_kvguard.engine.releases import CLI_SEAMS, v0_5_23

    return {
        seam.target: _look_up(seam.target)
        for seam in (
            *CLI_SEAMS,
            *v0_5_23.LAUNCH_SEAMS,
            *v0_5_23.SERVER_SEAMS,
            *v0_5_23.SEAMS,
        )
    }


_stock_targets = _targets()
_stock_options = _options()
_stock_args = repr(prepare_server_args(ARGV))
http.remember_stock()

load_plugins()
_args = prepare_server_args(ARGV)
_args.resolve_once()
_new_options = _options()

_report = {
    "targets": sorted(_stock_targets),
    "replaced": sorted(
        target for target, stock in _stock_targets.items() if _look_up(target) is not stock
    ),
    "patched": sorted(HookRegistry._patched),
    "options_added": sorted(set(_new_options) - set(_stock_options)),
    "options_changed": sorted(k for k, v in _stock_options.items() if _new_options.get(k) != v),
    "same_args": repr(_args) == _stock_args,
    "policy_env": os.environ.get("SGLANG_KVGUARD_POLICY"),
    "heavy_modules": [name for name in _HEAVY if name in sys.modules],
}


def report() -> dict[str, Any]:
    """What loading the plugin changed while its flag was not given."""
    return _report
