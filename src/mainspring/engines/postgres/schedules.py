"""The schedules slice on PostgreSQL.

Whoever changes a schedule, or lets its rows wait or start, has its row locked; whoever counts a parent of a child has the lock
of that child and occasion. What a group will touch is mostly known before: so families of schedules, and then single ones, are
locked first, in the order of names, and groups do not wait for each other in circles. Where they do, PostgreSQL ends one of them
after a second, and it is run again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.engines.postgres import submitting
from mainspring.engines.postgres.queries import look_up
from mainspring.engines.postgres.rows import LARGEST_ID, portions
from mainspring.engines.postgres.statements import load
from mainspring.ids import TERM_SPAN
from mainspring.jobs.model import State
from mainspring.jobs.store import Ended, Settle, Submit
from mainspring.queries.schedules import ListFires
from mainspring.schedules import store as ops
from mainspring.schedules import work
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.model import Fire, Schedule, ScheduleState
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Deployment, Stored

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Followers, Found
    from mainspring.storage.operation import Operation

_SQL = load("schedules.sql")
_encode = msgspec.msgpack.Encoder().encode
_schedule = msgspec.msgpack.Decoder(Schedule).decode
_state = msgspec.msgpack.Decoder(ScheduleState).decode
_fire = msgspec.msgpack.Decoder(Fire).decode


class Known:
    """The specifications, as they were at a generation: each group asks for that alone, and for more where it has changed."""

    def __init__(self) -> None:
        self.generation = 0
        self.catalogue = Catalogue({})
        self.leaders: dict[str, str] = {}

    def learn(self, generation: int, catalogue: Catalogue) -> None:
        """Take over what was committed."""
        self.generation, self.catalogue, self.leaders = generation, catalogue, leaders(catalogue.schedules)


def leaders(schedules: Mapping[str, Schedule]) -> dict[str, str]:
    """Return, for each schedule with parents or children, the first by name of all that are related to it in any way."""
    found: dict[str, str] = {}

    def leader(name: str) -> str:
        while (above := found.setdefault(name, name)) != name:
            found[name] = found[above]
            name = above
        return name

    for schedule in schedules.values():
        for parent in schedule.parents:
            first, second = sorted((leader(schedule.name), leader(parent)))
            found[second] = first
    return {name: leader(name) for name in found}


class PostgresSchedules:
    """``ScheduleTables`` inside a group's transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._fetch = tx.connection.fetch
        self._catalogue: Catalogue | None = None
        self._respecified = False
        """This transaction has changed specifications: what it reads of them now is nobody else's yet."""

    @property
    def followers(self) -> Followers:
        """The node's own."""
        assert self._tx.followers is not None, "a node with schedules says who gives its jobs their ids"
        return self._tx.followers

    def node(self, term: int) -> str:
        """Return the node of a term."""
        return self._tx.nodes.get(term, "")

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the commit."""
        self._tx.after_commit(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function where this attempt is rolled back."""
        self._tx.after_rollback(function)

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        """Return all specifications."""
        if self._catalogue is not None and not lock:
            return self._catalogue
        known = self._tx.memory(Known)
        generation = await self._tx.connection.fetchval(_SQL["lock_generation" if lock else "generation"])
        if self._respecified:
            self._catalogue = await self._read_catalogue()
        else:
            if generation != known.generation:
                known.learn(generation, await self._read_catalogue())
            self._catalogue = known.catalogue
        return self._catalogue

    async def _read_catalogue(self) -> Catalogue:
        rows = await self._fetch(_SQL["specifications"])
        return Catalogue({name: _schedule(schedule) for name, schedule in rows})

    async def take_turns(self, ended: Collection[str], fired: Collection[str]) -> None:
        """Lock whatever the ends of runs, and fire times, of some schedules may touch, in an order that all groups have.

        Of relatives that is the first one, in place of all; of others, the row.
        """
        catalogue = await self.catalogue()
        known = self._tx.memory(Known).leaders
        families = sorted({known[name] for name in (*ended, *fired) if name in known})
        if families:
            await self._fetch(_SQL["lock_families"], families)
        single = {name for name in fired if name not in known} | {
            name for name in ended if name not in known and catalogue.queues(name)
        }
        if single:
            await self._fetch(_SQL["take_turns"], sorted(single))

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        """Read and lock schedules."""
        rows = await self._fetch(_SQL["lock_schedules"], list(names))
        return {name: Stored(_schedule(schedule), _state(state)) for name, schedule, state in rows}

    async def fires(self, keys: Collection[ops.Key]) -> dict[ops.Key, Fire]:
        """Read and lock rows."""
        rows = _fires(await self._fetch(_SQL["lock_fires"], *_columns(keys)))
        return {(row.schedule, row.fire_us): row for row in rows}

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        """Read the rows that are not finished, of schedules that are locked."""
        return _fires(await self._fetch(_SQL["unfinished"], list(names)))

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        """Read and lock the rows of jobs."""
        return _fires(await self._fetch(_SQL["fires_of_jobs"], list(ids)))

    async def joins(self, keys: Collection[ops.Key]) -> dict[ops.Key, Join]:
        """Lock joins, and read them in a new snapshot."""
        await self._fetch(_SQL["lock_joins"], *_columns(keys))
        rows = await self._fetch(_SQL["joins"], *_columns(keys))
        return {(child, at): Join(child, at, left, stopped) for child, at, left, stopped in rows}

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        (joined,) = await submitting.submit(self._tx, [Submit(new, _ignore, _ignore)])
        return joined

    async def write(self, writes: ops.Writes) -> None:
        """Write what has changed."""
        saved = [(name, stored) for name, stored in writes.schedules.items() if stored is not None]
        for portion in portions(saved, _size) if saved else ():
            columns = _standing(portion)
            if writes.respecified:
                columns.insert(4, [_encode(one.schedule) for _, one in portion])
            await self._fetch(_SQL["save_schedules" if writes.respecified else "move_schedules"], *columns)
        removed = [name for name, stored in writes.schedules.items() if stored is None]
        if removed:
            await self._fetch(_SQL["remove_schedules"], removed)
        if writes.respecified:
            await self._fetch(_SQL["next_generation"])
            self._catalogue, self._respecified = None, True
        for statement, rows in (("new_fires", writes.new), ("save_fires", writes.changed)):
            if rows:
                await self._fetch(_SQL[statement], *_row_columns(rows))
        left = [one for one in writes.joins if one.left]
        if left:
            columns = _columns((one.child, one.fire_us) for one in left)
            await self._fetch(_SQL["save_joins"], *columns, [one.left for one in left], [one.stopped for one in left])
        arrived = [(one.child, one.fire_us) for one in writes.joins if not one.left]
        if arrived:
            await self._fetch(_SQL["remove_joins"], *_columns(arrived))

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        """Find rows whose job has ended: those that joined one, and those whose job was settled by a node of an older version."""
        rows = _fires(await self._fetch(_SQL["abandoned"], limit))
        if not rows:
            return []
        rows = [row for row in await self.of_jobs({row.job for row in rows}) if row.job]  # locked, and as they are now
        jobs = await look_up(self._tx, (row.job for row in rows))
        await self._tx.nodes.meet(job.term * TERM_SPAN for job in jobs.values() if job.term)
        return [
            (row, None if job is None else _ended(row, job))
            for row in rows
            for job in (jobs.get(row.job),)
            if job is None or State(job.state).ended
        ]

    async def queued(self, limit: int) -> list[str]:
        """Find schedules with rows that wait."""
        return [name for (name,) in await self._fetch(_SQL["queued_schedules"], limit)]

    async def stuck(self, limit: int) -> list[Fire]:
        """Find rows that wait for children."""
        return _fires(await self._fetch(_SQL["stuck"], limit))

    async def declare(self, app: str, digest: bytes, now_us: int) -> list[ops.Declared]:
        """Note a declaration."""
        await self._fetch(_SQL["declare"], app, digest, now_us)
        rows = await self._fetch(_SQL["declarations"], app)
        return [ops.Declared(Deployment(app, known, first), last) for known, first, last in rows]


