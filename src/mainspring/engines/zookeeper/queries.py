"""Reads of jobs: where the task of a job is, look-ups, counts, and lists.

While the ensemble is away, they fail with an error.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import RETRY_DELAY, TOTAL, Counts, total
from mainspring.errors import StoreCorruptError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, UNREADABLE_OPTIONS, Job, State
from mainspring.jobs.store import Counted, CountSome, Find, ShowCounts, ShowJob
from mainspring.queries import Mark, QueryJobs, ReadArguments, search
from mainspring.sizes import CANNOT_READ
from mainspring.storage.engine import Budget, Meter, Page, Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.sessions import Handlers, Reader, Readers, Session
    from mainspring.engines.zookeeper.tree import Node

T = TypeVar("T")
MAX_ROUNDS: Final = 100
"""Searches for a task; if it is still missing then, the tree is corrupt."""
_STATES: Final = {state.name.lower(): state for state in State}


class Name(NamedTuple):
    """The record in ``names/<bb>/<task>``: the job that has the name, and the last success that others may join."""

    version: int
    id: int
    """The job that has the name, until its publication; 0 if none has."""
    handle: str
    due_us: int
    """Its last due time among the delayed tasks; 0 if it never was delayed."""
    kept: dict[str, Any] | None
    """The last success of a job that was submitted with ``keep_unique``: handle, id, ended_us, attempt."""


def name_of(node: Node) -> Name:
    """Return the name in a node."""
    data = records.decode(node.data)
    return Name(node.version, data.get("id", 0), data.get("handle", ""), data.get("due_us", 0), data.get("kept"))


def name_data(job_id: int, handle: str, kept: dict[str, Any] | None = None, due_us: int = 0) -> bytes:
    """Return the record of a name that a job has."""
    data: dict[str, Any] = {"handle": handle, "id": job_id}
    if due_us:
        data["due_us"] = due_us
    if kept is not None:
        data["kept"] = kept
    return records.encode(data)


def name_after(name: Name, job: Job, handle: str) -> bytes | None:
    """Return the record of a name after the publication of its job; None if the name is deleted.

    Of two successes with ``keep_unique``, the one with the later end, by the clock, is kept.
    """
    kept = name.kept
    if job.unique and job.state == State.SUCCEEDED and job.options is not None and job.options.keep_unique is not None:
        this = {"handle": handle, "id": job.id, "ended_us": job.ended_us, "attempt": job.attempt}
        if kept is None or (kept["ended_us"], kept["id"]) < (job.ended_us, job.id):
            kept = this
    return None if kept is None else records.encode({"kept": kept})


class TaskLocation(NamedTuple):
    """The location of a task."""

    task: str
    name: Name
    """Its name; that of an ended task may belong to another job already."""
    path: str
    """The node with its record; empty if no job has the name."""
    version: int
    record: dict[str, Any]
    state: State
    attempt: int
    assignment: str
    """The node of its assignment, if it is held."""
    assigned: int
    """That node's version."""


class LocatedJob(NamedTuple):
    """A job as it was read, with the location of its task."""

    id: int
    handle: str
    path: str
    """The path of its result."""
    version: int
    data: dict[str, Any]
    """The data of the result: ``task`` and ``waiters`` until the publication, then the record of the outcome."""
    location: TaskLocation | None
    """The location of its task; None after the publication."""

    @property
    def state(self) -> State:
        """The job's state."""
        return _STATES[self.data["state"]] if self.location is None else self.location.state

    @property
    def waiters(self) -> list[int]:
        """The terms of the nodes whose clients wait for it."""
        waiters: list[int] = self.data.get("waiters", []) if self.location is not None else []
        return waiters

    def job(self, *, whole: bool = False) -> Job:
        """Return the job, with its payload if ``whole``."""
        location = self.location
        record = dict(self.data if location is None else location.record)
        if not whole:
            record.pop("payload", None)
            record.pop("payload_base64", None)
        job = records.decode_job(record)
        if location is not None:
            job.state, job.attempt = int(location.state), location.attempt
            job.foreground = self.data.get("foreground", False)
        return job


