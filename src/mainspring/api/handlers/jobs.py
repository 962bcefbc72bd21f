"""Calls about single jobs and lists of them: list, show, change and watch them.

The stream of a job has its state at each change, and its progress.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from mainspring.access.caller import Permission
from mainspring.access.idempotency import act_if_new
from mainspring.api.handlers.job_records import (
    PRIORITY_NAMES,
    JobLookup,
    check_job,
    filter_of,
    info_of,
    of_another_node,
)
from mainspring.api.handlers.pages import rfc3339, whole_line
from mainspring.api.handlers.run_rows import has_decided, run_handle
from mainspring.api.jobs import (
    AwaitedCompletion,
    CancelJob,
    CancelledJob,
    CloneJob,
    DeletedJob,
    DeleteJob,
    FollowJob,
    JobDetails,
    JobInfo,
    JobProgress,
    JobWork,
    ListJobs,
    MissedChanges,
    RetryJob,
    ShowJob,
    SnoozeJob,
    UpdateJob,
    WatchJobs,
)
from mainspring.api.request import ApiError, Code, Page, Touches
from mainspring.api.submitting import PRIORITY_BY_NAME, JobOptions, bytes_of, check_seconds, has_arguments, size_problem
from mainspring.callbacks import NEXT_TURN, converted
from mainspring.clock import to_us
from mainspring.errors import UsageError
from mainspring.external.store import Status
from mainspring.features import Feature
from mainspring.jobs.completion_rules import by_job, is_awaited, newest
from mainspring.jobs.completions import state_of
from mainspring.jobs.model import MAX_WAIT, RUNS, Job, Options, State, decode_failure, is_own
from mainspring.jobs.requests import JobChange
from mainspring.jobs.rules import duration_us
from mainspring.jobs.settlement_records import decode_records, number_of
from mainspring.jobs.successors import awaited_unique, waits
from mainspring.jobs.user_data import is_redacted
from mainspring.namespaces import name_bytes, name_of, name_text, namespace_of, split_text
from mainspring.queries import QueryJobs, ReadArguments, Recall, with_held
from mainspring.workflows.model import Key, decode_about, function_named
from mainspring.workflows.store import ShownRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mainspring.api.handlers.registry import Call, Finder, Followers, Handlers
    from mainspring.api.handlers.submitting import SubmitCalls
    from mainspring.api.request import Feed
    from mainspring.api.submitting import Submission
    from mainspring.errors import StoreError
    from mainspring.external.service import WorkService
    from mainspring.jobs.requests import RemoteAttempt
    from mainspring.jobs.service import JobService
    from mainspring.storage.engine import Page as StoredPage
    from mainspring.workflows.service import WorkflowService

NO_OPTIONS = Options()
ROWS_AT_ONCE = 100
"""Rows that a store reads at once beside requests of others: those of a thousand would delay a commit by milliseconds."""


class JobCalls:
    """Answers for the jobs of a node and of its store.

    Where the store keeps records of attempts, the progress of a job stays after its end.
    """

    def __init__(
        self, service: JobService, workflows: WorkflowService | None = None, works: WorkService | None = None
    ) -> None:
        self._service = service
        self._workflows = workflows
        self._works = works
        self._lookup = JobLookup(service)
        self.objects: Mapping[Touches, Finder] = {Touches.JOB: self._lookup.functions_of}
        self.handlers: Handlers = {ListJobs: self._list, ShowJob: self._show, CancelJob: self._cancel}

    # ---- reading ----

    async def _list(self, request: ListJobs, call: Call) -> Page[JobInfo]:
        before = None if request.cursor is None else self._lookup.job_id(request.cursor)
        where = await filter_of(request, request.namespace, self.find_run)
        permitted = call.caller.functions(request.permission, request.namespace)
        if permitted is not None:
            where = replace(where, functions=permitted)
        query = QueryJobs(where=where, after=before, limit=request.limit)
        page = await self._read(query)
        page = page._replace(items=[of_another_node(job) for job in page.items])
        page = with_held(page, query, self._service.table.held.values())
        jobs = await converted(page.items, partial(info_of, self._service))
        await self._add_waits(page.items, jobs)
        following = None if page.next is None else self._service.handles.of(page.next).decode()
        return Page(jobs, following, rfc3339(page.searched_us))

    async def _add_waits(self, jobs: list[Job], rows: list[JobInfo]) -> None:
        """Add until when jobs await their completion."""
        if Feature.COMPLETIONS in self._service.lacks:
            return
        completions, now_us = self._service.completions, to_us(self._service.clock.wall())
        may_await = {job.id for job in jobs if completions.may_await(job, now_us)}
        if may_await:
            tokens = by_job(await completions.of_jobs(may_await))
            for job, row in zip(jobs, rows, strict=True):
                token = tokens.get(job.id)
                if token is not None and is_awaited(token, job):
                    row.awaits_until = rfc3339(token.expires_us)

    async def _read(self, query: QueryJobs) -> StoredPage[Job]:
        """Return the answer to a query. Beside requests of others, a long list is read in short pages, each in its own piece."""
        most = query.limit
        if most <= ROWS_AT_ONCE or not self._service.loop_shares.is_crowded():
            return await self._service.reads.read(query)
        items: list[Job] = []
        while True:
            number = min(ROWS_AT_ONCE, most - len(items))
            page = await self._service.reads.read(replace(query, limit=number))
            items += page.items
            if page.next is None or len(page.items) < number or len(items) >= most:
                return page._replace(items=items)
            query = replace(query, after=page.next)
            await NEXT_TURN

    async def find_run(self, namespace: str, key: str) -> int:
        """Return the number of the run with a handle or workflow id. Raises ApiError."""
        handle, _, run = key.rpartition("@")
        if self._service.handles.parse(handle.encode()) is not None and run.isdecimal() and len(run) <= 18:
            return int(run)
        if self._workflows is not None:
            root = self._service.handles.parse(key.encode())
            wanted = Key(job=root or 0, workflow_id=key if root is None else "", namespace=namespace)
            shown = await self._workflows.show(wanted)
            if isinstance(shown, ShownRun):
                return shown.row.id
        raise Touches.RUN.not_found(key)

    async def _show(self, request: ShowJob, call: Call) -> JobDetails:
        job_id = self._lookup.job_id(request.handle)
        found = await self.find(job_id, request.namespace, partial(check_job, call))
        if found is None:
            raise call.not_found()
        if self._works is not None:
            sees = call.caller.may(Permission.PAYLOADS, request.namespace, found.function)
            found.works = await self._works_of(self._works, job_id, sees=sees)
        return found

    async def _works_of(self, works: WorkService, job_id: int, *, sees: bool) -> list[JobWork] | None:
        """Return a job's work in another system. ``sees``: with the answers of that system."""
        shown: list[JobWork] = []
        for one in await works.of_job(job_id):
            work = one.work
            info = JobWork(
                number=work.number,
                state=Status(work.status).name.lower(),
                key=work.key,
                submitted=bool(work.meta),
                meta=msgspec.json.decode(work.meta) if work.meta and sees else None,
                began_at=rfc3339(work.since_us),
                canceller=self._service.handles.of(work.canceller).decode() if work.canceller else None,
                answered_at=rfc3339(work.ended_us),
                looked_at=rfc3339(one.looked_us),
                problem=one.problem or None,
            )
            shown.append(info)
        return shown or None

    async def find(
        self, job_id: int, namespace: str, check: Callable[[Job], None] = lambda _: None
    ) -> JobDetails | None:
        """Return the details of a job of a namespace. ``check`` may raise an error for it."""
        service = self._service
        held = service.table.find(job_id) is not None
        job, running = await service.clients.show(job_id, namespace)
        if job is None:
            return None
        check(job)
        details = self._details(job if held else of_another_node(job, running), running)
        if Feature.COMPLETIONS not in self._service.lacks:
            await self._add_completion(job, details)
        if job.term == RUNS:
            if self._workflows is not None:
                await self._add_progress(self._workflows, Key(job=job_id, namespace=namespace), details)
        elif Feature.RECORDS not in self._service.lacks and State(job.state).ended:
            await self._add_last_progress(job_id, details)
        return details

    async def _add_completion(self, job: Job, details: JobDetails) -> None:
        """Add the newest completion token of a job to its details, and the progress that came with it."""
        token = newest(await self._service.completions.of_jobs([job.id]))
        if token is None:
            return
        now_us = to_us(self._service.clock.wall())
        held = self._service.table.find(job.id)
        stored = job if held is None else held.job  # without the attempt that runs
        details.completion = AwaitedCompletion(
            number=token.number,
            state=state_of(token, stored, now_us),
            since=rfc3339(token.created_us),
            expires_at=rfc3339(token.expires_us),
            alive_until=rfc3339(token.limit_us) if token.heartbeat_us and token.is_live else None,
            late_answers=token.late,
            last_late_at=rfc3339(token.late_us),
        )
        if is_awaited(token, stored):
            details.awaits_until = rfc3339(token.expires_us)
        if token.is_live and (token.done or token.total or token.text):
            _set_progress(details, token.done, token.total, token.text)

    async def _add_last_progress(self, job_id: int, details: JobDetails) -> None:
        """Add the last progress of the last attempt at an ended job."""
        recalled = await self._service.reads.read(Recall(job_id, 0))
        records = decode_records(recalled.attempts) if recalled is not None else []
        if records:
            _set_progress(details, records[-1].done, records[-1].total, records[-1].text)

    async def _add_progress(self, workflows: WorkflowService, root: Key, details: JobDetails) -> None:
        """Add the progress that the code of a run has reported to the details of its root job."""
        shown = await workflows.show(root)
        if isinstance(shown, ShownRun) and details.start_by is not None and not has_decided(shown.state):
            details.overdue_since = min(
                filter(None, (details.overdue_since, self._past(details.start_by))), default=None
            )
        progress = decode_about(shown.row.about).progress if isinstance(shown, ShownRun) else None
        if progress is not None:
            _set_progress(details, progress.done, progress.total, progress.text)

    # ---- changing ----

    async def _cancel(self, request: CancelJob, call: Call) -> CancelledJob:
        job_id = self._lookup.job_id(request.handle)
        act = call.act(request.reason)
        state = await self._service.clients.cancel(job_id, request.reason, act, request.namespace)
        return CancelledJob(request.handle, state)

    # ---- watching ----

    def watch(
        self, request: WatchJobs, send: Callable[[JobInfo | MissedChanges], None], has_room: Callable[[], bool]
    ) -> Callable[[], None]:
        """Call ``send`` with each change from now on; leave changes out while ``has_room`` returns False.

        Return a function that ends the watch. Raises ApiError.
        """
        job_id = self._lookup.job_id(request.handle) if request.handle is not None else None
        namespace = request.namespace
        function = None if request.function is None else function_named(request.function, namespace)
        missed = 0

        def changed(job: Job) -> None:
            nonlocal missed
            if function is not None and job.function != function:
                return
            if namespace_of(job.function) != namespace:
                return
            if not has_room():
                missed += 1
                return
            if missed:
                send(MissedChanges(missed))
                missed = 0
            send(info_of(self._service, job))

        self._service.hub.subscribe(changed, job_id)
        return lambda: self._service.hub.unsubscribe(changed, job_id)

    # ---- writing ----

    def _details(self, job: Job, running: RemoteAttempt | None) -> JobDetails:
        options, service = job.options or NO_OPTIONS, self._service
        held = service.table.find(job.id)
        attempt = held if held is not None else running
        done = number_of(attempt.numerator) if attempt is not None else 0
        total = number_of(attempt.denominator) if attempt is not None else 0
        policy = service.settling.policy(held) if held is not None else options.retry
        info = info_of(service, job)
        info.error = whole_line(job.error)
        return JobDetails(
            **asdict(info),
            traceback=decode_failure(job.error).traceback if job.error else None,
            schedule=None if options.schedule is None else split_text(options.schedule)[1],
            fire_time=rfc3339(options.fire_us),
            concurrency_key=job.key.decode("utf-8", "replace") or None,
            run_at=None if waits(job) else rfc3339(job.due_us),
            expires_at=rfc3339(job.expires_us),
            start_by=rfc3339(options.start_us),
            deadline_at=rfc3339(options.deadline_us),
            input_size=job.input_size,
            output_size=job.output_size,
            max_attempts=policy.max_attempts if policy is not None else None,
            timeout=options.timeout,
            worker=held.worker_name() if held is not None else running.worker if running is not None else None,
            done=done,
            total=total,
            tags=list(options.tags),
            text=None if attempt is None else service.reports.text_of(job.id).decode("utf-8", "replace") or None,
            run=self._run(job, options),
            waits_for_unique=name_text(awaited_unique(job.unique)) if waits(job) else None,
        )

    def _past(self, time: str) -> str | None:
        """Return a time if it is over."""
        return time if time <= (rfc3339(to_us(self._service.clock.wall())) or "") else None

    def _run(self, job: Job, options: Options) -> str | None:
        if options.run is not None:
            number = options.run[0]
            return run_handle(self._service.handles.of(number).decode(), number)
        return self._service.handles.of(job.id).decode() if job.term == RUNS else None


