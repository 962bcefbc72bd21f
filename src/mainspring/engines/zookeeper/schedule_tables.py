"""The port ``ScheduleTables`` on the tree: one attempt of one transaction, within the limits of one multi.

The server accepts about a megabyte. Sizes are approximate bytes: as JSON, some arguments take twice as much.

No version guards the results of lists before a transaction, so the transaction checks or writes these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.engines.zookeeper import schedule_places as places
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.schedule_places import CatalogueCache, Row, Specifications
from mainspring.engines.zookeeper.transaction import OvertakenError, ZookeeperGround
from mainspring.engines.zookeeper.tree import Create, Delete, Refusal, Write
from mainspring.errors import UsageError
from mainspring.schedules.catalogue import Catalogue, leaders
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.store import Change, Key, Standing, standing
from mainspring.schedules.unit import KIND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from mainspring.engines.zookeeper.committer import Conflict
    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.engines.zookeeper.tree import Change as TreeChange
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Ended
    from mainspring.schedules import store as ops
    from mainspring.schedules.model import Fire, Schedule, ScheduleState

MAX_ROWS: Final = 300
"""Rows of one transaction."""
MAX_BYTES: Final = 300_000
"""Bytes of these rows and their jobs."""
MAX_FOLLOWING: Final = 700_000
"""Bytes of all rows and jobs that the end of one run may start."""
ROW_BYTES: Final = 1_000
"""Bytes of a row, its job without arguments and their index nodes; or of a schedule."""


def most_rows(catalogue: Catalogue, names: Collection[str]) -> int:
    """Return how many rows of each of some schedules fit into one transaction, with their consequences; at least 1."""
    graph, schedules = catalogue.graph, catalogue.schedules
    rows = size = 0
    for name in names:
        following = [schedules[name]] if name in schedules else []
        following += graph.descendants(name)
        rows += len(following)
        size += sum(map(_size, following))
    return max(min(MAX_ROWS // max(rows, 1), MAX_BYTES // max(size, 1)), 1)


def too_much_follows(catalogue: Catalogue, changed: Collection[str]) -> str | None:
    """Return a schedule, of those changed and their parents, whose children do not fit into one multi; None: all do."""
    graph, schedules = catalogue.graph, catalogue.schedules
    related = [name for name in changed if name in schedules]
    parents = {parent for name in related for parent in schedules[name].parents}
    for name in sorted({*related, *parents}):
        started = sum(_size(child) + len(child.args) for child in graph.children(name))
        if started + ROW_BYTES * len(graph.descendants(name)) > MAX_FOLLOWING:
            return name
    return None


def portions(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Split changes, in their order, into portions that fit into one transaction."""
    portion: list[Change] = []
    size = 0
    for change in changes:
        more = ROW_BYTES if change.schedule is None else _size(change.schedule)
        if portion and size + more > MAX_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(change)
        size += more
    if portion:
        yield portion


def _size(schedule: Schedule) -> int:
    return ROW_BYTES + len(schedule.args)


class Repairs(NamedTuple):
    """The rows that one transaction repairs: the answers to ``joined``, ``queued`` and ``stuck``."""

    joined: Sequence[tuple[Key, Ended | None]] = ()
    queued: Sequence[str] = ()
    stuck: Sequence[Key] = ()


class OldRows(NamedTuple):
    """The oldest rows of a schedule."""

    rows: Sequence[Fire]
    blocks: dict[str, list[int]]
    """The parents of these rows, with the fire times of all rows that each has."""

    def drop(self, name: str, until_us: int) -> list[TreeChange]:
        """Return the deletion of the rows up to a fire time, and of the parents that are empty then."""
        changes: list[TreeChange] = [
            Delete(places.row(name, row.fire_us)) for row in self.rows if row.fire_us <= until_us
        ]
        changes += [Delete(block) for block, times in self.blocks.items() if times[-1] <= until_us]
        return changes


MAX_JOINED: Final = 50
"""Joined rows that end in the transaction of their job's end. Further ones are found by the repair."""
MAX_PARENTS: Final = 50_000
"""Parents of rows in the cache; beyond that it is cleared."""


class KnownParents:
    """A cache of existing parents of rows."""

    def __init__(self, session: Session) -> None:
        del session
        self.paths: set[str] = set()


