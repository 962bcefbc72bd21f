"""The schedules' reading operations: due schedules, schedules by name, and histories; and the cache of all specifications.

The cache is read once, and then only the changed ones.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.engines.zookeeper import paths, schedule_places
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.tree import Delete
from mainspring.queries.lists import AMONG, newest_fires
from mainspring.schedules import store as ops
from mainspring.schedules.catalogue import Catalogue, leaders
from mainspring.schedules.reconcile import Stored
from mainspring.storage.engine import Page, in_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.schedule_places import DueName
    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.queries.lists import LastOutcomes, ListFires, NewestFires, Stretch
    from mainspring.schedules.model import Fire, Schedule
    from mainspring.storage.engine import Meter


class CatalogueCache(NamedTuple):
    """The specifications at one version of the catalogue's node. Transactions that use them check that version."""

    version: int
    catalogue: Catalogue
    leaders: Mapping[str, str]

    def turns(self, names: Collection[str]) -> list[str]:
        """Return the schedules to lock before fire times of these are computed."""
        return sorted({*names, *(self.leaders[name] for name in names if name in self.leaders)})

    def turn(self, name: str) -> str:
        """Return the leader of a schedule's family, or itself if it has none."""
        return self.leaders.get(name, name)

    def minds_ends(self, name: str) -> bool:
        """Return whether the end of a run may change more than its own row."""
        return name in self.leaders or self.catalogue.queues(name)


class Specifications:
    """The cached specifications of one term of a node. A stale cache shows as a conflict when a transaction writes."""

    def __init__(self, session: Session) -> None:
        self._tree: Tree = session.tree
        self._cache = CatalogueCache(-1, Catalogue({}), {})
        self._stale = True
        self._lock = asyncio.Lock()

    def invalidate(self) -> None:
        """Read the catalogue before the next use."""
        self._stale = True

    async def now(self, *, fresh: bool = False) -> CatalogueCache:
        """Return the specifications; with ``fresh`` including the latest commits."""
        if fresh:
            await self._tree.sync()
            self._stale = True
        if self._stale or self._lock.locked():  # a caller during a refresh waits for it
            async with self._lock:
                if self._stale:
                    await self._refresh()
        assert self._cache.version >= 0, "no version could be checked"
        return self._cache

    async def _refresh(self) -> None:
        self._stale = False  # before the read: a later change sets it again
        try:
            node = await self._tree.get(schedule_places.CATALOGUE, self.invalidate)
            assert node is not None, "the roots are there"
            if node.version == self._cache.version:
                return
            before = self._cache
            names = None if before.version < 0 else schedule_places.changes_since(node.data, before.version)
            schedules: dict[str, Schedule] = {} if names is None else dict(before.catalogue.schedules)
            unread: dict[str, str] = {} if names is None else dict(before.catalogue.unread)
            paths = await self._all() if names is None else [schedule_places.spec(name) for name in sorted(names)]
            for name in names or ():
                schedules.pop(name, None)
                unread.pop(name, None)
            for path, found in zip(paths, await self._tree.get_many(paths), strict=True):
                if found is not None:
                    name = schedule_places.name_of(path.rpartition("/")[2])
                    schedules[name], why = schedule_places.decode_schedule(name, found.data)
                    if why:
                        unread[name] = why
            self._cache = CatalogueCache(node.version, Catalogue(schedules, unread), leaders(schedules))
        except BaseException:
            self._stale = True
            raise

    async def _all(self) -> list[str]:
        buckets = [f"{schedule_places.SPECS}/{bucket}" for bucket in schedule_places.BUCKETS]
        listed = await asyncio.gather(*map(self._tree.children, buckets))
        return [f"{bucket}/{name}" for bucket, names in zip(buckets, listed, strict=True) for name in names or ()]


SWEEP_MINUTES: Final = 10
"""Minutes after which an empty parent of a minute is deleted. A schedule that is later than that creates it again."""
AT_ONCE: Final = 50
"""Histories that are read concurrently."""
FIRST: Final = 8
"""Histories whose names are read at first: often they have all rows of a page."""
FEW: Final = 2
"""Rows of a schedule in which its last outcome is looked for at first."""