def _set_progress(details: JobDetails, done: int, total: int, text: str) -> None:
    details.done = done
    details.total = total
    details.text = text or None


_NO_OPTIONS = Options()


def _time_within(request: UpdateJob, name: str, base_us: int) -> int | None:
    """Return the time that a duration of a request sets, 0 for none; None if the request leaves it as it is."""
    seconds = getattr(request, name)
    if seconds is UNSET:
        return None
    if seconds is None:
        return 0
    check_seconds(request, name)
    return base_us + duration_us(seconds)


class JobChangeCalls:
    """Calls that change single jobs."""

    def __init__(self, service: JobService, submits: SubmitCalls, *, largest: int) -> None:
        self._service = service
        self._submits = submits
        self._largest = largest
        self._lookup = JobLookup(service)
        self.handlers: Handlers = {
            RetryJob: self._retry,
            UpdateJob: self._update,
            SnoozeJob: self._snooze,
            CloneJob: self._clone,
            DeleteJob: self._delete,
        }

    async def _retry(self, request: RetryJob, call: Call) -> JobInfo:
        check_seconds(request, "delay")
        changed = has_arguments(request)
        payload = bytes_of(request) if changed else None
        if payload is not None and (problem := size_problem(payload, self._largest)) is not None:
            raise ApiError(problem.code, problem.message)
        job_id = self._lookup.job_id(request.handle)
        if payload is not None:
            job = await self._lookup.read(request.handle, request.namespace)
            if is_own(name_of(job.function)):
                raise ApiError(
                    Code.INVALID,
                    "a delivery of a webhook has the arguments that its node has made: retry it without arguments",
                )
        retry = partial(
            self._service.clients.retry,
            job_id,
            payload=payload,
            delay=request.delay or 0.0,
            act=call.act(),
            namespace=request.namespace,
        )
        return await act_if_new(call.once, retry, partial(info_of, self._service))

    async def _update(self, request: UpdateJob, call: Call) -> JobInfo:
        base_us = to_us(self._service.clock.wall())
        if request.run_at is not UNSET:
            base_us = max(base_us, self._time_us("run_at", request.run_at.timestamp()))
        times = {
            "start_us": _time_within(request, "start_within", base_us),
            "deadline_us": _time_within(request, "deadline", base_us),
        }
        if (
            request.run_at is not UNSET
            or request.priority is not UNSET
            or request.expires_at is not UNSET
            or not any(at is not None for at in times.values())
        ):
            return await self._change(request, times, call)
        act = call.act(after={name: at for name, at in times.items() if at is not None})
        job_id = self._lookup.job_id(request.handle)
        return info_of(
            self._service, await self._service.changes.redate(job_id, **times, act=act, namespace=request.namespace)
        )

    async def _change(self, request: UpdateJob, times: Mapping[str, int | None], call: Call) -> JobInfo:
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
                **times,
            ),
            call,
        )

    async def _snooze(self, request: SnoozeJob, call: Call) -> JobInfo:
        check_seconds(request, "delay")
        return await self._reschedule(request, JobChange(to_us(self._service.clock.wall() + request.delay)), call)

    async def _reschedule(self, request: UpdateJob | SnoozeJob, change: JobChange, call: Call) -> JobInfo:
        job_id = self._lookup.job_id(request.handle)
        changed = await self._service.changes.reschedule(
            job_id, change, call.act(after=change.shown()), request.namespace
        )
        return info_of(self._service, changed)

    async def _delete(self, request: DeleteJob, call: Call) -> DeletedJob:
        job_id = self._lookup.job_id(request.handle)
        await self._service.changes.delete(job_id, call.act(), request.namespace)
        return DeletedJob(request.handle)

    async def _clone(self, request: CloneJob, call: Call) -> Submission:
        original = await self._lookup.read(request.handle, request.namespace)
        payload = bytes_of(request) if has_arguments(request) else await self._arguments(original)
        stored = original.options or _NO_OPTIONS
        options = JobOptions(
            priority=request.priority or PRIORITY_NAMES[original.priority],
            delay=request.delay,
            run_at=request.run_at,
            timeout=stored.timeout,
            heartbeat=stored.heartbeat,
            expires=request.expires,
            start_within=request.start_within,
            deadline=request.deadline,
            retry=stored.retry,
            keep_unique=stored.keep_unique if request.unique else None,
            concurrency_key=(
                original.key.decode("utf-8", "replace") if request.concurrency_key is None else request.concurrency_key
            ),
            version=stored.version or None,
            tags=stored.tags if request.tags is None else request.tags,
        )
        name = name_of(original.function)
        job = self._submits.job(request.namespace, name, payload, name_bytes(request.unique), options, call.caller)
        return await self._submits.stored(job, call.once)

    async def _arguments(self, job: Job) -> bytes:
        """Return the arguments of a job. Raises ApiError."""
        held = self._service.table.find(job.id)
        if held is not None:
            return held.job.payload
        payload = await self._service.reads.read(ReadArguments(job.id))
        if payload is None or (job.state == State.SUCCEEDED and is_redacted(payload)):
            handle = self._service.handles.of(job.id).decode()
            raise ApiError(Code.NOT_KEPT, f"the arguments of {handle} are not kept: give the arguments of the new job")
        return payload

    def _time_us(self, name: str, time: float) -> int:
        """Return a time in microseconds. Raises UsageError for one that is too far away."""
        if time > self._service.clock.wall() + MAX_WAIT:
            raise UsageError(f"{name} is more than a century away: give an earlier time")
        return max(to_us(time), 1)


