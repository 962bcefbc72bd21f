"""The queries on PostgreSQL, on their own connection: they do not block groups, and groups do not block them.

Each is one read-only transaction with one snapshot. It ends with its budget, so it keeps vacuum from few tuples. Frequent
queries whose answer is nearly always one statement have no transaction around it, because each further statement would wait for a
turn of a busy loop.

Operations that only read, after the group's writes. Lists are in `lists`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.access.audit import ListActs
from mainspring.access.store import CountRevocations, FindCredential
from mainspring.bulk.store import FindBulk
from mainspring.engines.postgres import claiming, connections, submitting, transaction
from mainspring.engines.postgres.claiming import LOWEST, Floors
from mainspring.engines.postgres.connections import Verdict
from mainspring.engines.postgres.control import Control
from mainspring.engines.postgres.transaction import (
    JOBS_SQL,
    LARGEST_ID,
    Functions,
    Nodes,
    Transaction,
    key_of,
    known_ids,
    stored_jobs,
)
from mainspring.errors import StoreBrokenError, StoreError, StoreUnavailableError
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State, read_options
from mainspring.jobs.store import LIVE, Counted, CountSome, ShowCounts, ShowJob, numbered
from mainspring.namespaces import ANY, DEFAULT
from mainspring.queries import (
    FirstInLine,
    LastOutcomes,
    Mark,
    NewestFires,
    QueryJobs,
    ReadArguments,
    Recall,
    Recalled,
    search,
)
from mainspring.resources.rules import decode_limits
from mainspring.resources.store import ListLimits
from mainspring.schedules.store import ListSchedules
from mainspring.series import ReadNamespaceSeries
from mainspring.storage.engine import Meter, Page, Query, in_parts, unknown
from mainspring.workflows.definitions import CountOpen
from mainspring.workflows.store import (
    CountParked,
    FindDefinitions,
    FindSentSignals,
    FindVersions,
    HasErrands,
    ShowSubmitted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.connections import Address
    from mainspring.engines.postgres.transaction import Memory
    from mainspring.resources.rules import FunctionLimits
    from mainspring.storage.engine import Answered, Budget

_PENDING, _SUCCEEDED = int(State.PENDING), int(State.SUCCEEDED)


async def find(tx: Transaction, operations: Sequence[ops.Find]) -> list[dict[int, Job]]:
    """Return jobs by their ids; see ``Find``."""
    return await with_results(tx, operations)


async def with_results(tx: Transaction, operations: Sequence[ops.Find | ops.Subscribe]) -> list[dict[int, Job]]:
    """Return jobs for operations. A result that fits into any outcome is read once, for all of them."""
    wanted: dict[str, set[int]] = {}
    for operation in operations:
        wanted.setdefault(operation.namespace, set()).update(operation.ids)
    found = {namespace: await look_up(tx, ids, namespace) for namespace, ids in wanted.items()}
    outcomes = [
        {job_id: job for job_id in operation.ids if (job := found[operation.namespace].get(job_id)) is not None}
        for operation in operations
    ]
    fit: dict[int, list[Job]] = {}
    for operation, outcome in zip(operations, outcomes, strict=True):
        for job in ops.fitting(outcome, operation.room):
            fit.setdefault(job.id, []).append(job)
    # An outcome has a job under each requested id: one object, and one copy of its result.
    for job_id, result in await tx.connection.fetch(JOBS_SQL["results"], sorted(fit)) if fit else ():
        for job in fit[job_id]:
            job.result = result or b""
    return outcomes


async def look_up(tx: Transaction, ids: Iterable[int], namespace: str = ANY) -> dict[int, Job]:
    """Return jobs of a namespace by the requested ids, without results. A submission that joined a job stands for that one."""
    wanted = transaction.known_ids(ids)
    found = await find_stored(tx, wanted, namespace)
    missing = [job_id for job_id in wanted if job_id not in found]
    joined = await submitting.aliases(tx, missing)
    if joined:
        others = await find_stored(tx, joined.values(), namespace)
        found.update((job_id, others[other]) for job_id, other in joined.items() if other in others)
    for job in await submitting.peek(tx, (job_id for job_id in missing if job_id not in joined), namespace):
        found[job.id] = job
    return found


async def find_stored(tx: Transaction, ids: Iterable[int], namespace: str) -> dict[int, Job]:
    """Return the jobs of a namespace that are rows of these ids, without results."""
    wanted = transaction.known_ids(ids)
    if not wanted:
        return {}
    records = await tx.connection.fetch(JOBS_SQL["find"], wanted, namespace)
    return {job.id: job for job in await transaction.stored_jobs(tx, records, read_options)}


async def find_unique(tx: Transaction, operations: Sequence[ops.FindUnique]) -> list[list[ops.Found | None]]:
    """Return live jobs by their uniques; see ``FindUnique``."""
    keys = [key for operation in operations for key in operation.keys]
    await tx.functions.load({function for function, _ in keys if isinstance(function, bytes)})
    columns: tuple[list[int | None], list[bytes], list[str | None]] = ([], [], [])
    for function, unique in keys:
        # a function without a number was never submitted, and no row has the number 0
        columns[0].append(tx.functions.numbers.get(function, 0) if isinstance(function, bytes) else None)
        columns[1].append(unique)
        columns[2].append(None if isinstance(function, bytes) else function.namespace)
    found: dict[int, ops.Found] = {}
    for key, job_id, state, attempt in await tx.connection.fetch(JOBS_SQL["find_unique"], *columns) if keys else ():
        found[key - 1] = ops.Found(job_id, state, attempt)
    await tx.nodes.load(other.id for other in found.values())
    ends = iter(range(len(keys)))
    return [[found.get(next(ends)) for _ in operation.keys] for operation in operations]


async def read_backlog(tx: Transaction, operations: Sequence[ops.ReadBacklog]) -> list[ops.Backlog]:
    """Return the backlog; see ``ReadBacklog``."""
    floors = tx.memory(Floors)
    only = None
    if all(operation.functions is not None for operation in operations):
        only = await numbers_of(tx, (name for operation in operations for name in operation.functions or ()))
    records = await tx.connection.fetch(
        JOBS_SQL["read_backlog"],
        floors.due.place,
        floors.expiring.place,
        floors.inbox.place,
        None if only is None else list(only),
        any(operation.times for operation in operations),
    )
    counts = {key: number for key, number in tx.deltas.items() if only is None or key[0] in only}
    times: list[int] = []
    inbox_waits = False
    signs = None
    for function, state, priority, number, expires_us, found in records:
        if function is None:
            inbox_waits = bool(state)
            limits, errand, signal, interests, request, *times_us = found
            signs = ops.Signs(limits, errand is not None, signal is not None, interests, request is not None, *times_us)
            times = [time for time in (number, expires_us) if time is not None]
        else:
            key = (function, state, priority)
            counts[key] = counts.get(key, 0) + number
    await tx.functions.load_keys({function for function, _, _ in counts})
    pending: dict[tuple[bytes, int], int] = {}
    live: dict[bytes, int] = {}
    for (function, state, priority), number in counts.items():
        if number > 0 and state < _SUCCEEDED:
            name = tx.functions.keys[function]
            live[name] = live.get(name, 0) + number
            if state == _PENDING:
                pending[name, priority] = pending.get((name, priority), 0) + number
    refused = await submitting.refused(tx, floors)
    return [ops.Backlog(pending, live, min(times, default=0), inbox_waits, refused, signs) for _ in operations]


async def count(tx: Transaction, operations: Sequence[ops.Count]) -> list[dict[tuple[bytes, int, int], int]]:
    """Return the counts; see ``Count``."""
    return [
        await _all(tx) if one.functions is None else await counts_of(tx, await numbers_of(tx, one.functions))
        for one in operations
    ]


async def _all(tx: Transaction) -> dict[tuple[bytes, int, int], int]:
    numbers = await transaction.journal_counts(tx)
    await tx.functions.load_keys({function for function, _, _ in numbers})
    counts: dict[tuple[bytes, int, int], int] = {}
    for (function, state, priority), number in numbers.items():
        key = (tx.functions.keys[function], state, priority)
        counts[key] = counts.get(key, 0) + number
    return counts


async def dead_letters_left(tx: Transaction, function: bytes) -> int:
    """Return the number of a function's dead letters, with those of the group under way."""
    counts = await counts_of(tx, await numbers_of(tx, [function]), (State.FAILED, State.FAILED))
    return sum(counts.values())


