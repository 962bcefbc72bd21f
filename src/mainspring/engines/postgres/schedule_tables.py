"""The tables of schedules in an attempt to run a group: the reads, locks and writes of ``mainspring.schedules.unit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres.catalogue import CatalogueCache
from mainspring.engines.postgres.failures import OvertakenError
from mainspring.engines.postgres.floors import Floor
from mainspring.engines.postgres.ground import PostgresGround
from mainspring.engines.postgres.queries import look_up
from mainspring.engines.postgres.statements import load
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended
from mainspring.schedules import store as ops
from mainspring.schedules.codecs import decode_fires, decode_state, encode
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Deployment, Stored
from mainspring.schedules.retention import MIN_ROWS, NAMES_PER_STEP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres import rows
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.schedules.catalogue import Catalogue
    from mainspring.schedules.model import Fire, ScheduleState

SQL: Final = load("schedules.sql")
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


def _columns(values: Iterable[Sequence[Any]], number: int) -> rows.Columns:
    columns: rows.Columns = [[] for _ in range(number)]
    for row in values:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return columns