DUE_MARGIN: Final = 0.1
"""Seconds between the time at which a job is due and its lookup: a node makes due jobs pending in a commit."""
LATE_INTERVAL: Final = 1.0
"""Seconds between further lookups of a job that no node has made pending in time."""
LONGEST_SLEEP: Final = 60.0
"""Seconds between lookups of a scheduled job: a timer keeps the watcher in memory, also after its client has left."""


class JobStreams:
    """Streams about single jobs."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._lookup = JobLookup(service)
        self.followers: Followers = {FollowJob: self._follow}

    async def _follow(self, request: FollowJob, call: Call, feed: Feed) -> Callable[[], None]:
        """Send the job now and at each change; the stream ends with the job.

        The node reports the changes that it makes itself, and, of a job at another node, its progress and its end.
        """
        job = await self._lookup.find(call)
        watcher = _Watcher(self._service, job, feed, request.namespace)
        watcher.found(job)
        if State(job.state).ended:
            return watcher.end
        self._service.hub.subscribe(watcher.send, job.id)
        # It also looks the job up: it may have ended since.
        self._service.waits.wait(job.id, watcher, watcher.gone_from_store, namespace=request.namespace)
        return watcher.end


class _Watcher:
    """Passes the changes of one job to a feed: a `jobs.listeners.Listener` of the job."""

    def __init__(self, service: JobService, job: Job, feed: Feed, namespace: str) -> None:
        self.gone = False
        self._service = service
        self._job = job
        self._feed = feed
        self._namespace = namespace

    def send(self, job: Job) -> None:
        """Send the state of the job; after the last one, end the stream."""
        self._job = job
        self._feed.replace("job", info_of(self._service, job))
        if State(job.state).ended:
            self._feed.end()
        elif job.state == State.SCHEDULED:
            self._look_when_due(job)

    def found(self, job: Job) -> None:
        """Send the state of a job that was looked up."""
        self.send(job if self._service.table.find(job.id) is not None else of_another_node(job))

    def _look_when_due(self, job: Job) -> None:
        """Look the job up once it is due: the store makes all due jobs pending at once, and names none of them."""
        self._look_after(job, max(job.due_us / 1_000_000 - self._service.clock.wall(), 0) + DUE_MARGIN)

    def _look_after(self, job: Job, seconds: float) -> None:
        self._service.later(min(seconds, LONGEST_SLEEP), partial(self._look, job))

    def _look(self, job: Job) -> None:
        def found(now: Job | None) -> None:
            if self.gone or self._job is not job:
                return
            if now is None:
                self._feed.end()
            elif now.state == State.SCHEDULED:
                self._job = now
                self._look_after(now, max(now.due_us / 1_000_000 - self._service.clock.wall(), LATE_INTERVAL))
            else:
                self.found(now)

        def failed(error: StoreError) -> None:
            del error
            self._look_after(job, LATE_INTERVAL)

        if not self.gone and self._job is job:  # it has not changed since
            self._service.clients.find(job.id, found, failed, overtakes=True, namespace=self._namespace)

    def gone_from_store(self) -> None:
        """End the stream of a job that was deleted."""
        self._feed.end()

    def end(self) -> None:
        """Send no more: the client has left."""
        self._service.hub.unsubscribe(self.send, self._job.id)
        self._service.waits.gone(self)

    def data(self, handle: bytes, data: bytes) -> None:
        """Ignore a part of the result."""

    def warning(self, handle: bytes, data: bytes) -> None:
        """Ignore a warning."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Send the progress."""
        del handle
        if numerator.isdigit() and denominator.isdigit() and len(numerator) < 19 > len(denominator):
            self._feed.replace("progress", JobProgress(int(numerator), int(denominator)))

    def unknown(self, handle: bytes) -> None:
        """Do nothing. It is never called, because `has_room` always returns True."""

    def has_room(self) -> bool:
        """Return True: results are dropped at once."""
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Send the end of the job, without its result."""
        del handle, exception
        self.send(replace(job, result=b""))
