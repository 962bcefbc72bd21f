"""The location of tasks and jobs in the tree, by reads only.

A task may move during the search. Its possible places are read in the order of its life (pending, running, completed, published),
so the search meets a task that moves on. It may miss one that returns to pending, and is then repeated.

A member of the ensemble may lag behind the one that another node writes to. Stale reads do no harm, since writes check versions.
But a job is reported as missing only after the member has caught up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import RETRY_DELAY
from mainspring.errors import StoreCorruptError
from mainspring.ids import TERM_SPAN
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.session import Session
    from mainspring.engines.zookeeper.tree import Node
    from mainspring.jobs.model import Job

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


async def look(session: Session, ids: Iterable[int]) -> dict[int, LocatedJob]:
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
