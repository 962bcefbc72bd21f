"""Submitting jobs: in the background, or in the foreground, where the answer is the job's result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring import namespaces
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code, problem_of
from mainspring.api.submitting import (
    NO_OPTIONS,
    Ended,
    JobOptions,
    Run,
    Submission,
    Submissions,
    Submit,
    SubmitJob,
    SubmitJobs,
    Submitted,
    bytes_of,
    submission_problem,
)
from mainspring.clock import to_us
from mainspring.errors import MainspringError
from mainspring.jobs.functions import KEY_NOT_KEPT
from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.waiting import Done, Failed
    from mainspring.api.submitting import NewJob
    from mainspring.jobs.service import JobService


class SubmitCalls:
    """Calls that submit jobs, with payloads of up to ``largest`` bytes."""

    def __init__(self, service: JobService, *, largest: int) -> None:
        self._service = service
        self._largest = largest
        self.handlers: Handlers = {
            Submit: self._submit,
            Run: self._run,
            SubmitJob: self._submit_job,
            SubmitJobs: self._submit_jobs,
        }

    async def _submit(self, request: Submit) -> Submitted:
        job = self.job(request.namespace, request.function, request.payload, request.unique, request.options)
        job_id: int = await Later(lambda done, failed: self._service.submit([job], lambda ids, _: done(ids[0]), failed))
        return Submitted(self._service.handle_of(job_id).decode())

    async def _submit_job(self, request: SubmitJob, caller: Caller) -> Submission:
        caller.check(SubmitJob.permission, request.namespace, request.job.function)
        return await self.stored(self._job_of(request.job, request.namespace))

    async def stored(self, job: Job) -> Submission:
        """Store a job, and return its handle or that of the job that it joined."""
        job_id: int = await Later(lambda done, failed: self._service.submit([job], lambda ids, _: done(ids[0]), failed))
        return Submission(self._service.handle_of(job_id).decode(), job_id != job.id)

    async def _submit_jobs(self, request: SubmitJobs, caller: Caller) -> Submissions:
        """Store the valid jobs of a batch together; one by one if some of them join foreground jobs."""
        answers: list[Submission] = []
        places: list[int] = []
        batch: list[Job] = []
        permitted: set[str] = set()
        for place, new in enumerate(request.jobs):
            try:
                if new.function not in permitted:
                    caller.check(SubmitJob.permission, request.namespace, new.function)
                    permitted.add(new.function)
                batch.append(self._job_of(new, request.namespace))
            except MainspringError as error:
                answers.append(Submission(problem=problem_of(error)))
                continue
            places.append(place)
            answers.append(Submission())
        if self._service.joins(batch):
            for place, job in zip(places, batch, strict=True):
                answers[place] = await self._stored_or_refused(job)
        elif batch:
            submit, handle_of = self._service.submit, self._service.handle_of
            ids: list[int] = await Later(lambda done, failed: submit(batch, lambda ids, _: done(ids), failed))
            for place, job, job_id in zip(places, batch, ids, strict=True):
                answer = answers[place]
                answer.handle, answer.joined = handle_of(job_id).decode(), job_id != job.id
        return Submissions(answers)

    async def _stored_or_refused(self, job: Job) -> Submission:
        try:
            return await self.stored(job)
        except MainspringError as error:
            return Submission(problem=problem_of(error))

    def _job_of(self, new: NewJob, namespace: str) -> Job:
        """Return a new job as a client describes it in JSON. Raises ApiError and UsageError."""
        return self.job(namespace, new.function.encode(), bytes_of(new), new.unique.encode(), new.options())

    async def _run(self, request: Run) -> Ended:
        job = self.job(
            request.namespace, request.function, request.payload, request.unique, JobOptions(request.priority)
        )
        waiting = _Waiting()
        try:
            await Later[int](lambda done, failed: self._service.submit_foreground(job, waiting, done, failed))
            ended: Ended = await Later(waiting.until_ended)
        finally:
            self._service.client_gone(waiting)
        return ended

    def job(
        self,
        namespace: str,
        name: bytes,
        payload: bytes,
        unique: bytes,
        options: JobOptions,
        *,
        creates: bool = True,
    ) -> Job:
        """Return a new job of a function of a namespace. Raises ApiError and UsageError if the node does not accept it.

        ``creates``: the function exists from now on, even if the store refuses the job. Without it, once a job of it is stored.
        """
        service, now = self._service, self._service.wall()
        problem = submission_problem(name, unique, payload, self._largest)
        if problem is not None:
            raise ApiError(problem.code, problem.message)
        if options.concurrency_key and not service.keeps_limits:
            raise ApiError(Code.UNSUPPORTED, KEY_NOT_KEPT)
        function = namespaces.key(namespace, name)
        job = Job(service.next_id(), function, payload, unique, created_us=to_us(now))
        if options is not NO_OPTIONS:
            options.apply_to(job, now)
        if not service.admits(function):
            raise ApiError(Code.TOO_MANY_FUNCTIONS, service.too_many_functions())
        queue = service.tracked(function) if creates else service.queue_of(function)
        if queue is not None and queue.is_full(job.priority):
            raise ApiError(Code.REFUSED, "Job queue is full")
        return job


class _Waiting:
    """Waits for the end of one job, and collects its earlier data."""

    def __init__(self) -> None:
        self.gone = False
        self._parts: list[bytes] = []
        self._ended: Ended | None = None
        self._done: Done | None = None

    def until_ended(self, done: Done, _: Failed) -> None:
        """Call ``done`` with the result of the job once it has ended."""
        if self._ended is None:
            self._done = done
        else:
            done(self._ended)

    def data(self, handle: bytes, data: bytes) -> None:
        """Collect a part of the result."""
        del handle
        self._parts.append(data)

    def warning(self, handle: bytes, data: bytes) -> None:
        """Ignore a warning: the answer has no field for it."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Ignore progress: the answer has no field for it."""

    def unknown(self, handle: bytes) -> None:
        """Do nothing. It is never called, because `has_room` always returns True."""

    def has_room(self) -> bool:
        """Return True: the data of one job needs no bound here."""
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Store the result, and call the function that waits for it."""
        if self._ended is not None:
            return
        succeeded = job.state == State.SUCCEEDED
        result = b"".join(self._parts) + job.result if succeeded else b""
        self._ended = Ended(handle.decode(), succeeded, result, exception)
        if self._done is not None:
            self._done(self._ended)
