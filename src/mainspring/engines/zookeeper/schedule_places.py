"""The schedules in the tree: their paths, and the records in their nodes.

Records are JSON. Bytes that are text become a string; see ``records``.

::

    /schedules/catalogue                            its version rises when a specification changes; lists these
    /schedules/specs/<b>/<schedule>                 its specification by the user
    /schedules/states/<schedule>                    its state; a transaction that locks it writes it
    /schedules/due/<minute>-<shard>/<us>.<version>.<schedule>   its next fire time; no data
    /schedules/unfinished/<schedule>/<us>           a row that is not finished; no data
    /schedules/mending/<b>/q.<schedule>             it has waiting rows; no data
    /schedules/mending/<b>/j.<job>.<us>.<schedule>  a row that has joined a job; no data
    /schedules/mending/<b>/s.<us>.<schedule>        a row that waits for its children; no data
    /schedules/joins/<us>.<schedule>                the progress of its parents for one occasion
    /schedules/declared/<app>                       the declarations of an App
    /fires/<schedule>                               the fire time up to which its rows were dropped
    /fires/<schedule>/<block>/<us>                  the row of a fire time

``<schedule>`` is its name, percent-encoded. The parents that a schedule or a time needs are created with it.
"""

from __future__ import annotations

import asyncio
import re
import sys
import zlib
from bisect import bisect_right
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.tree import Delete, Tree
from mainspring.queries import AMONG, LastOutcomes, ListFires, NewestFires, Stretch, newest_fires
from mainspring.schedules import store as ops
from mainspring.schedules.catalogue import Catalogue, leaders
from mainspring.schedules.model import Fire, FireState, Schedule, ScheduleState
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import UNREADABLE, Deployment, Stored, readable_part
from mainspring.schedules.store import Declared, Key, Standing, standing
from mainspring.storage.engine import Meter, Page, in_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.sessions import Session


CATALOGUE: Final = f"{paths.SCHEDULES}/catalogue"
SPECS: Final = f"{paths.SCHEDULES}/specs"
STATES: Final = f"{paths.SCHEDULES}/states"
DUE: Final = f"{paths.SCHEDULES}/due"
_DUE_NAME: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.(.+)", re.DOTALL)
UNFINISHED: Final = f"{paths.SCHEDULES}/unfinished"
REPAIRS: Final = f"{paths.SCHEDULES}/mending"
JOINS: Final = f"{paths.SCHEDULES}/joins"
DECLARED: Final = f"{paths.SCHEDULES}/declared"

BUCKETS: Final = tuple(f"{number:x}" for number in range(16))
ROOTS: Final = (
    CATALOGUE, SPECS, STATES, DUE, UNFINISHED, REPAIRS, JOINS, DECLARED, paths.FIRES,
    *(f"{root}/{bucket}" for root in (SPECS, REPAIRS) for bucket in BUCKETS),
)  # fmt: skip
"""The nodes of an empty tree."""
SHARDS: Final = 4
"""Parents of one minute: ten thousand schedules with names of 60 letters, due at once, are listed in 200 kB each."""
BLOCK_US: Final = 4096 * 1_000_000
"""Rows of about an hour share a parent: at ten a second, the most there can be, a megabyte of names."""


def part(name: str) -> str:
    """Return the last part of a path for the name of a schedule or an App."""
    encoded = paths.encode(name.encode())
    return f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded


def name_of(part: str) -> str:
    """Return the name of a `part`."""
    return paths.decode(part).decode()


def _bucket(text: str) -> str:
    return BUCKETS[zlib.crc32(text.encode()) & 15]


def spec(name: str) -> str:
    """Return the path of a specification."""
    text = part(name)
    return f"{SPECS}/{_bucket(text)}/{text}"


def _of_name(root: str, name: str) -> str:
    return f"{root}/{part(name)}"


state = partial(_of_name, STATES)
"""Return the path of a schedule's state."""
fires = partial(_of_name, paths.FIRES)
"""Return the parent of the blocks of a schedule's rows."""
unfinished = partial(_of_name, UNFINISHED)
"""Return the parent of the index nodes of a schedule's unfinished rows."""


def block(name: str, fire_us: int) -> str:
    """Return the parent of a row. Names of blocks are numbers, which rise with time."""
    return f"{paths.FIRES}/{part(name)}/{fire_us // BLOCK_US}"


def row(name: str, fire_us: int) -> str:
    """Return the path of a row."""
    return f"{paths.FIRES}/{part(name)}/{fire_us // BLOCK_US}/{fire_us}"


