"""Stored jobs: how requests name them, and calls about their attempts and the data of users (arguments, results, outcomes).

Requests name jobs by handle, for callers with the permission for their functions, or by criteria.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mainspring import namespaces
from mainspring.access.caller import Permission
from mainspring.api.handlers.pages import line, rfc3339, whole_line
from mainspring.api.handlers.submitting import EndListener
from mainspring.api.jobs import (
    SHOWN_BYTES,
    STATE_BY_NAME,
    Attempt,
    Attempts,
    AwaitJob,
    JobInfo,
    JobOutcome,
    KeptArguments,
    ListAttempts,
    ReadPayload,
    ReadResult,
    ShowArguments,
    UserData,
)
from mainspring.api.request import ApiError, Code, Touches, lacking
from mainspring.api.submitting import PriorityName
from mainspring.callbacks import Callback
from mainspring.clock import to_us
from mainspring.codecs import described
from mainspring.features import Feature
from mainspring.jobs.lateness import is_dated, overdue_since
from mainspring.jobs.model import RUNS, UNREADABLE_JOB, Job, State, UnreadableOptions, decode_failure
from mainspring.jobs.settlement_records import AttemptRecord, decode_records
from mainspring.jobs.store import Find
from mainspring.jobs.successors import awaited_unique
from mainspring.jobs.user_data import check_tags, decoded_result
from mainspring.namespaces import key_of_text, name_bytes, name_text, namespace_of
from mainspring.queries import JobFilter, ReadArguments, Recall, Recalled
from mainspring.workflows.model import function_named, function_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from mainspring.access.caller import Caller
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.handlers.submitting import End
    from mainspring.api.jobs import ListJobs
    from mainspring.api.request import JobCriteria
    from mainspring.callbacks import Done, Failed
    from mainspring.jobs.held import Held
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
        unique=name_text(awaited_unique(job.unique) or job.unique),
        state=STATE_NAMES[job.state],
        priority=PRIORITY_NAMES[job.priority],
        attempt=job.attempt,
        created_at=rfc3339(job.created_us),
        started_at=rfc3339(job.started_us),
        ended_at=rfc3339(job.ended_us),
        error=UNREADABLE_JOB if isinstance(job.options, UnreadableOptions) else line(job.error),
        overdue_since=rfc3339(overdue_since(job, to_us(service.clock.wall()))) if is_dated(job) else None,
    )


def of_another_node(job: Job, running: RemoteAttempt | None = None) -> Job:
    """Return a stored job with the attempt that runs on another node counted.

    ``running`` is the answer of the node that holds it.
    """
    if running is not None:
        state, started_us = int(State.RUNNING), running.started_us
        return replace(job, state=state, started_us=started_us, attempt=running.number)
    return replace(job, attempt=job.attempt + 1) if job.state == State.RUNNING else job


NOTHING = Recalled(None, kept=False, attempts=b"")


class RecordCalls:
    """Answers from the store's records of jobs."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self.handlers: Handlers = {ListAttempts: self._attempts, ShowArguments: self._arguments}

    async def _attempts(self, request: ListAttempts, call: Call) -> Attempts:
        job, held, running = await self._find(request, call)
        recalled = await self._recall(job, 0) if held is None or held.stored else NOTHING
        attempts = [_shown(record) for record in decode_records(recalled.attempts)]
        current = _running(job, held, running, self._service)
        if current is not None:
            attempts.append(current)
        elif (last := _last(job, recalled, self._service)) is not None:
            attempts.append(last)
        return Attempts(request.handle, attempts)

    async def _arguments(self, request: ShowArguments, call: Call) -> KeptArguments:
        job, held, _ = await self._find(request, call)
        if held is not None:
            recalled = Recalled(held.job.payload, kept=True, attempts=b"")
        elif Feature.RECORDS in self._service.lacks:
            raise lacking(Feature.RECORDS)
        else:
            recalled = await self._recall(job, SHOWN_BYTES)
        if recalled.payload is None or len(recalled.payload) > SHOWN_BYTES:
            return KeptArguments(request.handle, job.input_size, recalled.kept, redacted=False)
        payload, changed = self._service.arguments.of(job.function).redact(recalled.payload)
        answer = KeptArguments(request.handle, job.input_size, kept=True, redacted=changed)
        if encoded := described(recalled.payload):
            answer.encoded = encoded
            answer.payload = UNSET if payload is None else payload
            return answer
        if payload is not None:
            try:
                answer.value = msgspec.json.decode(payload) if payload else UNSET
            except (ValueError, RecursionError):  # a MsgspecError, text that is not UTF-8, or too many levels
                answer.payload = payload
        return answer

    async def _find(
        self, request: ListAttempts | ShowArguments, call: Call
    ) -> tuple[Job, Held | None, RemoteAttempt | None]:
        """Return a job, with what this node or another one has of it in memory. Raises ApiError."""
        service = self._service
        job_id = service.handles.parse(request.handle.encode())
        job: Job | None = None
        running: RemoteAttempt | None = None
        held = None
        if job_id is not None:
            held = service.table.find(job_id)
            job, running = await service.clients.show(job_id, request.namespace)
        if job is None:
            raise call.not_found()
        check_job(call, job)
        return job, held, running

    async def _recall(self, job: Job, most: int) -> Recalled:
        if Feature.RECORDS in self._service.lacks:
            return NOTHING
        return await self._service.reads.read(Recall(job.id, most)) or NOTHING


