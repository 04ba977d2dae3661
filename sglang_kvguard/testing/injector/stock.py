"""One function or class of the engine as it was before anybody hooked it."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from types import ModuleType


class Stock:
    """Remembers what the engine has at a target, and puts it back."""

    def __init__(self, target: str) -> None:
        """
        Args:
            target: dotted path of a function, method or class.
        """
        path, self._name = target.rsplit(".", 1)
        self._owner = pkgutil.resolve_name(path)
        self._original = inspect.getattr_static(self._owner, self._name)

    def put_back(self) -> None:
        """Undo every hook on the target, also where modules imported it by name."""
        hooked = inspect.getattr_static(self._owner, self._name)
        setattr(self._owner, self._name, self._original)
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType):
                continue
            for name, value in list(vars(module).items()):
                if value is hooked:
                    setattr(module, name, self._original)