def join(name: str, fire_us: int) -> str:
    """Return the path of a join."""
    return f"{JOINS}/{fire_us}.{part(name)}"


def declared(app: str) -> str:
    """Return the path of an App's declarations."""
    return f"{DECLARED}/a.{part(app)}"


# ---- due schedules ----


class DueName(NamedTuple):
    """The parsed name of a node below ``due``."""

    next_us: int
    version: int
    name: str


def due(name: str, now: ScheduleState) -> str | None:
    """Return the path of the index node of a schedule's next fire time; None if there is none."""
    if now.next_us is None:
        return None
    text = part(name)
    shard = zlib.crc32(text.encode()) % SHARDS
    return f"{DUE}/{minute(now.next_us):012d}-{shard}/{now.next_us}.{now.version}.{text}"


minutes_of = partial(paths.named, re.compile(r"[0-9]{12,18}-[0-9]{1,3}"))
"""Return the children of `DUE` that are parents of a minute, without foreign nodes."""


def minute(time_us: int) -> int:
    """Return the minute of a time."""
    return time_us // paths.MINUTE_US


def due_names_of(names: Iterable[str] | None) -> list[DueName]:
    """Return the parsed names of the children of such a parent, without foreign nodes."""
    found = [match for name in names or () if (match := _DUE_NAME.fullmatch(name)) is not None]
    return [DueName(int(one[1]), int(one[2]), name_of(one[3])) for one in found]


# ---- possible repairs ----


class RepairMark(NamedTuple):
    """The parsed name of a node below ``mending``."""

    kind: str
    """``q``, ``j`` or ``s``."""
    name: str
    fire_us: int = 0
    job: int = 0


def _repair_mark(text: str) -> str:
    return f"{REPAIRS}/{_bucket(text)}/{text}"


def queued(name: str) -> str:
    """Return the path of the index node of a schedule with waiting rows."""
    return _repair_mark(f"q.{part(name)}")


def repair_mark(fire: Fire) -> str | None:
    """Return the path of the index node of a row that may need a repair; None for all others."""
    match standing(fire):
        case Standing.JOINED:
            return _repair_mark(f"j.{fire.job}.{fire.fire_us}.{part(fire.schedule)}")
        case Standing.ENDED:
            return _repair_mark(f"s.{fire.fire_us}.{part(fire.schedule)}")
        case _:
            return None


def parse_repair_mark(child: str) -> RepairMark:
    """Return the parsed name of such a node."""
    kind, _, rest = child.partition(".")
    match kind:
        case "j":
            job, fire_us, text = rest.split(".", 2)
            return RepairMark(kind, name_of(text), int(fire_us), int(job))
        case "s":
            fire_us, _, text = rest.partition(".")
            return RepairMark(kind, name_of(text), int(fire_us))
        case _:
            return RepairMark(kind, name_of(rest))


T = TypeVar("T", Schedule, ScheduleState, Fire, Join)
_BYTES: Final[dict[type, tuple[str, ...]]] = {
    Schedule: ("function", "args", "unique"),
    ScheduleState: ("declared",),
    Fire: ("error",),
    Join: (),
}
"""The fields with bytes."""


def encode_record(value: Schedule | ScheduleState | Fire | Join, **more: Any) -> bytes:
    """Return a value as a node's data; ``more`` are fields that are not its own."""
    fields = msgspec.to_builtins(value, builtin_types=(bytes,))
    for field in _BYTES[type(value)]:
        records.text(fields.pop(field, b""), field, fields)
    return records.encode(fields | more)


def decode_record(data: bytes, kind: type[T]) -> T:
    """Return the value of a node's data."""
    return _convert(records.decode(data), kind)


def _convert(fields: dict[str, Any], kind: type[T]) -> T:
    for field in _BYTES[kind]:
        fields[field] = records.untext(fields, field)
    return msgspec.convert(fields, kind, builtin_types=(bytes,))


def decode_schedule(name: str, data: bytes) -> tuple[Schedule, str]:
    """Return a schedule, and what could not be read of it; see ``schedules.reconcile``."""
    return _decode_part(data, Schedule, {"function": b""}, {"name": name})


def decode_state(data: bytes) -> tuple[ScheduleState, str]:
    """Return the state of a schedule, and what could not be read of it."""
    return _decode_part(data, ScheduleState, {}, {})


def _decode_part(data: bytes, kind: type[T], defaults: dict[str, Any], key: dict[str, Any]) -> tuple[T, str]:
    fields: dict[str, Any] = {}
    try:
        fields = records.decode(data)
        return _convert(fields, kind), ""
    except UNREADABLE as error:
        return readable_part(kind, fields, defaults, key), f"{error}"


