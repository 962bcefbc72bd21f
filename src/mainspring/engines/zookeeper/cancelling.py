"""Cancellation of waiting jobs, redrive and deletion of ended ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.zookeeper import locating, paths, records, submitting
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.optimistic import decide, decide_ends, end_of_waiting
from mainspring.engines.zookeeper.session import Waiting
from mainspring.engines.zookeeper.submitting import live_result
from mainspring.engines.zookeeper.timing import Swept, forgetting
from mainspring.engines.zookeeper.tree import Create, Delete, Write
from mainspring.errors import StoreError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.locating import LocatedJob, TaskLocation
    from mainspring.engines.zookeeper.optimistic import Plan
    from mainspring.engines.zookeeper.session import Completion, Handlers, Session
    from mainspring.engines.zookeeper.tree import Change


def rounds(ids: Sequence[int]) -> list[dict[int, int]]:
    """Split operations into rounds in which each job occurs once: its id and the place of its operation."""
    parted: list[dict[int, int]] = []
    for place, job_id in enumerate(ids):
        for one in parted:
            if job_id not in one:
                one[job_id] = place
                break
        else:
            parted.append({job_id: place})
    return parted


# ---- Cancel ----


class Cancelling(NamedTuple):
    """The outcome of a cancellation, and the completion of the job."""

    outcome: ops.Cancelled
    completion: Completion | None = None


def cancelled(seen: LocatedJob | None, operation: ops.Cancel, who: str) -> Plan[Cancelling]:
    """Plan to cancel a job; guard: SCHEDULED or PENDING."""
    if seen is None:
        return None, Cancelling(ops.Cancelled(None, 0))
    before = seen.state
    if before >= State.LEASED:
        return None, Cancelling(ops.Cancelled(seen.job(), int(before)))
    job = seen.job(whole=True)
    job.state = int(rules.step(before, Event.CANCEL))
    job.ended_us, job.error = operation.now_us, operation.error
    entry, completion = end_of_waiting(seen, job, who)
    return entry, Cancelling(ops.Cancelled(job, int(before)), completion)


async def cancel(session: Session, operations: Sequence[ops.Cancel]) -> list[ops.Cancelled | StoreError]:
    """Cancel waiting jobs; see ``Cancel``."""
    outcomes: dict[int, ops.Cancelled | StoreError] = {}
    for places in rounds([operation.id for operation in operations]):
        by_id = {job_id: operations[place] for job_id, place in places.items()}

        def plan(
            job_id: int, seen: LocatedJob | None, _: object, by_id: dict[int, ops.Cancel] = by_id
        ) -> Plan[Cancelling]:
            return cancelled(seen, by_id[job_id], session.who)

        decided = await decide_ends(session, places, plan, lambda one: one.completion and one.completion.job)
        for job_id, one in decided.items():
            outcomes[places[job_id]] = one if isinstance(one, StoreError) else one.outcome
        ended = [one.completion for one in decided.values() if not isinstance(one, StoreError) and one.completion]
        session.completions(ended)
    return [outcomes[place] for place in range(len(operations))]


# ---- Redrive ----


class Redriving(NamedTuple):
    """The outcome of a redrive, and the task that is pending."""

    outcome: ops.Redriven
    waiting: Waiting | None = None
    rival: TaskLocation | None = None
    """An ended task that is not published yet: of a rival, or of the job itself."""


def redriven(seen: LocatedJob | None, location: TaskLocation | None) -> Plan[Redriving]:
    """Plan the redrive of an ended job; ``location`` is the location of the task that has its name, if any."""
    if seen is None or seen.state not in rules.sources(Event.REDRIVE):
        return None, Redriving(ops.Redriven(None if seen is None else seen.job(), redriven=False))
    if seen.location is not None and seen.location.name.id != seen.id:
        # Another job got its name before its own publication.
        return None, Redriving(
            ops.Redriven(seen.job(), redriven=False, rival=seen.location.name.id or None), rival=seen.location
        )
    if location is not None and location.path:
        refused = ops.Redriven(seen.job(), redriven=False, rival=location.name.id)
        return None, Redriving(refused, rival=location if location.state.ended else None)
    job = seen.job(whole=True)
    before = job.state
    job.attempt = job.suspects = job.started_us = job.ended_us = job.expires_us = job.term = 0
    job.state = int(State.PENDING)
    job.foreground = False
    task = paths.task_name(job.function, job.unique, job.id)
    record = records.encode_job(job, seen.handle)
    changes: list[Change]
    if seen.location is not None:
        # It is not published yet, so it still has its name. Its result is written even if that changes nothing: the job may
        # end again before a master publishes this end from memory, and the version then refuses that.
        live = live_result(job.id, task, seen.waiters, foreground=False)
        changes = [Write(seen.path, live, seen.version), Delete(seen.location.path, seen.location.version)]
    else:
        result = live_result(job.id, task, (), foreground=False)
        name_record = locating.name_data(job.id, seen.handle, None if location is None else location.name.kept)
        path = paths.name(task)
        name = Create(path, name_record) if location is None else Write(path, name_record, location.name.version)
        changes = [name, Write(seen.path, result, seen.version)]
    changes.append(Create(paths.pending(task), record))
    counts = ((job.function, before, job.priority, -1), (job.function, job.state, job.priority, 1))
    return Entry(changes, counts), Redriving(ops.Redriven(job, redriven=True), Waiting(task, job, record))


async def redrive(session: Session, operations: Sequence[ops.Redrive]) -> list[ops.Redriven]:
    """Redrive ended jobs; see ``Redrive``."""
    outcomes: dict[int, ops.Redriven] = {}
    now = asyncio.get_running_loop().time
    until = now() + submitting.PUBLICATION_TIMEOUT
    for places in rounds([operation.id for operation in operations]):
        left = list(places)
        while left:
            decided = await decide(session, left, lambda _, seen, location: redriven(seen, location), named=True)
            session.waiting([one.waiting for one in decided.values() if one.waiting is not None])
            left = []
            for job_id, one in decided.items():
                session.memory(Swept).forget(job_id)
                outcomes[places[job_id]] = one.outcome
                if one.rival is not None and await submitting.published(session, one.rival, until - now()):
                    left.append(job_id)
    return [outcomes[place] for place in range(len(operations))]


# ---- DeleteEnded ----


class Deleting(NamedTuple):
    """The outcome of a deletion."""

    outcome: ops.Deleted
    unpublished: TaskLocation | None = None
    """The ended task, if it is not published yet."""


def deleted(seen: LocatedJob | None, location: TaskLocation | None) -> Plan[Deleting]:
    """Plan the deletion of an ended job; ``location`` is the location of the task that has its name, if any."""
    if seen is None:
        return None, Deleting(ops.Deleted(None, deleted=False))
    job = seen.job()
    if seen.location is not None:
        return None, Deleting(ops.Deleted(job, deleted=False), seen.location if seen.location.state.ended else None)
    name = None if location is None else (paths.name(location.task), location.name)
    return forgetting(seen.path, seen.version, job, name), Deleting(ops.Deleted(job, deleted=True))


async def delete_ended(session: Session, operations: Sequence[ops.DeleteEnded]) -> list[ops.Deleted]:
    """Delete ended jobs; see ``DeleteEnded``. One that is not published yet is awaited: its end has to reach its submitters."""
    outcomes: dict[int, ops.Deleted] = {}
    now = asyncio.get_running_loop().time
    until = now() + submitting.PUBLICATION_TIMEOUT
    for places in rounds([operation.id for operation in operations]):
        left = list(places)
        while left:
            decided = await decide(session, left, lambda _, seen, location: deleted(seen, location), named=True)
            left = []
            for job_id, one in decided.items():
                outcomes[places[job_id]] = one.outcome
                if one.unpublished is not None and await submitting.published(session, one.unpublished, until - now()):
                    left.append(job_id)
    return [outcomes[place] for place in range(len(operations))]


HANDLERS: Handlers = {
    ops.Cancel: cancel,
    ops.Redrive: redrive,
    ops.DeleteEnded: delete_ended,
}
