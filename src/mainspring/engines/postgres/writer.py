"""The writer of groups: it runs each one until its result is certain, however often the store is unavailable.

::

    BEGIN; enter ──► handlers, phase by phase ──► journal; COMMIT ──► answered
      │  MS001: the term has ended                  │
      │  MS002: committed by an earlier attempt      └─ connection lost: result unknown
      ▲                                                       │
      └──────── connect, wait for the old session to end ◄────┘

The session of a term's groups has a mark of the term until it ends. The next session ends those with the mark before any other
statement, so no attempt of an old session is under way any more, and the result of `enter` for a group is final. The journal's
primary key is the second guard: two attempts of a group cannot both be committed.

**The fast path**: most groups are only successes and new jobs, and are sent to the server in one statement that also commits
them. It has
the effect of the handlers if every guard holds and no unique conflicts: each job is still held under its term, no client waits at
another node, each unique is free. Outcomes and counts follow from that. Otherwise it writes nothing; the group runs step by
step, and so
do the groups of the next second, since joins come in series (`FastPathBackoff`).

A function of the schema does it (`usual_2`). Only an error undoes the writes that precede a failed guard, and an
error that ends a statement appears in the database's log; so the function catches its own. To check first would cost another
round trip for each group, as would a ROLLBACK in place of the error, and could be overtaken; to keep the valid part of a group
would need counts that depend on it.

**The watch**: a group has no answer for long if the server still works on it, or if the connection is dead, which swallows
packets for a
quarter of an hour before the operating system gives up. The watch asks the server over the control connection. While the
server works
for the group's session, or that session waits for a lock or a standby, the watch does nothing. If the session waits for this
node, or
does not exist, the watch drops the connection and the group runs again on another.

The handlers by kind of operation, and the runner of groups.

**Warm groups** are their counterpart for runs of workflows: see ``warm_runs``.

A handler is called with all of a group's operations of its kind. The probe checks that the server accepts writes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import asyncpg
import structlog

from mainspring.access.audit import event_of, recorded_acts
from mainspring.access.idempotency import KeyedGroup
from mainspring.engines.postgres import (
    changing,
    claiming,
    connections,
    control,
    lists,
    partitions,
    settling,
    submitting,
    transaction,
    warm_runs,
)
from mainspring.engines.postgres.connections import LOG_INTERVAL, Verdict, connect_repeatedly, delays, disconnect
from mainspring.engines.postgres.new_leases import NewLeases
from mainspring.engines.postgres.transaction import JOBS_SQL, Functions, Memory, Nodes, Transaction, load_statements
from mainspring.engines.postgres.warm_runs import NoStore, NotWarmError
from mainspring.engines.postgres.workflows import PostgresWorkflowSlice
from mainspring.engines.sql import access, completions, deadlines, events, holds, records, streams, values
from mainspring.errors import StoreError, StoreFencedError
from mainspring.event_log.store import Numbered, NumberEvents
from mainspring.jobs import store as ops
from mainspring.jobs.job_events import have_events
from mainspring.jobs.lateness import is_dated
from mainspring.jobs.owners import owner
from mainspring.jobs.rules import Event
from mainspring.jobs.slices import Slice, TakesErrands, Units
from mainspring.resources.hold_store import AskHolds
from mainspring.storage.engine import Operation, Phase, Probe, has_keys, only_reads, plan_of, unknown

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from mainspring.engines.postgres.connections import Address
    from mainspring.engines.postgres.control import Control
    from mainspring.engines.postgres.submitting import New
    from mainspring.engines.postgres.warm_runs import WarmGroup
    from mainspring.event_log.interests import CurrentInterests
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.storage.engine import Plan


async def probe(tx: Transaction, operations: Sequence[Probe]) -> list[None]:
    """Check the rights to all tables; the group's row in the journal is the write."""
    withheld = await tx.connection.fetchval(_SQL["withheld"])
    if withheld is not None:
        # The server's own text for a statement that needs the right: one cause has one text.
        raise asyncpg.InsufficientPrivilegeError(f"permission denied for table {withheld}")
    return [None] * len(operations)


async def number_events(tx: Transaction, operations: Sequence[NumberEvents]) -> list[Numbered]:
    """Give numbers to events, in the order of their causes."""
    limit = max(one.limit for one in operations)
    await tx.sql.first("lock_event_ends")
    number = (await tx.sql.first("number_events", limit) or (0,))[0]
    return [Numbered(number, number >= limit)] * len(operations)


