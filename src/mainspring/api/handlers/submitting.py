"""Submitting jobs: in the background, or in the foreground, where the answer is the job's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring import namespaces
from mainspring.api.request import ApiError, Code, lacking, problem_of
from mainspring.api.submitting import (
    KEYED_RULE,
    NO_OPTIONS,
    Ended,
    JobOptions,
    RunJob,
    Submission,
    Submissions,
    Submit,
    SubmitJob,
    SubmitJobs,
    Submitted,
    bytes_of,
    submission_problem,
)
from mainspring.callbacks import Callback
from mainspring.clock import to_us
from mainspring.errors import MainspringError, StoreError, UsageError
from mainspring.features import Feature
from mainspring.jobs.model import Job, State, deepened
from mainspring.namespaces import name_bytes, name_of
from mainspring.workflows.model import function_named

if TYPE_CHECKING:
    from mainspring.access.caller import Caller
    from mainspring.access.idempotency import IdempotencyKey
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.submitting import NewJob
    from mainspring.callbacks import Done, Failed
    from mainspring.conflicts.rules import Rule
    from mainspring.conflicts.service import ConflictService
    from mainspring.jobs import store as ops
    from mainspring.jobs.roots import Stored
    from mainspring.jobs.service import JobService


class End(NamedTuple):
    """The end of a job, as `jobs.listeners.Listener.ended` gets it."""

    handle: bytes
    job: Job
    exception: bytes | None


class EndListener:
    """Waits for the end of one job, and ignores what the job sends before it."""

    def __init__(self) -> None:
        self.gone = False
        self._end: End | None = None
        self._done: Done | None = None

    def until_ended(self, done: Done, _: Failed) -> None:
        """Call ``done`` with the `End` of the job; at once if it has ended already."""
        if self._end is None:
            self._done = done
        else:
            done(self._end)

    def data(self, handle: bytes, data: bytes) -> None:
        """Ignore a part of the result that is sent before the end."""

    def warning(self, handle: bytes, data: bytes) -> None:
        """Ignore a warning."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Ignore progress."""

    def unknown(self, handle: bytes) -> None:
        """Do nothing. It is never called, because `has_room` always returns True."""

    def has_room(self) -> bool:
        """Return True: the data of one job needs no bound here."""
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Keep the first end, and pass it to the call that waits for it."""
        if self._end is None:
            self._end = End(handle, job, exception)
            if self._done is not None:
                self._done(self._end)


class SubmitCalls:
    """Calls that submit jobs, with payloads of up to ``largest`` bytes."""

    def __init__(self, service: JobService, *, largest: int, conflicts: ConflictService | None = None) -> None:
        self._service = service
        self._conflicts = conflicts
        self._largest = largest
        self.handlers: Handlers = {
            Submit: self._submit,
            RunJob: self._run,
            SubmitJob: self._submit_job,
            SubmitJobs: self._submit_jobs,
        }

    async def _submit(self, request: Submit, call: Call) -> Submitted:
        job = self.job(
            request.namespace, request.function, request.payload, request.unique, request.options, call.caller
        )
        if (rule := request.options.rule(request.unique)) is not None:
            return Submitted((await self._by_rule(job, rule)).handle or "")
        (job_id,) = await self._put([job])
        return Submitted(self._service.handles.of(job_id).decode())

    async def _submit_job(self, request: SubmitJob, call: Call) -> Submission:
        call.check(request.job.function)
        job = self._job_of(request.job, request.namespace, call.caller)
        if (rule := request.job.rule(job.unique)) is not None:
            if call.once is not None:
                raise UsageError(KEYED_RULE)
            return await self._by_rule(job, rule)
        return await self.stored(job, call.once)

    async def _by_rule(self, job: Job, rule: Rule) -> Submission:
        """Submit a job by a rule about the live job of its unique."""
        if self._conflicts is None:
            raise lacking(Feature.CONFLICTS)
        placed = await self._conflicts.submit(job, rule)
        handle = self._service.handles.of(placed.id).decode()
        return Submission(handle, not placed.is_new, True if placed.skipped else None)

    async def stored(self, job: Job, once: IdempotencyKey | None = None) -> Submission:
        """Store a job, and return its handle or that of the job that it joined. Raises RepeatedError if ``once`` was done."""
        if once is None:
            (job_id,) = await self._put([job])
            return Submission(self._service.handles.of(job_id).decode(), job_id != job.id)

        def answer(stored: Stored) -> Submission:
            for why in stored.refused.values():
                raise UsageError(why)
            return self._submission(job, stored)

        return answer(await self._service.keyed_intake.submit([job], once.act(answer)))

    async def _put(self, jobs: list[Job]) -> list[int]:
        """Store jobs, and return their ids. If the call ends before the store has them, they are dropped."""
        operation: ops.Submit | None = None

        def ask(done: Done, failed: Failed) -> None:
            nonlocal operation
            operation = self._service.intake.submit(jobs, lambda ids, _: done(ids), failed)

        try:
            ids: list[int] = await Callback(ask)
        except GeneratorExit:
            if operation is not None:
                self._service.commits.withdraw({operation}, StoreError("the client has given up the request"))
            raise
        return ids

    def _submission(self, job: Job, stored: Stored) -> Submission:
        if (why := stored.refused.get(job.id)) is not None:
            return Submission(problem=problem_of(UsageError(why)))
        found = stored.joined.get(job.id)
        job_id = job.id if found is None else found.id
        return Submission(self._service.handles.of(job_id).decode(), job_id != job.id)

    async def _submit_jobs(self, request: SubmitJobs, call: Call) -> Submissions:
        """Store the valid jobs of a batch together; without a key one by one if some of them join foreground jobs."""
        answers: list[Submission] = []
        places: list[int] = []
        batch: list[Job] = []
        permitted: set[str] = set()
        for place, new in enumerate(request.jobs):
            try:
                if new.function not in permitted:
                    call.check(new.function)
                    permitted.add(new.function)
                job = self._job_of(new, request.namespace, call.caller)
                if (rule := new.rule(job.unique)) is not None:
                    if call.once is not None:
                        raise UsageError(KEYED_RULE)
                    answers.append(await self._by_rule(job, rule))
                    continue
                batch.append(job)
            except MainspringError as error:
                answers.append(Submission(problem=problem_of(error)))
                continue
            places.append(place)
            answers.append(Submission())
        if call.once is not None and batch:

            def filled(stored: Stored) -> Submissions:
                return Submissions(self._filled(answers, places, batch, stored))

            return filled(await self._service.keyed_intake.submit(batch, call.once.act(filled)))
        if self._service.intake.joins(batch):
            for place, job in zip(places, batch, strict=True):
                answers[place] = await self._stored_or_refused(job)
        elif batch:
            handle_of, ids = self._service.handles.of, await self._put(batch)
            for place, job, job_id in zip(places, batch, ids, strict=True):
                answer = answers[place]
                answer.handle, answer.joined = handle_of(job_id).decode(), job_id != job.id
        return Submissions(answers)

    def _filled(
        self, answers: list[Submission], places: list[int], jobs: list[Job], stored: Stored
    ) -> list[Submission]:
        """Return the answers of a batch with those of its valid jobs in their places."""
        filled = answers.copy()
        for place, job in zip(places, jobs, strict=True):
            filled[place] = self._submission(job, stored)
        return filled

    async def _stored_or_refused(self, job: Job) -> Submission:
        try:
            return await self.stored(job)
        except MainspringError as error:
            return Submission(problem=problem_of(error))

    def _job_of(self, new: NewJob, namespace: str, caller: Caller) -> Job:
        """Return a new job as a client describes it in JSON. Raises ApiError and UsageError."""
        function = name_of(function_named(new.function, namespace))
        return self.job(namespace, function, bytes_of(new), name_bytes(new.unique), new.options(), caller)

    async def _run(self, request: RunJob, call: Call) -> Ended:
        options = JobOptions(request.priority)
        job = self.job(request.namespace, request.function, request.payload, request.unique, options, call.caller)
        listener = _RunListener()
        try:
            await Callback[int](lambda done, failed: self._service.foreground.submit(job, listener, done, failed))
            end: End = await Callback(listener.until_ended)
        finally:
            self._service.waits.gone(listener)
        succeeded = end.job.state == State.SUCCEEDED
        result = b"".join(listener.parts) + end.job.result if succeeded else b""
        return Ended(end.handle.decode(), succeeded, result, end.exception)

    def job(
        self,
        namespace: str,
        name: bytes,
        payload: bytes,
        unique: bytes,
        options: JobOptions,
        caller: Caller,
        *,
        creates: bool = True,
    ) -> Job:
        """Return a new job of a function of a namespace. Raises ApiError and UsageError if the node does not accept it.

        ``creates``: the function exists from now on, even if the store refuses the job. Without it, once a job of it is stored.
        """
        service, now = self._service, self._service.clock.wall()
        problem = submission_problem(name, unique, payload, self._largest)
        if problem is not None:
            raise ApiError(problem.code, problem.message)
        if service.lacks and (why := options.unsupported(service.lacks)):
            raise ApiError(Code.UNSUPPORTED, why)
        function = namespaces.key(namespace, name)
        job = Job(service.table.next_id(), function, payload, unique, created_us=to_us(now))
        if options is not NO_OPTIONS:
            options.apply_to(job, now)
        job.options = deepened(job.options, caller.depth)
        if not service.dispatch.admits(function, caller):
            raise ApiError(Code.TOO_MANY_FUNCTIONS, service.roster.too_many(function, caller))
        queue = service.dispatch.tracked(function) if creates else service.dispatch.queues.get(function)
        if queue is not None and queue.is_full(job.priority):
            raise ApiError(Code.REFUSED, "Job queue is full")
        return job


class _RunListener(EndListener):
    """Also collects the parts of the result that the job sends before its end."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def data(self, handle: bytes, data: bytes) -> None:
        """Collect a part of the result."""
        del handle
        self.parts.append(data)
