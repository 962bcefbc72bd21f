"""Events about jobs: those that operations cause, by their outcomes.

A decision of a workflow is no job of a user, and a job that stands for a run ends with the run: both have no events of jobs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from mainspring.event_log import types
from mainspring.event_log.interests import DeadLetter, NewEvent
from mainspring.event_log.types import JobFields, LateAnswerFields
from mainspring.jobs.model import DECISIONS, RUNS, decode_failure
from mainspring.jobs.rules import Event, Outcome
from mainspring.namespaces import name_text, split
from mainspring.sizes import brief_line

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable

    from mainspring.access.caller import Act
    from mainspring.event_log.interests import InterestSet, NewEvents
    from mainspring.jobs.completion_rules import Completion, Refusal
    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement

_TYPES: Final = {
    Event.SUCCEED: types.SUCCEEDED,
    Event.FAIL: types.FAILED,
    Event.RETRY: types.ATTEMPT_FAILED,
    Event.LOSE: types.ATTEMPT_FAILED,
    Event.SNOOZE: types.SNOOZED,
    Event.CANCEL: types.CANCELLED,
    Event.EXPIRE: types.EXPIRED,
}
"""The types of the ends of attempts. A job that was given back, without an attempt, has none."""


def of_settlement(settlement: Settlement) -> NewEvent | None:
    """Return the event of a settlement that was recorded; None if it has none."""
    name = _TYPES.get(settlement.event)
    if name is None or (settlement.event is Event.LOSE and settlement.outcome is None):
        return None  # a lost node had the job, but perhaps no worker
    if settlement.awaits and settlement.event is Event.SNOOZE:
        return None  # its attempt goes on
    fields: dict[str, Any] = {"attempt": settlement.counted}
    job = settlement.job
    if name == types.ATTEMPT_FAILED:
        fields["lost"] = settlement.outcome is Outcome.LOST
    event = of_job(
        name,
        job,
        settlement.error or (b"" if settlement.event is Event.SUCCEED else job.error),
        worker=settlement.worker,
        ran_us=settlement.ran_us,
        due_us=settlement.due_us,
        **fields,
    )
    if event is not None and name == types.FAILED and (job.options is None or not job.options.forget):
        return event._replace(dead_letter=DeadLetter(job.function, settlement.ended_us))
    return event


def add_hidden(events: NewEvents, recorded: Iterable[Settlement], stale: Container[int]) -> None:
    """Add the events of the recorded settlements of an operation that its outcome, ``stale``, does not tell.

    They are rare: those of jobs for which the same operation has another settlement, which was stale.
    """
    for one in recorded:
        if one.job.id in stale:
            events.add(of_settlement(one))


def having_events(wanted: Collection[str]) -> Collection[Event]:
    """Return the ends of attempts that have events of wanted types: most ends are successes, which few want."""
    return [
        event
        for event, name in _TYPES.items()
        if name in wanted or (event is Event.FAIL and types.DEAD_LETTERS in wanted)
    ]


def have_events(settlements: Iterable[Settlement], interests: InterestSet) -> bool:
    """Return whether one of these settlements has an event that somebody wants, or is a dead letter that counts."""
    having = having_events(interests.types) if interests else ()
    return bool(having) and any(
        one.event in having and (one.event is Event.FAIL or interests.wants(of_settlement(one))) for one in settlements
    )


def of_job(name: str, job: Job, error: bytes = b"", **fields: Any) -> NewEvent | None:
    """Return an event about a job; None if the job has no events."""
    options = job.options
    about = _about(job.function)
    if about is None or job.term == RUNS:
        return None
    tags: tuple[str, ...] = ()
    if options is not None:
        tags = options.tags
        if options.schedule is not None:
            fields["schedule"] = options.schedule
        if options.run is not None:
            fields["run"] = options.run[0]
        if options.depth:
            fields["depth"] = options.depth
    if error:
        found = decode_failure(error)
        fields["error_type"], fields["error"] = found.type, brief_line(found.message)
    fields.setdefault("attempt", job.attempt)
    key = name_text(job.key) if job.key else ""
    return NewEvent(name, *about, "", job.id, JobFields(tags=tags, key=key, **fields), tags)


def of_late_answer(completion: Completion, job: Job | None, why: Refusal) -> NewEvent | None:
    """Return the event of an answer to a completion token that was not accepted. Its job may be deleted."""
    about = _about(completion.function)
    if about is None:
        return None
    fields = LateAnswerFields(why=why.value, number=completion.number, attempt=completion.attempt)
    options = None if job is None else job.options
    if options is not None:
        fields.tags, fields.schedule, fields.depth = options.tags, options.schedule or "", options.depth
        fields.run = 0 if options.run is None else options.run[0]
    return NewEvent(types.LATE_ANSWER, *about, "", completion.job, fields, fields.tags)


@lru_cache(maxsize=1024)  # most events are about few functions
def _about(function: bytes) -> tuple[str, str] | None:
    """Return the namespace and the text of a function; None for one of decisions."""
    namespace, name = split(function)
    return None if name.startswith(DECISIONS) else (namespace, name_text(name))


def by(act: Act | None) -> str:
    """Return the name of the caller of an act; empty if there is none."""
    return "" if act is None else act.who
