"""The queries on PostgreSQL, each inside one transaction of the reader's connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.postgres import inbox, resources
from mainspring.engines.postgres.floors import LOWEST, Floors
from mainspring.engines.postgres.functions import key_of
from mainspring.engines.postgres.queries import find_stored, live, look_up, numbers_of
from mainspring.engines.postgres.rows import LARGEST_ID, SQL, known_ids, stored
from mainspring.engines.postgres.transaction import Transaction
from mainspring.jobs.model import Job, State, read_options
from mainspring.jobs.store import CountDead, Counted, DeadCounted, ShowDead, ShowJob, ShowLive, numbered
from mainspring.namespaces import DEFAULT
from mainspring.queries.jobs import FirstInLine, ListJobs, Mark, ReadArguments, Recall, Recalled, search
from mainspring.resources.model import decode_limits
from mainspring.resources.store import ListLimits
from mainspring.storage.query import Meter, Page, Query, in_parts

if TYPE_CHECKING:
    from mainspring.resources.model import FunctionLimits

_BY_STATE: Final = {
    State.SCHEDULED: "few_scheduled",
    State.PENDING: "few_pending",
    State.LEASED: "few_held",
    State.RUNNING: "few_held",
}
"""The statement that reads a state by its index."""
TAGGED_AT_ONCE: Final = 200
"""Jobs with a tag that are looked up in one statement."""


class _Search(NamedTuple):
    """The statements that search some tables."""

    mark: str
    list: str
    part: str
    """Both in one, as each statement costs a turn of the node's loop. The mark is in a row without a function."""


def _search_in(mark: str, *lists: str) -> _Search:
    """Compose the statements for tables. Each table has its own."""
    tables = " UNION ALL ".join(f"({SQL[name].rstrip(';')})" for name in lists)
    found = f"SELECT * FROM ({tables}) AS newest ORDER BY id DESC LIMIT $2"  # noqa: S608 - own statements
    low = found.replace("$3", "coalesce((SELECT id FROM mark), 0)")
    part = f"""
        WITH mark AS MATERIALIZED ({SQL[mark].rstrip(";").replace("$2", "$3")})
        SELECT * FROM ({low}) AS part
        UNION ALL SELECT id, NULL, NULL, NULL, NULL, created_us, {", ".join(["NULL"] * 14)} FROM mark
    """  # noqa: S608 - own statements
    return _Search(SQL[mark], found, part)


_ALL: Final = _search_in("mark_all", "list_jobs", "list_ended", "list_dead")
_LIVE: Final = _search_in("mark_jobs", "list_jobs")
_DEAD: Final = _search_in("mark_dead", "list_dead")
_BY_TABLE: Final = {
    State.SUCCEEDED: _search_in("mark_ended", "list_ended"),
    State.FAILED: _DEAD,
    State.CANCELLED: _DEAD,
    State.EXPIRED: _DEAD,
}
"""The statements that search the table of a state."""