# ---- due schedules ----


async def find_due(session: Session, operations: Sequence[ops.FindDue]) -> list[ops.Upcoming]:
    """Return the schedules that are due soon, minute by minute, from names only."""
    outcomes = []
    for operation in operations:
        until_us, limit = operation.until_us, operation.rows
        outcomes.append(await session.retry_reads(partial(_find_due, session, until_us, limit)))
    return outcomes


async def _find_due(session: Session, until_us: int, limit: int) -> ops.Upcoming:
    minutes: dict[int, list[str]] = {}
    for parent in schedule_places.minutes_of(await session.tree.children(schedule_places.DUE)):
        minutes.setdefault(int(parent.partition("-")[0]), []).append(parent)
    reserve = sorted(minutes)
    latest = schedule_places.minute(until_us)
    near = [minute for minute in reserve if minute <= latest]
    listed = await _listed(session, [parent for minute in near for parent in minutes[minute]])
    await _sweep(session, [parent for parent, found in listed.items() if not found], latest - SWEEP_MINUTES)
    found = _newest(one for names in listed.values() for one in names)
    first = nsmallest(limit + 1, found)
    due = [one for one in first[:limit] if one.next_us <= until_us]
    rest = first[len(due) :]
    for minute in reserve[len(near) :]:
        if rest:
            break
        later = await _listed(session, minutes[minute])
        rest = sorted(one for names in later.values() for one in names)
    return ops.Upcoming(
        [(ops.Due(one.name, one.version), one.next_us) for one in due], rest[0].next_us if rest else None
    )


async def _listed(session: Session, parents: Sequence[str]) -> dict[str, list[DueName]]:
    """List the children of some parents concurrently."""
    found = await asyncio.gather(*(session.tree.children(f"{schedule_places.DUE}/{parent}") for parent in parents))
    return {parent: schedule_places.due_names_of(children) for parent, children in zip(parents, found, strict=True)}


def _newest(found: Iterable[DueName]) -> list[DueName]:
    """Return the newest entry of each schedule: one that has moved between two lists is in both."""
    newest: dict[str, DueName] = {}
    for one in found:
        if one.name not in newest or newest[one.name].version < one.version:
            newest[one.name] = one
    return list(newest.values())


async def _sweep(session: Session, empty: Sequence[str], before: int) -> None:
    """Delete empty parents of past minutes."""
    over = [f"{schedule_places.DUE}/{parent}" for parent in empty if int(parent.partition("-")[0]) < before]
    for path in over:
        session.forget(path)
    await session.committer.commit([Entry([Delete(path)]) for path in over])


# ---- schedules and rows ----


async def schedules(session: Session, names: Sequence[str]) -> list[Stored]:
    """Return schedules by their names, including the latest commits of other nodes."""
    catalogue = (await session.memory(Specifications).now(fresh=True)).catalogue
    return [stored for _, stored in await _stored(session, catalogue, sorted(catalogue.schedules.keys() & set(names)))]


async def _stored(session: Session, catalogue: Catalogue, names: Sequence[str]) -> list[tuple[str, Stored]]:
    states = await session.tree.get_many([schedule_places.state(name) for name in names])
    found: list[tuple[str, Stored]] = []
    for name, node in zip(names, states, strict=True):
        if node is not None:
            state, unread = schedule_places.decode_state(node.data)
            found.append((name, Stored(catalogue.schedules[name], state, catalogue.unread.get(name, "") or unread)))
    return found


async def list_schedules(session: Session, query: ops.ListSchedules, meter: Meter) -> Page[Stored]:
    """List schedules by their names, including the latest commits of other nodes."""
    catalogue = (await session.memory(Specifications).now(fresh=True)).catalogue
    specs = catalogue.schedules
    names = sorted(specs if query.names is None else specs.keys() & set(query.names))

    async def behind(after: str | None, most: int) -> list[tuple[str, Stored]]:
        found: list[tuple[str, Stored]] = []
        left = names if after is None else names[bisect_right(names, after) :]
        while left and len(found) < most:
            some, left = left[: most - len(found)], left[most - len(found) :]
            found += await _stored(session, catalogue, some)
        return found

    return await in_parts(query, meter, behind)


