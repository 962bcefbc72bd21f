"""The control connection, and the rows of nodes that it writes: heartbeats, and the ends of terms.

Messages, folding and partitions use the connection, too. It and the groups' connection do not block each other. `Membership`
implements ``mainspring.nodes.model.MembershipPort``.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg
import msgspec
import structlog

from mainspring.engines.postgres import connections
from mainspring.engines.postgres.connections import connect_repeatedly, disconnect
from mainspring.engines.postgres.migrate import described
from mainspring.engines.postgres.transaction import Statements, load_statements
from mainspring.engines.sql import events
from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.event_log.types import NODE_DEAD
from mainspring.nodes import node_events
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.connections import Address
    from mainspring.event_log.interests import CurrentInterests
    from mainspring.log_limit import CauseLimit

RECONNECT_DELAY: Final = 0.5
"""The most seconds between attempts to connect again: nodes without a session are soon found dead."""
DEFECT_DELAY: Final = 10.0
"""Seconds until a loop begins again that has ended because of a defect."""
ROLLBACK_TIMEOUT: Final = 0.5
"""Seconds in which cancelled work stops its statement and rolls back; after that, its connection is dropped."""

log = structlog.get_logger("mainspring.postgres")
T = TypeVar("T")


class Control:
    """Keeps one connection open and replaces it when it is lost; runs one piece of work at a time on it."""

    def __init__(self, address: Address, name: str, greet: Callable[[Connection[Record]], Awaitable[object]]) -> None:
        """``greet`` is called with each new connection before any other use."""
        self._address = address
        self._name = name
        self._greet = greet
        self.connection: Connection[Record] | None = None
        """The connection that is open and greeted; None while there is none. Each handed-out job reads it: a plain attribute."""
        self._connection: Connection[Record] | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, open_timeout: float | None) -> Connection[Record]:
        """Connect for the first time; raises StoreError. The caller has the connection to itself until `start`."""
        self._connection = await connect_repeatedly(self._address, self._name, open_timeout)
        return self._connection

    @property
    def started(self) -> bool:
        """Whether the connection is kept open."""
        return self._keeper is not None

    async def start(self) -> None:
        """Greet the connection, and keep one open from now on."""
        assert self._connection is not None
        await self._greet(self._connection)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="postgres control")

    async def run(self, work: Callable[[Connection[Record]], Awaitable[T]], timeout: float) -> T:  # noqa: ASYNC109
        """Run work on the connection once there is one; drop a connection that does not answer in time.

        Raises StoreUnavailableError if the store is unavailable for ``timeout`` seconds or becomes so during the work, or any
        StoreError.
        """
        connection: Connection[Record] | None = None
        try:
            async with asyncio.timeout(timeout), self._lock:
                await self._ready.wait()
                connection = self._connection
                assert connection is not None
                return await _finish(connection, work)
        except connections.ERRORS as error:
            away = connections.is_away(error)
            if connection is not None and away:
                connection.terminate()
                if connection is self._connection:
                    self._on_lost(connection)  # at once, so that the next piece of work waits for a new connection
            raise connections.explain(error, self._address) from error
        except asyncio.CancelledError:
            if connection is not None:
                connection.terminate()  # its state is unknown
            raise
        finally:
            if connection is not None and not connection.is_closed() and connection.is_in_transaction():
                connection.terminate()  # rolls back, so that the next piece of work finds no open transaction

    async def greet_current(self) -> None:
        """Greet the present connection once more, for example for another term."""
        await self.run(self._greet, 10.0)

    async def _keep(self) -> None:
        """Keep a connection open, until cancelled: it never ends by itself, because nothing would connect again."""
        while True:
            connection = self._connection
            if connection is None or connection.is_closed():
                try:
                    connection = self._connection = await self._reconnect()
                except Exception:
                    log.exception("the store cannot be reached again")
                    await asyncio.sleep(DEFECT_DELAY)
                    continue
            self._lost.clear()
            connection.add_termination_listener(self._on_lost)
            if not connection.is_closed():
                self.connection = connection
                self._ready.set()
                await self._lost.wait()
            self._withdraw()

    async def _reconnect(self) -> Connection[Record]:
        while True:
            connection = await connect_repeatedly(self._address, self._name, None, longest=RECONNECT_DELAY)
            try:
                async with asyncio.timeout(10.0):
                    await self._greet(connection)
            except (*connections.ERRORS, StoreUnavailableError) as error:
                log.warning("the store went away again", reason=str(error) or type(error).__name__)
                connection.terminate()
                await asyncio.sleep(0.5)
            except BaseException:  # for example, the engine closes
                connection.terminate()
                raise
            else:
                return connection

    def _on_lost(self, _: Any) -> None:
        self._withdraw()
        self._lost.set()

    def _withdraw(self) -> None:
        self.connection = None
        self._ready.clear()

    async def close(self) -> None:
        """Stop keeping a connection, and disconnect."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        self._withdraw()
        await disconnect(self._connection)
        self._connection = None


