"""Calls about what is kept of a job: its attempts, and the data of users: arguments, results and outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from mainspring.access.roles import Permission
from mainspring.api.handlers.job_lookup import STATE_NAMES, JobLookup, check_job
from mainspring.api.handlers.submitting import EndListener
from mainspring.api.handlers.text import rfc3339, whole_line
from mainspring.api.jobs import (
    SHOWN_BYTES,
    Attempt,
    Attempts,
    AwaitJob,
    JobOutcome,
    KeptArguments,
    ListAttempts,
    ReadPayload,
    ReadResult,
    ShowArguments,
    UserData,
)
from mainspring.api.request import ApiError, Code, lacking
from mainspring.callbacks import Callback
from mainspring.features import Feature
from mainspring.jobs.model import RUNS, Job, State, decode_failure
from mainspring.jobs.settlement_records import AttemptRecord, decode_records
from mainspring.jobs.store import Find
from mainspring.jobs.user_data import decoded_result
from mainspring.namespaces import namespace_of
from mainspring.queries.lists import ReadArguments, Recall, Recalled
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.handlers.submitting import End
    from mainspring.callbacks import Done, Failed
    from mainspring.jobs.held import Held
    from mainspring.jobs.requests import RemoteAttempt
    from mainspring.jobs.service import JobService

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
