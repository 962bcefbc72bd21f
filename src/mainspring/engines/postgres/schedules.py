"""The schedules slice on PostgreSQL.

``mainspring.schedules.unit`` decides the effects of a fire time in the group's transaction, on locked rows: the second of two
nodes reads the first one's changes. A group takes its locks in this order, and each of them before the rows of any job, so that
two nodes' groups do not deadlock:

1. the catalogue: shared, or exclusive to change specifications. So all groups under way agree on the schedules' parents. A
node reads
   it once; after that only changes are read.
2. the rows of its schedules, by their names. A family is a set of schedules that are related by parents; it is locked by the
   row of its first member (``catalogue.leaders``): its groups run one after the other, and need no further order. Most ends of
   runs have no effect on other rows and need no lock: the group that ends a job has locked its row.

A node that freezes in the middle of a group keeps its locks for seconds, until the server ends its session. Other nodes wait for
a moment; then they fire the other schedules, and leave those that only that group was about to fire to a later attempt.

Ends that show only in the group (a job that expires) are locked late. That may end in a deadlock; PostgreSQL breaks it, and the
group runs again.

A fire time costs one update of ``schedules`` and a row in ``fires``. The end of its run updates that row, which then stays until
its retention ends (``mainspring.schedules.unit``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.bulk.store import StepBackfill
from mainspring.engines.postgres.claiming import Floor, Floors
from mainspring.engines.postgres.connections import OvertakenError
from mainspring.engines.postgres.lists import look_up
from mainspring.engines.postgres.submitting import store
from mainspring.engines.postgres.transaction import LARGEST_ID, load_statements
from mainspring.ids import TERM_SPAN
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended
from mainspring.jobs.slices import of_kind, settled_keys
from mainspring.queries.lists import AMONG, LastOutcomes, ListFires, NewestFires, newest_fires
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.catalogue import Catalogue, leaders
from mainspring.schedules.codecs import decode_fire, decode_fires, decode_schedule, decode_state, decode_stored, encode
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Deployment, Stored
from mainspring.schedules.unit import MIN_ROWS, NAMES_PER_STEP, ScheduleUnit, ripe
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres import transaction
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Found
    from mainspring.queries.lists import Stretch
    from mainspring.schedules.model import Fire, ScheduleState
    from mainspring.storage.engine import Meter, Operation, Page, Plan, Query

FROZEN_FOR: Final = 6.0
"""Seconds for which a frozen node may keep its locks: after five, the server ends its session."""
DUE_SLACK_US: Final = 10_000_000
"""Microseconds by which new schedules may precede the first one that is due."""


class LockContention:
    """Whether a group that fires schedules has just failed to get its locks."""

    def __init__(self) -> None:
        self._noted = -FROZEN_FOR

    def note(self) -> None:
        """Note such a failure."""
        self._noted = time.monotonic()

    def __bool__(self) -> bool:
        return time.monotonic() - self._noted < FROZEN_FOR


# ---- groups ----


def _named(plan: Plan) -> set[str]:
    """Return the schedules that a group's operations name, except those that it fires."""
    names = {operation.name for operation in of_kind(plan, ops.TriggerSchedule)}
    names.update(operation.schedule for operation in of_kind(plan, StepBackfill))
    names.update(change.name for operation in of_kind(plan, ops.SaveSchedules) for change in operation.changes)
    return names