async def _finish(connection: Connection[Record], work: Callable[[Connection[Record]], Awaitable[T]]) -> T:
    """Run work until its end, also when cancelled.

    Cancelled work asks the server to stop the statement, and rolls back. The library waits without a limit for both answers, so
    a connection that has become silent would keep the work, and all that waits for its end, for ever.
    """
    working = asyncio.ensure_future(work(connection))
    working.add_done_callback(connections.retrieve)  # it may fail in the turn in which this is cancelled
    try:
        await asyncio.wait([working])
    finally:
        if not working.done():
            working.cancel()
            dropping = asyncio.get_running_loop().call_later(ROLLBACK_TIMEOUT, connection.terminate)
            await asyncio.wait([working])
            dropping.cancel()
    try:
        return working.result()
    finally:
        del working  # an error's traceback has this frame: together they would keep each other until a collection


async def best_effort(what: str, work: Awaitable[object], limit: CauseLimit) -> None:
    """Do repeated work; log a failure, unless the limit suppresses the line."""
    try:
        await work
    except StoreUnavailableError as error:
        log.debug("maintenance is delayed", what=what, reason=str(error))
    except StoreError as error:
        if limit.allows(f"{what}: {error}", asyncio.get_running_loop().time()):
            log.warning("maintenance failed", what=what, reason=str(error))


_SQL = load_statements("engine.sql")
_decode = msgspec.json.Decoder(NodeRow).decode

BEAT_TIMEOUT: Final = 4.0
"""Seconds for a heartbeat; the lease leaves time for a second attempt."""
END_TIMEOUT: Final = 10.0
LOCK_ATTEMPTS: Final = 5
"""Attempts to lock a term, each for `LOCK_TIMEOUT`, before its end is postponed."""
LOCK_TIMEOUT: Final = "500ms"
"""The longest that a group of the term may continue once the term shall end; then its session is terminated."""


def encode_row(row: NodeRow) -> str:
    """Return a row as JSON."""
    return msgspec.json.encode(row).decode()


def mark(schema: str, term: int) -> int:
    """Return the class of the marks of a term's sessions."""
    return zlib.crc32(f"{schema} term {term}".encode())


async def sessions(connection: Connection[Record], marked: int) -> str:
    """Describe the sessions with a mark, for the log."""
    return described(await connection.fetch(_SQL["marked_sessions"], marked))


class Sessions:
    """The sessions of nodes' control connections, as ``pg_stat_activity`` lists them; see ``SessionPort``.

    The id of a session is the number of its server process, a dot, and its begin in microseconds. No other role can imitate it,
    or end it without the right to terminate it. A lock could be taken by anybody as soon as it is free.
    """

    def __init__(self) -> None:
        self._control: Control | None = None
        self._connection: Connection[Record] | None = None
        self._id = ""
        self._is_pooled = False
        self._since = 0.0
        self._asked: list[int] = []
        """The server processes of the sessions in the rows that were read last."""
        self._seen: set[str] = set()
        """Those that this session has found listed. On another server, or after a restart, others are later than this one."""

    def watch(self, control: Control) -> None:
        """Let the node's session be that of this connection while it is open."""
        self._control = control

    async def greet(self, connection: Connection[Record]) -> None:
        """Read the id of a new session; a later call with the same connection changes nothing."""
        if connection is self._connection:
            return
        process = connection.get_server_pid()
        answering, listed = await connection.fetchrow(_SQL["listed"], [process])  # type: ignore[misc] # it has one row
        self._connection, self._since = connection, asyncio.get_running_loop().time()
        self._seen.clear()
        self._id = listed[0] if len(listed) == 1 else ""
        self._is_pooled = False
        self._check(answering)

    def _check(self, answering: int) -> None:
        """Withdraw the id if another server process answers than the one that the connection was opened with: a pooler."""
        assert self._connection is not None
        if answering != self._connection.get_server_pid() and not self._is_pooled:
            self._id, self._is_pooled = "", True
            log.warning("a pooler is between this node and the database: others find its death by its lease alone")

    def session(self) -> str:
        """Return the id of the session; see ``SessionPort``."""
        return self._id if self._is_open() else ""

    def unbroken(self) -> float:
        """Return for how many seconds it has been open; see ``SessionPort``."""
        return asyncio.get_running_loop().time() - self._since if self._is_open() else 0.0

    def _is_open(self) -> bool:
        control = self._control
        return control is not None and control.connection is not None and control.connection is self._connection

    @property
    def asked(self) -> list[int]:
        """The argument ``$1`` of the part ``sessions`` of a statement."""
        return self._asked

    def mark(self, rows: Sequence[NodeRow], answering: int, listed: Iterable[str]) -> list[NodeRow]:
        """Return rows, marked if their sessions are not listed any more; the rest is what the part ``sessions`` has returned."""
        self._check(answering)
        present = set(listed)
        self._seen |= present
        marked = []
        for row in rows:
            # A session that hides its begin may be this one.
            gone = row.session in self._seen and present.isdisjoint({row.session, f"{_process(row.session)}."})
            marked.append(msgspec.structs.replace(row, unlisted=True) if gone else row)
        sessions = {row.session for row in rows if row.session}
        self._seen &= sessions
        self._asked = sorted(map(_process, sessions))
        return marked


