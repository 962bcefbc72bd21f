"""Answers with the data of users: arguments, results and outcomes of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.access.roles import Permission
from mainspring.api.answers.end_listener import EndListener
from mainspring.api.answers.job_info import STATE_NAMES
from mainspring.api.answers.job_lookup import JobLookup, unknown
from mainspring.api.answers.text import whole_line
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.api.job_data import Data, Outcome, Payload, Result, Wait
from mainspring.jobs.failures import decode_failure
from mainspring.jobs.model import State
from mainspring.jobs.results import decoded
from mainspring.jobs.store import Find
from mainspring.namespaces import namespace_of
from mainspring.queries.jobs import ReadArguments
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from mainspring.access.caller import Caller
    from mainspring.api.answers.end_listener import End
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.waiting import Done, Failed
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService

RESULT_LIMIT: Final = 1 << 20
"""Bytes of a result up to which an `Outcome` contains it."""


class JobDataCalls:
    """Calls for the data of users. Results have up to ``largest`` bytes."""

    def __init__(self, service: JobService, *, largest: int) -> None:
        self._service = service
        self._largest = largest
        self._lookup = JobLookup(service)
        self.handlers: Handlers = {Payload: self._payload, Result: self._result, Wait: self._wait}

    async def _payload(self, request: Payload, caller: Caller) -> Data:
        job = await self._lookup.find(request.handle, request.namespace, caller, request.permission)
        held = self._service.find_held(job.id)
        if held is not None:
            return self._shown(job, held.job.payload)
        payload: bytes | None = await Later(lambda done, failed: self._service.ask(ReadArguments(job.id), done, failed))
        if payload is None:
            raise ApiError(Code.NOT_KEPT, f"the arguments of {request.handle} are not kept")
        return self._shown(job, payload)

    def _shown(self, job: Job, payload: bytes) -> Data:
        """Return arguments without redacted values. Raises ApiError."""
        redacted, _ = self._service.arguments_of(job.function).redact(payload)
        if redacted is None:
            raise ApiError(
                Code.NOT_KEPT,
                "this node redacts keys of the function's arguments, and finds none in them because they are not JSON: they are"
                " not shown",
            )
        return Data(redacted)

    async def _result(self, request: Result, caller: Caller) -> Data:
        job = await self._lookup.find(request.handle, request.namespace, caller, request.permission)
        if job.state != State.SUCCEEDED:
            state = STATE_NAMES[job.state]
            raise ApiError(Code.CONFLICT, f"{request.handle} is {state}: only succeeded jobs have a result")
        ended = await self._read(job, self._largest)
        if ended is None:
            raise unknown(request.handle)
        return Data(ended.result)

    async def _wait(self, request: Wait, caller: Caller) -> Outcome:
        job = await self._lookup.find(request.handle, request.namespace, caller, request.permission)
        sees = caller.may(Permission.PAYLOADS, request.namespace, function_text(job.function))
        ended = await self._read(job, RESULT_LIMIT) if State(job.state).ended else await self._end_of(job)
        if ended is None:
            raise unknown(request.handle)
        outcome = Outcome(request.handle, STATE_NAMES[ended.state], ended.attempt, error=whole_line(ended.error))
        if ended.error:
            outcome.traceback = decode_failure(ended.error).traceback
        if ended.state == State.SUCCEEDED and sees and ended.output_size == len(ended.result) <= RESULT_LIMIT:
            outcome.encoding, outcome.result = decoded(ended.result)
        return outcome

    async def _read(self, job: Job, room: int) -> Job | None:
        """Return an ended job, with its result if that has at most ``room`` bytes; None if it is no longer kept."""
        find = Find([job.id], room, namespace_of(job.function))
        found: dict[int, Job] = await Later(lambda done, failed: self._service.put(find, done, failed))
        return found.get(job.id)

    async def _end_of(self, job: Job) -> Job | None:
        """Return a job once it has ended; None if it is no longer kept then."""
        listener = EndListener()

        def wait(done: Done, failed: Failed) -> None:
            listener.until_ended(done, failed)
            self._service.wait(job.id, listener, lambda: done(None), namespace=namespace_of(job.function))

        try:
            end: End | None = await Later(wait)
        finally:
            self._service.client_gone(listener)
        return None if end is None else end.job
