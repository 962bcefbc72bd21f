"""The port to a ZooKeeper ensemble: its requests, their possible answers, and watched places that are read again.

All other modules use only ``Tree``, so tests can run the rules on a tree in memory, with every failure between any two steps.
All paths begin with a slash and are relative to the chroot.

An event may be lost by a defect here, in the client library or in a member, and a caller that waits for it alone would wait
for good. A watch means "read again". So each one is also called some time after its read, as if its event had come, and its
owner reads the place again and sets the next one (`RefreshedTree`). Places that change are read for their events anyway; only
quiet ones cost reads.

Waits that never lose a cancellation, as some of asyncio's do in supported versions of Python.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import structlog

from mainspring.errors import StoreError, StoreUnavailableError

Watch = Callable[[], None]
"""Called once, on the node's thread, when the data read has changed, or may have changed unnoticed (the connection was lost, the
session has ended): read again."""

ANY = -1
"""Matches every version."""


class Node(NamedTuple):
    """A node of the tree."""

    data: bytes
    version: int
    """The number of writes of its data since its creation."""
    mtime_us: int
    """The time of its last write, by the ensemble's clock."""
    owner: int
    """The session of an ephemeral node; 0 for a persistent node."""
    children: int
    """The number of its children."""


class Create(NamedTuple):
    """Create a node. Fails with EXISTS, or with NO_NODE if there is no parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False
    """The ensemble appends ten digits to the path, which rise."""


class Write(NamedTuple):
    """Replace a node's data. Fails with NO_NODE, VERSION."""

    path: str
    data: bytes
    version: int = ANY


class Delete(NamedTuple):
    """Delete a node. Fails with NO_NODE, VERSION, NOT_EMPTY."""

    path: str
    version: int = ANY


class Check(NamedTuple):
    """Require that a node exists with a version. Fails with NO_NODE, VERSION."""

    path: str
    version: int = ANY


Change = Create | Write | Delete | Check


class Refusal(Enum):
    """Why a change was refused."""

    EXISTS = "exists"
    NO_NODE = "no node"
    VERSION = "version"
    NOT_EMPTY = "not empty"


class Refused(NamedTuple):
    """The outcome of a refused multi."""

    at: int
    """The index of its first refused change."""
    why: Refusal


class Done(NamedTuple):
    """The outcome of a committed multi."""

    paths: Sequence[str]
    """The path of each change; that of a sequence node includes its number."""


class UnknownOutcomeError(StoreUnavailableError):
    """The connection was lost while a multi was in flight: it was committed, or was not, or will be soon."""


class SessionEndedError(StoreError):
    """The session has ended with all its ephemeral nodes; nothing was written. The next session starts by itself."""


class TooLargeError(StoreError):
    """A multi does not fit into a packet; nothing was sent."""