async def locate(session: Session, tasks: Iterable[str]) -> dict[str, TaskLocation]:
    """Return the locations of tasks, except unknown names, and load the terms of their jobs.

    Raises StoreFencedError, StoreCorruptError.
    """
    found: dict[str, TaskLocation] = {}
    left = await _until_found(list(dict.fromkeys(tasks)), lambda left: _locate(session, left, found))
    if left:
        raise StoreCorruptError(f"{left[0]} has a name and no task")
    names = [location.name for location in found.values()]
    await session.meet([name.id for name in names if name.id] + [name.kept["id"] for name in names if name.kept])
    return found


async def _until_found(left: list[T], look: Callable[[list[T]], Awaitable[list[T]]]) -> list[T]:
    """Repeat a search until it finds everything; return the items that are still missing after `MAX_ROUNDS`."""
    for turn in range(MAX_ROUNDS):
        if not left:
            break
        if turn > 1:
            await asyncio.sleep(RETRY_DELAY / MAX_ROUNDS * turn)
        left = await look(left)
    return left


async def _locate(session: Session, tasks: list[str], found: dict[str, TaskLocation]) -> list[str]:
    """Search once, and return the tasks that were not found."""
    nodes = iter(await session.get_many([place for task in tasks for place in _places(task)]))
    delayed: list[tuple[str, Name]] = []
    held: list[TaskLocation] = []
    left: list[str] = []
    for task in tasks:
        node, pending, running, completed = (next(nodes) for _ in range(4))
        if node is None:
            continue
        name = name_of(node)
        if not name.id:
            found[task] = TaskLocation(task, name, "", 0, {}, State.SUCCEEDED, 0, "", 0)
        elif (location := _location(task, name, paths.pending(task), pending)) is not None:
            found[task] = location
        elif (location := _location(task, name, paths.running(task), running)) is not None:
            held.append(location)
        elif (location := _location(task, name, paths.completed(task), completed)) is not None:
            found[task] = location
        else:
            delayed.append((task, name))
    if delayed:
        at = [paths.delayed(task, name.due_us, name.id) for task, name in delayed]
        for (task, name), path, node in zip(delayed, at, await session.get_many(at), strict=True):
            location = _location(task, name, path, node)
            if location is None:
                left.append(task)
            else:
                found[task] = location
    if held:
        left += await _assigned(session, held, found)
    return left


def _places(task: str) -> tuple[str, str, str, str]:
    end = f"{paths.bucket(task)}/{task}"
    return (
        f"{paths.NAMES}/{end}", f"{paths.PENDING}/{end}", f"{paths.RUNNING}/{end}", f"{paths.COMPLETED}/{end}",
    )  # fmt: skip


def _location(task: str, name: Name, path: str, node: Node | None) -> TaskLocation | None:
    if node is None:
        return None
    record = records.decode(node.data)
    if record["id"] != name.id:
        return None
    state = _STATES[record["state"]]
    return TaskLocation(task, name, path, node.version, record, state, record.get("attempt", 0), "", 0)


async def _assigned(session: Session, held: list[TaskLocation], found: dict[str, TaskLocation]) -> list[str]:
    """Read the assignments of held tasks, and return the tasks whose assignment is gone."""
    await session.meet(location.record["term"] * TERM_SPAN for location in held)
    at = [paths.assignment(session.worker_of(location.record["term"]), location.task) for location in held]
    left = []
    for location, path, node in zip(held, at, await session.get_many(at), strict=True):
        data = {} if node is None else records.decode(node.data)
        if node is None or data["id"] != location.name.id:
            left.append(location.task)
        else:
            state, attempt = _STATES[data["state"]], data.get("attempt", location.attempt)
            found[location.task] = location._replace(
                state=state, attempt=attempt, assignment=path, assigned=node.version
            )
    return left


async def read_jobs(session: Session, ids: Iterable[int]) -> dict[int, LocatedJob]:
    """Return jobs by their ids, except unknown ones. Raises StoreFencedError, StoreCorruptError."""
    wanted = [job_id for job_id in dict.fromkeys(ids) if job_id >= TERM_SPAN]
    seen: dict[int, LocatedJob] = {}
    await _look_here(session, wanted, seen)
    missing = [job_id for job_id in wanted if job_id not in seen]
    if missing:
        await session.catch_up()
        await _look_here(session, missing, seen)
    return seen


