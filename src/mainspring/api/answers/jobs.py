"""Calls about jobs: list, show, cancel, retry, and watch their changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from mainspring.api.answers.job_filters import filter_of
from mainspring.api.answers.job_info import info_of, of_another_node
from mainspring.api.answers.job_lookup import JobLookup, check_access, unknown
from mainspring.api.answers.run_rows import run_handle
from mainspring.api.answers.text import rfc3339, whole_line
from mainspring.api.answers.waiting import NEXT_TURN, Later, converted, read_page
from mainspring.api.errors import ApiError, Code, check_number
from mainspring.api.jobs import (
    Cancel,
    Cancelled,
    JobDetails,
    JobInfo,
    List,
    Listed,
    Missed,
    Show,
    Watch,
)
from mainspring.api.request import Touches
from mainspring.errors import NotFoundError
from mainspring.jobs.attempt_records import decode_records, number_of
from mainspring.jobs.failures import decode_failure
from mainspring.jobs.model import RUNS, Job, Options, State
from mainspring.namespaces import namespace_of, split_text
from mainspring.queries.jobs import ListJobs, Recall, Recalled
from mainspring.queries.overlay import with_held
from mainspring.workflows.model import Key, decode_about, function_named
from mainspring.workflows.store import ShownRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Finder, Handlers
    from mainspring.jobs.remote_jobs import RemoteAttempt
    from mainspring.jobs.service import JobService
    from mainspring.storage.query import Page
    from mainspring.workflows.service import WorkflowService
    from mainspring.workflows.store import Shown


NO_OPTIONS = Options()
ROWS_AT_ONCE = 100
"""Rows that a store reads at once beside requests of others: those of a thousand would delay a commit by milliseconds."""


class JobCalls:
    """Answers for the jobs of a node and of its store.

    ``recalls``: the store keeps records of attempts, so that the progress of a job stays after its end.
    """

    def __init__(self, service: JobService, workflows: WorkflowService | None = None, *, recalls: bool = False) -> None:
        self._service = service
        self._recalls = recalls
        self._workflows = workflows
        self._lookup = JobLookup(service)
        self.objects: Mapping[Touches, Finder] = {Touches.JOB: self._lookup.functions_of}
        self.handlers: Handlers = {List: self._list, Show: self._show, Cancel: self._cancel}

    # ---- reading ----

    async def _list(self, request: List, caller: Caller) -> Listed:
        check_number("limit", request.limit)
        before = self._lookup.job_id(request.before) if request.before is not None else None
        where = await filter_of(request, request.namespace, self.find_run)
        permitted = caller.functions(request.permission, request.namespace)
        if permitted is not None:
            where = replace(where, functions=permitted)
        query = ListJobs(where=where, after=before, limit=request.limit)
        page = await self._read(query, self._service.ask if request.partial else self._service.gather)
        page = page._replace(items=[of_another_node(job) for job in page.items])
        page = with_held(page, query, self._service.in_memory())
        jobs = await converted(page.items, partial(info_of, self._service))
        if not request.partial:
            return Listed(jobs)
        following = None if page.next is None else self._service.handle_of(page.next).decode()
        return Listed(jobs, following, rfc3339(page.searched_us))

    async def _read(self, query: ListJobs, ask: Callable[..., object]) -> Page[Job]:
        """Return the answer to a query. Beside requests of others, a long list is read in short pages, each in its own piece."""
        most = query.limit
        if most <= ROWS_AT_ONCE or not self._service.is_crowded():
            return await read_page(ask, query)
        items: list[Job] = []
        while True:
            number = min(ROWS_AT_ONCE, most - len(items))
            page = await read_page(ask, replace(query, limit=number))
            items += page.items
            if page.next is None or len(page.items) < number or len(items) >= most:
                return page._replace(items=items)
            query = replace(query, after=page.next)
            await NEXT_TURN

    async def find_run(self, namespace: str, key: str) -> int:
        """Return the number of the run with a handle or workflow id. Raises ApiError."""
        handle, _, run = key.rpartition("@")
        if self._service.id_of(handle.encode()) is not None and run.isdecimal() and len(run) <= 18:
            return int(run)
        if self._workflows is not None:
            root = self._service.id_of(key.encode())
            wanted = Key(job=root or 0, workflow_id=key if root is None else "", namespace=namespace)
            shown = await self._shown(self._workflows, wanted)
            if isinstance(shown, ShownRun):
                return shown.row.id
        raise ApiError(Code.RUN_NOT_FOUND, f"no run of a workflow has the handle or workflow id {key}")

    @staticmethod
    async def _shown(workflows: WorkflowService, key: Key) -> Shown:
        shown: Shown = await Later(lambda done, failed: workflows.show(key, done, failed))
        return shown

    async def _show(self, request: Show, caller: Caller) -> JobDetails:
        def check(job: Job) -> None:
            check_access(job, request.handle, request.namespace, caller, request.permission)

        found = await self.find(self._lookup.job_id(request.handle), request.namespace, check)
        if found is None:
            raise unknown(request.handle)
        return found

    async def find(
        self, job_id: int, namespace: str, check: Callable[[Job], None] = lambda _: None
    ) -> JobDetails | None:
        """Return the details of a job of a namespace. ``check`` may raise an error for it."""
        service = self._service
        held = service.find_held(job_id) is not None
        found: tuple[Job | None, RemoteAttempt | None] = await Later(
            lambda done, failed: service.show(job_id, lambda *found: done(found), failed, namespace)
        )
        job, running = found
        if job is None:
            return None
        check(job)
        details = self._details(job if held else of_another_node(job, running), running)
        if job.term == RUNS:
            if self._workflows is not None:
                await self._add_progress(self._workflows, Key(job=job_id, namespace=namespace), details)
        elif self._recalls and State(job.state).ended:
            await self._add_last_progress(job_id, details)
        return details

    async def _add_last_progress(self, job_id: int, details: JobDetails) -> None:
        """Add the last progress of the last attempt at an ended job."""
        recalled: Recalled | None = await Later(lambda done, failed: self._service.ask(Recall(job_id, 0), done, failed))
        records = decode_records(recalled.attempts) if recalled is not None else []
        if records:
            _set_progress(details, records[-1].done, records[-1].total, records[-1].text)

    async def _add_progress(self, workflows: WorkflowService, root: Key, details: JobDetails) -> None:
        """Add the progress that the code of a run has reported to the details of its root job."""
        shown = await self._shown(workflows, root)
        progress = decode_about(shown.row.about).progress if isinstance(shown, ShownRun) else None
        if progress is not None:
            _set_progress(details, progress.done, progress.total, progress.text)

    # ---- changing ----

    async def _cancel(self, request: Cancel, caller: Caller) -> Cancelled:
        job_id = self._lookup.job_id(request.handle)
        act = caller.act(request.call, request.handle, request.reason, namespace=request.namespace)
        try:
            state: str = await Later(
                lambda done, failed: self._service.cancel(job_id, request.reason, done, failed, act, request.namespace)
            )
        except NotFoundError:
            raise unknown(request.handle) from None
        return Cancelled(request.handle, state)

    # ---- watching ----

    def watch(
        self, request: Watch, send: Callable[[JobInfo | Missed], None], has_room: Callable[[], bool]
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
                send(Missed(missed))
                missed = 0
            send(info_of(self._service, job))

        self._service.watch(changed, job_id)
        return lambda: self._service.unwatch(changed, job_id)

    # ---- writing ----

    def _details(self, job: Job, running: RemoteAttempt | None) -> JobDetails:
        options, service = job.options or NO_OPTIONS, self._service
        held = service.find_held(job.id)
        attempt = held if held is not None else running
        done = number_of(attempt.numerator) if attempt is not None else 0
        total = number_of(attempt.denominator) if attempt is not None else 0
        policy = service.policy(held) if held is not None else options.retry
        info = info_of(service, job)
        info.error = whole_line(job.error)
        return JobDetails(
            **asdict(info),
            traceback=decode_failure(job.error).traceback if job.error else None,
            schedule=None if options.schedule is None else split_text(options.schedule)[1],
            fire_time=rfc3339(options.fire_us),
            concurrency_key=job.key.decode("utf-8", "replace") or None,
            run_at=rfc3339(job.due_us),
            expires_at=rfc3339(job.expires_us),
            input_size=job.input_size,
            output_size=job.output_size,
            max_attempts=policy.max_attempts if policy is not None else None,
            timeout=options.timeout,
            worker=held.worker_name() if held is not None else running.worker if running is not None else None,
            done=done,
            total=total,
            numerator=done,
            denominator=total,
            tags=list(options.tags),
            text=None if attempt is None else service.progress_text(job.id).decode("utf-8", "replace") or None,
            run=self._run(job, options),
        )

    def _run(self, job: Job, options: Options) -> str | None:
        if options.run is not None:
            number = options.run[0]
            return run_handle(self._service.handle_of(number).decode(), number)
        return self._service.handle_of(job.id).decode() if job.term == RUNS else None


def _set_progress(details: JobDetails, done: int, total: int, text: str) -> None:
    details.done = details.numerator = done
    details.total = details.denominator = total
    details.text = text or None
