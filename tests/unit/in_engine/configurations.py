"""The engine's ServerArgs, held against what the guard accepts."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from sglang.srt.server_args import ServerArgs

from sglang_kvguard.engine import refused_configurations as refused
from sglang_kvguard.engine.refusal import GuardRefusal


def refusal(fields: dict[str, Any], env: dict[str, str] | None = None) -> str | None:
    """The guard's answer to a configuration; None when it accepts it."""
    os.environ.update(env or {})
    try:
        refused.refuse_unguardable(ServerArgs(**{"model_path": "dummy", **fields}))
    except GuardRefusal as error:
        return str(error)
    finally:
        for name in env or {}:
            del os.environ[name]
    return None


def refusal_of_model(traits: dict[str, bool]) -> str | None:
    """The guard's answer to a model with these traits."""
    plain = {"is_generation": True, "is_multimodal": False, "is_encoder_decoder": False}
    real = refused.model_config_of
    refused.model_config_of = lambda _args: SimpleNamespace(**{**plain, **traits})
    try:
        return refusal({"model_path": "/models/some"})
    finally:
        refused.model_config_of = real


def unknown_flags() -> list[str]:
    """Flags that the guard's refusals name and the engine's parser does not know."""
    import argparse

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    return [field.spelled for field in refused.FIELDS if field.spelled not in known]