if TYPE_CHECKING:
    JobHandler = Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]

JOB_HANDLERS: Final[dict[type[Operation], JobHandler]] = {
    ops.Recover: settling.recover,
    ops.Settle: settling.settle,
    ops.Assign: claiming.assign,
    ops.Cancel: changing.cancel,
    ops.RequestStop: settling.request_stop,
    ops.Redrive: changing.redrive,
    ops.Reschedule: changing.reschedule,
    ops.Redate: changing.redate,
    ops.DeleteEnded: changing.delete_ended,
    ops.Sweep: partitions.sweep,
    ops.Wake: changing.wake,
    ops.DrainInbox: submitting.drain_inbox,
    ops.Submit: submitting.submit,
    ops.SubmitOnce: submitting.submit,
    ops.Unsubscribe: settling.leave,
    ops.Claim: claiming.claim,
    ops.ClaimByKey: claiming.claim_by_key,
    ops.Subscribe: settling.wait,
    ops.Find: lists.find,
    ops.FindUnique: lists.find_unique,
    ops.FindSubscribers: settling.find_subscribers,
    ops.ReadBacklog: lists.read_backlog,
    ops.Count: lists.count,
}

Handler = Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Runs all operations of its kind in a group, in their order, and returns their outcomes."""

HANDLERS: Final[dict[type[Operation], Handler]] = {
    **JOB_HANDLERS,
    **claiming.RESOURCE_HANDLERS,
    **access.HANDLERS,
    **records.HANDLERS,
    **events.HANDLERS,
    **values.HANDLERS,
    **streams.HANDLERS,
    **deadlines.handlers(changing.PostgresDeadlines),
    **holds.handlers(claiming.PostgresHolds),
    **completions.handlers(settling.PostgresCompletions),
    NumberEvents: number_events,
    Probe: probe,
}


class Runner:
    """Runs groups, with the handlers of the registered slices."""

    def __init__(self, slices: Sequence[Slice[Transaction]]) -> None:
        self._slices = slices
        self._caches = [one.cache for one in slices if isinstance(one, PostgresWorkflowSlice)]
        self._handlers = dict(HANDLERS)
        for one in slices:
            self._handlers |= one.handlers
        self._kinds = self._handlers.keys() | {kind for one in slices for kind in one.writes}

    async def handle(self, tx: Transaction, plan: Plan, size: int) -> list[Any]:
        """Run the operations of a group, and return their outcomes in the group's order."""
        outcomes: list[Any] = [None] * size
        if not self._kinds >= plan.keys():
            raise unknown("PostgreSQL", plan.keys() - self._kinds)
        keyed = KeyedGroup(plan, access.ReplyRows(tx.sql), outcomes) if has_keys(plan) else None
        if keyed is not None:
            plan = await keyed.reserve(plan)
        units = Units(self._slices, tx)
        await units.lock(plan)
        for kind, placed in plan.items():
            if kind.phase < Phase.SLICES:
                await self._run(tx, kind, placed, outcomes)
        await units.run(plan, tx.notices, outcomes)
        later = [kind for kind in plan if kind.phase > Phase.SLICES]
        if tx.asks_of_runs and AskHolds not in plan:
            later = sorted((*later, AskHolds), key=lambda kind: kind.phase)
        leases = tx.tables(NewLeases)
        if leases_new := await leases.come_first(plan):
            later.sort(key=lambda kind: Phase.SUBMIT - 0.5 if kind is ops.Claim else kind.phase)
        for kind in later:
            await self._run(tx, kind, plan.get(kind, ()), outcomes)
            if kind is ops.Claim and leases_new:
                leases.open(plan[kind], outcomes)
        if tx.answered_runs:
            tx.commits.extend(one.errands_stored for one in self._slices if isinstance(one, TakesErrands))
        if acts := recorded_acts(plan, outcomes):
            await access.record(tx.sql, acts)
        new_events = tx.events.take(plan, outcomes, map(event_of, acts))
        if tx.events.has_dead_letters:
            new_events += await events.count_dead_letters(tx, lists.dead_letters_left)
        if keyed is not None:
            await keyed.keep()
        if new_events:
            numbered = await events.append(tx.sql, new_events)
            tx.commits.append(lambda: tx.interests.written(numbered=numbered))
        return outcomes

    async def compose_warm(self, tx: Transaction, plan: Plan, size: int, number: int) -> WarmGroup | None:
        """Run a group without the store, if it qualifies; see ``warm_runs.compose``."""
        for cache in self._caches:
            return await warm_runs.compose(tx, self._slices, cache, plan, size, number)
        return None

    async def _run(
        self, tx: Transaction, kind: type[Operation], placed: Sequence[tuple[int, Operation]], outcomes: list[Any]
    ) -> None:
        answers = await self._handlers[kind](tx, [operation for _, operation in placed])
        for (place, _), answer in zip(placed, answers, strict=True):
            outcomes[place] = answer


