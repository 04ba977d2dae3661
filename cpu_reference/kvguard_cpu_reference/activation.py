"""Decides whether the reference platform takes part.

SGLang calls :func:`activate` for *every* installed platform when ``SGLANG_PLATFORM`` is
unset and uses the one that answers. A reference platform that answered then would take
over machines with a GPU, so it answers only when it was asked for by name.

This module imports neither torch nor SGLang: it is loaded on every start of every
SGLang on a machine where the package is installed.
"""

import os

PLATFORM_NAME = "cpu_reference"

_PLATFORM_CLASS = "kvguard_cpu_reference.platform:CpuReferencePlatform"


def activate() -> str | None:
    """The platform class to use, or None to stay out of the way."""
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return None
    return _PLATFORM_CLASS
