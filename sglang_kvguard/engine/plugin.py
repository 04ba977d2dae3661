"""Entry point of SGLang's plugin group ``sglang.srt.plugins``.

SGLang calls :func:`load` in every process before it parses arguments or builds a
scheduler. What it raises is logged and swallowed there, so nothing here is needed for
a refusal: without the hooks the flag is unknown to argparse, and a scheduler process
without hooks does not confirm to its parent, which then does not listen.

Environment: ``SGLANG_KVGUARD_POLICY`` is written by guarded processes for their
children; setting it by hand does nothing.
"""

from __future__ import annotations

from sglang_kvguard.engine import activation, seams
from sglang_kvguard.engine.releases import CLI_SEAMS


def load() -> None:
    """Register the flags, and everything else in a child of a guarded process.

    Raises:
        SeamError: the engine has other functions than the ones to be hooked.
        GuardRefusal: the parent runs another engine version than this process.
        PolicyError: the parent's policy cannot be read.
    """
    seams.register(CLI_SEAMS)
    policy = activation.inherited_policy()
    if policy is not None:
        activation.activate(policy, "parent")