def _ignore(_: object) -> None:
    pass


def _fires(records: Iterable[Record]) -> list[Fire]:
    return [_fire(row) for (row,) in records]


def _columns(keys: Iterable[ops.Key]) -> list[Any]:
    names, times = zip(*keys, strict=True)
    return [list(names), list(times)]


def _standing(schedules: Sequence[tuple[str, Stored]]) -> list[Any]:
    return [
        [name for name, _ in schedules],
        [one.state.next_us for _, one in schedules],
        [one.state.version for _, one in schedules],
        [one.state.queued for _, one in schedules],
        [_encode(one.state) for _, one in schedules],
    ]


def _size(named: tuple[str, Stored]) -> int:
    return len(named[1].schedule.args)


def _row_columns(rows: Collection[Fire]) -> list[Any]:
    return [
        [row.schedule for row in rows],
        [row.fire_us for row in rows],
        [int(ops.standing(row)) for row in rows],
        [row.job or None for row in rows],
        [_encode(row) for row in rows],
    ]


def _ended(row: Fire, job: Job) -> Ended:
    return Ended(row.job, job.state, job.term, job.attempt, "", job.started_us, job.ended_us, job.error)


def _of(tx: Transaction) -> PostgresSchedules:
    if tx.schedules is None:
        tx.schedules = PostgresSchedules(tx)
    return tx.schedules