log = structlog.get_logger("mainspring.postgres")
_SQL = load_statements("engine.sql")

COMMAND_TIMEOUT: Final = 5.0
"""Seconds for short commands. Between groups nothing else detects a dead connection; within one, `watch` does."""
LOG_AFTER: Final = 5.0
"""Seconds for which a group is run again before the log reports it."""
RACE_ATTEMPTS: Final = 5
"""Attempts to run a group that meets a possible race, before it counts as a defect."""


class Sent(NamedTuple):
    """An attempt whose COMMIT was sent: it may have been committed."""

    tx: Transaction
    outcomes: list[Any]


class Writer:
    """The connection of a term's groups; one group at a time."""

    def __init__(
        self,
        address: Address,
        name: str,
        nodes: Nodes,
        committed: Callable[[Transaction], object],
        slices: Sequence[Slice[Transaction]],
        lifecycle: JobLifecycle | None,
        interests: CurrentInterests,
    ) -> None:
        """``committed`` is called with each committed transaction, before the outcomes are reported."""
        self.runner = Runner(slices)
        self._address = address
        self._name = name
        self._nodes = nodes
        self._functions = Functions()
        self.memory: Memory = {}
        """The handlers' memory between groups."""
        self._committed = committed
        self._lifecycle = lifecycle
        self._interests = interests
        self._connection: Connection[Record] | None = None
        self._term = 0
        self._number = 0
        self.busy = False
        """Whether an attempt is under way on a connection."""
        self.began = 0.0
        """When it began, by the loop's clock."""
        self.attempts = 0
        self.backoff = FastPathBackoff()
        self.warm_backoff = FastPathBackoff()
        """That of warm groups."""

    async def begin(self, term: int, open_timeout: float | None) -> None:
        """Run groups under a term from now on; raises StoreError if it cannot connect."""
        self._term, self._number = term, 0
        self.memory.clear()
        connection = self._connection
        if connection is not None and not connection.is_closed():
            try:
                async with asyncio.timeout(COMMAND_TIMEOUT):
                    await connection.execute("SELECT pg_advisory_unlock_all()")
                    await self._lock(connection)
            except connections.ERRORS:
                connection.terminate()
            else:
                return
        await self._connect(open_timeout)

    @property
    def pid(self) -> int | None:
        """The backend of the connection, if there is one."""
        connection = self._connection
        return None if connection is None or connection.is_closed() else connection.get_server_pid()

    def give_up(self) -> None:
        """Drop the connection, which does not answer: the group under way runs again on another."""
        if self._connection is not None:
            self._connection.terminate()

    async def close(self) -> None:
        """Disconnect."""
        await disconnect(self._connection)
        self._connection = None

    # ---- a group ----

    async def run(self, group: Sequence[Operation]) -> list[Any] | StoreError:
        """Run a group; return once its result is certain."""
        plan = plan_of(group)
        if only_reads(plan):
            return await self._repeat(lambda connection: self._read(connection, plan, len(group)))
        self._number += 1
        return await self._repeat(_Group(self, plan, len(group), self._number).attempt)

    async def _repeat(self, attempt: Callable[[Connection[Record]], Any]) -> list[Any] | StoreError:
        pauses = delays()
        races = 0
        clock = asyncio.get_running_loop().time
        log_at = clock() + LOG_AFTER
        while True:
            if self._connection is None or self._connection.is_closed():
                await self._connect(None)
            connection = self._connection
            assert connection is not None
            self.attempts += 1
            self.busy, self.began = True, clock()
            try:
                return await attempt(connection)  # type: ignore[no-any-return]
            except Exception as error:  # noqa: BLE001 - a defect in this code costs one group
                self.busy = False
                verdict = await self.roll_back(connection, error)
                if verdict is Verdict.RACE and (races := races + 1) >= RACE_ATTEMPTS:
                    verdict = Verdict.DEFECT
                match verdict:
                    case Verdict.AWAY | Verdict.BUSY | Verdict.RACE:
                        if clock() < log_at:
                            log.debug("a group is run again", reason=repr(error))
                        else:
                            log_at = clock() + LOG_INTERVAL
                            log.warning("a group cannot be committed yet: trying again", reason=str(error))
                        await asyncio.sleep(next(pauses))
                    case Verdict.FENCED:
                        fenced = StoreFencedError(f"term {self._term} was ended by another node")
                        fenced.__cause__ = error
                        return fenced
                    case _:
                        failure = connections.explain(error, self._address)
                        failure.__cause__ = error
                        return failure
            finally:
                self.busy = False

    async def roll_back(self, connection: Connection[Record], error: BaseException) -> Verdict:
        """Roll back an open transaction on the connection, and return the verdict on the error."""
        verdict = connections.judge(error, connected=not connection.is_closed())
        if verdict is Verdict.AWAY:
            connection.terminate()
        elif not connection.is_closed() and connection.is_in_transaction():  # the watch may have dropped it in between
            try:
                async with asyncio.timeout(COMMAND_TIMEOUT):
                    await connection.execute("ROLLBACK")
            except connections.ERRORS:
                connection.terminate()  # which rolls back as well
        return verdict

    async def _read(self, connection: Connection[Record], plan: Plan, size: int) -> list[Any]:
        tx = self.transaction(connection)
        outcomes = await self.runner.handle(tx, plan, size)
        self._functions.committed()
        return outcomes

    def transaction(self, connection: Connection[Record]) -> Transaction:
        """Return the transaction for one attempt on a connection."""
        self._functions.use(connection)
        self._nodes.use(connection)
        use = (self.memory, self._lifecycle, self._interests)
        return Transaction(connection, self._term, self._functions, self._nodes, *use)

    def transaction_without_store(self, connection: Connection[Record]) -> Transaction:
        """Return the transaction of a warm group."""
        tx = self.transaction(connection)
        use = (self.memory, self._lifecycle, self._interests)
        return Transaction(cast("Any", NoStore()), tx.term, tx.functions, tx.nodes, *use)

    def committed(self, tx: Transaction) -> None:
        """Note that an attempt was committed."""
        self._functions.committed()
        try:
            for function in tx.commits:
                function()
            self._committed(tx)
        except Exception:
            log.exception("after a commit: a defect in the store's code")  # the outcomes are final
        tx.close()

    def forget(self) -> None:
        """Forget the function numbers of an attempt that was rolled back, or may have been."""
        self._functions.rolled_back()

    @staticmethod
    def rolled_back(tx: Transaction) -> None:
        """Note that an attempt was rolled back."""
        for function in tx.rollbacks:
            function()
        tx.close()

    # ---- the connection ----

    async def _connect(self, open_timeout: float | None) -> None:
        """Connect, and lock the term: a session that still holds the lock is a lost one of this node."""
        while True:
            connection = await connect_repeatedly(self._address, self._name, open_timeout)
            try:
                async with asyncio.timeout(COMMAND_TIMEOUT):
                    await self._lock(connection)
            except connections.ERRORS as error:
                connection.terminate()
                if open_timeout is not None and not connections.is_away(error):
                    raise connections.explain(error, self._address) from error
                log.warning("the store went away again", reason=str(error) or type(error).__name__)
                await asyncio.sleep(0.5)
            except BaseException:
                connection.terminate()
                raise
            else:
                self._connection = connection
                return

    async def _lock(self, connection: Connection[Record]) -> None:
        """Mark the session as the term's, and end the term's other sessions."""
        mark = control.mark(self._address.schema, self._term)
        while not await connection.fetchval(_SQL["mark_session"], mark, secrets.randbits(31)):
            pass  # anybody may hold a lock, but its number cannot be known before
        tries = 0
        while await connection.fetch(_SQL["break_off"], mark):
            await asyncio.sleep(0.02)
            tries += 1
            if tries % 200 == 0:
                log.warning(
                    "the last session does not end: no group can be committed until it does",
                    term=self._term,
                    sessions=await control.sessions(connection, mark),
                )


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Group:
    """A group that writes, with all its attempts."""

    def __init__(self, writer: Writer, plan: Plan, size: int, number: int) -> None:
        self._writer = writer
        self._plan = plan
        self._size = size
        self._number = number
        self._sent: Sent | None = None
        self._try_fast_path = writer.backoff.tries(_now())
        self._try_warm = warm_runs.KINDS.issuperset(plan) and writer.warm_backoff.tries(_now())

    async def _run_fast_path(self, connection: Connection[Record], tx: Transaction) -> list[Any] | None:
        """Run it in one statement; return None if it does not qualify, and nothing has happened."""
        fast_path = await compose(tx, self._plan, self._size, self._number)
        if fast_path is None:
            return None
        self._sent = Sent(tx, fast_path.outcomes)
        if await connection.fetchval(JOBS_SQL["fast_path"], *fast_path.arguments):
            return fast_path.outcomes
        self._sent = None
        self._writer.backoff.missed(_now())
        return None

    async def _run_warm(self, connection: Connection[Record], tx: Transaction) -> list[Any] | None:
        """Run it without the store, and write it in one statement; return None if it does not qualify, and nothing is written."""
        try:
            warm = await self._writer.runner.compose_warm(tx, self._plan, self._size, self._number)
        except NotWarmError:
            self._writer.warm_backoff.missed(_now())
            return None
        if warm is None:
            return None
        self._sent = Sent(tx, warm.outcomes)
        own = await connection.fetchval(warm.statement, *warm.arguments)
        if own is not None:
            warm.committed(own)
            return warm.outcomes
        self._sent = None
        self._writer.warm_backoff.missed(_now())
        return None

    async def attempt(self, connection: Connection[Record]) -> list[Any]:
        """Run it once; if the last attempt turns out to be committed, return that one's outcomes."""
        tx = self._writer.transaction(connection)
        before = self._sent
        try:
            if self._try_fast_path:
                self._try_fast_path = False  # further attempts run step by step
                outcomes = await self._run_fast_path(connection, tx)
                if outcomes is not None:
                    self._writer.committed(tx)
                    return outcomes
                tx = self._writer.transaction(connection)
            if self._try_warm:
                self._try_warm = False
                tx = self._writer.transaction_without_store(connection)
                outcomes = await self._run_warm(connection, tx)
                if outcomes is not None:
                    self._writer.committed(tx)
                    return outcomes
                self._writer.rolled_back(tx)
                tx = self._writer.transaction(connection)
            await connection.execute(f"BEGIN; SELECT enter({tx.term}, {self._number})")
            if before is not None:
                self._writer.rolled_back(before.tx)  # otherwise `enter` would have refused this attempt
            outcomes = await self._writer.runner.handle(tx, self._plan, self._size)
            self._sent = Sent(tx, outcomes)
            await connection.execute(transaction.journal_entry(tx, self._number))
        except BaseException as error:
            self._writer.forget()
            verdict = connections.judge(error, connected=not connection.is_closed())
            unknown = verdict is Verdict.AWAY and self._sent is not None and self._sent.tx is tx
            if not unknown:
                self._writer.rolled_back(tx)
            if before is None or verdict is not Verdict.COMMITTED:
                if before is not None and verdict is Verdict.FENCED:
                    self._writer.rolled_back(before.tx)
                raise
            await self._writer.roll_back(connection, error)
            tx, outcomes = before
        self._writer.committed(tx)
        return outcomes


