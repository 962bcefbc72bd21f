"""An ensemble in memory: the port ``Tree``, with every failure that tests need, and without a clock of its own.

    content = MemoryContent()
    tree = MemoryTree(content)          # one session; others share the content
    await tree.open()
    tree.before = lambda changes: Fate.ANSWER_LOST
    tree.cut(); tree.expire(); tree.heal()

What the model says was compared with a real server (``test_model``). Everything happens in one loop; each answer comes at least
one turn of it after the request, and a watch is called before anybody can read what it tells of.
"""

from __future__ import annotations

import asyncio
import enum
import re
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from mainspring.engines.zookeeper.tree import (
    ANY,
    Change,
    Create,
    Delete,
    Done,
    Node,
    Refusal,
    Refused,
    SessionEndedError,
    TooLargeError,
    UnknownOutcomeError,
    Write,
)
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.tree import Watch

PATH: Final = re.compile(r"/|(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")
MAX_PACKET: Final = 1_048_575
T = TypeVar("T")


class Fate(enum.Enum):
    """The fate of a commit whose answer is lost."""

    REQUEST_LOST = "it has not happened"
    ANSWER_LOST = "it has happened"
    LATE = "it happens before the session's next request, or with deliver()"


class _Kind(enum.Enum):
    DATA = "data"
    CHILD = "child"


@dataclass(slots=True)
class _Stored:
    data: bytes
    owner: int
    mtime_us: int
    version: int = 0
    created: int = 0
    """The number of children that it ever had: the next number of a sequence."""
    children: dict[str, None] = field(default_factory=dict)


class _RefusedError(Exception):
    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


def _wall_us() -> int:
    return time.time_ns() // 1000