class _Jobs:
    """`SearchableJobs` in the tables of live, succeeded and dead jobs."""

    seeks = True

    def __init__(self, tx: Transaction, query: ListJobs, function: int | None) -> None:
        self._tx = tx
        self._query = query
        self._where = where = query.where
        self._function = function
        tables = {_BY_TABLE.get(state, _LIVE) for state in where.states}
        self._statements = tables.pop() if len(tables) == 1 else _ALL
        self._criteria = (
            [int(state) for state in where.states] or None,
            function,
            where.unique,
            where.key or None,
            *where.in_options,
            where.error_prefix,
            where.created_from_us,
            where.created_to_us,
            where.namespace,
        )

    async def few(self, most: int) -> list[Job] | None:
        """Return the jobs of the requested states by their indexes; None if there are more than ``most``."""
        states = self._where.states
        if self._where.tag is not None or not states or not all(state in _BY_STATE for state in states):
            return None
        ids: list[int] = []
        for state in states:
            found = await self._of_state(state, most - len(ids))
            if found is None:
                return None
            ids += found
        return await self._list(SQL["list_these"], self._query.after, self._query.limit, ids)

    async def _of_state(self, state: State, most: int) -> list[int] | None:
        """Return the ids of jobs in a state by its index; None if they are more than ``most``."""
        statement = _BY_STATE[state]
        values = [most]
        if statement == "few_pending" and self._function is not None:
            statement = "few_pending_of"
            values.append(self._function)
        found: list[int] | None = await self._tx.connection.fetchval(SQL[statement], *values)
        return found

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Return the end of a part, with the node of that job loaded."""
        tag = self._where.tag
        if tag is None:
            found = await self._tx.connection.fetchrow(self._statements.mark, _id(before), rows - 1)
        else:
            found = await self._tx.connection.fetchrow(
                SQL["mark_tagged"], _id(before), rows - 1, self._where.namespace or DEFAULT, tag
            )
        if found is None:
            return None
        await self._tx.nodes.load([found[0]])
        return Mark(*found)

    async def part(self, before: int | None, rows: int, most: int) -> tuple[Mark | None, list[Job]]:
        """Return the end of a part, and its matching jobs."""
        tag = self._where.tag
        if tag is not None:
            mark = await self.mark(before, rows)
            return mark, await self._tagged(tag, 0 if mark is None else mark.id, before, most)
        values = (_id(before), most, rows - 1, *self._criteria)
        records = await self._tx.connection.fetch(self._statements.part, *values)
        mark = None
        for end in [record for record in records if record[1] is None]:
            mark = Mark(end[0], end[5])
            await self._tx.nodes.load([mark.id])
        candidates = await stored(self._tx, [record for record in records if record[1] is not None], read_options)
        found = [*filter(self._where.matches, candidates)]
        if len(candidates) == most > len(found):
            low = 0 if mark is None else mark.id
            found += await self._list(self._statements.list, candidates[-1].id, most - len(found), low)
        return mark, found

    async def _tagged(self, tag: str, low: int, before: int | None, most: int) -> list[Job]:
        """Return the matching jobs of a part of those with a tag, and look up no more of them than needed."""
        records = await self._tx.connection.fetch(
            SQL["tagged"], self._where.namespace or DEFAULT, tag, low, _id(before)
        )
        ids = [record[0] for record in records]
        found: list[Job] = []
        for start in range(0, len(ids), TAGGED_AT_ONCE):
            found += await self._list(
                SQL["list_tagged"], before, most - len(found), ids[start : start + TAGGED_AT_ONCE]
            )
            if len(found) == most:
                break
        return found

    async def _list(self, statement: str, before: int | None, most: int, among: object) -> list[Job]:
        """Return matching jobs. The statement finds candidates, of which nearly all match."""
        found: list[Job] = []
        while len(found) < most:
            values = (_id(before), most, among, *self._criteria)
            candidates = await stored(self._tx, await self._tx.connection.fetch(statement, *values), read_options)
            found += filter(self._where.matches, candidates)
            if len(candidates) < most:
                break
            before = candidates[-1].id
        return found[:most]


def _id(before: int | None) -> int:
    return LARGEST_ID if before is None else min(before, LARGEST_ID)


async def list_jobs(tx: Transaction, query: ListJobs, meter: Meter) -> Page[Job]:
    """List jobs, newest first."""
    function, wanted = None, query.where.function
    if wanted is not None:
        await tx.functions.load([wanted])
        function = tx.functions.numbers.get(wanted)
        if function is None:
            return Page([])
    return await search(_Jobs(tx, query, function), query, meter)


async def read_arguments(tx: Transaction, query: ReadArguments, _: Meter) -> bytes | None:
    """Return the arguments of a job; see ``ReadArguments``."""
    aliases = await inbox.aliases(tx, [query.id])
    ids = known_ids([aliases.get(query.id, query.id)])
    found: bytes | None = await tx.connection.fetchval(SQL["arguments"], ids)
    return found


async def recall(tx: Transaction, query: Recall, _: Meter) -> Recalled | None:
    """Return the payload and the attempts of a job."""
    found = await tx.connection.fetchrow(SQL["recall"], min(query.id, LARGEST_ID), query.most)
    return None if found is None else Recalled(found[0], found[1], found[2] or b"")


async def show_job(tx: Transaction, query: ShowJob, _: Meter) -> Job | None:
    """Return a job; see ``ShowJob``.

    One statement finds most jobs. The others are in the inbox or have joined jobs, or there is no such job: that needs one
    snapshot, as a job that moves between two statements would be missed.
    """
    found = await find_stored(tx, [query.id], query.namespace)
    if not found:
        async with tx.connection.transaction():
            found = await look_up(tx, [query.id], query.namespace)
    return found.get(query.id)


async def first_in_line(tx: Transaction, query: FirstInLine, _: Meter) -> dict[bytes, int]:
    """Return since when the first job of each function waits; see ``FirstInLine``. Slow scans begin at the floors of claims."""
    await tx.functions.load(query.functions)
    cached = tx.functions.numbers
    numbers = {cached[key]: key for key in sorted(set(query.functions)) if key in cached}
    floors = tx.memory(Floors).functions
    begins = [
        floor.places if (floor := floors.get(number)) is not None and floor.scans.slow else [LOWEST] * 3
        for number in numbers
    ]
    places = [[places[level] for places in begins] for level in range(3)]
    records = await tx.connection.fetch(SQL["first_in_line"], list(numbers), *places)
    return {numbers[function]: time_us for function, time_us in records}


async def list_limits(tx: Transaction, query: ListLimits, meter: Meter) -> Page[FunctionLimits]:
    """List the limits of functions, in the order of their numbers."""

    async def behind(after: int | None, most: int) -> list[tuple[int, FunctionLimits]]:
        found = await tx.connection.fetch(resources.SQL["limits"], after or 0, most)
        await tx.functions.load_keys({function for function, *_ in found})
        keys = tx.functions.keys
        return [(function, decode_limits(encoded, keys[function], version)) for function, version, encoded in found]

    return await in_parts(query, meter, behind)


async def show_live(tx: Transaction, query: ShowLive, _: Meter) -> Counted:
    """Return the counts of a page of functions. A page begins after the number of a function."""
    found = await tx.connection.fetch(SQL["functions_after"], numbered(query.after), query.limit)
    counts = await live(tx, {number: key_of(*stored) for number, *stored in found})
    return Counted(counts, b"%d" % found[-1][0] if len(found) == query.limit else None)


async def count_dead(tx: Transaction, query: CountDead, _: Meter) -> dict[bytes, int]:
    """Return the numbers of dead letters."""
    names = await numbers_of(tx, query.functions)
    return {names[function]: number for function, number in await tx.connection.fetch(SQL["dead_of"], list(names))}


async def show_dead(tx: Transaction, query: ShowDead, _: Meter) -> DeadCounted:
    """Return the dead letters of a page of functions. A page begins after the number of a function."""
    found = await tx.connection.fetch(SQL["functions_after"], numbered(query.after), query.limit)
    names = {number: key_of(*stored) for number, *stored in found}
    dead = {names[function]: number for function, number in await tx.connection.fetch(SQL["dead_of"], list(names))}
    return DeadCounted(dead, b"%d" % found[-1][0] if len(found) == query.limit else None)


Readers = dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]
READERS: Final[Readers] = {
    ListJobs: list_jobs,
    FirstInLine: first_in_line,
    ShowJob: show_job,
    ReadArguments: read_arguments,
    Recall: recall,
    ListLimits: list_limits,
    ShowLive: show_live,
    CountDead: count_dead,
    ShowDead: show_dead,
}
