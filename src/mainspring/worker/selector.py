"""Selectors of Apps, ``FILE.py[:name]`` or ``module[:name]``, and the import of the modules that they name.

The modules that an App includes are imported when its tasks are needed, after its own module is complete.

An import hook that keeps the App's file a single module under all names.

``mainspring worker shop/app.py`` imports the file as ``app``. If a module of tasks has ``from shop.app import app``, Python
would run the file again: there would be two Apps, and the worker's App would lack these tasks.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import pkgutil
import sys
import sysconfig
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard

from mainspring.errors import SettingsError
from mainspring.worker.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from mainspring.errors import MainspringError


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


_STANDARD_LIBRARY: Final = frozenset(
    {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        *(str(Path(sysconfig.get_path(kind)) / "lib-dynload") for kind in ("stdlib", "platstdlib")),
    }
)
"""Directories of the standard library. They are not those of a virtual environment, which has packages only."""


_PACKAGE: Final = str(Path(__file__).parent)
_of_users: Final[list[str]] = []
"""Directories of users' code that this module has added to the import path, which is one for the process."""


class HasRegistry(Protocol):
    """The part of an App that a worker uses."""

    registry: Registry

    def load_tasks(self) -> None:
        """Import the modules that it includes.  Raises SettingsError."""


def load(selector: str) -> HasRegistry:
    """Return an App with all of its tasks: those of its own module and of the modules that it includes.

    Raises SettingsError if the file, module or App does not exist, or an import fails; the cause is chained.
    """
    app = find(selector)
    app.load_tasks()
    return app


def find(selector: str) -> HasRegistry:
    """Import the file or module and return its App: the named one, or ``app``, or the only one.

    Raises SettingsError if the file, module or App does not exist, or its import fails; the cause is chained.
    """
    place, _, name = selector.partition(":")
    module = import_place(place)
    if name:
        found = getattr(module, name, None)
        if not _is_app(found):
            raise SettingsError(f"{place} has no App named {name!r}{_choices(module)}")
        return found
    if _is_app(found := getattr(module, "app", None)):
        return found
    apps = {key: value for key, value in vars(module).items() if _is_app(value)}
    if len({id(app) for app in apps.values()}) != 1:
        raise SettingsError(
            f"{place} defines no App: write `app = mainspring.App()` in it"
            if not apps
            else f"{place} has several Apps: name one of them, as {place}:NAME{_choices(module)}"
        )
    return next(iter(apps.values()))


def absolute(selector: str) -> str:
    """Return a selector that names the same file in every working directory. Modules stay as they are."""
    place, colon, name = selector.partition(":")
    return f"{Path(place).absolute()}{colon}{name}" if _is_file(place) else selector


def load_registry(selector: str) -> Registry:
    """Return the functions of the App.  Raises SettingsError."""
    return load(selector).registry


def import_place(place: str) -> ModuleType:
    """Import ``FILE.py`` or a module, which may be in the working directory.  Raises SettingsError, with the cause chained."""
    return _import_file(Path(place)) if _is_file(place) else import_module(place)


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _is_app(value: object) -> TypeGuard[HasRegistry]:
    return isinstance(getattr(value, "registry", None), Registry) and not isinstance(value, type)


def _choices(module: ModuleType) -> str:
    names = [key for key, value in vars(module).items() if _is_app(value)]
    return f" (there is {', '.join(names)})" if names else ""


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None or name in sys.stdlib_module_names:
        name = f"_mainspring_app_{name}"  # another module has that name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{path} is not a Python file")
    with contextlib.suppress(OSError):  # the working directory was removed
        _add_project(Path.cwd(), path)
    _add_to_path(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    keep_single(module, path)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        for alias in [alias for alias, loaded in sys.modules.items() if loaded is module]:
            del sys.modules[alias]
        if isinstance(error, SystemExit):
            raise _ended(path, error) from error
        if isinstance(error, Exception):
            raise SettingsError(f"importing {path} failed: {_reason(error, path)}") from error
        raise
    return module


def import_module(name: str) -> ModuleType:
    """Import a module, which may be in the working directory.  Raises SettingsError, with the cause chained."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise SettingsError(f"{name!r} is not a module: name the App as FILE.py, FILE.py:NAME, MODULE or MODULE:NAME")
    _add_to_path(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SettingsError(f"there is no module {name} in this directory or among the installed ones") from error
        raise SettingsError(f"importing {name} failed: {_reason(error)}") from error
    except SystemExit as error:
        raise _ended(name, error) from error
    except Exception as error:
        raise SettingsError(f"importing {name} failed: {_reason(error)}") from error


def _reason(error: Exception, path: Path | None = None) -> str:
    """Return an error of an import with advice. ``path``: the file of the App, if it is imported as a file."""
    text = str(error) if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: {error}"
    if path is not None and "attempted relative import with no known parent package" in text:
        above, parts = path.parent.parent, [path.parent.name, path.stem]
        while (above / "__init__.py").is_file():
            above, parts = above.parent, [above.name, *parts]
        return f"{text}: a file is imported without its package; in {above}, name the module instead: {'.'.join(parts)}"
    wanted = _module_of(error)
    if wanted in sys.stdlib_module_names and any((Path(place) / f"{wanted}.py").is_file() for place in _of_users):
        return f"{text} ({wanted} is a module of the standard library, which a {wanted}.py does not replace: rename that file)"
    return text


def _module_of(error: Exception) -> str | None:
    """Return the module that lacks the name that an import or an attribute access needs."""
    if isinstance(error, AttributeError):
        return getattr(error.obj, "__name__", None)
    return error.name if isinstance(error, ImportError) else None


def _ended(place: object, error: SystemExit) -> SettingsError:
    return SettingsError(f"importing {place} ended its process with {error.code}, before it defined its App")


def show_cause(error: MainspringError) -> None:
    """Print the traceback of the user's own code if it failed at its import or start; the error's message has no place."""
    cause = error.__cause__
    if cause is None:
        return
    frames = cause.__traceback__
    while frames is not None and _is_machinery(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is not None or isinstance(cause, SyntaxError):  # otherwise no code of the user has run
        traceback.print_exception(type(cause), cause, frames)


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<frozen importlib", _PACKAGE)) or filename == importlib.__file__


def _add_project(here: Path, path: Path) -> None:
    """Add the working directory to the import path if it is above the App's file. Other directories may be of other people."""
    if here in path.parents:
        _add_to_path(str(here))


def _add_to_path(directory: str) -> None:
    """Add a directory of the user's code to the import path: behind the standard library, and before installed packages.

    A user's ``calendar.py`` would otherwise replace the module that packages expect, such as ``requests``.
    """
    if directory in sys.path:
        return
    _of_users.append(directory)
    places = [number for number, place in enumerate(sys.path, start=1) if place in _STANDARD_LIBRARY]
    sys.path.insert(max(places, default=0), directory)


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
