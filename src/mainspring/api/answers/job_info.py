"""Jobs as they are in answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from msgspec.structs import replace

from mainspring.api.answers.text import line, rfc3339
from mainspring.api.jobs import JobInfo
from mainspring.api.submitting import PriorityName
from mainspring.byte_names import name_text
from mainspring.jobs.model import UNREADABLE_JOB, State, UnreadableOptions
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from mainspring.jobs.remote_jobs import RemoteAttempt
    from mainspring.jobs.service import JobService

STATE_NAMES: Final = tuple(state.name.lower() for state in State)
PRIORITY_NAMES: Final[tuple[PriorityName, ...]] = get_args(PriorityName)
"""In the order of the numbers."""


def info_of(service: JobService, job: Job) -> JobInfo:
    """Return the row of a job."""
    return JobInfo(
        handle=service.handle_of(job.id).decode(),
        function=function_text(job.function),
        unique=name_text(job.unique),
        state=STATE_NAMES[job.state],
        priority=PRIORITY_NAMES[job.priority],
        attempt=job.attempt,
        created_at=rfc3339(job.created_us),
        started_at=rfc3339(job.started_us),
        ended_at=rfc3339(job.ended_us),
        error=UNREADABLE_JOB if isinstance(job.options, UnreadableOptions) else line(job.error),
    )


def of_another_node(job: Job, running: RemoteAttempt | None = None) -> Job:
    """Return a stored job with the attempt that runs on another node counted.

    ``running`` is the answer of the node that holds it.
    """
    if running is not None:
        state, started_us = int(State.RUNNING), running.started_us
        return replace(job, state=state, started_us=started_us, attempt=running.number)
    return replace(job, attempt=job.attempt + 1) if job.state == State.RUNNING else job