class MemoryContent:
    """The state of an ensemble: the nodes and the sessions.

    ``now_us`` is its clock, in microseconds of wall time; ``step`` is awaited once between a request and what it does, and once
    between that and the answer, so that a test decides what happens in between.
    """

    def __init__(
        self, *, now_us: Callable[[], int] = _wall_us, step: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.now_us = now_us
        self.step = step
        self.sessions: dict[int, MemoryTree] = {}
        """The live sessions by their numbers, connected or not."""
        self.commits = 0
        """The number of committed multis."""
        self._last_session = 0
        self._nodes = {"/": _Stored(b"", 0, self._mtime_us())}

    def expire(self, session: int) -> None:
        """End a session, and delete its ephemeral nodes."""
        tree = self.sessions.pop(session, None)
        if tree is None:
            return
        self._fire(self._end(session))
        tree._ended()

    def paths(self) -> list[str]:
        """Return the path of every node, sorted."""
        return sorted(self._nodes)

    def read(self, path: str) -> Node | None:
        """Return a node, without a session."""
        stored = self._nodes.get(_valid(path))
        if stored is None:
            return None
        return Node(stored.data, stored.version, stored.mtime_us, stored.owner, len(stored.children))

    def names(self, path: str) -> list[str] | None:
        """Return the names of a node's children, in a fixed order that is not sorted."""
        stored = self._nodes.get(_valid(path))
        return None if stored is None else sorted(stored.children, key=lambda name: zlib.crc32(name.encode()))

    def apply(self, changes: Sequence[Change], session: int = 0) -> Done | Refused:
        """Apply all changes or none, and call the watches."""
        undo: list[Callable[[], None]] = []
        events: list[tuple[_Kind, str]] = []
        done = []
        for at, change in enumerate(changes):
            try:
                done.append(self._do(change, session, undo, events))
            except BaseException as error:
                for take_back in reversed(undo):
                    take_back()
                if isinstance(error, _RefusedError):
                    return Refused(at, error.why)
                raise
        self.commits += 1
        self._fire(events)
        return Done(done)

    # ---- sessions

    def _begin(self, tree: MemoryTree) -> int:
        self._last_session += 1
        self.sessions[self._last_session] = tree
        return self._last_session

    def _end(self, session: int) -> list[tuple[_Kind, str]]:
        undo: list[Callable[[], None]] = []
        events: list[tuple[_Kind, str]] = []
        for path in [path for path, stored in self._nodes.items() if stored.owner == session]:
            self._do(Delete(path), session, undo, events)
        return events

    def _fire(self, events: Iterable[tuple[_Kind, str]]) -> None:
        for event in events:
            for tree in self.sessions.values():
                tree._notice(event)

    # ---- changes

    def _do(self, change: Change, session: int, undo: list[Callable[[], None]], events: list[tuple[_Kind, str]]) -> str:
        if isinstance(change, Create):
            return self._create(change, session, undo, events)
        stored = self._nodes.get(_valid(change.path))
        if stored is None:
            raise _RefusedError(Refusal.NO_NODE)
        if change.version not in {ANY, stored.version}:
            raise _RefusedError(Refusal.VERSION)
        if isinstance(change, Write):
            before = (stored.data, stored.version, stored.mtime_us)
            stored.data, stored.version, stored.mtime_us = change.data, stored.version + 1, self._mtime_us()

            def unwrite() -> None:
                stored.data, stored.version, stored.mtime_us = before

            undo.append(unwrite)
            events.append((_Kind.DATA, change.path))
        elif isinstance(change, Delete):
            self._delete(change.path, stored, undo, events)
        return change.path

    def _create(
        self, change: Create, session: int, undo: list[Callable[[], None]], events: list[tuple[_Kind, str]]
    ) -> str:
        above, name = _split(change.path, number=change.sequence)
        parent = self._nodes.get(above)
        if parent is None:
            raise _RefusedError(Refusal.NO_NODE)
        path = change.path
        if change.sequence:
            number = f"{parent.created:010d}"
            path, name = path + number, name + number
        if path in self._nodes:
            raise _RefusedError(Refusal.EXISTS)
        if parent.owner:
            raise StoreError(f"{above} is ephemeral: it cannot have children")
        self._nodes[path] = _Stored(change.data, session if change.ephemeral else 0, self._mtime_us())
        parent.children[name] = None
        parent.created += 1

        def uncreate() -> None:
            del self._nodes[path]
            del parent.children[name]
            parent.created -= 1

        undo.append(uncreate)
        events += [(_Kind.DATA, path), (_Kind.CHILD, above)]
        return path

    def _delete(
        self, path: str, stored: _Stored, undo: list[Callable[[], None]], events: list[tuple[_Kind, str]]
    ) -> None:
        above, name = _split(path)
        if stored.children:
            raise _RefusedError(Refusal.NOT_EMPTY)
        parent = self._nodes[above]
        del self._nodes[path]
        del parent.children[name]

        def undelete() -> None:
            self._nodes[path] = stored
            parent.children[name] = None

        undo.append(undelete)
        events += [(_Kind.DATA, path), (_Kind.CHILD, path), (_Kind.CHILD, above)]

    def _mtime_us(self) -> int:
        return self.now_us() // 1000 * 1000  # as exact as a server's


class MemoryTree:
    """Successive sessions with a content: an implementation of ``Tree``.

    ``before`` is called with the changes of each commit when it arrives: what it raises goes to the caller, and nothing has
    happened; a ``Fate`` is raised as UnknownOutcomeError, and comes with a lost connection. ``after`` is called when it has
    happened or was refused; what it raises goes to the caller. Both may call ``cut``, ``expire`` and ``kill``.

    A request that was sent before the client learns of its session's end fails with that end, or gets no answer (``hangs_up``).
    SessionEndedError means that nothing was done: a commit that has happened never raises it. Whether an unanswered commit has
    happened is unknown.
    """

    def __init__(self, content: MemoryContent, *, session_timeout: float = 10.0) -> None:
        self.content = content
        self.before: Callable[[Sequence[Change]], Fate | None] | None = None
        self.after: Callable[[Sequence[Change], Done | Refused], None] | None = None
        self.hangs_up: Callable[[], bool] = lambda: False
        """Called for each request: whether the end of the session closes the connection in place of an answer."""
        self.loses: Callable[[str], bool] = lambda _: False
        """Called with the path of each event for this client: whether the event is lost, and its watches with it."""
        self.reads = 0
        """The number of reads; a read of several nodes counts as one."""
        self._session_timeout = session_timeout
        self._session = 0
        self._is_open = False
        self._is_cut = False
        self._is_killed = False
        self._connection = 0
        """Rises with each loss of the connection, which loses all answers in flight."""
        self._line: deque[Callable[[], None]] = deque()
        self.late: list[Sequence[Change]] = []
        self._watches: dict[tuple[_Kind, str], dict[Watch, None]] = {}
        self._listeners: list[Callable[[], None]] = []

    # ---- the port

    async def open(self) -> None:
        await self._pause()
        self._loop = asyncio.get_running_loop()
        if self._is_cut:
            raise StoreUnavailableError("the ensemble cannot be reached")
        self._is_open = True
        self._session = self.content._begin(self)

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        session, self._session = self._session, 0
        if not self._is_cut and not self._is_killed:
            self.content.expire(session)
        await self._pause()
        self._watches.clear()
        self._lose()

    @property
    def session(self) -> int:
        return self._session

    @property
    def session_timeout(self) -> float:
        return self._session_timeout

    def on_session(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        def read() -> Node | None:
            self._watch(_Kind.DATA, path, watch)
            return self.content.read(path)

        return await self.ask(read)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self.ask(lambda: [self.content.read(path) for path in paths])

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        def read() -> list[str] | None:
            names = self.content.names(path)
            if names is not None:
                self._watch(_Kind.CHILD, path, watch)
            return names

        return await self.ask(read)

    async def commit(self, changes: Sequence[Change]) -> Done | Refused:
        changes = tuple(changes)
        size = sum(len(one.path) + len(getattr(one, "data", b"")) + 40 for one in changes)
        if size > MAX_PACKET:
            raise TooLargeError(f"changes of {size:,} bytes do not fit into a packet of {MAX_PACKET:,} bytes")

        def do() -> Done | Refused:
            fate = None if self.before is None else self.before(changes)
            if fate is Fate.LATE:
                self.late.append(changes)
            self._live()
            if fate is Fate.REQUEST_LOST or fate is Fate.LATE:
                raise self._unknown()
            outcome = self.content.apply(changes, self._session)
            if self.after is not None:
                self.after(changes, outcome)
            if fate is Fate.ANSWER_LOST:
                raise self._unknown()
            return outcome

        return await self.ask(do, lost=UnknownOutcomeError)

    async def sync(self) -> None:
        await self.ask(lambda: None)

    # ---- faults

    @property
    def is_connected(self) -> bool:
        """Whether the ensemble can be reached."""
        return not self._is_cut

    def cut(self) -> None:
        """Lose the connection until ``heal``: what is under way has no answer, and whatever is asked is not sent.

        The client notices at once. The session goes on, and must be ended with ``expire``.
        """
        self._is_cut = True
        self._lose()

    def heal(self) -> None:
        """Let the client connect again; now it is notified if its session has ended."""
        if not self._is_cut:
            return
        self._is_cut = False
        if not self._is_open:
            return
        if self._session == 0:
            self._begin()
        elif self._session in self.content.sessions:
            self._call_listeners()
        else:
            self._ended()

    def blink(self) -> None:
        """Lose the connection, and restore it at once."""
        self._lose()
        self._call_listeners()

    def expire(self) -> None:
        """End the session at the ensemble; a connected client is notified, and starts another."""
        self.content.expire(self._session)

    def kill(self) -> None:
        """End the client as SIGKILL does: no call of it ever returns, no watch is called. ``expire`` ends its session."""
        self._is_killed = True
        self._watches.clear()
        self._connection += 1

    def deliver(self) -> None:
        """Apply late commits."""
        late, self.late = self.late, []
        for changes in late:
            if self._session in self.content.sessions:
                self.content.apply(changes, self._session)

    # ---- internals

    async def ask(self, do: Callable[[], T], lost: type[StoreUnavailableError] = StoreUnavailableError) -> T:
        """Run a request at the ensemble, in the order of the calls, and return its answer."""
        if self._is_cut:
            await self._pause()
            raise StoreUnavailableError("the ensemble cannot be reached")
        connection, session = self._connection, self._session
        answers: list[T] = []
        errors: list[BaseException] = []

        def arrive() -> None:
            if connection != self._connection:
                return
            try:
                self.deliver()
                self._live()
                answers.append(do())
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
                errors.append(error)

        self._line.append(arrive)
        await self._pause()
        while arrive in self._line:
            self._line.popleft()()
        await self._pause()
        if errors:
            if session and isinstance(errors[0], SessionEndedError) and self.hangs_up():
                raise lost("the connection was lost")
            raise errors[0]
        if connection != self._connection:
            is_over = session != self._session
            if is_over and not (answers and lost is UnknownOutcomeError) and not self.hangs_up():
                raise SessionEndedError("the session has ended")
            raise lost("the connection was lost")
        if lost is StoreUnavailableError:
            self.reads += 1
        return answers[0]

    async def _pause(self) -> None:
        if self._is_killed:
            await asyncio.get_running_loop().create_future()
        if self.content.step is not None:
            await self.content.step()
        await asyncio.sleep(0)
        if self._is_killed:
            await asyncio.get_running_loop().create_future()

    def _live(self) -> None:
        if self._session not in self.content.sessions:
            raise SessionEndedError("the session has ended")

    def _unknown(self) -> UnknownOutcomeError:
        self.blink()
        return UnknownOutcomeError("the connection was lost")

    def _watch(self, kind: _Kind, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._watches.setdefault((kind, path), {})[watch] = None

    def _notice(self, event: tuple[_Kind, str]) -> None:
        watches = self._watches.pop(event, ())
        if watches and not self.loses(event[1]):
            for watch in watches:
                self._soon(watch)

    def _lose(self) -> None:
        """Lose the connection: call all watches, and fail the requests in flight."""
        self._connection += 1
        watches, self._watches = self._watches, {}
        for called in watches.values():
            for watch in called:
                self._soon(watch)
        self._call_listeners()

    def _ended(self) -> None:
        """Notify the client in the next loop iteration that its session has ended; it then starts another."""
        if self._is_open and not self._is_cut and not self._is_killed:
            self._loop.call_soon(self._learn)

    def _learn(self) -> None:
        if not self._is_open or self._is_cut or self._is_killed:
            return
        self._session = 0
        self.late.clear()
        self._lose()
        self._soon(self._begin)

    def _begin(self) -> None:
        if self._is_open and not self._is_cut and self._session == 0:
            self._session = self.content._begin(self)
            self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in self._listeners:
            self._soon(listener)

    def _soon(self, call: Callable[[], None]) -> None:
        if not self._is_killed:
            self._loop.call_soon(call)


def _valid(path: str) -> str:
    if PATH.fullmatch(path) is None:
        raise ValueError(f"{path!r} is no path of a node")
    return path


def _split(path: str, *, number: bool = False) -> tuple[str, str]:
    """Return the parent's path and the name; the name may be empty only before the number of a sequence node."""
    above, _, name = path.rpartition("/")
    if name or not number:
        _valid(path)
    if not name and not number:
        raise ValueError(f"{path!r} is always there")
    return above or "/", name
