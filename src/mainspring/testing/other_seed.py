"""Replays of histories in another process, whose strings have other hashes.

The order of a set of strings follows from their hashes. All replays of one process see the same order, so code that depends on it
agrees with its history there, and differs in the next process. The child imports the App by its module, once, and replays what
it gets. It stays for further blocks of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.testing.histories import differences
from mainspring.workflows.history import decode_events, encode_events
from mainspring.workflows.history_files import HistoryFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from mainspring.app import App

SEEDS: Final = ("1", "2", "3", "4")
"""Values of PYTHONHASHSEED. The first one that this process does not have is used; the others confirm a difference."""
LIMIT: Final = 30.0
"""Seconds of real time for the answer of a child, its start included."""
_COMMAND: Final = "from mainspring.testing.other_seed import serve; serve()"
_ANSWERS: Final = "MAINSPRING_TEST_REPLAYS"
"""The environment variable with the file descriptor of a child's answers: what user code prints does not disturb them."""


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


class _Child:
    """A process that replays histories."""

    def __init__(self, seed: str) -> None:
        reading, writing = os.pipe()
        environment = {**os.environ, "PYTHONHASHSEED": seed, _ANSWERS: str(writing)}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                (sys.executable, "-c", _COMMAND),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        self._answers = os.fdopen(reading, "rb", buffering=0)

    def ask(self, request: bytes) -> _Answer:
        """Return the answer to a request; raise OSError or EOFError if the child ends or takes too long."""
        assert self._process.stdin is not None
        self._process.stdin.write(len(request).to_bytes(8, "big") + request)
        self._process.stdin.flush()
        if not select.select([self._answers], [], [], LIMIT)[0]:
            raise TimeoutError("the replays in another process take too long")
        return msgspec.msgpack.decode(_read(self._answers), type=_Answer)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


_children: dict[str, _Child] = {}


def begin(app: App) -> None:
    """Start the child in time, so that a later check does not wait for its start; do nothing for an App without workflows."""
    if app.registry.workflows and _place(app) is not None:
        with contextlib.suppress(OSError):
            _child(_seeds()[0])


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
    first, *others = _seeds()
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
        return _child(seed).ask(request).differences
    except (OSError, EOFError, msgspec.DecodeError):
        if seed in _children:
            _children.pop(seed).end()
        return ""


def _child(seed: str) -> _Child:
    if not _children:
        atexit.register(_end_all)
    if seed not in _children:
        _children[seed] = _Child(seed)
    return _children[seed]


def _end_all() -> None:
    while _children:
        _children.popitem()[1].end()


def _seeds() -> Sequence[str]:
    return [seed for seed in SEEDS if seed != os.environ.get("PYTHONHASHSEED")][:3]


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
    requests, _serving[:] = sys.stdin.buffer, [True]
    with os.fdopen(int(os.environ.pop(_ANSWERS)), "wb") as answers:
        while head := requests.read(8):
            request = msgspec.msgpack.decode(requests.read(int.from_bytes(head, "big")), type=_Request)
            answer = msgspec.msgpack.encode(_answer(request))
            answers.write(len(answer).to_bytes(8, "big") + answer)
            answers.flush()


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


def _read(stream: Any) -> bytes:
    """Return one answer."""
    head = _read_all(stream, 8)
    return _read_all(stream, int.from_bytes(head, "big"))


def _read_all(stream: Any, number: int) -> bytes:
    parts: list[bytes] = []
    while number:
        part = stream.read(number)
        if not part:
            raise EOFError("the process has ended")
        parts.append(part)
        number -= len(part)
    return b"".join(parts)
