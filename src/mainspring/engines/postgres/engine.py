"""The store of a fleet: PostgreSQL, with three connections for each node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from mainspring.engines.postgres import (
    connections,
    migrate,
    partitions,
    transaction,
)
from mainspring.engines.postgres import control as control_connection
from mainspring.engines.postgres.claiming import PostgresHolds
from mainspring.engines.postgres.connections import connect, disconnect
from mainspring.engines.postgres.control import DEFECT_DELAY, Control, best_effort
from mainspring.engines.postgres.lists import READERS, Reader
from mainspring.engines.postgres.relay import Relay
from mainspring.engines.postgres.transaction import Nodes, Statements, load_statements
from mainspring.engines.postgres.writer import SLOW_GROUP, Watch, Writer
from mainspring.engines.sql import access, completions, events, holds, records, streams, values
from mainspring.errors import StoreBrokenError, StoreError, StoreFencedError
from mainspring.event_log.interests import CurrentInterests
from mainspring.ids import Term
from mainspring.log_limit import CauseLimit
from mainspring.nodes import node_events
from mainspring.nodes.model import NodeRow
from mainspring.storage.engine import Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.transaction import Transaction, Work
    from mainspring.events import Message
    from mainspring.features import Feature
    from mainspring.ids import NodeId
    from mainspring.jobs.slices import JobLifecycle, Slice
    from mainspring.nodes.model import Cluster
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query

log = structlog.get_logger("mainspring.postgres")
_SQL = load_statements("engine.sql")

OPEN_TIMEOUT: Final = 60.0
"""Seconds to wait at the start for a server that is unavailable."""
FOLD_INTERVAL: Final = 5.0
"""Seconds between two foldings of the journal."""
MAX_FOLD_PAUSE: Final = 20.0
"""The longest pause in seconds after foldings that find nothing, by default."""
FOLDS_PER_FORGET: Final = 12
"""Foldings after which ended terms are checked."""
FOLD_TIMEOUT: Final = 8.0
"""Seconds for one folding, which handles a limited number of groups."""
PARTITIONS_INTERVAL: Final = 3600.0
"""Seconds between two checks of the partitions."""
LEAVE_TIMEOUT: Final = 2.0
"""Seconds at the end to notify the other nodes that this node leaves."""
WORK_TIMEOUT: Final = 30.0
"""Seconds for other work on the control connection."""
WORK_PAUSE: Final = 0.1
"""Seconds between two parts of such work."""


class PostgresEngine:
    """One node's access to the store: the engine, the relay and the membership in one."""

    durable = True
    shared = True
    whole = True
    lacks: frozenset[Feature] = frozenset()
    max_value = 256 * 2**20
    step_secret = b""

    def __init__(
        self,
        url: str,
        *,
        migrate: bool = True,
        open_timeout: float | None = OPEN_TIMEOUT,
        fold: float = FOLD_INTERVAL,
        rest: float = 0.0,
        slow: float = SLOW_GROUP,
        cluster: Cluster | None = None,
        slices: Sequence[Slice[Transaction]] = (),
    ) -> None:
        """``url`` is described in `mainspring.engines.postgres.connections`; raises SettingsError.

        ``migrate``: upgrade an older schema, or refuse it. ``open_timeout``: seconds that `open` waits for an unavailable server
        (None: for ever). ``fold``: seconds between two foldings of the journal; ``rest``: the longest pause after foldings that
        find nothing, if it is longer than usual. ``slow``: seconds after which the server is asked
        for the state of a group without an answer. ``cluster``: a second source for the liveness of nodes.
        """
        self._address = connections.parse_address(url)
        self._migrate = migrate
        self._open_timeout = open_timeout
        self._fold = fold
        self._longest_pause = max(rest, MAX_FOLD_PAUSE)
        self._slow = slow
        self._cluster = cluster
        self.slices = slices
        self.interests = CurrentInterests()
        self.sessions = control_connection.Sessions()
        """The open sessions of nodes."""
        self._readers = {
            **READERS,
            **access.READERS,
            **records.READERS,
            **events.READERS,
            **values.READERS,
            **streams.READERS,
            **holds.readers(PostgresHolds),
            **completions.READERS,
        }
        for one in slices:
            self._readers |= one.readers
        self._nodes = Nodes()
        self._limit = CauseLimit()
        self._term = 0
        """The term under which groups are committed; 0 if none has begun."""
        self._group: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._control: Control | None = None
        self._reader: Reader | None = None
        self._listener: Callable[[Message], None] | None = None

    # ---- opening ----

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        """Connect, check the server, upgrade the schema, and begin the node's next term.

        It waits for an unavailable server and logs that. On an open engine, a further call begins another term on the same
        connections.
        """
        del deliver  # everything runs on the node's own event loop
        if self._control is not None:
            # The engine stays open after a failure: the store became unavailable again, and another attempt follows.
            try:
                await self._begin_next_term(node)
            except connections.ERRORS as error:
                raise connections.explain(error, self._address) from error
            return Opened(Term(self._term), self._nodes)
        try:
            await self._open(node, lifecycle)
        except connections.ERRORS as error:
            await self.close()
            raise connections.explain(error, self._address) from error
        except BaseException:
            await self.close()
            raise
        return Opened(Term(self._term), self._nodes)

    async def _open(self, node: NodeId, lifecycle: JobLifecycle | None) -> None:
        name = f"mainspring:{node}"
        control = self._control = Control(self._address, name, self._greet)
        self._relay = Relay(control, self._cluster)
        if self._listener is not None:
            self._relay.listen(self._listener)
        self.sessions.watch(control)
        self._membership = control_connection.Membership(
            control, self._address.schema, self.sessions, node, self.interests
        )
        self._writer = Writer(
            self._address, f"{name} groups", self._nodes, self._committed, self.slices, lifecycle, self.interests
        )
        connection = await control.open(self._open_timeout)
        await migrate.prepare(connection, self._address.schema, apply=self._migrate)
        self._relay.use_secret(await connection.fetchval(_SQL["secret"], "channels"))
        self.step_secret = await connection.fetchval(_SQL["secret"], "steps")
        await _warn(connection)
        await partitions.maintain(connection)
        term = await self._begin(connection, node)
        await self._writer.begin(term, self._open_timeout)
        self._term = term
        self._reader = Reader(self._address, f"{name} reads", self._nodes, self._writer.memory, self._readers)
        await self._reader.open(self._open_timeout)
        await control.start()
        self._start_loop(self._relay.run, "messages")
        self._start_loop(self._relay.receive, "mail")
        self._start_loop(self._fold_regularly, "folding")
        self._start_loop(self._maintain_partitions, "partitions")
        self._watch = Watch(control, self._writer, slow=self._slow)
        self._start_loop(self._watch.run, "watch")
        if self._cluster is not None:
            await self._cluster.open(self._deliver)
            await self._cluster.join(node, term)

    async def _begin_next_term(self, node: NodeId) -> None:
        assert self._control is not None
        self._term = 0
        if self._group is not None:
            # It can no longer be committed, or it has been; the server can answer which as soon as it is reachable.
            self._writer.give_up()
            await asyncio.wait({self._group})
        term = await self._control.run(lambda connection: self._begin(connection, node), WORK_TIMEOUT)
        await self._writer.begin(term, self._open_timeout)
        self._term = term
        await self._control.greet_current()
        if self._cluster is not None:
            await self._cluster.join(node, term)

    async def _begin(self, connection: Connection[Record], node: NodeId) -> int:
        row = NodeRow(term=0, name=node, counter=0, mail=True, runs=True, pauses=True, payloads=True)
        sql = Statements(connection)
        async with connection.transaction():
            term: int = await connection.fetchval(_SQL["begin_term"], node, control_connection.encode_row(row))
            self.interests.use((await events.all_interests(sql)).at(0))
            joined = node_events.joined(node)
            if self.interests.now.wants(joined):
                await events.append_unnumbered(sql, [joined])
        for number, name in await connection.fetch(_SQL["terms"]):
            self._nodes[number] = name
        return term

    async def _greet(self, connection: Connection[Record]) -> None:
        await self._relay.greet(connection, self._term)
        await self.sessions.greet(connection)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"postgres {name}")
        self._tasks.append(task)
        task.add_done_callback(self._on_task_done)

    def _start_loop(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Start a loop that lasts until the engine is closed. After a defect it begins again: the node would stand without it."""

        async def keep() -> None:
            while True:
                try:
                    await work()
                except Exception:
                    log.exception("a defect in the store's code", task=name)
                await asyncio.sleep(DEFECT_DELAY)

        self._start(keep(), name)

    # ---- committing ----

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run a group; ``committed`` is called with its result, however long the store is unavailable."""
        del answer
        assert self._group is None, "one group at a time"
        if not self._term:
            committed(StoreFencedError("the last term has ended, and the next has not begun yet"))
            return
        self._group = asyncio.get_running_loop().create_task(self._run(group, committed))

    async def _run(self, group: Sequence[Operation], committed: Committed) -> None:
        outcomes: list[Any] | StoreError
        try:
            outcomes = await self._writer.run(group)
        except Exception as error:  # noqa: BLE001 - without a result, the node would wait for this group for ever
            outcomes = StoreBrokenError(f"a defect in the store's code: the result of a group is unknown: {error!r}")
            outcomes.__cause__ = error
        self._group = None
        committed(outcomes)

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query on a separate connection, even if the term has ended."""
        assert self._reader is not None, "the store is open"
        self._reader.read(query, budget, answered)

    def _committed(self, tx: Transaction) -> None:
        if tx.settlements:
            # After the outcomes: queued progress of a job must arrive before its end.
            asyncio.get_running_loop().call_soon(self._relay.notify_settled, tx.settlements)
        if tx.pendings:
            self._relay.notify_pending(tx.pendings)
        for work in tx.works:
            self._start(best_effort("work after a group", self._work(work), self._limit), "work")

    async def _work(self, work: Work) -> None:
        assert self._control is not None
        while await self._control.run(work, WORK_TIMEOUT):  # noqa: ASYNC110 - it waits for no other task
            await asyncio.sleep(WORK_PAUSE)  # heartbeats use the connection, too

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a defect in the store's code", task=task.get_name(), exc_info=task.exception())

    # ---- the relay ----

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Call a function with every message for this node; see ``Relay``."""
        self._listener = listener
        if self._control is not None:
            self._relay.listen(listener)

    def _deliver(self, message: Message) -> None:
        if self._listener is not None:
            self._listener(message)

    def send(self, to: int, message: Message) -> None:
        """Send a message to another node; see ``Relay``."""
        self._relay.send(to, message)

    # ---- the membership ----

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        """Write the node's own row and return all; see ``MembershipPort``."""
        cluster = self._cluster
        joined = cluster.id if cluster is not None and cluster.joined(row.term) else row.cluster
        row = msgspec.structs.replace(row, cluster=joined, mail=True)
        return await self._mark_lost(await self._membership.beat(row))

    async def rows(self) -> Sequence[NodeRow]:
        """Return the rows of all nodes."""
        return await self._mark_lost(await self._membership.rows())

    async def _mark_lost(self, rows: Sequence[NodeRow]) -> Sequence[NodeRow]:
        """Mark the nodes that the cluster reports as gone."""
        cluster = self._cluster
        self._relay.observe(rows)
        watched = [row.term for row in rows if cluster is not None and cluster.id and row.cluster == cluster.id]
        if cluster is None or not watched:
            return rows
        gone = set(await cluster.gone(watched)) - {self._term}
        return [msgspec.structs.replace(row, lost=True) if row.term in gone else row for row in rows]

    async def now(self) -> float:
        """Return the server's wall time, in seconds."""
        return await self._membership.now()

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term; see ``MembershipPort``."""
        return await self._membership.end(term, counter)

    async def abandoned(self) -> Sequence[int]:
        """Return the ended terms that still have jobs or waiters."""
        return await self._membership.abandoned()

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Set or clear a node's request to drain; see ``MembershipPort``."""
        return await self._membership.ask_to_drain(term, draining=draining)

    # ---- maintenance ----

    async def fold_once(self) -> int:
        """Fold the journal into the counts; return the number of folded groups, 0 if the store is unavailable."""
        control, checksum = self._control, self._address.checksum
        assert control is not None
        folded = 0

        async def fold() -> None:
            nonlocal folded
            folded = await control.run(lambda connection: transaction.fold_journal(connection, checksum), FOLD_TIMEOUT)

        await best_effort("folding", fold(), self._limit)
        return folded

    async def forget_once(self) -> None:
        """Mark the ended terms that have neither jobs nor waiters left."""
        assert self._control is not None
        await best_effort("terms", self._control.run(transaction.forget_terms, FOLD_TIMEOUT), self._limit)

    async def _fold_regularly(self) -> None:
        pause = self._fold
        while True:
            for _ in range(FOLDS_PER_FORGET):
                await asyncio.sleep(pause)
                # If there is nothing to fold, or other nodes fold it, a longer pause costs nothing.
                pause = self._fold if await self.fold_once() else min(2 * pause, self._longest_pause)
            await self.forget_once()

    async def _maintain_partitions(self) -> None:
        while True:
            await asyncio.sleep(PARTITIONS_INTERVAL)
            assert self._control is not None
            await best_effort("partitions", self._control.run(partitions.maintain, WORK_TIMEOUT), self._limit)

    # ---- closing ----

    async def close(self) -> None:
        """Leave, and disconnect. It takes some seconds at most, even if the store is unavailable."""
        tasks, self._tasks = [*self._tasks], []
        if self._group is not None:
            tasks.append(self._group)
            self._group = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        control, self._control = self._control, None
        if control is None:
            return
        if self._reader is not None:
            await self._reader.close()
            self._reader = None
        await self._writer.close()  # a group under way would hold the term's lock
        if control.started and self._term:
            with contextlib.suppress(StoreError):
                await control.run(lambda connection: control_connection.leave(connection, self._term), LEAVE_TIMEOUT)
        await control.close()
        if self._cluster is not None:
            await self._cluster.close()


async def _warn(connection: Connection[Record]) -> None:
    """Log a warning if a failover would lose acknowledged jobs."""
    attached, names = await connection.fetchrow(_SQL["standbys"])  # type: ignore[misc]
    if attached and not names:
        log.warning(
            "no standby is synchronous: a failover would lose the most recently acknowledged jobs",
            standbys=attached,
            advice="set synchronous_standby_names on the primary",
        )


async def migrate_store(url: str) -> list[int]:
    """Upgrade a store's schema, and return the numbers of the migrations that were applied.

    Raises SettingsError and StoreError.
    """
    where = connections.parse_address(url)
    connection = await connect(where, "mainspring:migrate")
    try:
        return await migrate.prepare(connection, where.schema)
    except connections.ERRORS as error:
        raise connections.explain(error, where) from error
    finally:
        await disconnect(connection)


async def grant_submit(url: str, role: str, permitted: Sequence[str]) -> list[str]:
    """Let a role submit in its transactions in some namespaces; return the statements that were run.

    Raises SettingsError, StoreError and UsageError.
    """
    where = connections.parse_address(url)
    connection = await connect(where, "mainspring:migrate")
    try:
        return await migrate.grant_submit(connection, where.schema, role, permitted)
    except connections.ERRORS as error:
        raise connections.explain(error, where) from error
    finally:
        await disconnect(connection)
