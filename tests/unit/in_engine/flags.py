"""Command lines, parsed by the engine's own parser."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
from collections.abc import Iterator

from sglang.srt.server_args import ServerArgs, prepare_server_args

from sglang_kvguard.engine import activation
from tests.unit.in_engine.off import ARGV


@contextlib.contextmanager
def _config(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        yield file.name


def refusal(*flags: str) -> dict[str, object]:
    """Exit code and stderr of a command line that must not be accepted."""
    before = activation.active()
    stderr = io.StringIO()
    code = None
    with contextlib.redirect_stderr(stderr):
        try:
            prepare_server_args([*ARGV, *flags]).resolve_once()
        except SystemExit as exit:
            code = exit.code
    return {
        "code": code,
        "stderr": stderr.getvalue(),
        "turned_on": activation.active() is not before,
    }


def refusal_of_config(text: str) -> dict[str, object]:
    """The same for a YAML file."""
    with _config(text) as path:
        return refusal("--config", path)


def unverified(*flags: str) -> dict[str, object]:
    """A command line on an engine version that no table names."""
    version, activation.ENGINE_VERSION = activation.ENGINE_VERSION, "0.9.9"
    active, activation._active = activation._active, None
    try:
        return refusal(*flags)
    finally:
        activation.ENGINE_VERSION, activation._active = version, active


def unverified_of_config(text: str) -> dict[str, object]:
    """The same for a YAML file."""
    with _config(text) as path:
        return unverified("--config", path)


def turn_on(*flags: str) -> dict[str, str]:
    """An accepted command line; the guard stays on in this process."""
    prepare_server_args([*ARGV, "--enable-kv-guard", *flags]).resolve_once()
    active = activation.active()
    return {
        "origin": active.origin,
        "policy": active.policy.to_json(),
        "env": os.environ[activation.POLICY_ENV],
        "pid": os.getpid(),
    }


def turn_on_otherwise() -> str:
    """``enable()`` with other settings, in a process that is guarded already."""
    try:
        activation.enable(ttl=1.5)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def inherited(env: str, parent: int | None) -> object:
    """What a child process makes of the environment.

    Args:
        env: the variable's value.
        parent: process id that ``multiprocessing`` says spawned it.
    """
    spawner, activation._spawner = activation._spawner, lambda: parent
    active, activation._active = activation._active, None
    before = os.environ.get(activation.POLICY_ENV)
    os.environ[activation.POLICY_ENV] = env
    try:
        policy = activation.inherited_policy()
        left = activation.POLICY_ENV in os.environ
        return {"policy": policy.to_json() if policy else None, "left": left}
    finally:
        activation._spawner, activation._active = spawner, active
        os.environ.pop(activation.POLICY_ENV, None)
        if before is not None:
            os.environ[activation.POLICY_ENV] = before


def help_group() -> dict[str, object]:
    """The guard's group of the parser's help page."""
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    (group,) = (g for g in parser._action_groups if g.title == "KV guard")
    return {
        "title": group.title,
        "options": [option for action in group._group_actions for option in action.option_strings],
    }
