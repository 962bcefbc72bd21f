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
from mainspring.engines.postgres.run_transaction import PostgresGround
from mainspring.engines.sql.schedules import ScheduleRows, ScheduleSlice, fires_of
from mainspring.jobs.slices import of_kind, settled_keys
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.catalogue import Catalogue, leaders
from mainspring.schedules.reconcile import Stored, decode_schedule, decode_state, encode
from mainspring.schedules.unit import ScheduleUnit, ripe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.engines.sql.statements import Statements
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice
    from mainspring.schedules.model import Fire, ScheduleState
    from mainspring.storage.engine import Operation, Plan

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
    names.update(operation.bulk.spec.schedule for operation in of_kind(plan, StepBackfill))
    names.update(name for operation in of_kind(plan, ops.RingAbsences) for name in operation.names)
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
            found = await tx.sql.fetch("to_repair", repairing.limit)
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


class CatalogueCache:
    """The catalogue at a version of the store. It stays valid from one group to the next."""

    def __init__(self) -> None:
        self._version = -1
        self.catalogue = Catalogue({})
        self._leaders: Mapping[str, str] = {}

    async def refresh(self, sql: Statements, version: int) -> None:
        """Read the changes up to a version. The transaction holds a lock, so the version stays current until it ends."""
        if version == self._version:
            return
        schedules, unread = dict(self.catalogue.schedules), dict(self.catalogue.unread)
        for name, schedule in await sql.fetch("specifications_since", self._version):
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


class DueFloor(Floor):
    """The floor of the schedules that are due next: scans skip dead tuples below it. See ``floors``."""

    __slots__ = ()


class PostgresSchedules(PostgresGround, ScheduleRows):
    """The tables of schedules in one attempt to run a group."""

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
            (version,) = await self._sql.first("enter_schedules", exclusive)
            await self._cache.refresh(self._sql, version)
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
        for name, state in await self._sql.fetch("lock_schedules", sorted(wanted)):
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
            for name, state in await self._sql.fetch("lock_free_schedules", sorted(wanted)):
                self._add_state(name, state)
            self._locked |= wanted

    async def lock_ends(self, names: Iterable[str]) -> bool:
        """Lock those of some schedules for which the end of a run may change other rows."""
        await self.enter()
        return await self.lock(filter(self._cache.end_affects_others, names))

    # ---- the reads of `unit` ----

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        return await self.enter(exclusive=lock)

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        await self.lock(names)
        catalogue, unread = await self.enter(), self._unread
        return {
            name: Stored(
                catalogue.schedules[name], self._states[name], catalogue.unread.get(name, "") or unread.get(name, "")
            )
            for name in names
            if name in self._states
        }

    async def settled(self, read: Callable[[], Awaitable[Iterable[Sequence[Any]]]]) -> list[Fire]:
        """Read rows that may end, once more if their schedules had to be locked first."""
        while True:
            found = fires_of(await read())
            if not await self.lock_ends({row.schedule for row in found}):
                return found

    # ---- writing ----

    async def save(self, schedules: Mapping[str, Stored | None], *, respecified: bool) -> None:
        """Write schedules; raises OvertakenError if one has changed in spite of the locks."""
        if respecified:
            await self._specify(schedules)
        await self._write_schedules(schedules)

    async def _specify(self, schedules: Mapping[str, Stored | None]) -> None:
        before = await self.enter(exclusive=True)
        after = {name: None if stored is None else stored.schedule for name, stored in schedules.items()}
        changed = [name for name in sorted(after) if before.differs(name, after[name])]
        if changed:
            (version,) = await self._sql.first("respecify")
            rows = [(name, version, None if (new := after[name]) is None else encode(new)) for name in changed]
            await self._sql.many("specify", rows)
        self._catalogue = before.changed(after)

    async def _write_schedules(self, schedules: Mapping[str, Stored | None]) -> None:
        sql, states, floor = self._sql, self._states, self._tx.memory(DueFloor)
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
        await sql.many("remove_schedules", [(name,) for name, stored in schedules.items() if stored is None])
        await sql.many("add_schedules", added)
        number = await sql.many("change_schedules", changed)
        if number != len(changed):
            raise OvertakenError(
                f"{len(changed) - number} of {len(changed)} schedules have changed since they were read"
            )

    # ---- repairs and retention ----

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        jobs = await look_up(self._tx, ids)
        await self.meet(job.term for job in jobs.values())
        return jobs

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        """Find the oldest fire times of some schedules, once per transaction: they do not change."""
        key = (after, before_us, limit)
        if key not in self._oldest:
            self._oldest[key] = await super().oldest(after, before_us, limit)
        return self._oldest[key]


class PostgresScheduleSlice(ScheduleSlice):
    """The slice of schedules."""

    def unit(self, tx: Transaction) -> PostgresScheduleUnit:
        return PostgresScheduleUnit(tx, self._monotonic)

    async def read_due(self, tx: Transaction, operation: ops.FindDue) -> tuple[Sequence[Sequence[Any]], int | None]:
        floor, clock = tx.memory(DueFloor), tx.memory(Floors).clock
        began = clock()
        whole, (place,) = floor.begin(began)
        found = await tx.sql.fetch("due_schedules", place, operation.until_us, operation.rows)
        later = None
        if found and found[-1][0] is None:
            found, later = found[:-1], found[-1][2]
        if whole:
            floor.scans.note_cost(began, clock() - began)
        if floor.scans.slow:
            floor.rise((found[0][2] if found else operation.until_us) - DUE_SLACK_US)
        return found, later
