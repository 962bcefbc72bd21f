"""The modules that an App includes. They are imported when its tasks are needed, after its own module is complete."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path

from mainspring.errors import SettingsError
from mainspring.worker.selector import import_module


def import_included(name: str) -> None:
    """Import a module, and all modules in a package and in its packages except those named ``__main__``.

    The working directory is the last of the import path. Raises SettingsError for a module that does not exist or cannot be
    imported, with the cause chained.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        _import_all(name)
    except SettingsError as error:
        raise SettingsError(f"the App includes {name}, but {error}") from error.__cause__


def _import_all(name: str) -> None:
    module = import_module(name)
    for _, inner, _ in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
        if not inner.endswith(".__main__"):  # importing it would run it
            _import_all(inner)