async def counts_of(
    tx: Transaction, names: Mapping[int, bytes], states: tuple[int, int] = LIVE
) -> dict[tuple[bytes, int, int], int]:
    """Return the numbers of jobs of some functions, given by number and name, in the states from the first to the last one."""
    first, last = states
    counts = {key: number for key, number in tx.deltas.items() if key[0] in names and first <= key[1] <= last}
    for *key, number in await tx.connection.fetch(JOBS_SQL["counts_of"], list(names), first, last) if names else ():
        counts[key[0], key[1], key[2]] = counts.get((key[0], key[1], key[2]), 0) + number
    return {(names[at], state, priority): number for (at, state, priority), number in counts.items() if number}


async def numbers_of(tx: Transaction, functions: Iterable[bytes]) -> dict[int, bytes]:
    """Return the numbers of these functions, as far as they have one, with their names."""
    names = set(functions)
    await tx.functions.load(names)
    numbers = tx.functions.numbers
    return {numbers[name]: name for name in names if name in numbers}


READ_TIMEOUT: Final = 3.0
"""Seconds for an answer, more than a statement may take. It detects a dead connection; the next attempt uses a new one."""
SINGLE_STATEMENT: Final = frozenset(
    {
        CountOpen,
        CountParked,
        CountRevocations,
        CountSome,
        FindBulk,
        FindCredential,
        FindDefinitions,
        FindSentSignals,
        FindVersions,
        FirstInLine,
        HasErrands,
        LastOutcomes,
        ListActs,
        ListLimits,
        ListSchedules,
        NewestFires,
        ReadNamespaceSeries,
        ShowJob,
        ShowSubmitted,
    }
)
"""Queries of one statement, or of two whose answers have nothing to do with each other. The parts of a very long answer may be of
different snapshots, as its pages are: the rows of these lists never change their places."""
READ_ATTEMPTS: Final = 3
"""Attempts to run a query that meets a possible race."""
READ_SETTINGS: Final = """
    SET default_transaction_read_only = on; SET default_transaction_isolation = 'repeatable read';
    SET statement_timeout = '2s'
"""


