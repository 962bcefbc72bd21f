"""The waiters of jobs, by nodes; foreground jobs are dropped when they have none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.optimistic import decide, note, unmark
from mainspring.engines.zookeeper.queries import look_up
from mainspring.engines.zookeeper.tree import Delete, Write
from mainspring.ids import TERM_SPAN
from mainspring.jobs import store as ops
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.optimistic import Plan
    from mainspring.engines.zookeeper.queries import LocatedJob
    from mainspring.engines.zookeeper.sessions import Handlers, Session
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.jobs.model import Job

T = TypeVar("T")
_LEASED: Final = int(State.LEASED)


def awaited(seen: LocatedJob | None, term: int) -> Plan[Job | None]:
    """Plan to store that clients of a node wait for a job."""
    if seen is None:
        return None, None
    if seen.state.ended or term in seen.waiters:
        return None, seen.job()
    return note(seen, [*seen.waiters, term]), seen.job()


async def wait(session: Session, operations: Sequence[ops.Subscribe]) -> list[dict[int, Job]]:
    """Store the waiters, and look the jobs up; see ``Subscribe``."""
    terms = {
        operation.term for operation in operations
    }  # one, since a group belongs to one node; more if a term was fenced

    async def look(ids: Sequence[int]) -> dict[int, Job]:
        found: dict[int, Job] = {}
        for term in sorted(terms):
            decided = await decide(session, ids, partial(_plan, awaited, term))
            found.update({job_id: job for job_id, job in decided.items() if job is not None})
        return found

    return await look_up(operations, look)


def _plan(
    plan: Callable[[LocatedJob | None, int], Plan[T]], term: int, _: int, seen: LocatedJob | None, __: object
) -> Plan[T]:
    return plan(seen, term)


def left(seen: LocatedJob | None, term: int) -> Plan[bool]:
    """Plan to remove a node from a job's waiters; the outcome is whether the job is dropped."""
    if seen is None or seen.location is None or seen.state.ended:
        return None, False
    location = seen.location
    waiters = [one for one in seen.waiters if one != term]
    held = location.state == State.LEASED and location.record["term"] == term
    if waiters or not seen.data.get("foreground", False) or not (location.state < _LEASED or held):
        return (note(seen, waiters) if len(waiters) < len(seen.waiters) else None), False
    return dropped(seen), True


def dropped(seen: LocatedJob) -> Entry:
    """Return the entry that removes all traces of a job."""
    location, job = seen.location, seen.job()
    assert location is not None
    name = paths.name(location.task)
    kept = location.name.kept
    changes: list[Change] = [
        Delete(seen.path, seen.version),
        Delete(name, location.name.version)
        if kept is None
        else Write(name, records.encode({"kept": kept}), location.name.version),
        Delete(location.path, location.version),
        *unmark(job, location.task),
    ]
    if location.assignment:
        changes.append(Delete(location.assignment, location.assigned))
    return Entry(changes, ((job.function, job.state, job.priority, -1),))


async def leave(session: Session, operations: Sequence[ops.Unsubscribe]) -> list[set[int]]:
    """Remove a node from the waiters of jobs; see ``Unsubscribe``."""
    gone: dict[int, set[int]] = {}
    for term, ids in _by_term(operations).items():
        decided = await decide(session, ids, partial(_plan, left, term))
        gone[term] = {job_id for job_id, is_dropped in decided.items() if is_dropped}
        for job_id in gone[term]:
            session.assignments.pop(job_id, None)
    return [gone[operation.term].intersection(operation.ids) for operation in operations]


def _by_term(operations: Sequence[ops.Subscribe] | Sequence[ops.Unsubscribe]) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = {}
    for operation in operations:
        ids.setdefault(operation.term, []).extend(operation.ids)
    return ids


async def watchers(session: Session, operations: Sequence[ops.FindSubscribers]) -> list[dict[int, list[int]]]:
    """Return the waiters of jobs at other nodes; see ``FindSubscribers``."""
    ids = sorted({job_id for operation in operations for job_id in operation.ids})
    # The member that this node reads from may lag behind the one that a waiting node has written to.
    await session.tree.sync()
    waiters = await _waiters(session, ids)
    return [
        {
            job_id: elsewhere
            for job_id in operation.ids
            if (elsewhere := [term for term in waiters.get(job_id, ()) if term != operation.term])
        }
        for operation in operations
    ]


async def _waiters(session: Session, ids: Sequence[int]) -> dict[int, list[int]]:
    """Return the waiters of jobs that have not ended."""
    await session.meet(ids)
    loaded = [job_id for job_id in ids if job_id // TERM_SPAN in session.nodes]
    found: dict[int, dict[str, Any]] = {}
    nodes = await session.tree.get_many([session.result(job_id) for job_id in loaded])
    for job_id, node in zip(loaded, nodes, strict=True):
        data = {} if node is None else records.decode(node.data)
        if data.get("waiters") and not records.is_published(data):
            found[job_id] = data
    # The publication of a completed job notifies its waiters.
    ends = await session.tree.get_many([paths.completed(data["task"]) for data in found.values()])
    return {
        job_id: sorted(data["waiters"])
        for (job_id, data), node in zip(found.items(), ends, strict=True)
        if node is None or records.decode(node.data)["id"] != job_id
    }


async def drain_inbox(session: Session, operations: Sequence[ops.DrainInbox]) -> list[ops.DrainedInbox]:
    """Return empty inboxes: users have no transactions of their own on ZooKeeper."""
    del session
    return [ops.DrainedInbox({}, 0, more=False) for _ in operations]


HANDLERS: Handlers = {
    ops.Subscribe: wait,
    ops.Unsubscribe: leave,
    ops.FindSubscribers: watchers,
    ops.DrainInbox: drain_inbox,
}