class PostgresScheduleUnit(ScheduleUnit):
    """The schedules' part of one attempt to run a group."""

    def __init__(self, tx: Transaction, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tx = tx
        self._rows = tx.tables(PostgresSchedules)
        super().__init__(self._rows, monotonic)

    async def lock(self, plan: Plan) -> None:
        """Take the locks that the group will need, as far as its operations show."""
        tx, tables = self._tx, self._rows
        ends, names = {name for name, _ in settled_keys(plan, unit.KIND)}, _named(plan)
        for repairing in of_kind(plan, ops.RepairSchedules):
            found = await tx.connection.fetch(SQL["to_repair"], repairing.limit)
            names.update(row[0] for row in found)
            tables.repairs = tables.repairs or bool(found)
        for forgetting in of_kind(plan, ops.ForgetFires):
            _, old = await tables.oldest(forgetting.after, forgetting.before_us, forgetting.rows)
            names.update(ripe(old, forgetting.before_us, forgetting.now_us))
        fired = {one.name for operation in of_kind(plan, ops.FireSchedules) for one in operation.due}
        if ends or names or fired or ops.SaveSchedules in plan:
            await tables.enter(exclusive=ops.SaveSchedules in plan)
            cache, contention = tx.memory(CatalogueCache), tx.memory(LockContention)
            if fired:
                tx.after_rollback(contention.note)
            names.update(filter(cache.end_affects_others, ends))
            unrelated = (
                {name for name in fired - names if not cache.end_affects_others(name)} if contention else set[str]()
            )
            await tables.lock((names | fired) - unrelated)
            await tables.lock_free(unrelated)

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Apply the effects of ended jobs on schedules."""
        await self._rows.meet({one.term for one in notices})
        await super().follow(notices)

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that writes; repair nothing if another node is repairing."""
        if isinstance(operation, ops.RepairSchedules) and not self._rows.repairs:
            return int
        return await super().run(operation)


# ---- reading ----


async def find_due(tx: Transaction, operations: Sequence[ops.FindDue]) -> list[ops.Upcoming]:
    """Return the schedules that are due soon; see ``FindDue``."""
    return [await _find_due(tx, operation) for operation in operations]


async def _find_due(tx: Transaction, operation: ops.FindDue) -> ops.Upcoming:
    floor, clock = tx.memory(DueFloor), tx.memory(Floors).clock
    began = clock()
    whole, (place,) = floor.begin(began)
    found = await tx.connection.fetch(SQL["due_soon"], place, operation.until_us, operation.rows)
    if whole:
        floor.scans.note_cost(began, clock() - began)
    due = [(ops.Due(name, version), next_us) for name, version, next_us in found if name is not None]
    if floor.scans.slow:
        floor.rise((due[0][1] if due else operation.until_us) - DUE_SLACK_US)
    if len(due) == operation.rows:
        (last, last_us) = due[-1]
        following = await tx.connection.fetchval(SQL["due_after"], last_us, last.name)
        if following is not None and following <= operation.until_us:
            values = (last_us, last.name, operation.until_us, ops.crowding(due), max(operation.rows // 4, 1))
            others = await tx.connection.fetch(SQL["others_due"], *values)
            due += [(ops.Due(name, version), next_us) for name, version, next_us in others]
        return ops.Upcoming(due, following)
    return ops.Upcoming(due, found[-1][2] if len(found) > len(due) else None)


async def list_schedules(tx: Transaction, query: ops.ListSchedules, meter: Meter) -> Page[Stored]:
    """List schedules by their names."""
    statement = SQL["schedules" if query.names is None else "schedules_named"]
    values = [query.namespace if query.names is None else list(query.names)]

    async def behind(after: str | None, most: int) -> list[tuple[str, Stored]]:
        found = await tx.connection.fetch(statement, after or "", most, *values)
        return [(name, decode_stored(name, schedule, state)) for name, schedule, state in found]

    return await in_parts(query, meter, behind)


async def list_fires(tx: Transaction, query: ListFires, meter: Meter) -> Page[Fire]:
    """List fire times, newest first. The nodes of their jobs are loaded: handles need both."""

    async def behind(after: int | None, most: int) -> Sequence[tuple[int, Fire]]:
        found = await tx.connection.fetch(SQL["history"], query.name, LARGEST_ID if after is None else after, most)
        return [(fire_us, decode_fire(query.name, fire_us, row)) for fire_us, row in found]

    page = await in_parts(query, meter, behind)
    await tx.nodes.load(row.job for row in page.items if row.job)
    return page


async def read_newest_fires(tx: Transaction, query: NewestFires, meter: Meter) -> Page[Fire]:
    """Read the newest fire times of some schedules, and load the nodes of their jobs."""

    async def read(wanted: Sequence[Stretch], most: int) -> list[Fire]:
        columns = map(list, zip(*wanted, strict=True)) if wanted else ([], [], [])
        return fires_of(await tx.connection.fetch(SQL["newest_fires"], *columns, query.each - 1, most))

    page = await newest_fires(query, meter, read)
    await tx.nodes.load(row.job for row in page.items if row.job)
    return page


async def last_outcomes(tx: Transaction, query: LastOutcomes, meter: Meter) -> list[Fire]:
    """Read the last outcomes of some schedules, and load the nodes of their jobs."""
    del meter  # all their rows are fewer than a read may examine
    found = fires_of(await tx.connection.fetch(SQL["last_outcomes"], list(query.names), AMONG))
    await tx.nodes.load(row.job for row in found if row.job)
    return found


class PostgresScheduleSlice:
    """The slice on this engine: ``jobs.slices.Slice``. ``monotonic`` measures fires."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]]] = {
        ops.FindDue: find_due
    }
    readers: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
        ops.ListSchedules: list_schedules,
        ListFires: list_fires,
        NewestFires: read_newest_fires,
        LastOutcomes: last_outcomes,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic

    def unit(self, tx: Transaction) -> PostgresScheduleUnit:
        """Begin a unit of work."""
        return PostgresScheduleUnit(tx, self._monotonic)


_CATALOGUE_SQL = load_statements("schedules.sql")


class CatalogueCache:
    """The catalogue at a version of the store. It stays valid from one group to the next."""

    def __init__(self) -> None:
        self._version = -1
        self.catalogue = Catalogue({})
        self._leaders: Mapping[str, str] = {}

    async def refresh(self, connection: Connection[Record], version: int) -> None:
        """Read the changes up to a version. The transaction holds a lock, so the version stays current until it ends."""
        if version == self._version:
            return
        schedules, unread = dict(self.catalogue.schedules), dict(self.catalogue.unread)
        for name, schedule in await connection.fetch(_CATALOGUE_SQL["specifications_since"], self._version):
            schedules.pop(name, None)
            unread.pop(name, None)
            if schedule is not None:
                schedules[name], why = decode_schedule(name, schedule)
                if why:
                    unread[name] = why
        self.catalogue = Catalogue(schedules, unread)
        self._leaders = leaders(schedules)
        self._version = version

    def rows_to_lock(self, name: str) -> tuple[str, ...]:
        """Return the schedules whose rows must be locked before anything that a fire time of this one may change."""
        leader = self._leaders.get(name)
        return (name,) if leader is None or leader == name else (leader, name)

    def end_affects_others(self, name: str) -> bool:
        """Return whether the end of a run may change other rows: relatives, waiting runs, runs that joined it."""
        schedule = self.catalogue.schedules.get(name)
        return schedule is not None and (name in self._leaders or bool(schedule.unique) or self.catalogue.queues(name))


class PostgresGround:
    """``jobs.slices.Ground``."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    @property
    def lifecycle(self) -> JobLifecycle:
        """The node's job lifecycle."""
        assert self._tx.lifecycle is not None, "a node with slices provides the ids of its jobs"
        return self._tx.lifecycle

    @property
    def term(self) -> int:
        """The node's own term."""
        return self._tx.term

    def node(self, term: int) -> str:
        """Return the node of a term, if it is cached; the terms of followed ends must be."""
        return self._tx.nodes.get(term, "")

    async def meet(self, terms: Iterable[int]) -> None:
        """Load the nodes of these terms."""
        await self._tx.nodes.load(term * TERM_SPAN for term in terms if term)

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the commit."""
        self._tx.after_commit(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if this attempt is rolled back."""
        self._tx.after_rollback(function)

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        return await store(self._tx, new, [0] * len(new)) if new else {}


SQL: Final = load_statements("schedules.sql")
_HAS_JOB: Final = frozenset({ops.Standing.FIRED, ops.Standing.JOINED})


class DueFloor(Floor):
    """The floor of the schedules that are due next: scans skip dead tuples below it. See ``floors``."""

    __slots__ = ()


class PostgresSchedules(PostgresGround):
    """``ScheduleTables`` in one attempt to run a group."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self._cache = tx.memory(CatalogueCache)
        self._catalogue: Catalogue | None = None
        """All specifications in this transaction, once `enter` has run."""
        self._exclusive = False
        self._locked: set[str] = set()
        self._states: dict[str, ScheduleState] = {}
        """The existing ones of the locked schedules. Schedules that another session has locked are missing."""
        self._unread: dict[str, str] = {}
        """The unreadable parts of some of these states."""
        self._oldest: dict[tuple[str, int, int], tuple[list[str], list[Fire]]] = {}
        self.repairs = False
        """Whether there is something to repair and this node shall repair it."""

    # ---- locks ----

    async def enter(self, *, exclusive: bool = False) -> Catalogue:
        """Lock the specifications until the transaction ends, and return them; ``exclusive``: to change them."""
        if self._catalogue is None:
            connection = self._tx.connection
            await self._cache.refresh(connection, await connection.fetchval(SQL["enter"], exclusive))
            self._exclusive, self._catalogue = exclusive, self._cache.catalogue
        assert self._exclusive or not exclusive, (
            "upgrading a shared lock would deadlock with another group that does the same"
        )
        return self._catalogue

    async def lock(self, names: Iterable[str]) -> bool:
        """Lock schedules, and the rows that must be locked before them; return whether any were not locked yet."""
        await self.enter()
        wanted = {turn for name in names for turn in self._cache.rows_to_lock(name)} - self._locked
        if not wanted:
            return False
        for name, state in await self._tx.connection.fetch(SQL["lock"], sorted(wanted)):
            self._add_state(name, state)
        self._locked |= wanted
        return True

    def _add_state(self, name: str, state: bytes) -> None:
        self._states[name], why = decode_state(state)
        if why:
            self._unread[name] = why

    async def lock_free(self, names: Iterable[str]) -> None:
        """Lock those of some schedules that no other session has locked. The others count as missing."""
        wanted = set(names) - self._locked
        if wanted:
            for name, state in await self._tx.connection.fetch(SQL["lock_free"], sorted(wanted)):
                self._add_state(name, state)
            self._locked |= wanted

    async def lock_ends(self, names: Iterable[str]) -> bool:
        """Lock those of some schedules for which the end of a run may change other rows."""
        await self.enter()
        return await self.lock(filter(self._cache.end_affects_others, names))

    # ---- the reads of `unit` ----

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        """Return all specifications."""
        return await self.enter(exclusive=lock)

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        """Read and lock schedules."""
        await self.lock(names)
        catalogue, unread = await self.enter(), self._unread
        return {
            name: Stored(
                catalogue.schedules[name], self._states[name], catalogue.unread.get(name, "") or unread.get(name, "")
            )
            for name in names
            if name in self._states
        }

    async def fires(self, keys: Collection[ops.Key]) -> dict[ops.Key, Fire]:
        """Read fire times; their schedules, or the families of these, are locked."""
        if not keys:
            return {}
        found = fires_of(await self._tx.connection.fetch(SQL["fires"], *_columns(keys, 2)))
        return {(row.schedule, row.fire_us): row for row in found}

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        """Read the fire times that are not finished; the schedules are locked."""
        return fires_of(await self._tx.connection.fetch(SQL["unfinished"], list(names)))

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        """Read the fire times of jobs that end here. Fire times of other schedules that joined them are locked too."""
        return await self._settled(lambda: self._tx.connection.fetch(SQL["of_jobs"], list(ids)))

    async def _settled(self, read: Callable[[], Awaitable[Iterable[Record]]]) -> list[Fire]:
        """Read rows that may end, once more if their schedules had to be locked first."""
        while True:
            found = fires_of(await read())
            if not await self.lock_ends({row.schedule for row in found}):
                return found

    async def joins(self, keys: Collection[ops.Key]) -> dict[ops.Key, Join]:
        """Read joins; the family is locked."""
        if not keys:
            return {}
        found = await self._tx.connection.fetch(SQL["joins"], *_columns(keys, 2))
        return {(child, fire_us): Join(child, fire_us, left, stopped) for child, fire_us, left, stopped in found}

    # ---- writing ----

    async def write(self, writes: ops.Writes) -> None:
        """Write the changes; raises OvertakenError if a schedule has changed in spite of the locks."""
        fetch = self._tx.connection.fetch
        if writes.respecified:
            await self._specify(writes.schedules)
        if writes.schedules:
            await self._write_schedules(writes.schedules)
        if writes.removed:
            await fetch(SQL["remove_fires"], *_columns(writes.removed, 2))
        if writes.new:
            await fetch(SQL["add_fires"], *_columns(map(_row, writes.new), 6))
        if writes.changed:
            await fetch(SQL["change_fires"], *_columns(map(_row, writes.changed), 6))
        left = [(one.child, one.fire_us, one.left, one.stopped) for one in writes.joins if one.left]
        if left:
            await fetch(SQL["save_joins"], *_columns(left, 4))
        arrived = [(one.child, one.fire_us) for one in writes.joins if not one.left]
        if arrived:
            await fetch(SQL["remove_joins"], *_columns(arrived, 2))

    async def _specify(self, schedules: Mapping[str, Stored | None]) -> None:
        before = await self.enter(exclusive=True)
        after = {name: None if stored is None else stored.schedule for name, stored in schedules.items()}
        changed = [name for name in sorted(after) if before.differs(name, after[name])]
        if changed:
            version = await self._tx.connection.fetchval(SQL["respecify"])
            encoded = [None if after[name] is None else encode(after[name]) for name in changed]
            await self._tx.connection.fetch(SQL["specify"], version, changed, encoded)
        self._catalogue = before.changed(after)

    async def _write_schedules(self, schedules: Mapping[str, Stored | None]) -> None:
        connection, states, floor = self._tx.connection, self._states, self._tx.memory(DueFloor)
        added: list[Sequence[Any]] = []
        changed: list[Sequence[Any]] = []
        for name, stored in sorted(schedules.items()):
            if stored is None:
                states.pop(name, None)
                continue
            state = stored.state
            row = (name, state.version, state.next_us, state.queued, encode(state))
            if name in states:
                changed.append((*row, states[name].version))
            else:
                added.append(row)
            states[name] = state
            self._unread.pop(name, None)
            if state.next_us is not None:
                floor.lower(state.next_us)
        removed = [name for name, stored in schedules.items() if stored is None]
        if removed:
            await connection.fetch(SQL["remove_schedules"], removed)
        if added:
            await connection.fetch(SQL["add_schedules"], *_columns(added, 5))
        if changed:
            number = await connection.fetchval(SQL["change_schedules"], *_columns(changed, 6))
            if number != len(changed):
                raise OvertakenError(
                    f"{len(changed) - number} of {len(changed)} schedules have changed since they were read"
                )

    # ---- repairs: states that no transaction could see ----

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        """Find fire times that joined a job which has ended."""
        found = await self._settled(lambda: self._tx.connection.fetch(SQL["joined"], limit))
        jobs = await look_up(self._tx, {fire.job for fire in found})
        ends: list[tuple[Fire, Ended | None]] = []
        for fire in found:
            job = jobs.get(fire.job)
            if job is None:
                ends.append((fire, None))
            elif State(job.state).ended:
                ends.append((fire, Ended.of(job)))
        await self.meet(end.term for _, end in ends if end is not None)
        return ends

    async def queued(self, limit: int) -> list[str]:
        """Find schedules with queued fire times."""
        return [row[0] for row in await self._tx.connection.fetch(SQL["queued"], limit)]

    async def stuck(self, limit: int) -> list[Fire]:
        """Find fire times that wait for children."""
        return await self._settled(lambda: self._tx.connection.fetch(SQL["stuck"], limit))

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        """Find the oldest fire times of some schedules, once per transaction: they do not change."""
        key = (after, before_us, limit)
        if key not in self._oldest:
            fetch = self._tx.connection.fetch
            names = [row[0] for row in await fetch(SQL["names_of_fires"], after, NAMES_PER_STEP)]
            found = await fetch(SQL["oldest_fires"], names, MIN_ROWS - 1, before_us, limit) if names else []
            self._oldest[key] = names, fires_of(found)
        return self._oldest[key]

    async def forget(self, until: Mapping[str, int]) -> None:
        """Delete fire times; the schedules are locked."""
        columns = [*until], [*until.values()]
        await self._tx.connection.fetch(SQL["forget_fires"], *columns)
        await self._tx.connection.fetch(SQL["note_forgotten"], *columns)

    async def forgotten(self, names: Collection[str]) -> dict[str, int]:
        """Return the fire time of each schedule up to which rows were deleted."""
        found = await self._tx.connection.fetch(SQL["forgotten"], list(names))
        return {row[0]: row[1] for row in found}

    async def declare(self, app: str, digest: bytes, now_us: int) -> None:
        """Record a declaration."""
        await self._tx.connection.fetch(SQL["declare"], app, digest, now_us)

    async def declarations(self, app: str) -> list[ops.Declared]:
        """Return the declarations of an App."""
        return [
            ops.Declared(Deployment(app, declared, first), last)
            for declared, first, last in await self._tx.connection.fetch(SQL["declarations"], app)
        ]


def fires_of(records: Iterable[Record]) -> list[Fire]:
    """Decode the fire times in the rows of a statement."""
    return decode_fires(row[0] for row in records)


def _row(fire: Fire) -> Sequence[Any]:
    standing = ops.standing(fire)
    live = None if standing is ops.Standing.FINISHED else fire.schedule
    job = fire.job if standing in _HAS_JOB else None
    return (fire.schedule, fire.fire_us, int(standing), live, job, encode(fire))


def _columns(values: Iterable[Sequence[Any]], number: int) -> transaction.Columns:
    columns: transaction.Columns = [[] for _ in range(number)]
    for row in values:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return columns