async def list_fires(session: Session, query: ListFires, meter: Meter) -> Page[Fire]:
    """List rows, the newest first, and load the nodes of their jobs, which are part of the handles."""
    await session.tree.sync()
    page = await in_parts(query, meter, partial(_history, session, query.name))
    await session.meet([row.job for row in page.items if row.job])
    return page


async def read_newest_fires(session: Session, query: NewestFires, meter: Meter) -> Page[Fire]:
    """Read the newest rows of some schedules, and load the nodes of their jobs."""

    async def read(wanted: Sequence[Stretch], most: int) -> list[Fire]:
        found: list[Fire] = []
        number = FIRST
        while wanted and len(found) < most:
            some, wanted = wanted[:number], wanted[number:]
            number = min(2 * number, AT_ONCE)
            times = await asyncio.gather(*(_times(session, one, query.each) for one in some))
            rows = [
                schedule_places.row(one.name, time) for one, of_one in zip(some, times, strict=True) for time in of_one
            ]
            while rows and len(found) < most:
                part, rows = rows[: most - len(found)], rows[most - len(found) :]
                nodes = await session.tree.get_many(part)
                found += [
                    schedule_places.decode_row(*schedule_places.key_of_row(path), node.data).fire
                    for path, node in zip(part, nodes, strict=True)
                    if node is not None
                ]
        return found

    await session.tree.sync()
    page = await newest_fires(query, meter, read)
    await session.meet([row.job for row in page.items if row.job])
    return page


async def last_outcomes(session: Session, query: LastOutcomes, meter: Meter) -> list[Fire]:
    """Read the last outcomes of some schedules, and load the nodes of their jobs."""
    del meter  # all their rows are fewer than a read may examine
    await session.tree.sync()
    found: list[Fire] = []
    for first in range(0, len(query.names), AT_ONCE):
        some = query.names[first : first + AT_ONCE]
        rows = await asyncio.gather(*(_last_outcome(session, name) for name in some))
        found += [row for row in rows if row is not None]
    await session.meet([row.job for row in found if row.job])
    return found


async def _last_outcome(session: Session, name: str) -> Fire | None:
    """Return the last outcome of a schedule, mostly of the newest row or the one before it."""
    for number in (FEW, AMONG):
        rows = await _history(session, name, None, number)
        ended = next((row for _, row in rows if ops.standing(row) >= ops.Standing.ENDED), None)
        if ended is not None or len(rows) < number:
            break
    return ended


async def _times(session: Session, wanted: Stretch, most: int) -> list[int]:
    """Return the fire times of the newest rows of a stretch, the oldest first, from the names of nodes alone."""
    times: list[int] = []
    parent = schedule_places.fires(wanted.name)
    for block in reversed(paths.numbers_of(await session.tree.children(parent))):
        if len(times) >= most or block < wanted.since_us // schedule_places.BLOCK_US:
            break
        if block > wanted.before_us // schedule_places.BLOCK_US:
            continue
        listed = paths.numbers_of(await session.tree.children(f"{parent}/{block}"))
        times += [time for time in reversed(listed) if wanted.since_us <= time < wanted.before_us]
    return times[:most][::-1]


async def _history(session: Session, name: str, before_us: int | None, limit: int) -> list[tuple[int, Fire]]:
    """Read blocks from the newest to the oldest, until there are ``limit`` rows."""
    rows: list[tuple[int, Fire]] = []
    parent = schedule_places.fires(name)
    for block in reversed(paths.numbers_of(await session.tree.children(parent))):
        if len(rows) >= limit:
            break
        if before_us is not None and block > before_us // schedule_places.BLOCK_US:
            continue
        listed = paths.numbers_of(await session.tree.children(f"{parent}/{block}"))
        times = [time for time in reversed(listed) if before_us is None or time < before_us]
        wanted = times[: limit - len(rows)]
        found = await session.tree.get_many([schedule_places.row(name, time) for time in wanted])
        rows += [
            (time, schedule_places.decode_row(name, time, node.data).fire)
            for time, node in zip(wanted, found, strict=True)
            if node is not None
        ]
    return rows