def _process(session: str) -> int:
    """Return the number of the server process of a session, 0 for an id that no node writes."""
    number = session.partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0


class Membership:
    """The nodes of the store."""

    def __init__(
        self, control: Control, schema: str, sessions: Sessions, node: str, interests: CurrentInterests
    ) -> None:
        """``node`` is the own one, which records deaths of others if ``interests`` include them."""
        self._node = node
        self._interests = interests
        self._control = control
        self._schema = schema
        self._sessions = sessions

    async def beat(self, row: NodeRow) -> list[NodeRow]:
        """Write a node's own row and return all; see ``MembershipPort``."""
        work = (_SQL["beat"], self._sessions.asked, row.term, row.counter, encode_row(row))
        rows = await self._control.run(lambda connection: connection.fetch(*work), BEAT_TIMEOUT)
        if all(found["term"] != row.term for found in rows):
            raise StoreFencedError(f"term {row.term} was ended by another node")
        return self._rows(rows)

    async def rows(self) -> list[NodeRow]:
        """Return the rows of all nodes."""
        work = (_SQL["nodes"], self._sessions.asked)
        return self._rows(await self._control.run(lambda connection: connection.fetch(*work), BEAT_TIMEOUT))

    def _rows(self, rows: Sequence[Record]) -> list[NodeRow]:
        found = []
        for term, counter, text, draining, _, _ in rows:
            row = _decode(text)
            found.append(msgspec.structs.replace(row, term=term, counter=counter, draining=row.draining or draining))
        return self._sessions.mark(found, *rows[0][4:]) if rows else found

    async def now(self) -> float:
        """Return the server's wall time, in seconds."""
        now: float = await self._control.run(lambda connection: connection.fetchval(_SQL["now"]), BEAT_TIMEOUT)
        return now

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term, and terminate the session of a group that does not end by itself; see ``MembershipPort``."""
        ended = await self._control.run(lambda connection: self._end(connection, term, counter), END_TIMEOUT)
        if ended and NODE_DEAD in self._interests.now.types:
            self._interests.written(numbered=False)
        return ended

    async def _end(self, connection: Connection[Record], term: int, counter: int | None) -> bool:
        for _ in range(LOCK_ATTEMPTS):
            try:
                return await end_terms(connection, term, counter, ending=self._record_death)
            except asyncpg.LockNotAvailableError:
                await connection.execute(_SQL["break_off"], mark(self._schema, term))
        raise StoreUnavailableError(
            f"a group of term {term} does not end: {LOCK_ATTEMPTS} attempts to end its session failed; its sessions:"
            f" {await sessions(connection, mark(self._schema, term)) or 'none, so another one has locked its row'}"
        )

    async def _record_death(self, connection: Connection[Record], term: int, counter: int | None) -> None:
        """Record that a node is dead, in the transaction that ends its term."""
        interests = self._interests.now
        if NODE_DEAD not in interests.types:
            return
        name, jobs = await connection.fetchrow(_SQL["of_dead"], term)  # type: ignore[misc] # the row of the term is locked
        why = node_events.SILENT
        if counter is None:
            why = node_events.LATE if name == self._node else node_events.REMOVED
        event = node_events.dead(name, why, jobs=jobs, by=self._node)
        if interests.wants(event):
            await events.append_unnumbered(Statements(connection), [event])

    async def abandoned(self) -> list[int]:
        """Return the ended terms that still have jobs or waiters."""
        rows = await self._control.run(lambda connection: connection.fetch(_SQL["abandoned"]), END_TIMEOUT)
        return [row[0] for row in rows]

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Set or clear a node's request to drain; see ``MembershipPort``."""
        work = (_SQL["ask_to_drain"], term, draining)
        return await self._control.run(lambda connection: connection.fetchval(*work), BEAT_TIMEOUT) is not None


async def end_terms(
    connection: Connection[Record],
    term: int,
    counter: int | None,
    *,
    unless_holding: bool = False,
    ending: Callable[[Connection[Record], int, int | None], Awaitable[None]] | None = None,
) -> bool:
    """End a term in a transaction, unless its row has another counter or it still holds jobs; return whether it has ended.

    ``ending`` is called in the transaction that ends it, and not if it had ended before.
    Raises LockNotAvailableError if a group of the term is under way for too long.
    """
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        ended: bool | None = await connection.fetchval(_SQL["close_term"], term)
        if ended is not False:
            return ended is True
        seen = await connection.fetchval(_SQL["close_row"], term)
        if counter is not None and seen is not None and seen != counter:
            return False
        if unless_holding and await connection.fetchval(_SQL["holds"], term):
            return False
        if ending is not None:
            await ending(connection, term, counter)
        await connection.execute(_SQL["end_row"], term)
        await connection.execute(_SQL["end_term"], term)
    return True


async def leave(connection: Connection[Record], term: int) -> None:
    """End a term unless it still holds jobs, and clear its node's request to drain. Raises as `end` does."""
    if await end_terms(connection, term, None, unless_holding=True):
        await connection.execute(_SQL["end_drain"], term)