class Row(NamedTuple):
    """A row with the keys of the rows that have joined its job."""

    fire: Fire
    joined: Sequence[Key] = ()

    def encode(self) -> bytes:
        """Return it as a node's data."""
        return encode_record(self.fire, **({"joined": self.joined} if self.joined else {}))


def decode_row(schedule: str, fire_us: int, data: bytes) -> Row:
    """Return the row of a fire time."""
    key = {"schedule": schedule, "fire_us": fire_us}
    fire, unread = _decode_part(data, Fire, {"state": FireState.SKIPPED}, key)
    joined = () if unread else records.decode(data).get("joined", ())
    return Row(fire, [(name, at) for name, at in joined])


def history(forgotten_us: int) -> bytes:
    """Return the data of the parent of a schedule's rows: the fire time up to which they were dropped."""
    return records.encode({"forgotten_us": forgotten_us})


def forgotten_us(data: bytes) -> int:
    """Return the fire time up to which rows were dropped; 0 if none were."""
    return int(records.decode(data).get("forgotten_us", 0))


# ---- the changes of the catalogue ----

CHANGED_NAMES: Final = 500
"""Names of changed specifications that the catalogue keeps, for nodes with an older version in their cache."""


def changes_since(data: bytes, version: int) -> set[str] | None:
    """Return the schedules whose specifications have changed after a version; None if that version is too old."""
    record = records.decode(data)
    if version < record.get("since", 0):
        return None
    return {name for at, names in record.get("changed", ()) if at > version for name in names}


def changed(data: bytes, version: int, names: Sequence[str]) -> bytes:
    """Return the catalogue's data after one more change, which gives it ``version``."""
    record = records.decode(data)
    since, changes = record.get("since", 0), [*record.get("changed", ()), [version, list(names)]]
    while sum(len(names) for _, names in changes) > CHANGED_NAMES:
        since = changes.pop(0)[0]
    return records.encode({"since": since, "changed": changes})


# ---- declarations ----


def declarations(app: str, data: bytes) -> list[Declared]:
    """Return the declarations of an App."""
    return [
        Declared(Deployment(app, bytes.fromhex(digest), first_us), last_us)
        for digest, (first_us, last_us) in records.decode(data).get("declarations", {}).items()
    ]


def declare(app: str, data: bytes, digest: bytes, now_us: int) -> bytes:
    """Return the data of an App's declarations after one more."""
    record = records.decode(data)
    registered = record.get("declarations", {})
    # Later than the others, also if the clock was set back.
    new_us = max(now_us, *(times[0] + 1 for times in registered.values()), 0)
    first_us = registered.get(digest.hex(), (new_us,))[0]
    return records.encode({"app": app, "declarations": registered | {digest.hex(): [first_us, now_us]}})


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
            node = await self._tree.get(CATALOGUE, self.invalidate)
            assert node is not None, "the roots are there"
            if node.version == self._cache.version:
                return
            before = self._cache
            names = None if before.version < 0 else changes_since(node.data, before.version)
            schedules: dict[str, Schedule] = {} if names is None else dict(before.catalogue.schedules)
            unread: dict[str, str] = {} if names is None else dict(before.catalogue.unread)
            paths = await self._all() if names is None else [spec(name) for name in sorted(names)]
            for name in names or ():
                schedules.pop(name, None)
                unread.pop(name, None)
            for path, found in zip(paths, await self._tree.get_many(paths), strict=True):
                if found is not None:
                    name = name_of(path.rpartition("/")[2])
                    schedules[name], why = decode_schedule(name, found.data)
                    if why:
                        unread[name] = why
            self._cache = CatalogueCache(node.version, Catalogue(schedules, unread), leaders(schedules))
        except BaseException:
            self._stale = True
            raise

    async def _all(self) -> list[str]:
        buckets = [f"{SPECS}/{bucket}" for bucket in BUCKETS]
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


async def find_due(session: Session, operation: ops.FindDue) -> ops.Upcoming:
    """Return the schedules that are due soon, minute by minute, from names only."""
    return await session.retry_reads(partial(_find_due, session, operation.until_us, operation.rows))