async def foresee(tx: Transaction, group: Iterable[Operation]) -> None:
    """Take the locks that a group will need for its schedules, before its first step."""
    ended: set[str] = set()
    fired: set[str] = set()
    for operation in group:
        match operation:
            case Settle():
                for settlement in operation.settlements:
                    options = settlement.job.options
                    if options is not None and options.schedule is not None:
                        ended.add(options.schedule)
            case ops.FireSchedules():
                fired.update(one.name for one in operation.due)
            case ops.TriggerSchedule():
                fired.add(operation.name)
            case _:
                pass
    if ended or fired:
        await _of(tx).take_turns(ended, fired)


async def follow(tx: Transaction, ended: Sequence[Ended]) -> None:
    """Do what follows for schedules from the ends of jobs."""
    await work.follow(_of(tx), ended)


async def _run(tx: Transaction, operations: Sequence[Operation]) -> list[Any]:
    return [await work.run(_of(tx), operation) for operation in operations]


# ---- reading ----


async def _each(
    read: Callable[[Transaction, Any], Awaitable[Any]], tx: Transaction, operations: Sequence[Operation]
) -> list[Any]:
    return [await read(tx, operation) for operation in operations]


async def find_due(tx: Transaction, operation: ops.FindDue) -> ops.Upcoming:
    """Find what is due soon."""
    fetch = tx.connection.fetch
    due = await fetch(_SQL["due_schedules"], operation.until_us, operation.rows)
    if len(due) == operation.rows:
        last = due[-1]
        following = await fetch(_SQL["next_schedule"], last[2], last[0])
    else:
        following = await fetch(_SQL["next_schedule_after"], operation.until_us)
    return ops.Upcoming(
        [(ops.Due(name, version), next_us) for name, version, next_us in due], following[0][0] if following else None
    )


async def list_schedules(tx: Transaction, operation: ops.ListSchedules) -> list[Stored]:
    """List schedules."""
    if operation.names is None:
        rows = await tx.connection.fetch(_SQL["all_schedules"])
    else:
        rows = await tx.connection.fetch(_SQL["named_schedules"], list(operation.names))
    return [Stored(_schedule(schedule), _state(state)) for schedule, state in rows]


async def list_fires(tx: Transaction, operation: ListFires) -> list[Fire]:
    """List rows, the newest first; `meet` the nodes of their jobs, whose handles are told."""
    before_us = LARGEST_ID if operation.before_us is None else operation.before_us
    rows = _fires(await tx.connection.fetch(_SQL["history"], operation.name, before_us, operation.rows))
    await tx.nodes.meet(row.job for row in rows if row.job)
    return rows


HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]] = {
    **dict.fromkeys(ops.WRITING, _run),
    ops.FindDue: partial(_each, find_due),
    ops.ListSchedules: partial(_each, list_schedules),
    ListFires: partial(_each, list_fires),
}
