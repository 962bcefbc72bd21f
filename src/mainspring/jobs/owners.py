"""Who owns a job: the slice that made it, and follows what becomes of it in the transaction in which it happens.

The jobs slice knows no other one. An owner is derived from what is stored with a job; engines note what happens to owned jobs
while they run the operations that do it, and hand these notices to the slice that is registered for the owner's kind
(``jobs.slices``). So what follows is committed with its cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.jobs.model import State

if TYPE_CHECKING:
    from mainspring.jobs.model import Job, Options
    from mainspring.jobs.rules import Settlement


class Owner(NamedTuple):
    """The slice that made a job, and what it is the job of there."""

    kind: str
    key: Any
    """Hashable. Of schedules: the name and the fire time."""


def owner(options: Options | None) -> Owner | None:
    """Return who owns a job; None where nobody does."""
    if options is None:
        return None
    if options.schedule is not None:
        # Stored and sent in fields of its own since before there were owners; nodes of versions before follow it too.
        return Owner("schedules", (options.schedule, options.fire_us))
    return None if options.owner is None else Owner(*options.owner)


class Ended(NamedTuple):
    """A job has ended for good."""

    id: int
    state: int
    term: int
    """The lease under which it ended; 0 where nobody held it."""
    attempt: int
    worker: str
    started_us: int
    ended_us: int
    error: bytes
    options: Options | None = None
    result: bytes = b""
    """Empty also where the end was found later, and not in the transaction that ended it."""

    @classmethod
    def of(cls, job: Job, worker: str = "") -> Ended:
        """Return the end of a job as it is stored."""
        times = (job.started_us, job.ended_us)
        return cls(job.id, job.state, job.term, job.attempt, worker, *times, job.error, job.options, job.result)

    @classmethod
    def by(cls, settlement: Settlement, state: int) -> Ended:
        """Return the end that a settlement brings about, with the state that follows from its event."""
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
    """An attempt at a job has ended, and the job goes on: it failed and has more attempts, or it was lost or given back."""

    id: int
    event: str
    """``rules.Event``: RETRY, SNOOZE, RELEASE or LOSE."""
    term: int
    attempt: int
    """Attempts that count so far."""
    due_us: int
    error: bytes
    options: Options | None

    @classmethod
    def by(cls, settlement: Settlement) -> AttemptEnded:
        """Return what a settlement brings about."""
        job = settlement.job
        error = settlement.error or job.error
        return cls(job.id, settlement.event, job.term, settlement.counted, settlement.due_us, error, job.options)


class Started(NamedTuple):
    """A job is recorded as running. One that ends soon is never recorded so; one that is recorded again is noted again."""

    id: int
    term: int
    attempt: int
    """Attempts that were counted before."""
    options: Options | None

    @classmethod
    def of(cls, job: Job) -> Started:
        """Return the start of a job that runs."""
        return cls(job.id, job.term, job.attempt, job.options)


Notice = Ended | AttemptEnded | Started
Notices = dict[str, list[Notice]]
"""What has happened in a group and was not followed yet, by the kinds of owners."""


def note(notices: Notices, notice: Notice) -> None:
    """Note what has happened to a job, for its owner where it has one."""
    whose = owner(notice.options)
    if whose is not None:
        notices.setdefault(whose.kind, []).append(notice)


def noticed(settlement: Settlement, state: int) -> Notice:
    """Return what a settlement brings about, with the state that follows from its event."""
    return Ended.by(settlement, state) if state >= State.SUCCEEDED else AttemptEnded.by(settlement)
