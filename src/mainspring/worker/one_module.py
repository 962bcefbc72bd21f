"""An import hook that keeps the App's file a single module under all names.

``mainspring worker shop/app.py`` imports the file as ``app``. If a module of tasks has ``from shop.app import app``, Python
would run the file again: there would be two Apps, and the worker's App would lack these tasks.
"""

from __future__ import annotations

import importlib.abc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def keep_single(module: ModuleType, path: Path) -> None:
    """Make all imports of this file return this module, as long as it is loaded.

    ``path`` is absolute, without symbolic links.
    """
    sys.meta_path.insert(0, _SameFile(module, path))


class _SameFile(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads the module that is already loaded."""

    def __init__(self, module: ModuleType, path: Path) -> None:
        self._module = module
        self._path = path
        self._spec = module.__spec__

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec if the name resolves to the file."""
        if fullname.rpartition(".")[2] != self._path.stem:
            return None
        if self._spec is None or sys.modules.get(self._spec.name) is not self._module:
            return None  # the module's import has failed
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None or Path(found.origin).resolve() != self._path:
            return None
        return ModuleSpec(fullname, self, origin=found.origin)

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - there is only one
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import system has replaced; do not run the module."""
        module.__spec__ = self._spec