class Tree(Protocol):
    """A session with an ensemble.

    Reads raise StoreUnavailableError if no member answers in time, SessionEndedError if the session ends in the meantime.
    All methods are called on the node's thread, in its running loop; watches are called there. The requests of one caller stay
    in order: a read that is sent after a multi returns its changes.
    """

    async def open(self) -> None:
        """Start the first session, and create the chroot. Raises StoreUnavailableError, SettingsError (authentication)."""

    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes and its watches. A second call does nothing."""

    @property
    def session(self) -> int:
        """The session's number; 0 while there is none."""

    @property
    def session_timeout(self) -> float:
        """Seconds without a message after which the ensemble ends the session, as granted by the ensemble."""

    def on_session(self, changed: Callable[[], None]) -> None:
        """Call a function, on the node's thread, when the connection is lost or restored, or another session has started."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node; None if there is none. A watch is called when the node is written, created or deleted."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return several nodes, read concurrently."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """Return the names of a node's children, in no order; None if there is no such node.

        A watch is called when a child is created or deleted, or the node itself is deleted.
        """

    async def commit(self, changes: Sequence[Change]) -> Done | Refused:
        """Apply all changes, or none.

        Raises UnknownOutcomeError; StoreUnavailableError if it was not sent; SessionEndedError; StoreForeignError if access
        control forbids it; TooLargeError. A read-only ensemble raises StoreUnavailableError.
        """

    async def sync(self) -> None:
        """Wait until all commits so far, of all clients, can be read here."""


STEPS: Final = 20
"""Looks for due watches in one interval."""
EARLIEST: Final = 0.5
LATEST: Final = 0.9
"""The part of the interval after which a watch is due. It differs by path: all buckets of a root are first read at once."""

log = structlog.get_logger("mainspring.zookeeper")


@dataclass(frozen=True, slots=True)
class _Place:
    """A watched place, and the only watch on it below: equal for every read of the place."""

    tree: RefreshedTree
    path: str
    of_children: bool

    def __call__(self) -> None:
        self.tree.call(self)


class RefreshedTree:
    """A tree that calls each watch once: with the first event of its place, or some time after its read."""

    def __init__(self, tree: Tree, within: float = 0.0) -> None:
        """``within`` are the seconds after which a watch is called at the latest; 0: those of the session time-out."""
        self._tree = tree
        self.on_session, self.get_many = tree.on_session, tree.get_many
        self.commit, self.sync = tree.commit, tree.sync
        self._within = within
        self._places: dict[_Place, tuple[float, dict[Watch, None]]] = {}
        """The watches of each place, and the loop's time at which they are due."""
        self._timer: asyncio.TimerHandle | None = None

    # ---- the port ----

    async def open(self) -> None:
        """Start the first session; see ``Tree``."""
        await self._tree.open()
        self._within = self._within or self._tree.session_timeout
        self._refresh()

    async def close(self) -> None:
        """End the session; see ``Tree``."""
        if self._timer is not None:
            self._timer.cancel()
        self._places.clear()
        await self._tree.close()

    @property
    def session(self) -> int:
        """Return the session's number."""
        return self._tree.session

    @property
    def session_timeout(self) -> float:
        """Return the seconds that the ensemble has granted."""
        return self._tree.session_timeout

    def get(self, path: str, watch: Watch | None = None) -> Coroutine[Any, Any, Node | None]:
        """Return a node."""
        return self._tree.get(path, self._add(path, watch, of_children=False))

    def children(self, path: str, watch: Watch | None = None) -> Coroutine[Any, Any, list[str] | None]:
        """Return the names of a node's children. Its watch is called even if there is no such node."""
        return self._tree.children(path, self._add(path, watch, of_children=True))

    # ---- watches ----

    def _add(self, path: str, watch: Watch | None, *, of_children: bool) -> _Place | None:
        """Register a watch before its read is sent: whatever happens then, it is called."""
        if watch is None:
            return None
        place = _Place(self, path, of_children)
        found = self._places.get(place)
        if found is not None:
            found[1][watch] = None
        else:
            part = EARLIEST + (LATEST - EARLIEST) * crc32(path.encode()) / 2**32
            self._places[place] = asyncio.get_running_loop().time() + self._within * part, {watch: None}
        return place

    def call(self, place: _Place) -> None:
        """Call the watches of a place."""
        _, watches = self._places.pop(place, (0.0, {}))
        for watch in watches:
            try:
                watch()
            except Exception:
                log.exception("a watch failed: a defect in the store's code", path=place.path)

    def _refresh(self) -> None:
        """Call the due watches. It is no task, which could end unnoticed: it first sets the time of its next call."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._within / STEPS, self._refresh)
        now = loop.time()
        for place in [place for place, (due, _) in self._places.items() if due <= now]:
            self.call(place)


async def wait_or_timeout(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, or some seconds have passed; None: without a time-out.

    Unlike ``asyncio.wait_for`` before Python 3.12, it does not lose a cancellation if the event is set at the same moment.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def run_steps(step: Callable[[], Awaitable[float | None]], changed: asyncio.Event) -> None:
    """Run a step again and again: after the seconds that it returns, or when something has changed; None: only then."""
    while True:
        await wait_or_timeout(changed, await step())


async def run_loops(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run loops, each as a task with its name, until one of them ends, however it does, or this call is cancelled.

    Then the others are cancelled. Raises an ExceptionGroup of their errors, with a RuntimeError for each loop that has ended
    without one: none may end by itself, because the others would go on without it.

    Unlike ``asyncio.TaskGroup`` before Python 3.13, it does not lose a cancellation while the tasks are ending because of an
    error. A caller that serves in a loop would start again, and never end.
    """
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    cancelled: asyncio.CancelledError | None = None
    ended: list[asyncio.Task[None]] = []
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        if not ended:
            ended = [task for task in tasks if task.done()]
            for task in tasks if ended or cancelled is not None else ():
                task.cancel()
    if cancelled is not None:
        raise cancelled
    errors = [failed for task in tasks if not task.cancelled() and (failed := task.exception()) is not None]
    silent = [task.get_name() for task in ended if task.cancelled() or task.exception() is None]
    raise BaseExceptionGroup("a loop has ended", [*errors, *(RuntimeError(f"{name} has ended") for name in silent)])
