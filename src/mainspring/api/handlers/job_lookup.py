"""Jobs that requests name: by handle, for callers with the permission for their functions, or by criteria; and their rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

from msgspec.structs import replace

from mainspring import namespaces
from mainspring.api.handlers.text import line, rfc3339
from mainspring.api.jobs import STATE_BY_NAME, JobInfo
from mainspring.api.request import ApiError, Code, Touches
from mainspring.api.submitting import PriorityName
from mainspring.callbacks import Callback
from mainspring.clock import to_us
from mainspring.jobs.model import UNREADABLE_JOB, State, UnreadableOptions
from mainspring.jobs.user_data import check_tags
from mainspring.namespaces import key_of_text, name_bytes, name_text
from mainspring.queries.filters import JobFilter
from mainspring.workflows.model import function_named, function_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from mainspring.access.caller import Caller
    from mainspring.api.handlers.registry import Call
    from mainspring.api.jobs import ListJobs
    from mainspring.api.request import JobCriteria
    from mainspring.jobs.model import Job
    from mainspring.jobs.requests import RemoteAttempt
    from mainspring.jobs.service import JobService


class JobLookup:
    """Finds the jobs of a node and of its store."""

    def __init__(self, service: JobService) -> None:
        self._service = service

    def job_id(self, handle: str) -> int:
        """Return the id of a handle. Raises ApiError."""
        job_id = self._service.handles.parse(handle.encode())
        if job_id is None:
            raise Touches.JOB.not_found(handle)
        return job_id

    async def functions_of(self, request: Any, caller: Caller) -> list[str]:
        """Return the function of the job of a request. Raises ApiError; see `registry.Finder`."""
        del caller
        return [function_text((await self.read(request.handle, request.namespace)).function)]

    async def find(self, call: Call) -> Job:
        """Return the job of a request, without payload and result. Raises ApiError and ForbiddenError."""
        request: Any = call.request
        job = await self.read(request.handle, request.namespace)
        call.check(function_text(job.function))
        return job

    async def read(self, handle: str, namespace: str) -> Job:
        """Return a job of a namespace, without payload and result; its access is not checked. Raises ApiError."""
        job_id = self.job_id(handle)
        job: Job | None = await Callback(
            partial(self._service.clients.find, job_id, overtakes=True, namespace=namespace)
        )
        if job is None or namespaces.namespace_of(job.function) != namespace:
            raise Touches.JOB.not_found(handle)
        return job


def check_job(call: Call, job: Job) -> None:
    """Raise ApiError for a job of another namespace, and ForbiddenError if the caller lacks the permission for its function."""
    if namespaces.namespace_of(job.function) != call.request.namespace:
        raise call.not_found()
    call.check(function_text(job.function))


async def filter_of(
    criteria: JobCriteria | ListJobs, namespace: str, find_run: Callable[[str, str], Awaitable[int]]
) -> JobFilter:
    """Return the filter for jobs of a namespace. ``find_run`` returns the number of a run of a namespace. Raises ApiError."""
    states = [criteria.state] if isinstance(criteria.state, str) else criteria.state or ()
    return JobFilter(
        states=tuple(dict.fromkeys(map(_state, states))),
        function=None if criteria.function is None else function_named(criteria.function, namespace),
        namespace=namespace,
        unique=None if criteria.unique is None else name_bytes(criteria.unique),
        key=None if criteria.key is None else criteria.key.encode(),
        schedule=None if criteria.schedule is None else key_of_text(namespace, criteria.schedule),
        run=None if criteria.workflow is None else await find_run(namespace, criteria.workflow),
        error_type=criteria.error_type,
        tag=None if criteria.tag is None else check_tags((criteria.tag,), "tag")[0],
        created_from_us=_time_us(criteria.created_from),
        created_to_us=_time_us(criteria.created_to),
    )


def _state(name: str) -> State:
    state = STATE_BY_NAME.get(name)
    if state is None:
        raise ApiError(Code.INVALID, f"there is no state {name!r}; there are {', '.join(STATE_BY_NAME)}")
    return state


def _time_us(time: datetime | None) -> int:
    """Return a time in microseconds, at least 1: 0 stands for no time."""
    return 0 if time is None else max(to_us(time.timestamp()), 1)


STATE_NAMES: Final = tuple(state.name.lower() for state in State)
PRIORITY_NAMES: Final[tuple[PriorityName, ...]] = get_args(PriorityName)
"""In the order of the numbers."""


def info_of(service: JobService, job: Job) -> JobInfo:
    """Return the row of a job."""
    return JobInfo(
        handle=service.handles.of(job.id).decode(),
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