async def _greet(connection: Connection[Record]) -> None:
    await connection.execute(READ_SETTINGS)


def _next_turn() -> Awaitable[None]:
    return asyncio.sleep(0)


class Reader:
    """Answers queries, one at a time; it adds the nodes it finds to ``nodes``, and shares ``memory`` with the node's groups."""

    def __init__(self, address: Address, name: str, nodes: Nodes, memory: Memory, readers: Readers) -> None:
        self._readers = readers
        self._control = Control(address, name, _greet)
        self._shared_nodes = nodes
        self._nodes = Nodes()  # a cache that reads on this connection
        self._functions = Functions()
        self._memory = memory
        self._task: asyncio.Task[None] | None = None

    async def open(self, open_timeout: float | None) -> None:
        """Connect; raises StoreError."""
        await self._control.open(open_timeout)
        await self._control.start()

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query, or report an error, within some seconds."""
        if type(query) not in self._readers:
            raise unknown("PostgreSQL", [type(query)])
        self._task = asyncio.get_running_loop().create_task(self._run(query, budget, answered), name="postgres read")

    async def _run(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        answer: Any
        try:
            try:
                answer = await self._attempt(query, budget)
            except StoreUnavailableError:
                answer = await self._attempt(query, budget)
        except StoreError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - without an answer, the caller would wait for ever
            answer = StoreBrokenError(f"a defect in the store's code: a read has failed: {error!r}")
            answer.__cause__ = error
        answered(answer)
        del answer  # an error's traceback has this frame: together they would keep the query until a collection

    async def _attempt(self, query: Query[Any], budget: Budget) -> Any:
        return await self._control.run(
            lambda connection: self._read_repeatedly(connection, query, budget), READ_TIMEOUT
        )

    async def _read_repeatedly(self, connection: Connection[Record], query: Query[Any], budget: Budget) -> Any:
        attempt = 1
        while True:
            try:
                return await self._read(connection, query, budget)
            except connections.ERRORS as error:
                verdict = connections.judge(error, connected=not connection.is_closed())
                if verdict not in {Verdict.BUSY, Verdict.RACE} or attempt == READ_ATTEMPTS:
                    raise
            attempt += 1

    async def _read(self, connection: Connection[Record], query: Query[Any], budget: Budget) -> Any:
        self._functions.use(connection)
        self._nodes.use(connection)
        tx = Transaction(connection, 0, self._functions, self._nodes, self._memory)
        async with contextlib.nullcontext() if type(query) in SINGLE_STATEMENT else connection.transaction():
            meter = Meter(budget, asyncio.get_running_loop().time, _next_turn)
            answer = await self._readers[type(query)](tx, query, meter)
        self._functions.committed()
        self._shared_nodes.update(self._nodes)
        return answer

    async def close(self) -> None:
        """End the query under way, and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._control.close()


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
    tables = " UNION ALL ".join(f"({JOBS_SQL[name].rstrip(';')})" for name in lists)
    found = f"SELECT * FROM ({tables}) AS newest ORDER BY id DESC LIMIT $2"  # noqa: S608 - own statements
    low = found.replace("$3", "coalesce((SELECT id FROM mark), 0)")
    part = f"""
        WITH mark AS MATERIALIZED ({JOBS_SQL[mark].rstrip(";").replace("$2", "$3")})
        SELECT * FROM ({low}) AS part
        UNION ALL SELECT id, NULL, NULL, NULL, NULL, created_us, {", ".join(["NULL"] * 14)} FROM mark
    """  # noqa: S608 - own statements
    return _Search(JOBS_SQL[mark], found, part)


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

    def __init__(self, tx: Transaction, query: QueryJobs, function: int | None) -> None:
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
        return await self._list(JOBS_SQL["list_these"], self._query.after, self._query.limit, ids)

    async def _of_state(self, state: State, most: int) -> list[int] | None:
        """Return the ids of jobs in a state by its index; None if they are more than ``most``."""
        statement = _BY_STATE[state]
        values = [most]
        if statement == "few_pending" and self._function is not None:
            statement = "few_pending_of"
            values.append(self._function)
        found: list[int] | None = await self._tx.connection.fetchval(JOBS_SQL[statement], *values)
        return found

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Return the end of a part, with the node of that job loaded."""
        tag = self._where.tag
        if tag is None:
            found = await self._tx.connection.fetchrow(self._statements.mark, _id(before), rows - 1)
        else:
            found = await self._tx.connection.fetchrow(
                JOBS_SQL["mark_tagged"], _id(before), rows - 1, self._where.namespace or DEFAULT, tag
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
        candidates = await stored_jobs(self._tx, [record for record in records if record[1] is not None], read_options)
        found = [*filter(self._where.matches, candidates)]
        if len(candidates) == most > len(found):
            low = 0 if mark is None else mark.id
            found += await self._list(self._statements.list, candidates[-1].id, most - len(found), low)
        return mark, found

    async def _tagged(self, tag: str, low: int, before: int | None, most: int) -> list[Job]:
        """Return the matching jobs of a part of those with a tag, and look up no more of them than needed."""
        records = await self._tx.connection.fetch(
            JOBS_SQL["tagged"], self._where.namespace or DEFAULT, tag, low, _id(before)
        )
        ids = [record[0] for record in records]
        found: list[Job] = []
        for start in range(0, len(ids), TAGGED_AT_ONCE):
            found += await self._list(
                JOBS_SQL["list_tagged"], before, most - len(found), ids[start : start + TAGGED_AT_ONCE]
            )
            if len(found) == most:
                break
        return found

    async def _list(self, statement: str, before: int | None, most: int, among: object) -> list[Job]:
        """Return matching jobs. The statement finds candidates, of which nearly all match."""
        found: list[Job] = []
        while len(found) < most:
            values = (_id(before), most, among, *self._criteria)
            candidates = await stored_jobs(self._tx, await self._tx.connection.fetch(statement, *values), read_options)
            found += filter(self._where.matches, candidates)
            if len(candidates) < most:
                break
            before = candidates[-1].id
        return found[:most]


def _id(before: int | None) -> int:
    return LARGEST_ID if before is None else min(before, LARGEST_ID)


async def list_jobs(tx: Transaction, query: QueryJobs, meter: Meter) -> Page[Job]:
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
    aliases = await submitting.aliases(tx, [query.id])
    ids = known_ids([aliases.get(query.id, query.id)])
    found: bytes | None = await tx.connection.fetchval(JOBS_SQL["arguments"], ids)
    return found


async def recall(tx: Transaction, query: Recall, _: Meter) -> Recalled | None:
    """Return the payload and the attempts of a job."""
    found = await tx.connection.fetchrow(JOBS_SQL["recall"], min(query.id, LARGEST_ID), query.most)
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
    records = await tx.connection.fetch(JOBS_SQL["first_in_line"], list(numbers), *places)
    return {numbers[function]: time_us for function, time_us in records}


async def list_limits(tx: Transaction, query: ListLimits, meter: Meter) -> Page[FunctionLimits]:
    """List the limits of functions, in the order of their numbers."""

    async def behind(after: int | None, most: int) -> list[tuple[int, FunctionLimits]]:
        found = await tx.connection.fetch(claiming.RESOURCES_SQL["limits"], after or 0, most)
        await tx.functions.load_keys({function for function, *_ in found})
        keys = tx.functions.keys
        return [(function, decode_limits(encoded, keys[function], version)) for function, version, encoded in found]

    return await in_parts(query, meter, behind)


async def show_counts(tx: Transaction, query: ShowCounts, _: Meter) -> Counted:
    """Return counts; see ``ShowCounts``. A page begins after the number of a function."""
    if query.functions is not None:
        return Counted(await counts_of(tx, await numbers_of(tx, query.functions), query.states))
    found = await tx.connection.fetch(JOBS_SQL["functions_after"], numbered(query.after), query.limit)
    counts = await counts_of(tx, {number: key_of(*stored) for number, *stored in found}, query.states)
    return Counted(counts, b"%d" % found[-1][0] if len(found) == query.limit else None)


Readers = dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]
READERS: Final[Readers] = {
    QueryJobs: list_jobs,
    FirstInLine: first_in_line,
    ShowJob: show_job,
    ReadArguments: read_arguments,
    Recall: recall,
    ListLimits: list_limits,
    ShowCounts: show_counts,
    CountSome: show_counts,
}
