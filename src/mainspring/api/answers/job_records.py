"""Calls about what is kept of a job: its attempts and its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from mainspring.access.roles import Permission
from mainspring.api.answers.job_lookup import check_access, unknown
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.api.job_records import SHOWN_BYTES, Arguments, Attempt, Attempts, ListAttempts, ShowArguments
from mainspring.jobs.attempt_records import AttemptRecord, decode_records
from mainspring.jobs.failures import decode_failure
from mainspring.jobs.model import RUNS, Job, State
from mainspring.queries.jobs import Recall, Recalled

if TYPE_CHECKING:
    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Handlers
    from mainspring.jobs.held import Held
    from mainspring.jobs.remote_jobs import RemoteAttempt
    from mainspring.jobs.service import JobService

NOTHING = Recalled(None, kept=False, attempts=b"")


class RecordCalls:
    """Answers from the store's records of jobs. ``recalls``: the store keeps them."""

    def __init__(self, service: JobService, *, recalls: bool) -> None:
        self._service = service
        self._recalls = recalls
        self.handlers: Handlers = {ListAttempts: self._attempts, ShowArguments: self._arguments}

    async def _attempts(self, request: ListAttempts, caller: Caller) -> Attempts:
        job, held, running = await self._find(request, caller, Permission.READ)
        recalled = await self._recall(job, 0) if held is None or held.stored else NOTHING
        attempts = [_shown(record) for record in decode_records(recalled.attempts)]
        current = _running(job, held, running, self._service)
        if current is not None:
            attempts.append(current)
        elif (last := _last(job, recalled, self._service)) is not None:
            attempts.append(last)
        return Attempts(request.handle, attempts)

    async def _arguments(self, request: ShowArguments, caller: Caller) -> Arguments:
        job, held, _ = await self._find(request, caller, Permission.PAYLOADS)
        if held is not None:
            recalled = Recalled(held.job.payload, kept=True, attempts=b"")
        elif self._recalls:
            recalled = await self._recall(job, SHOWN_BYTES)
        else:
            raise ApiError(
                Code.UNSUPPORTED,
                "the store of this node is on ZooKeeper, and shows arguments only of jobs in its memory",
            )
        if recalled.payload is None or len(recalled.payload) > SHOWN_BYTES:
            return Arguments(request.handle, job.input_size, recalled.kept, redacted=False)
        payload, changed = self._service.arguments_of(job.function).redact(recalled.payload)
        answer = Arguments(request.handle, job.input_size, kept=True, redacted=changed)
        if payload is not None:
            try:
                answer.value = msgspec.json.decode(payload) if payload else UNSET
            except (ValueError, RecursionError):  # a MsgspecError, text that is not UTF-8, or too many levels
                answer.payload = payload
        return answer

    async def _find(
        self, request: ListAttempts | ShowArguments, caller: Caller, permission: Permission
    ) -> tuple[Job, Held | None, RemoteAttempt | None]:
        """Return a job, with what this node or another one has of it in memory. Raises ApiError."""
        service = self._service
        job_id = service.id_of(request.handle.encode())
        job: Job | None = None
        running: RemoteAttempt | None = None
        held = None
        if job_id is not None:
            held = service.find_held(job_id)
            job, running = await Later(
                lambda done, failed: service.show(job_id, lambda *found: done(found), failed, request.namespace)
            )
        if job is None:
            raise unknown(request.handle)
        check_access(job, request.handle, request.namespace, caller, permission)
        return job, held, running

    async def _recall(self, job: Job, most: int) -> Recalled:
        if not self._recalls:
            return NOTHING
        found: Recalled | None = await Later(lambda done, failed: self._service.ask(Recall(job.id, most), done, failed))
        return found or NOTHING


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
    node = service.node_of(term) or None
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
            service.node_of(job.term),
            "",
            State(job.state).name.lower(),
            "" if failed is None else failed.type,
            "" if failed is None else failed.message,
        )
    )
