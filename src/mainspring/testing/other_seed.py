"""Replays of the histories of tests in another process, whose strings have other hashes: see `mainspring.worker.other_seed`.

The child imports the App by its module, once, and replays what it gets. It stays for further blocks of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.testing.histories import differences
from mainspring.worker import other_seed
from mainspring.worker.other_seed import OtherSeed
from mainspring.workflows.history import decode_events, encode_events
from mainspring.workflows.history_files import HistoryFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from mainspring.app import App

_COMMAND: Final = "from mainspring.testing.other_seed import serve; serve()"


class _Place(msgspec.Struct, array_like=True):
    """Where an App is: as an attribute of a module, which has a file."""

    module: str
    file: str
    name: str


class _History(msgspec.Struct, array_like=True):
    name: str
    type: str
    version: str
    events: bytes


class _Request(msgspec.Struct, array_like=True):
    place: _Place
    path: list[str]
    histories: list[_History]


class _Answer(msgspec.Struct, array_like=True):
    differences: str = ""
    problem: str = ""
    """Why the child could not replay, such as an import that fails."""


_children: dict[str, OtherSeed] = {}


def begin(app: App) -> None:
    """Start the child in time, so that a later check does not wait for its start; do nothing for an App without workflows."""
    if app.registry.workflows and _place(app) is not None:
        with contextlib.suppress(OSError):
            _child(other_seed.other_seeds()[0])


def find_differences(app: App, histories: Sequence[HistoryFile]) -> str:
    """Return how code differs from histories under another hash seed; empty if it does not.

    A difference counts if a third seed makes another one. Otherwise its cause is another one than hashes, such as a value that
    the test has replaced. An App that no module has, such as that of a function, is not checked.
    """
    place = _place(app)
    if place is None or not histories:
        return ""
    request = msgspec.msgpack.encode(
        _Request(
            place,
            [os.path.abspath(one) for one in sys.path],  # noqa: PTH100 - an empty entry is the directory
            [_History(one.name, one.type, one.version, encode_events(one.events)) for one in histories],
        )
    )
    first, *others = other_seed.other_seeds()[:3]
    found = _ask(first, request)
    if not found:
        return ""
    for seed in others:
        if _ask(seed, request) != found:
            return found
    return ""


def _ask(seed: str, request: bytes) -> str:
    """Return the differences under a seed; empty if the child cannot tell."""
    try:
        return msgspec.msgpack.decode(_child(seed).ask(request), type=_Answer).differences
    except (OSError, EOFError, msgspec.DecodeError):
        if seed in _children:
            _children.pop(seed).end()
        return ""


def _child(seed: str) -> OtherSeed:
    if not _children:
        atexit.register(_end_all)
    if seed not in _children:
        _children[seed] = OtherSeed(seed, _COMMAND)
    return _children[seed]


def _end_all() -> None:
    while _children:
        _children.popitem()[1].end()


def _place(app: App) -> _Place | None:
    """Return where a module has an App; None if none has it under a name."""
    first = next(iter(app.registry.workflows.values()), None)
    if first is None:
        return None
    modules: Mapping[str, ModuleType | None] = dict(sys.modules)
    defining = first.code.call.__module__
    for name in dict.fromkeys((defining, *modules)):
        module = modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return _Place(name, os.path.abspath(file), attribute)  # noqa: PTH100 - a plain string is sent
    return None


# ---- the child ----

_serving: list[bool] = []


def refuse_blocks() -> None:
    """Raise RuntimeError in a child: a program that runs its tests when it is imported would run them there, too."""
    if _serving:
        raise RuntimeError("this process only replays histories")


def serve() -> None:
    """Answer requests until the input ends."""
    _serving[:] = [True]
    other_seed.serve(lambda request: msgspec.msgpack.encode(_answer(msgspec.msgpack.decode(request, type=_Request))))


def _answer(request: _Request) -> _Answer:
    sys.path[:] = request.path
    try:
        app: Any = getattr(_module(request.place), request.place.name)
        app.load_tasks()
        return _Answer(differences(app.registry, map(_history, request.histories)))
    except BaseException as error:  # noqa: BLE001 - user code is imported, and a parent waits
        return _Answer(problem=repr(error))


def _history(sent: _History) -> HistoryFile:
    return HistoryFile(sent.name, sent.type, sent.version, decode_events(sent.events), redacted=False)


def _module(place: _Place) -> ModuleType:
    """Import a module by its name, or else by its file, as one that is not the main program."""
    if place.module != "__main__":
        with contextlib.suppress(ImportError):
            module = importlib.import_module(place.module)
            if os.path.abspath(str(module.__file__)) == place.file:  # noqa: PTH100
                return module
    name = "__mp_main__" if place.module == "__main__" else place.module
    if (loaded := sys.modules.get(name)) is not None and getattr(loaded, "__file__", None) == place.file:
        return loaded
    found = importlib.util.spec_from_file_location(name, place.file)
    if found is None or found.loader is None:
        raise ImportError(f"{place.file} is no module")
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