def _shown(record: AttemptRecord) -> Attempt:
    has_times = record.started_us and record.ended_us
    return Attempt(
        number=record.number,
        outcome=record.outcome,
        started_at=rfc3339(record.started_us),
        ended_at=rfc3339(record.ended_us),
        duration=(record.ended_us - record.started_us) / 1_000_000 if has_times else None,
        node=record.node or None,
        worker=record.worker or None,
        error_type=record.error_type or None,
        error=record.message or None,
        stop_requested_at=rfc3339(record.stop_us),
        done=record.done,
        total=record.total,
        text=record.text or None,
    )


def _running(job: Job, held: Held | None, running: RemoteAttempt | None, service: JobService) -> Attempt | None:
    """Return the attempt under way, if there is one."""
    if held is not None and held.worker is not None:
        number, worker, term = held.job.attempt + 1, held.worker_name(), int(service.term)
        started, stop = rfc3339(held.started_us), rfc3339(held.stop_us)
    elif running is not None:
        number, worker, term = running.number, running.worker, job.term
        started, stop = rfc3339(running.started_us), rfc3339(running.stop_us)
    else:
        return None
    node = service.handles.node(term) or None
    return Attempt(number, "running", started, None, None, node, worker, None, None, stop)


def _last(job: Job, recalled: Recalled, service: JobService) -> Attempt | None:
    """Return the last attempt as the job's row has it, if it has no record: a first success, or an end by an older node."""
    if job.state not in {State.SUCCEEDED, State.FAILED} or job.term == RUNS or not job.started_us:
        return None
    records = decode_records(recalled.attempts)
    if records and records[-1].ended_us >= job.ended_us:
        return None
    failed = decode_failure(job.error) if job.state == State.FAILED and job.error else None
    return _shown(
        AttemptRecord(
            job.attempt,
            job.started_us,
            job.ended_us,
            service.handles.node(job.term),
            "",
            State(job.state).name.lower(),
            "" if failed is None else failed.type,
            "" if failed is None else failed.message,
        )
    )


RESULT_LIMIT: Final = 1 << 20
"""Bytes of a result up to which an `Outcome` contains it."""


class JobDataCalls:
    """Calls for the data of users. Results have up to ``largest`` bytes."""

    def __init__(self, service: JobService, *, largest: int) -> None:
        self._service = service
        self._largest = largest
        self._lookup = JobLookup(service)
        self.handlers: Handlers = {ReadPayload: self._payload, ReadResult: self._result, AwaitJob: self._wait}

    async def _payload(self, request: ReadPayload, call: Call) -> UserData:
        job = await self._lookup.find(call)
        held = self._service.table.find(job.id)
        if held is not None:
            return self._shown(job, held.job.payload)
        payload = await self._service.reads.read(ReadArguments(job.id))
        if payload is None:
            raise ApiError(Code.NOT_KEPT, f"the arguments of {request.handle} are not kept")
        return self._shown(job, payload)

    def _shown(self, job: Job, payload: bytes) -> UserData:
        """Return arguments without redacted values. Raises ApiError."""
        redacted, _ = self._service.arguments.of(job.function).redact(payload)
        if redacted is None:
            raise ApiError(
                Code.NOT_KEPT,
                "this node redacts keys of the function's arguments, and finds none in them because they are not JSON: they are"
                " not shown",
            )
        return UserData(redacted)

    async def _result(self, request: ReadResult, call: Call) -> UserData:
        job = await self._lookup.find(call)
        if job.state != State.SUCCEEDED:
            state = STATE_NAMES[job.state]
            raise ApiError(Code.CONFLICT, f"{request.handle} is {state}: only succeeded jobs have a result")
        ended = await self._read(job, self._largest)
        if ended is None:
            raise call.not_found()
        return UserData(ended.result)

    async def _wait(self, request: AwaitJob, call: Call) -> JobOutcome:
        job = await self._lookup.find(call)
        sees = call.caller.may(Permission.PAYLOADS, request.namespace, function_text(job.function))
        ended = await self._read(job, RESULT_LIMIT) if State(job.state).ended else await self._end_of(job)
        if ended is None:
            raise call.not_found()
        outcome = JobOutcome(request.handle, STATE_NAMES[ended.state], ended.attempt, error=whole_line(ended.error))
        if ended.error:
            outcome.traceback = decode_failure(ended.error).traceback
        if ended.state == State.SUCCEEDED and sees and ended.output_size == len(ended.result) <= RESULT_LIMIT:
            outcome.encoding, outcome.result = decoded_result(ended.result)
        return outcome

    async def _read(self, job: Job, room: int) -> Job | None:
        """Return an ended job, with its result if that has at most ``room`` bytes; None if it is no longer kept."""
        find = Find([job.id], room, namespace_of(job.function))
        found: dict[int, Job] = await self._service.commits.committed(find)
        return found.get(job.id)

    async def _end_of(self, job: Job) -> Job | None:
        """Return a job once it has ended; None if it is no longer kept then."""
        listener = EndListener()

        def wait(done: Done, failed: Failed) -> None:
            listener.until_ended(done, failed)
            self._service.waits.wait(job.id, listener, lambda: done(None), namespace=namespace_of(job.function))

        try:
            end: End | None = await Callback(wait)
        finally:
            self._service.waits.gone(listener)
        return None if end is None else end.job