KINDS: Final = frozenset({ops.Settle, ops.Submit})
BACKOFF: Final = 1.0
"""Seconds for which groups run step by step after a group that the fast path refused."""


class FastPathBackoff:
    """Decides whether to try the fast path. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._until = 0.0

    def tries(self, now: float) -> bool:
        """Return whether to try it for a group."""
        return now >= self._until

    def missed(self, now: float) -> None:
        """Note that it refused a group."""
        self._until = now + BACKOFF


class FastPath(NamedTuple):
    """A group for the fast path: the arguments of the statement ``fast_path``, and the outcomes of its operations."""

    arguments: list[Any]
    outcomes: list[Any]


async def compose(tx: Transaction, plan: Plan, size: int, number: int) -> FastPath | None:
    """Return a group as one statement, with its counts noted in ``tx``; None if the group does not qualify."""
    if not KINDS.issuperset(plan):
        return None
    settlements = _settlements(tx, plan)
    new_jobs = None if settlements is None else _new_jobs(tx, plan)
    if settlements is None or new_jobs is None or have_events(settlements, tx.events.interests):
        return None  # the statement writes no events
    if (
        sum(len(new.job.payload) for new in new_jobs) + sum(len(one.result) for one in settlements)
        > transaction.PORTION_BYTES
    ):
        return None
    await settling.count(tx, settlements)
    await submitting.note_stored(tx, new_jobs)
    deltas = [(*key, delta) for key, delta in tx.deltas.items() if delta]
    arguments = [
        tx.term,
        number,
        *settling.columns_of(settlements),
        *submitting.columns_of(tx, new_jobs),
        *transaction.uniques([new.job for new in new_jobs]),
        *([delta[at] for delta in deltas] for at in range(4)),
        *settling.remembered(settlements),
    ]
    outcomes: list[Any] = [None] * size
    for index, _ in plan.get(ops.Settle, ()):
        outcomes[index] = set()
    for index, _ in plan.get(ops.Submit, ()):
        outcomes[index] = {}
    return FastPath(arguments, outcomes)


def _settlements(tx: Transaction, plan: Plan) -> list[Settlement] | None:
    found: dict[tuple[int, int], Settlement] = {}
    number = 0
    for _, operation in plan.get(ops.Settle, ()):
        assert isinstance(operation, ops.Settle)
        number += len(operation.settlements)
        for one in operation.settlements:
            job = one.job
            if one.event is not Event.SUCCEED or job.term <= 0 or not 0 < job.id <= transaction.LARGEST_ID:
                return None
            if job.function not in tx.functions.numbers or owner(job.options) is not None or settling.forgets(job):
                return None
            found[job.id, job.term] = one
    return [found[job_term] for job_term in sorted(found)] if len(found) == number else None


def _new_jobs(tx: Transaction, plan: Plan) -> list[New] | None:
    jobs = []
    for _, operation in plan.get(ops.Submit, ()):
        assert isinstance(operation, ops.Submit)
        if operation.waiter:
            return None
        jobs += operation.jobs
    if any(job.options is not None and (job.options.tags or is_dated(job)) for job in jobs):
        return None
    if not all(job.function in tx.functions.numbers for job in jobs):
        return None
    new_jobs = submitting.new_jobs_of(tx, jobs, [0] * len(jobs))
    independent = submitting.independent([new for new in new_jobs if new.job.unique])
    return None if independent is None else [*(new for new in new_jobs if not new.job.unique), *independent]


_WATCH_SQL = load_statements("engine.sql")

SLOW_GROUP: Final = 5.0
"""Seconds without an answer after which the server is asked."""
RECHECK_DELAY: Final = 1.0
"""Seconds between two checks: an answer under way arrives in between."""


class Watch:
    """Checks the group under way from time to time."""

    def __init__(self, control: Control, writer: Writer, *, slow: float = SLOW_GROUP) -> None:
        self._control = control
        self._writer = writer
        self._slow = slow

    async def run(self) -> None:
        """Watch, until cancelled: one or two wake-ups per interval, and a query only for a group that takes very long."""
        clock = asyncio.get_running_loop().time
        pause = self._slow
        while True:
            await asyncio.sleep(pause)
            pause = self.pause(clock())
            if not pause:
                await self.check(self._writer.attempts)
                pause = self._slow

    def pause(self, now: float) -> float:
        """Return the seconds until the group under way, if there is one, has taken too long; 0 if it has.

        They count from the group's begin, so that another connection has its answer within the 10 s for which clients wait.
        """
        return max(0.0, self._slow - (now - self._writer.began)) if self._writer.busy else self._slow

    async def check(self, attempt: int) -> bool:
        """Drop the writer's connection if the server waits for this node on it; return whether it did."""
        idle: list[Any] = []
        for _ in range(2):
            pid = self._writer.pid
            if pid is None:
                return False  # it is connecting, with time-outs of its own
            try:
                row = await self._control.run(partial(_activity, pid=pid), self._slow)
            except StoreError:
                return False  # the store is unavailable for both connections
            if row is not None and not row["waits"]:
                return False
            idle.append((pid, row and row["state_change"]))
            await asyncio.sleep(RECHECK_DELAY)
        # A session that has ended meanwhile, because it was idle in its transaction for too long, does not answer either.
        if idle[1] not in (idle[0], (idle[0][0], None)) or not self._writer.busy or self._writer.attempts != attempt:
            return False
        log.warning("a group has no answer, and the server does not work on it: connecting again")
        self._writer.give_up()
        return True


async def _activity(connection: Connection[Record], pid: int) -> Record | None:
    return await connection.fetchrow(_WATCH_SQL["activity"], pid)
