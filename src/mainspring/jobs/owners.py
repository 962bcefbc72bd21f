"""Owners of jobs: slices that create jobs and process their changes of state in the same transaction.

The jobs slice does not depend on other slices. The owner of a job is derived from its stored options. While an engine runs
operations, it records notices about owned jobs, and passes them to the slice that is registered for the owner's kind
(``jobs.slices``). So the consequences are committed with their cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.jobs.model import Options, State

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement


class Owner(NamedTuple):
    """The slice that created a job, and the job's key in that slice."""

    kind: str
    key: Any
    """Hashable. Of schedules: the name and the fire time. Of workflows: the id of the run."""


def owner(options: Options | None) -> Owner | None:
    """Return the owner of a job; None if it has none."""
    if options is None:
        return None
    if options.schedule is not None:
        # Schedules have fields of their own, which are older than owners and which nodes of older versions read.
        return Owner("schedules", (options.schedule, options.fire_us))
    if options.run is not None:
        return Owner("workflows", options.run[0])
    return None if options.owner is None else Owner(*options.owner[:2])


class Ended(NamedTuple):
    """A job has ended for good. Workflows store it as an array (``workflows.errands``): new fields are added at the end."""

    id: int
    state: int
    term: int
    """The term under which it ended; 0 if no node held it."""
    attempt: int
    worker: str
    started_us: int
    ended_us: int
    error: bytes
    options: Options | None = None
    result: bytes = b""
    """Empty if the end was found later, not in the transaction that ended the job."""

    @classmethod
    def of(cls, job: Job, worker: str = "") -> Ended:
        """Return the end of a job as it is stored."""
        times = (job.started_us, job.ended_us)
        return cls(job.id, job.state, job.term, job.attempt, worker, *times, job.error, job.options, job.result)

    @classmethod
    def by(cls, settlement: Settlement, state: int) -> Ended:
        """Return the end that a settlement causes, with the state that follows from its event."""
        job, (started_us, ended_us) = settlement.job, (settlement.started_us, settlement.ended_us)
        error = settlement.error or job.error
        return cls(
            job.id,
            state,
            job.term,
            settlement.counted,
            settlement.worker,
            started_us,
            ended_us,
            error,
            job.options,
            settlement.result,
        )


class AttemptEnded(NamedTuple):
    """An attempt has ended and the job has not: the attempt failed and more are left, or it was lost or given back."""

    id: int
    event: str
    """``rules.Event``: RETRY, SNOOZE, RELEASE or LOSE."""
    term: int
    attempt: int
    """Attempts counted so far."""
    due_us: int
    error: bytes
    options: Options | None
    lost_us: int = 0
    """When it was lost; 0 if it was not, or if that is unknown."""

    @classmethod
    def by(cls, settlement: Settlement) -> AttemptEnded:
        """Return the notice of a settlement."""
        job = settlement.job
        error = settlement.error or job.error
        due_us, lost_us = settlement.due_us, settlement.lost_us
        return cls(job.id, settlement.event, job.term, settlement.counted, due_us, error, job.options, lost_us)


class Started(NamedTuple):
    """A job was recorded as running. Short jobs are never recorded; a repeated record causes another notice."""

    id: int
    term: int
    attempt: int
    """Attempts that were counted before."""
    options: Options | None

    @classmethod
    def of(cls, job: Job) -> Started:
        """Return the start of a running job."""
        return cls(job.id, job.term, job.attempt, job.options)


Notice = Ended | AttemptEnded | Started
Notices = dict[str, list[Notice]]
"""The notices of a group that are not processed yet, by the kinds of owners."""


def note(notices: Notices, notice: Notice) -> None:
    """Record a notice for the owner of its job, if it has one."""
    whose = owner(notice.options)
    if whose is not None:
        notices.setdefault(whose.kind, []).append(notice)


def noticed(settlement: Settlement, state: int) -> Notice:
    """Return the notice of a settlement, with the state that follows from its event."""
    return Ended.by(settlement, state) if state >= State.SUCCEEDED else AttemptEnded.by(settlement)
