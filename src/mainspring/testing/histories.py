"""Histories of runs: those of a node in memory, and those in files, with which an App's code is compared.

Histories of tests are also replayed in another process, whose strings have other hashes: see
`mainspring.worker.workflows.replay_checks`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.client.run import read_events
from mainspring.errors import NotFoundError, UsageError
from mainspring.worker.workflows import replay_checks
from mainspring.worker.workflows.replay_checks import OtherSeed, replay_history
from mainspring.workflows.history import decode_events, encode_events
from mainspring.workflows.history_json import HistoryFile, decode_history, encode_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from os import PathLike
    from types import ModuleType

    from mainspring.app import App
    from mainspring.client.blocking import Client
    from mainspring.worker.registry import Registry
    from mainspring.workflows.model import Parked


class History:
    """The history of a run. ``events`` has its events in order, as files of histories have them."""

    def __init__(self, events: list[dict[str, Any]], handle: str) -> None:
        self.events = events
        self.run = f"{handle.partition('@')[0]}@{events[0]['run']}"
        """The key of the run: the handle, ``@``, and the number of the run."""

    def __repr__(self) -> str:
        return f"<History of {self.run}: {len(self.events)} events>"

    def kinds(self) -> list[str]:
        """Return the types of the events, such as ``"TimerFired"``."""
        return [event["event"] for event in self.events]

    def save(self, file: str | PathLike[str]) -> None:
        """Write a file, as ``mainspring workflows export`` does. Raises FileExistsError if it exists."""
        with open(file, "xb") as out:  # noqa: PTH123 - of any path
            out.write(encode_history(self.events))


def history(client: Client, key: str, handle: str) -> History:
    """Return the history of a run with a key, of a job with a handle. Raises UsageError if there is none."""
    try:
        events = read_events(client, key)
    except NotFoundError:
        events = []
    if not events:
        raise UsageError(f"{key} has no history: it is no run of a workflow, or its run has not begun")
    return History(events, handle)


def unfinished(client: Client, key: str, reason: str) -> Exception:
    """Return the error about a job that does not end, for a reason such as "nothing is due"."""
    try:
        run: Any = client.call("workflows.show", {"key": key})
    except NotFoundError:
        job: Any = client.call("jobs.show", {"handle": key})
        return TimeoutError(
            f"{job['function']} ({key}) is {job['state']}, and {reason}: advance the clock yourself, or look for the reason in "
            "job.info()"
        )
    name = f"{run['type']} ({run['id']})"
    parked = run["parked"]
    if parked is not None:
        sides = [f"   recorded: {line}" for line in parked["recorded"][parked["at"] :]]
        sides += [f"   code: {line}" for line in parked["code"][parked["at"] :]]
        return AssertionError("\n".join([f"{name} is parked: {parked['message']}", *sides]))
    waits = run["waits_for"] or "nothing that the history names"
    return TimeoutError(
        f"{name} does not end: nothing runs, {reason}, and it waits for: {waits}. Send the signals that it waits for, or advance "
        "the clock yourself up to the run's timeout"
    )


def assert_replays(app: App, *files: str | PathLike[str]) -> None:
    """Check that the App's code makes the commands that histories have recorded.

    Give files of ``mainspring workflows export``, or directories: of those, each file ``*.json``. No task and no step runs.

    Raises AssertionError with both sides of the first difference in each history, and if there are no histories; UsageError for a
    file that is no history, and for a workflow or version that the App does not have.
    """
    app.load_tasks()
    histories = [history for file in files for history in _read(Path(file))]
    if not histories:
        raise AssertionError("no histories were given")
    if found := differences(app.registry, histories):
        raise AssertionError(found)


def differences(registry: Registry, histories: Iterable[HistoryFile]) -> str:
    """Return both sides of the first difference in each history; empty if code and histories agree."""
    found = []
    for history in histories:
        difference = replay_history(registry, history).difference
        if difference is not None:
            found.append("\n".join(_lines(history, difference)))
    return "\n\n".join(found)


def _read(path: Path) -> Iterator[HistoryFile]:
    if not path.is_dir():
        yield decode_history(path.read_bytes(), str(path))
        return
    files = sorted(path.glob("*.json"))
    if not files:
        raise AssertionError(f"the directory {path} has no file *.json")
    for file in files:
        yield decode_history(file.read_bytes(), str(file))


def _lines(history: HistoryFile, difference: Parked) -> Iterator[str]:
    yield f"{history.name} ({history.type}@{history.version}): {difference.message}"
    if history.redacted:
        yield "the history is redacted: the code may have taken another way, because it got no real values"
    if not (difference.recorded or difference.code):
        return
    width = max(len(line) for line in ("recorded", *difference.recorded))
    yield f"   {'recorded':{width}}   code"
    for at, (recorded, code) in enumerate(zip_longest(difference.recorded, difference.code, fillvalue="")):
        yield f"{'>' if at == difference.at else ' '}  {recorded:{width}}   {code}".rstrip()


_COMMAND: Final = "from mainspring.testing.histories import serve; serve()"


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
            _child(replay_checks.other_seeds()[0])


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
    first, *others = replay_checks.other_seeds()[:3]
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
    replay_checks.serve_replays(
        lambda request: msgspec.msgpack.encode(_answer(msgspec.msgpack.decode(request, type=_Request)))
    )


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