async def _look_here(session: Session, ids: Sequence[int], seen: dict[int, LocatedJob]) -> None:
    """Search for jobs on this node's member of the ensemble, without a sync."""
    await session.meet(ids)
    known_ids = [job_id for job_id in ids if job_id // TERM_SPAN in session.nodes]
    left = await _until_found(known_ids, lambda left: _look(session, left, seen))
    if left:
        raise StoreCorruptError(f"job {left[0]} has neither a result nor a task")


async def _look(session: Session, ids: list[int], seen: dict[int, LocatedJob]) -> list[int]:
    """Search once, and return the jobs that were published or dropped in the meantime."""
    at = [session.result(job_id) for job_id in ids]
    live: list[LocatedJob] = []
    for job_id, path, node in zip(ids, at, await session.get_many(at), strict=True):
        if node is None:
            continue
        one = LocatedJob(job_id, session.handle(job_id), path, node.version, records.decode(node.data), None)
        if records.is_published(one.data):
            seen[job_id] = one
        else:
            live.append(one)
    locations = await locate(session, [one.data["task"] for one in live]) if live else {}
    unnamed = []
    for one in live:
        location = locations.get(one.data["task"])
        if location is None or location.name.id != one.id:
            unnamed.append(one)
        else:
            seen[one.id] = one._replace(location=location)
    return await _look_unnamed(session, unnamed, locations, seen) if unnamed else []


async def _look_unnamed(
    session: Session, live: list[LocatedJob], locations: dict[str, TaskLocation], seen: dict[int, LocatedJob]
) -> list[int]:
    """Search for ended, unpublished jobs whose names other jobs have got."""
    at = [paths.completed(one.data["task"]) for one in live]
    left = []
    for one, path, node in zip(live, at, await session.get_many(at), strict=True):
        task = one.data["task"]
        name = locations[task].name if task in locations else Name(0, 0, "", 0, None)
        location = _location(task, name._replace(id=one.id), path, node)
        if location is None:
            left.append(one.id)
        else:
            seen[one.id] = one._replace(location=location._replace(name=name))
    return left


JOBS_AT_ONCE: Final = 64
"""Jobs read at once for a look-up: each has up to a megabyte."""
_PENDING: Final = int(State.PENDING)


async def find(session: Session, operations: Sequence[ops.Find]) -> list[dict[int, Job]]:
    """Look jobs up; see ``Find``."""

    async def look(ids: Sequence[int]) -> dict[int, Job]:
        return {job_id: seen.job() for job_id, seen in (await read_jobs(session, ids)).items()}

    return await look_up(operations, look)


async def look_up(
    operations: Sequence[ops.Find | ops.Subscribe],
    look: Callable[[Sequence[int]], Awaitable[Mapping[int, Job]]],
) -> list[dict[int, Job]]:
    """Look jobs up for operations, by a function that reads a portion.

    A record can only be read with its result. Portions bound the memory before the sizes of the results are known.
    """
    requested = list(dict.fromkeys(job_id for operation in operations for job_id in operation.ids))
    room = sum(operation.room for operation in operations)
    found: dict[int, Job] = {}
    for start in range(0, len(requested), JOBS_AT_ONCE):
        jobs = await look(requested[start : start + JOBS_AT_ONCE])
        ops.leave_unread(jobs, room)
        room -= sum(len(job.result) for job in jobs.values())
        found.update(jobs)
    outcomes = []
    for operation in operations:
        outcome = {job_id: copy(found[job_id]) for job_id in operation.ids if job_id in found}
        ops.leave_unread(outcome, operation.room)
        outcomes.append(outcome)
    return outcomes


async def _find_unique(session: Session, operations: Sequence[ops.FindUnique]) -> list[list[ops.Found | None]]:
    keys = list(dict.fromkeys(key for operation in operations for key in operation.keys))
    found = await _look_up_uniques(session, keys)
    missing = [key for key in keys if key not in found and key[1] != NO_UNIQUE]
    if missing:
        await session.catch_up()
        found.update(await _look_up_uniques(session, missing))
    return [[found.get(key) for key in operation.keys] for operation in operations]


async def _look_up_uniques(
    session: Session, keys: Sequence[tuple[bytes | ops.InNamespace, bytes]]
) -> dict[tuple[bytes | ops.InNamespace, bytes], ops.Found]:
    """Look live jobs up on this node's member of the ensemble, without a sync."""
    functions: list[bytes] = []
    if any(isinstance(function, ops.InNamespace) for function, _ in keys):
        counts = await count_all(session)
        functions = sorted({function for (function, state, _) in counts if not State(state).ended})
    tasks = {
        (function, unique): [
            paths.task_name(name, unique, 0) for name in ([function] if isinstance(function, bytes) else functions)
        ]
        for function, unique in keys
        if unique != NO_UNIQUE
    }
    locations = await locate(session, [task for some in tasks.values() for task in some])
    found: dict[tuple[bytes | ops.InNamespace, bytes], ops.Found] = {}
    for key, some in tasks.items():
        for task in some:
            location = locations.get(task)
            if location is not None and not location.state.ended:
                found[key] = ops.Found(location.name.id, int(location.state), location.attempt)
                break
    return found


# ---- counts ----


async def count_all(session: Session) -> Counts:
    """Return the sum of all journals at one moment, with the latest: a master may be moving counts between them."""
    await session.tree.sync()
    names = paths.journals_of(await session.tree.children(paths.JOURNALS))
    while True:
        at = [f"{paths.JOURNALS}/{name}" for name in names]
        before, *journals, after = await session.tree.get_many([TOTAL, *at, TOTAL])
        listed, names = names, paths.journals_of(await session.tree.children(paths.JOURNALS))
        if set(listed) == set(names) and (before and before.version) == (after and after.version):
            return total(journal.data for journal in journals if journal is not None)


async def count(session: Session, operations: Sequence[ops.Count]) -> list[Counts]:
    """Return the counts; see ``Count``."""
    counts = await count_all(session)
    unfinished = _in_states(counts)
    return [
        dict(counts) if one.functions is None else of_functions(unfinished, frozenset(one.functions))
        for one in operations
    ]


def _in_states(counts: Counts, states: tuple[int, int] = ops.LIVE) -> Counts:
    first, last = states
    return {key: number for key, number in counts.items() if first <= key[1] <= last}


def of_functions(counts: Counts, functions: Collection[bytes]) -> Counts:
    """Return the counts of some functions."""
    return {key: number for key, number in counts.items() if key[0] in functions}


async def _look_for_backlog(session: Session, operations: Sequence[ops.ReadBacklog]) -> list[ops.Backlog]:
    """Return the backlog; see ``ReadBacklog``. All counts are read: they are a few nodes of the tree."""
    counts = await count_all(session)
    following = await next_us(session)
    return [_backlog(counts, operation.functions, following) for operation in operations]


def _backlog(counts: Counts, functions: Sequence[bytes] | None, following: int) -> ops.Backlog:
    requested = None if functions is None else frozenset(functions)
    pending: dict[tuple[bytes, int], int] = {}
    live: dict[bytes, int] = {}
    for (function, state, priority), number in counts.items():
        if requested is not None and function not in requested:
            continue
        if state == _PENDING:
            pending[function, priority] = number
        if not State(state).ended:
            live[function] = live.get(function, 0) + number
    return ops.Backlog(pending, live, following)


async def next_us(session: Session, after_us: int = -1) -> int:
    """Return when the next job is due, or expires after ``after_us``; 0 if none does."""
    due = await first(session, paths.DELAYED, -1)
    expires = await first(session, paths.EXPIRING, after_us)
    return min((one.time_us for one in (due, expires) if one is not None), default=0)


async def first(session: Session, root: str, after_us: int) -> paths.Timed | None:
    """Return the first timed entry after ``after_us``, without late ones."""
    least = f"{max(after_us, 0) // paths.MINUTE_US:012d}"
    for minute in paths.minutes_of(await session.tree.children(root)):
        if minute < least:
            continue
        parent = f"{root}/{minute}"
        timed = paths.timed_of(parent, await session.tree.children(parent))
        timed = [one for one in timed if one.time_us > after_us and one.path not in session.late]
        if timed:
            return min(timed)
    return None


HANDLERS: Handlers = {
    ops.Find: find,
    ops.FindUnique: _find_unique,
    ops.Count: count,
    ops.ReadBacklog: _look_for_backlog,
}

PAGE_ROWS: Final = 200
"""Rows read at once."""


async def answer(reader: Reader, session: Session, query: Query[Any], budget: Budget) -> Any:
    """Answer a query by its reader. Raises StoreError."""
    budget = budget._replace(part=min(budget.part, PAGE_ROWS))
    return await reader(session, query, Meter(budget, asyncio.get_running_loop().time))


class _Jobs:
    """`SearchableJobs` on the tree: each job has a result node since its submission."""

    seeks = False

    def __init__(self, session: Session, query: QueryJobs) -> None:
        self._session = session
        self._query = query
        self._blocks = newest(session, query.after)
        self._listed: deque[int] = deque()

    async def few(self, most: int) -> list[Job] | None:
        """Return None: there are no indexes."""
        del most
        return None

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Never called: the blocks are in their order."""
        raise NotImplementedError

    async def part(self, before: int | None, rows: int, most: int) -> tuple[Mark | None, list[Job]]:
        """Read the next part, after the last one."""
        del before
        async for ids in self._blocks:
            self._listed.extend(ids)
            if len(self._listed) >= rows:
                break
        ids = [self._listed.popleft() for _ in range(min(rows, len(self._listed)))]
        seen = await read_jobs(self._session, ids)
        jobs = [_job_of(seen[job_id]) for job_id in ids if job_id in seen]
        mark = Mark(ids[-1], jobs[-1].created_us if jobs else 0) if len(ids) == rows else None
        found = [job for job in jobs if self._query.where.matches(job)][:most]
        for job in found:
            job.result = b""
        return mark, found


def _job_of(seen: LocatedJob) -> Job:
    """Return a job as a list shows it. One whose record cannot be read is a row with its id."""
    try:
        return seen.job()
    except (*CANNOT_READ, LookupError, TypeError):
        return Job(seen.id, b"", b"", state=seen.state, options=UNREADABLE_OPTIONS)


async def _list_jobs(session: Session, query: QueryJobs, meter: Meter) -> Page[Job]:
    await session.tree.sync()
    return await search(_Jobs(session, query), query, meter)


async def _read_arguments(session: Session, query: ReadArguments, _: Meter) -> bytes | None:
    seen = (await read_jobs(session, [query.id])).get(query.id)
    return None if seen is None or seen.state == State.SUCCEEDED else seen.job(whole=True).payload


async def _show_job(session: Session, query: ShowJob, _: Meter) -> Job | None:
    (found,) = await find(session, [Find([query.id], 0, query.namespace)])
    return found.get(query.id)


async def newest(session: Session, before: int | None) -> AsyncIterator[list[int]]:
    """Yield the ids of all jobs below ``before``, a block at a time, newest first."""
    blocks = paths.blocks_of(await session.tree.children(paths.RESULTS))
    for block in sorted(map(paths.first_of_block, blocks), reverse=True):
        if before is not None and block >= before:
            continue
        handles = paths.handles_of(await session.tree.children(paths.block(block)))
        ids = sorted(map(paths.id_of, handles), reverse=True)
        yield ids if before is None else [job_id for job_id in ids if job_id < before]


async def _show_counts(session: Session, query: ShowCounts, _: Meter) -> Counted:
    """Return the counts of some functions, or those of a page, in the order of their names."""
    counts = _in_states(await count_all(session), query.states)
    if query.functions is not None:
        return Counted(of_functions(counts, frozenset(query.functions)))
    names = sorted({name for name, _, _ in counts})
    at = bisect_right(names, query.after)
    page, rest = names[at : at + query.limit], names[at + query.limit :]
    return Counted(of_functions(counts, frozenset(page)), page[-1] if rest else None)


READERS: Final[Readers] = {
    QueryJobs: _list_jobs,
    ReadArguments: _read_arguments,
    ShowJob: _show_job,
    ShowCounts: _show_counts,
    CountSome: _show_counts,
}
