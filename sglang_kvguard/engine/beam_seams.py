"""Beam search is a request's own parameter, so it is refused request by request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def validate_and_init(original: Callable, coordinator: Any, req: Any, recv_req: Any) -> str:
    """AROUND ``BeamCoordinator.validate_and_init``: the engine answers 400 with this text.

    The members of a beam hold rows of their own and share pages, which the fence does not
    know yet.
    """
    return "Beam search is not supported with --enable-kv-guard."