class ZookeeperSchedules(ZookeeperGround):
    """The tables of one attempt. The final multi checks the nodes that were read, and writes those that were locked."""

    kind = KIND

    def __init__(self, session: Session, repairs: Repairs | None = None) -> None:
        """``repairs`` are the rows that this transaction repairs."""
        super().__init__(session)
        self._specifications = session.memory(Specifications)
        self._parents = session.memory(KnownParents).paths
        self._cache: CatalogueCache | None = None
        self._states: dict[str, ScheduleState | None] = {}
        """The states of locked schedules; None if there is none."""
        self._unread: dict[str, str] = {}
        """The unreadable parts of some of these states."""
        self._rows: dict[ops.Key, Row] = {}
        """The rows that were read or written."""
        self._joins: set[ops.Key] = set()
        """The joins that exist."""
        self._owned: dict[int, ops.Key] = {}
        """The runs of the jobs that end in this transaction."""
        self._repairs = repairs or Repairs()
        self._old: tuple[str, OldRows] | None = None
        """The schedule whose history this transaction shortens, and its oldest rows."""

    def ends(self, job: Job, key: ops.Key) -> None:
        """Register a job that ends in this transaction, and its run."""
        super().ends(job, key)
        self._owned[job.id] = key

    def overtaken(self, conflict: Conflict | None) -> None:
        """Mark the cached specifications as stale, and forget the missing parent."""
        self._specifications.invalidate()
        if conflict is not None and conflict.why is Refusal.NO_NODE:
            self._parents.discard(conflict.path.rpartition("/")[0])

    def set_old_rows(self, name: str, old: OldRows) -> None:
        """Set the schedule whose history this transaction shortens, and its oldest rows."""
        self._old = name, old

    # ---- locks ----

    async def _rely(self, *, fresh: bool = False) -> CatalogueCache:
        """Return the specifications; the attempt fails if another node changes one before the write."""
        if self._cache is None:
            self._cache = await self._specifications.now(fresh=fresh)
            self.transaction.expect(places.CATALOGUE, self._cache.version)
        return self._cache

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        """Return all specifications, with the changes of this transaction."""
        return (await self._rely(fresh=lock)).catalogue

    async def _lock(self, names: Iterable[str]) -> None:
        """Lock schedules and the leaders of their families: of two attempts that do the same, one fails."""
        cache = await self._rely()
        wanted = [name for name in cache.turns(set(names)) if name not in self._states]
        found = await self.transaction.get_many([places.state(name) for name in wanted])
        for name, node in zip(wanted, found, strict=True):
            self._states[name], why = (None, "") if node is None else places.decode_state(node.data)
            if why:
                self._unread[name] = why
            if node is not None:
                self.transaction.touch(places.state(name))
            if (node is None) == (name in cache.catalogue.schedules):
                raise OvertakenError  # the cached specifications are stale

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        """Lock and return schedules."""
        await self._lock(names)
        catalogue, unread = (await self._rely()).catalogue, self._unread
        return {
            name: Stored(catalogue.schedules[name], state, catalogue.unread.get(name, "") or unread.get(name, ""))
            for name in names
            if (state := self._states[name]) is not None
        }

    # ---- rows and joins ----

    async def _read(self, keys: Collection[ops.Key]) -> None:
        """Read rows. Rows of a locked schedule whose writers lock it too need no check of their own."""
        cache = await self._rely()
        for check in (True, False):
            some = [key for key in keys if (key[0] in self._states and cache.minds_ends(key[0])) is not check]
            found = await self.transaction.get_many([places.row(*key) for key in some], check=check)
            for key, node in zip(some, found, strict=True):
                if node is not None and key not in self._rows:
                    self._rows[key] = places.decode_row(*key, node.data)

    async def fires(self, keys: Collection[ops.Key]) -> dict[ops.Key, Fire]:
        """Return rows."""
        await self._read(keys)
        return {key: self._rows[key].fire for key in keys if key in self._rows}

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        """Return the unfinished rows. Their schedules are locked, so that no other transaction adds one."""
        await self._lock(names)
        keys: list[ops.Key] = []
        for name in names:
            times = await self.transaction.tree.children(places.unfinished(name)) or ()
            keys.extend((name, int(time)) for time in times)
        await self._read(keys)
        if not all(key in self._rows for key in keys):
            raise OvertakenError
        rows = [self._rows[key].fire for key in sorted(keys)]
        return [row for row in rows if not row.finished]

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        """Return the rows of jobs that end in this transaction; lock their schedules if the ends have further effects."""
        keys = sorted({self._owned[job_id] for job_id in ids})
        await self._rely()
        await self._lock_ends(name for name, _ in keys)
        await self._read(keys)
        joined = [other for key in keys if key in self._rows for other in self._rows[key].joined]
        await self._lock_ends(name for name, _ in joined)
        await self._read(joined)
        rows = [self._rows[key].fire for key in (*keys, *joined) if key in self._rows]
        return [row for row in rows if row.job in ids and not row.outcome]

    async def _lock_ends(self, names: Iterable[str]) -> None:
        cache = await self._rely()
        await self._lock(name for name in names if cache.minds_ends(name))

    async def joins(self, keys: Collection[ops.Key]) -> dict[ops.Key, Join]:
        """Return joins; their family is locked."""
        keys = list(keys)
        found = await self.transaction.get_many([places.join(*key) for key in keys])
        joins = {
            key: places.decode_record(node.data, Join)
            for key, node in zip(keys, found, strict=True)
            if node is not None
        }
        self._joins.update(joins)
        return joins

    # ---- writing ----

    async def remove_late(self, names: Collection[str], until_us: int) -> None:
        """Do nothing: the store has no such times."""

    async def write(self, writes: ops.Writes) -> None:
        """Write the changes."""
        if writes.respecified:
            await self._specify(writes.schedules)
        await self._write_states(writes.schedules)
        await self._make_blocks({places.block(row.schedule, row.fire_us) for row in writes.new})
        changed = {(row.schedule, row.fire_us): row for row in (*writes.new, *writes.changed)}
        for key in writes.removed:
            if key not in changed:
                self._remove_row(key)
        for key, row in (await self._with_joined(changed)).items():
            self._write_row(key, row)
        for join in writes.joins:
            self._write_join(join)

    async def _specify(self, schedules: Mapping[str, Stored | None]) -> None:
        cache = await self._rely()
        node = await self.transaction.get(places.CATALOGUE)
        if node is None or node.version != cache.version:
            raise OvertakenError
        before = cache.catalogue
        after = {name: None if stored is None else stored.schedule for name, stored in schedules.items()}
        changed = [name for name in sorted(after) if before.differs(name, after[name])]
        for name in changed:
            path, spec = places.spec(name), after[name]
            if spec is None:
                change: TreeChange = Delete(path)
            else:
                data = places.encode_record(spec)
                change = Write(path, data) if name in before.schedules else Create(path, data)
            self.transaction.include(Entry([change]))
        if changed:
            self.transaction.write(places.CATALOGUE, places.changed(node.data, cache.version + 1, changed))
            catalogue = before.changed(after)
            if (parent := too_much_follows(catalogue, changed)) is not None:
                raise UsageError(
                    f"too much runs after schedule {parent!r}: the jobs that its end starts have to fit into one transaction of "
                    "about a megabyte on ZooKeeper; give the schedules after it smaller arguments"
                )
            self._cache = CatalogueCache(cache.version, catalogue, leaders(catalogue.schedules))

    async def _write_states(self, schedules: Mapping[str, Stored | None]) -> None:
        added = [name for name, stored in schedules.items() if stored is not None and self._states[name] is None]
        await self._create({path for name in added for path in (places.fires(name), places.unfinished(name))})
        due: set[str] = set()
        for name, stored in schedules.items():
            before, after = self._states[name], None if stored is None else stored.state
            if after is not None:
                self.transaction.write(places.state(name), places.encode_record(after))
            elif before is not None:
                self.transaction.delete(places.state(name))
            due.update(self._move(_due(name, before), _due(name, after)))
            self._move(_queued(name, before), _queued(name, after))
            self._states[name] = after
            self._unread.pop(name, None)
        await self._session.ensure({path.rpartition("/")[0] for path in due})

    def _move(self, before: str | None, after: str | None) -> list[str]:
        """Replace an index node by another, and return the created path."""
        if before == after:
            return []
        if before is not None:
            self.transaction.unmark(before)
        if after is None:
            return []
        self.transaction.mark(after)
        return [after]

    async def _make_blocks(self, blocks: Collection[str]) -> None:
        unknown = set(blocks) - self._parents
        await self._create(unknown)
        if len(self._parents) > MAX_PARENTS:
            self._parents.clear()
        self.after_commit(lambda: self._parents.update(unknown))

    async def _create(self, parents: Collection[str]) -> None:
        """Create missing parents. Nothing deletes them."""
        paths = sorted(parents)
        for path, node in zip(paths, await self.transaction.get_many(paths, check=False), strict=True):
            if node is None:
                self.transaction.write(path, b"")

    async def _with_joined(self, changed: Mapping[ops.Key, Fire]) -> dict[ops.Key, Row]:
        """Return the rows to write, each with the rows that have joined its job and end with it.

        A transaction that joins a job writes the row of that job, and so does the one that ends the job.
        """
        rows: dict[ops.Key, Row] = {}
        for key, fire in changed.items():
            before = self._rows.get(key)
            rows[key] = Row(fire, [] if before is None or fire.outcome else before.joined)
        for key, fire in changed.items():
            owner = self.owners.get(fire.job)
            if owner is None or owner.kind != KIND or standing(fire) is not Standing.JOINED:
                continue
            whose: ops.Key = owner.key
            if whose not in rows:
                await self._read([whose])
            row = rows.get(whose) or self._rows.get(whose)
            if row is not None and len(row.joined) < MAX_JOINED:
                rows[whose] = Row(row.fire, [*row.joined, key])
        return rows

    def _write_row(self, key: ops.Key, row: Row) -> None:
        before = self._rows.get(key)
        self._rows[key] = row
        self.transaction.write(places.row(*key), row.encode())
        self._move(None if before is None else places.repair_mark(before.fire), places.repair_mark(row.fire))
        self._move(_unfinished(before), _unfinished(row))

    def _remove_row(self, key: ops.Key) -> None:
        """Remove a row that was skipped: it has no job, and nothing to repair."""
        if self._rows.pop(key, None) is not None:
            self.transaction.delete(places.row(*key))

    def _write_join(self, join: Join) -> None:
        key = (join.child, join.fire_us)
        if join.left:
            self.transaction.write(places.join(*key), places.encode_record(join))
            self._joins.add(key)
        elif key in self._joins:
            self.transaction.delete(places.join(*key))
            self._joins.discard(key)

    # ---- repairs ----

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        """Return the rows to repair that have joined an ended job."""
        ends = dict(self._repairs.joined[:limit])
        await self._lock_ends(name for name, _ in ends)
        rows = await self.fires(ends)
        return [(row, ends[key]) for key, row in rows.items() if standing(row) is Standing.JOINED]

    async def queued(self, limit: int) -> list[str]:
        """Return the schedules to repair that have waiting rows."""
        return list(self._repairs.queued[:limit])

    async def stuck(self, limit: int) -> list[Fire]:
        """Return the rows to repair that wait for children."""
        keys = self._repairs.stuck[:limit]
        await self._lock_ends(name for name, _ in keys)
        rows = await self.fires(keys)
        return [row for row in rows.values() if standing(row) is Standing.ENDED]

    # ---- retention ----

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        """Return the oldest rows of the schedule whose history this transaction shortens."""
        del after, before_us, limit
        assert self._old is not None
        name, old = self._old
        return [name], [*old.rows]

    async def forget(self, until: Mapping[str, int]) -> None:
        """Drop rows of that schedule up to a fire time."""
        assert self._old is not None
        name, old = self._old
        self.transaction.include(Entry(old.drop(name, until[name])))
        await self.transaction.get(places.fires(name))
        self.transaction.write(places.fires(name), places.history(until[name]))

    async def forgotten(self, names: Collection[str]) -> dict[str, int]:
        """Return the fire times up to which rows were dropped; a change before the write is a conflict."""
        names = list(names)
        found = await self.transaction.get_many([places.fires(name) for name in names])
        cache = {name: places.forgotten_us(node.data) for name, node in zip(names, found, strict=True) if node}
        return {name: until_us for name, until_us in cache.items() if until_us}

    # ---- declarations ----

    async def declare(self, app: str, digest: bytes, now_us: int) -> None:
        """Store a declaration."""
        path = places.declared(app)
        node = await self.transaction.get(path)
        self.transaction.write(path, places.declare(app, b"" if node is None else node.data, digest, now_us))

    async def declarations(self, app: str) -> list[ops.Declared]:
        """Return the declarations of an App."""
        node = await self.transaction.get(places.declared(app))
        return [] if node is None else places.declarations(app, node.data)


def _due(name: str, state: ScheduleState | None) -> str | None:
    return None if state is None else places.due(name, state)


def _queued(name: str, state: ScheduleState | None) -> str | None:
    return places.queued(name) if state is not None and state.queued else None


def _unfinished(row: Row | None) -> str | None:
    if row is None or row.fire.finished:
        return None
    return f"{places.unfinished(row.fire.schedule)}/{row.fire.fire_us}"
