"""What a seam is: one place of the engine that the guard hooks, and how to tell that it holds.

SGLang logs and swallows a hook that does not resolve, so registering is never
taken as proof. Every seam carries the signature it was written against and can be
asked, after loading, whether the engine really calls the guard there.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["before", "after", "around", "replace"]


class SeamError(RuntimeError):
    """A seam of the engine is missing, has another shape, or is not hooked."""


@dataclass(frozen=True)
class Seam:
    """One hooked place of the engine.

    Attributes:
        target: dotted path of the function, method or class.
        kind: how SGLang's ``HookRegistry`` applies it.
        hook: ``"module:name"`` of ours, loaded only when the guard is on.
        signature: parameter names of the stock target in order, as a tuple; the
            release table is wrong for an engine whose target takes others.
        why: what would go unguarded without it, in one line.
    """

    target: str
    kind: Kind
    hook: str
    signature: tuple[str, ...]
    why: str

    def load_hook(self) -> Callable:
        module, name = self.hook.split(":")
        return getattr(importlib.import_module(module), name)

    def resolve(self) -> Callable:
        """The object that the engine holds at ``target`` now.

        Raises:
            SeamError: the engine has nothing of that name.
        """
        path, name = self.target.rsplit(".", 1)
        try:
            owner = pkgutil.resolve_name(path)
            return inspect.getattr_static(owner, name)
        except (ImportError, AttributeError) as error:
            raise SeamError(f"{self.target}: not found in this engine ({error})") from error

    def check_signature(self) -> None:
        """Compare the target's parameters with those the seam was written for.

        Raises:
            SeamError: missing target or other parameters.
        """
        target = _plain(self.resolve())
        found = tuple(inspect.signature(target).parameters)
        if found != self.signature:
            raise SeamError(
                f"{self.target}: takes ({', '.join(found)}), "
                f"expected ({', '.join(self.signature)})"
            )

    def check_applied(self) -> None:
        """Make sure that calling the target reaches our hook.

        Raises:
            SeamError: the target is stock, or somebody else replaced it.
        """
        hook, current = self.load_hook(), self.resolve()
        if isinstance(hook, type):
            applied = current is hook
        else:
            applied = hook in _wrapping_chain(_plain(current))
        if not applied:
            raise SeamError(f"{self.target}: the guard's hook is not in place ({self.why})")


def _plain(target: Callable) -> Callable:
    return target.__func__ if isinstance(target, (classmethod, staticmethod)) else target


def _wrapping_chain(function: Callable) -> list[Callable]:
    """Hooks that a call of ``function`` passes through, outermost first.

    ``HookRegistry`` keeps each hook as the free variable ``hook`` of a wrapper
    whose ``__wrapped__`` is the next inner function.
    """
    hooks = []
    while function is not None:
        if inspect.isfunction(function):
            hook = inspect.getclosurevars(function).nonlocals.get("hook")
            if hook is not None:
                hooks.append(hook)
        function = getattr(function, "__wrapped__", None)
    return hooks