async def _find_due(session: Session, until_us: int, limit: int) -> ops.Upcoming:
    minutes: dict[int, list[str]] = {}
    for parent in minutes_of(await session.tree.children(DUE)):
        minutes.setdefault(int(parent.partition("-")[0]), []).append(parent)
    reserve = sorted(minutes)
    latest = minute(until_us)
    near = [minute for minute in reserve if minute <= latest]
    listed = await _listed(session, [parent for minute in near for parent in minutes[minute]])
    await _sweep(session, [parent for parent, found in listed.items() if not found], latest - SWEEP_MINUTES)
    found = _newest(one for names in listed.values() for one in names)
    first = nsmallest(limit + 1, found)
    due = [one for one in first[:limit] if one.next_us <= until_us]
    rest = first[len(due) :]
    for later_minute in reserve[len(near) :]:
        if rest:
            break
        later = await _listed(session, minutes[later_minute])
        rest = sorted(one for names in later.values() for one in names)
    return ops.Upcoming(
        [(ops.Due(one.name, one.version), one.next_us) for one in due], rest[0].next_us if rest else None
    )


async def _listed(session: Session, parents: Sequence[str]) -> dict[str, list[DueName]]:
    """List the children of some parents concurrently."""
    found = await asyncio.gather(*(session.tree.children(f"{DUE}/{parent}") for parent in parents))
    return {parent: due_names_of(children) for parent, children in zip(parents, found, strict=True)}


def _newest(found: Iterable[DueName]) -> list[DueName]:
    """Return the newest entry of each schedule: one that has moved between two lists is in both."""
    newest: dict[str, DueName] = {}
    for one in found:
        if one.name not in newest or newest[one.name].version < one.version:
            newest[one.name] = one
    return list(newest.values())


async def _sweep(session: Session, empty: Sequence[str], before: int) -> None:
    """Delete empty parents of past minutes."""
    over = [f"{DUE}/{parent}" for parent in empty if int(parent.partition("-")[0]) < before]
    for path in over:
        session.forget(path)
    await session.committer.commit([Entry([Delete(path)]) for path in over])


# ---- schedules and rows ----


async def schedules(session: Session, names: Sequence[str]) -> list[Stored]:
    """Return schedules by their names, including the latest commits of other nodes."""
    catalogue = (await session.memory(Specifications).now(fresh=True)).catalogue
    return [stored for _, stored in await _stored(session, catalogue, sorted(catalogue.schedules.keys() & set(names)))]


async def _stored(session: Session, catalogue: Catalogue, names: Sequence[str]) -> list[tuple[str, Stored]]:
    states = await session.tree.get_many([state(name) for name in names])
    found: list[tuple[str, Stored]] = []
    for name, node in zip(names, states, strict=True):
        if node is not None:
            now, unread = decode_state(node.data)
            found.append((name, Stored(catalogue.schedules[name], now, catalogue.unread.get(name, "") or unread)))
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
            times = await asyncio.gather(
                *(_times(session, one.name, one.since_us, one.before_us, query.each) for one in some)
            )
            keys = [(one.name, time) for one, of_one in zip(some, times, strict=True) for time in reversed(of_one)]
            while keys and len(found) < most:
                part, keys = keys[: most - len(found)], keys[most - len(found) :]
                found += await read_rows(session.tree, part)
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


async def _times(session: Session, name: str, since_us: int, before_us: int, most: int) -> list[int]:
    """Return the fire times of the newest rows of a stretch, the newest first, from the names of nodes alone."""
    times: list[int] = []
    parent = fires(name)
    for number in reversed(paths.numbers_of(await session.tree.children(parent))):
        if len(times) >= most or number < since_us // BLOCK_US:
            break
        if number <= before_us // BLOCK_US:
            listed = paths.numbers_of(await session.tree.children(f"{parent}/{number}"))
            times += [time for time in reversed(listed) if since_us <= time < before_us]
    return times[:most]


async def read_rows(tree: Tree, keys: Sequence[Key]) -> list[Fire]:
    """Return the rows of schedules and fire times, but for those that are gone."""
    nodes = await tree.get_many([row(*key) for key in keys])
    return [decode_row(*key, node.data).fire for key, node in zip(keys, nodes, strict=True) if node is not None]


async def _history(session: Session, name: str, before_us: int | None, limit: int) -> list[tuple[int, Fire]]:
    """Return the newest rows before a time, with their fire times."""
    rows: list[tuple[int, Fire]] = []
    before = sys.maxsize if before_us is None else before_us
    while len(rows) < limit:
        wanted = limit - len(rows)
        times = await _times(session, name, 0, before, wanted)
        rows += [(one.fire_us, one) for one in await read_rows(session.tree, [(name, time) for time in times])]
        if len(times) < wanted:
            break
        before = times[-1]  # rows that are gone by now are replaced by older ones
    return rows
