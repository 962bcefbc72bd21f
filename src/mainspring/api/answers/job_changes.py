"""Answers of calls that change single jobs: retry, reschedule, snooze, clone and delete."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from mainspring.api.answers.job_info import PRIORITY_NAMES, info_of
from mainspring.api.answers.job_lookup import JobLookup, unknown
from mainspring.api.answers.once import act_if_new
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.api.job_changes import Clone, Delete, Deleted, Snooze, Update
from mainspring.api.jobs import Retry
from mainspring.api.submitting import PRIORITY_BY_NAME, JobOptions, bytes_of, check_seconds, has_arguments, size_problem
from mainspring.byte_names import name_bytes
from mainspring.clock import to_us
from mainspring.errors import NotFoundError, UsageError
from mainspring.jobs.argument_rules import is_redacted
from mainspring.jobs.changes import JobChange
from mainspring.jobs.model import Options, State
from mainspring.jobs.retry import MAX_WAIT
from mainspring.namespaces import name_of
from mainspring.queries.jobs import ReadArguments

if TYPE_CHECKING:
    from mainspring.access.caller import Caller
    from mainspring.access.once import Once
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.submitting import SubmitCalls
    from mainspring.api.jobs import JobInfo
    from mainspring.api.submitting import PriorityName, Submission
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService

_NO_OPTIONS = Options()


class JobChangeCalls:
    """Calls that change single jobs. ``changes_jobs`` is whether the store can do more than redrive them; see `Engine`."""

    def __init__(self, service: JobService, submits: SubmitCalls, *, largest: int, changes_jobs: bool = True) -> None:
        self._service = service
        self._submits = submits
        self._largest = largest
        self._changes_jobs = changes_jobs
        self._lookup = JobLookup(service)
        self.handlers: Handlers = {
            Retry: self._retry,
            Update: self._update,
            Snooze: self._snooze,
            Clone: self._clone,
            Delete: self._delete,
        }

    async def _retry(self, request: Retry, caller: Caller, once: Once | None) -> JobInfo:
        check_seconds(request, "delay")
        changed = has_arguments(request)
        if request.delay or changed:
            self._check_supported("a retry with a delay or other arguments")
        payload = bytes_of(request) if changed else None
        if payload is not None and (problem := size_problem(payload, self._largest)) is not None:
            raise ApiError(problem.code, problem.message)
        job_id = self._lookup.job_id(request.handle)
        act = caller.act(request.call, request.handle, namespace=request.namespace)
        retry = partial(
            self._service.retry,
            job_id,
            payload=payload,
            delay=request.delay or 0.0,
            act=act,
            namespace=request.namespace,
        )
        try:
            return await act_if_new(
                once,
                lambda keyed, done, failed: retry(done, failed, keyed_act=keyed),
                lambda job: info_of(self._service, job),
            )
        except NotFoundError:
            raise unknown(request.handle) from None

    async def _update(self, request: Update, caller: Caller) -> JobInfo:
        expires_at = request.expires_at
        return await self._reschedule(
            request,
            JobChange(
                None if request.run_at is UNSET else self._time_us("run_at", request.run_at.timestamp()),
                None if request.priority is UNSET else int(PRIORITY_BY_NAME[request.priority]),
                None
                if expires_at is UNSET
                else 0
                if expires_at is None
                else self._time_us("expires_at", expires_at.timestamp()),
            ),
            caller,
        )

    async def _snooze(self, request: Snooze, caller: Caller) -> JobInfo:
        check_seconds(request, "delay")
        return await self._reschedule(request, JobChange(to_us(self._service.wall() + request.delay)), caller)

    async def _reschedule(self, request: Update | Snooze, change: JobChange, caller: Caller) -> JobInfo:
        self._check_supported("a change of a waiting job")
        job_id = self._lookup.job_id(request.handle)
        act = caller.act(request.call, request.handle, namespace=request.namespace, after=change.shown())
        changed: Job = await self._of_handle(
            request.handle,
            Later(lambda done, failed: self._service.reschedule(job_id, change, done, failed, act, request.namespace)),
        )
        return info_of(self._service, changed)

    async def _delete(self, request: Delete, caller: Caller) -> Deleted:
        self._check_supported("the deletion of a job")
        job_id = self._lookup.job_id(request.handle)
        act = caller.act(request.call, request.handle, namespace=request.namespace)
        await self._of_handle(
            request.handle,
            Later[object](lambda done, failed: self._service.delete(job_id, done, failed, act, request.namespace)),
        )
        return Deleted(request.handle)

    async def _clone(self, request: Clone, caller: Caller, once: Once | None) -> Submission:
        original = await self._lookup.read(request.handle, request.namespace)
        payload = bytes_of(request) if has_arguments(request) else await self._arguments(original)
        stored = original.options or _NO_OPTIONS
        options = JobOptions(
            priority=request.priority or _priority(original),
            delay=request.delay,
            run_at=None if request.run_at is None else request.run_at.timestamp(),
            timeout=stored.timeout,
            heartbeat=stored.heartbeat,
            expires=request.expires,
            retry=stored.retry,
            keep_unique=stored.keep_unique if request.unique else None,
            concurrency_key=_key(original) if request.concurrency_key is None else request.concurrency_key,
            version=stored.version or None,
            tags=stored.tags if request.tags is None else request.tags,
        )
        name = name_of(original.function)
        job = self._submits.job(request.namespace, name, payload, name_bytes(request.unique), options, caller)
        return await self._submits.stored(job, once)

    async def _arguments(self, job: Job) -> bytes:
        """Return the arguments of a job. Raises ApiError."""
        held = self._service.find_held(job.id)
        if held is not None:
            return held.job.payload
        payload: bytes | None = await Later(lambda done, failed: self._service.ask(ReadArguments(job.id), done, failed))
        if payload is None or (job.state == State.SUCCEEDED and is_redacted(payload)):
            handle = self._service.handle_of(job.id).decode()
            raise ApiError(Code.NOT_KEPT, f"the arguments of {handle} are not kept: give the arguments of the new job")
        return payload

    async def _of_handle(self, handle: str, work: Later[Job] | Later[object]) -> Job:
        try:
            answer: Job = await work  # type: ignore[assignment]
        except NotFoundError:
            raise unknown(handle) from None
        return answer

    def _check_supported(self, what: str) -> None:
        if not self._changes_jobs:
            raise ApiError(Code.UNSUPPORTED, f"the store of this node does not support {what}")

    def _time_us(self, name: str, time: float) -> int:
        """Return a time in microseconds. Raises UsageError for one that is too far away."""
        if time > self._service.wall() + MAX_WAIT:
            raise UsageError(f"{name} is more than a century away: give an earlier time")
        return max(to_us(time), 1)


def _key(job: Job) -> str:
    return job.key.decode("utf-8", "replace")


def _priority(job: Job) -> PriorityName:
    return PRIORITY_NAMES[job.priority]
