"""Calls that read runs: lists, details and histories. Runs that have not begun are waiting jobs of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mainspring import namespaces
from mainspring.api.handlers.run_rows import (
    activity_info,
    run_details,
    run_handle,
    run_info,
    status_name,
    unbegun_details,
    unbegun_info,
)
from mainspring.api.handlers.text import rfc3339
from mainspring.api.request import PAGE_LIMIT, ApiError, Code, Touches, check_number
from mainspring.api.workflows import (
    STATUS_BY_NAME,
    HistoryPage,
    ListedRuns,
    ListWorkflowRuns,
    ReadHistory,
    RunDetails,
    ShowRun,
)
from mainspring.clock import to_us
from mainspring.jobs.model import State
from mainspring.jobs.store import CountLive
from mainspring.namespaces import ANY, name_of, namespace_of
from mainspring.queries.filters import JobFilter
from mainspring.queries.lists import QueryJobs
from mainspring.sizes import PAGE
from mainspring.storage.engine import Page
from mainspring.storage.set_aside import REMEDY
from mainspring.workflows.history_json import event_to_json, swf_event
from mainspring.workflows.model import Key, Status
from mainspring.workflows.store import ListRuns, Unbegun

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from mainspring.api.handlers.jobs import JobCalls
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.workflows import ActivityInfo, RunInfo
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import Counted
    from mainspring.workflows.history import Event
    from mainspring.workflows.store import Shown, ShownRun

KEY_LIMIT: Final = 128
"""Bytes of a key: more than any unique, and any handle with a run."""
UNBEGUN_END: Final = frozenset({"cancelled", "expired"})
"""The states of jobs that ended before a worker or a run began."""


class ShowsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    async def show(self, key: Key) -> Shown:
        """Return one run; without one, the jobs that the key may name, whose runs have not begun."""


class RunLookup:
    """Finds the runs of a node by their keys."""

    def __init__(self, workflows: ShowsRuns, service: JobService, jobs: JobCalls) -> None:
        self._workflows = workflows
        self._service = service
        self._jobs = jobs

    def key(self, namespace: str, text: str) -> Key:
        """Return the key of a run of a namespace from its text. Raises ApiError."""
        if not 0 < len(text.encode()) <= KEY_LIMIT:
            raise ApiError(Code.INVALID, "a run has a handle, such as H:node:1000000000001, or a workflow id: give one")
        handle, _, run = text.rpartition("@")
        if self._service.id_of(handle.encode()) is not None and run.isdecimal() and len(run) <= 18:
            return Key(run=int(run), namespace=namespace)
        root = self._service.id_of(text.encode())
        return Key(job=root or 0, workflow_id=text if root is None else "", namespace=namespace)

    def run_id(self, text: str) -> int:
        """Return the number of the run that a page continues after. Raises ApiError."""
        key = self.key(ANY, text)
        if key.workflow_id:
            raise ApiError(Code.INVALID, f"{text!r} is not the `next` of an earlier answer, nor a run's handle")
        return key.run or key.job

    def handle(self, root: int, run: int) -> str:
        """Return the handle of one run of a root job."""
        return run_handle(self._service.handle_of(root).decode(), run)

    async def show(self, key: Key) -> Shown:
        """Return the run of a key; without one, the jobs that the key may name."""
        return await self._workflows.show(key)

    async def find(self, namespace: str, key: str) -> ShownRun | Unbegun:
        """Return the run of a key, or the job whose run is to begin. Raises ApiError."""
        shown = await self.show(self.key(namespace, key))
        if not isinstance(shown, list):
            return shown
        if not shown:
            raise await self.unknown(namespace, key)
        if len(shown) > 1:
            raise ambiguous(key)
        return shown[0]

    async def unknown(self, namespace: str, key: str) -> ApiError:
        """Return the refusal of a key that names no run."""
        job_id = self.key(namespace, key).job
        job = await self._jobs.find(job_id, namespace) if job_id else None
        if job is None:
            return Touches.RUN.not_found(key)
        held = self._service.find_held(job_id)
        if held is not None and not held.stored:
            why = f"a client waits for the job {key} of {job.function}, which is not stored before a worker or a run begins"
        elif job.state in UNBEGUN_END:
            why = f"the job {key} of {job.function} ended before a run began ({job.state})"
        else:
            why = f"{key} is a job of the task {job.function}, and not a run of a workflow"
        return ApiError(Code.RUN_NOT_FOUND, f"{why}; use mainspring jobs show {key}")

    def unbegun_info(self, unbegun: Unbegun) -> RunInfo:
        """Return the row of a run that has not begun."""
        handle = self._service.handle_of(unbegun.job.id).decode()
        is_paused = self._service.spec_of(unbegun.job.function).paused
        return unbegun_info(handle, unbegun, to_us(self._service.wall()), is_paused=is_paused)

    def info(self, shown: ShownRun, stranded: Collection[tuple[str, str, str]]) -> RunInfo:
        """Return the row of a run. ``stranded``: the namespaces, types and versions whose runs wait for a worker."""
        handle = self._service.handle_of(shown.row.root).decode()
        return run_info(handle, shown, to_us(self._service.wall()), stranded=is_stranded(shown, stranded))


def is_stranded(shown: ShownRun, stranded: Collection[tuple[str, str, str]]) -> bool:
    """Return whether a run waits for a worker with its type and version, and no such worker is connected."""
    row = shown.row
    return bool(row.decision) and row.parked is None and (row.namespace, row.type, row.version) in stranded


def ambiguous(key: str) -> ApiError:
    """Return the refusal of a key that may name several runs."""
    return ApiError(
        Code.CONFLICT,
        f"several jobs that have not started have the unique {key}: give the handle of the one that is the run;"
        f" mainspring jobs list --unique {key} lists them",
    )


def unread(key: str, fault: str) -> ApiError:
    """Return the refusal of a request to a run that this node cannot read."""
    return ApiError(
        Code.CONFLICT, f"this node cannot read the run {key}, so that it takes no requests: {fault}; {REMEDY}"
    )


STATES: Final = {"scheduled": State.SCHEDULED, "pending": State.PENDING}
"""The statuses of runs that have not begun, with the states of their jobs."""


class UnbegunWorkflows(Protocol):
    """The workflows of a node; `workflows.service` implements it."""

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""

    async def show(self, key: Key) -> Shown:
        """Return one run; without one, the jobs that the key may name, whose runs have not begun."""


class UnbegunRuns:
    """The jobs of workflows whose runs have not begun."""

    def __init__(self, service: JobService, workflows: UnbegunWorkflows) -> None:
        self._service = service
        self._workflows = workflows

    async def matching(self, request: ListWorkflowRuns, before: int | None) -> Page[Unbegun]:
        """Return those that match a request, with ids below ``before``, newest first. All from `Page.next` on are there."""
        if request.since is not None or request.open or request.closed or request.parked or request.stranded:
            return Page([])
        if request.status is not None and request.status not in STATES:
            return Page([])
        states = [state for name, state in STATES.items() if request.status in {None, name}]
        page = await (
            self._named(request.namespace, request.id, states)
            if request.id is not None
            else self._all(request, states, before)
        )
        found = [
            job
            for job in page.items
            if (before is None or job.id < before)
            and (request.type is None or job.function == namespaces.key(request.namespace, request.type.encode()))
        ]
        found.sort(key=lambda job: -job.id)
        return Page([Unbegun(job, is_workflow=True) for job in found], page.next, page.searched_us)

    async def _named(self, namespace: str, workflow_id: str, states: list[State]) -> Page[Job]:
        key = Key(workflow_id=workflow_id, namespace=namespace)
        shown = await self._workflows.show(key)
        jobs = shown if isinstance(shown, list) else []
        return Page([one.job for one in jobs if one.is_workflow and one.job.state in states])

    async def _all(self, request: ListWorkflowRuns, states: list[State], before: int | None) -> Page[Job]:
        """Read the jobs of each function that has any by the store's counts: usually none."""
        functions = [
            function
            for function in self._workflows.functions()
            if namespace_of(function) == request.namespace and request.type in {None, name_of(function).decode()}
        ]
        if not functions:
            return Page([])
        counted: Counted = await self._service.committed(CountLive(functions))
        pages: list[Page[Job]] = []
        for function, state in sorted({(function, state) for function, state, _ in counted.counts if state in states}):
            where = JobFilter(states=(State(state),), function=function)
            query = QueryJobs(where=where, after=before, limit=request.limit)
            pages.append(await (self._service.read if request.partial else self._service.read_pages)(query))
        jobs = [job for page in pages for job in page.items]
        places = [(page.next, page.searched_us) for page in pages if page.next is not None]
        return Page(jobs, *max(places)) if places else Page(jobs)


CLOSED: Final = tuple(int(status) for status in Status if not status.open)


class ListsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""

    async def list(self, query: ListRuns) -> Page[ShownRun]:
        """Return a page of runs."""

    async def show(self, key: Key) -> Shown:
        """Return one run; without one, the jobs that the key may name, whose runs have not begun."""

    async def list_part(self, query: ListRuns) -> Page[ShownRun]:
        """Return the runs that one read finds: the page may be short and have a next one."""

    def stranded(self) -> Collection[tuple[str, str, str]]:
        """Return namespaces, types and versions of runs that have waited for a minute for a worker with their code."""


class RunListCalls:
    """Answers with lists of a node's runs."""

    def __init__(self, workflows: ListsRuns, service: JobService, runs: RunLookup) -> None:
        self._workflows = workflows
        self._unbegun = UnbegunRuns(service, workflows)
        self._runs = runs
        self.handlers: Handlers = {ListWorkflowRuns: self._list}

    async def _list(self, request: ListWorkflowRuns, _: Call) -> ListedRuns:
        check_number("limit", request.limit)
        if sum((request.open, request.closed, request.parked, request.stranded, request.status is not None)) > 1:
            raise ApiError(Code.INVALID, "give one of open, closed, parked, stranded and status")
        before = None if request.after is None else self._runs.run_id(request.after)
        unbegun = await self._unbegun.matching(request, before)
        stranded = frozenset(self._workflows.stranded())
        begun: Page[ShownRun] = Page([])
        if request.status not in STATES and (stranded or not request.stranded):
            begun = await self._begun(request, before, stranded)
        rows = {one.row.id: (one.row.started_us, self._runs.info(one, stranded)) for one in begun.items}
        rows |= {one.job.id: (one.job.created_us, self._runs.unbegun_info(one)) for one in unbegun.items}
        places = [(one.next, one.searched_us) for one in (begun, unbegun) if one.next is not None]
        place, searched_us = max(places, default=(0, 0))
        newest = sorted((run for run in rows if run >= place), reverse=True)
        if len(newest) > request.limit:
            newest = newest[: request.limit]
            place, searched_us = newest[-1], rows[newest[-1]][0]
        runs = [rows[run][1] for run in newest]
        following = self._runs.handle(place, place) if place else None
        return ListedRuns(runs, following, rfc3339(searched_us)) if request.partial else ListedRuns(runs, following)

    async def _begun(
        self, request: ListWorkflowRuns, after: int | None, stranded: Collection[tuple[str, str, str]]
    ) -> Page[ShownRun]:
        """Read the runs that have begun."""
        statuses: tuple[int, ...] = ()
        if request.status is not None:
            statuses = (STATUS_BY_NAME[request.status],)
        elif request.closed:
            statuses = CLOSED
        elif request.open or request.parked or request.stranded:
            statuses = (Status.OPEN,)
        found: list[ShownRun] = []
        size = 0
        while True:
            query = ListRuns(
                namespace=request.namespace,
                status=statuses,
                parked=request.parked,
                needs_decision=request.stranded,
                type=request.type,
                workflow_id=request.id,
                since_us=to_us(request.since or 0),
                after=after,
                limit=PAGE_LIMIT if request.stranded else request.limit,
                bytes=PAGE.most,
            )
            page = await (self._workflows.list_part if request.partial else self._workflows.list)(query)
            found += [one for one in page.items if not request.stranded or is_stranded(one, stranded)]
            after = page.next
            size += page.size
            is_enough = not request.stranded or len(found) >= request.limit or bool(found and size >= PAGE.most)
            if after is None or request.partial or is_enough:
                return page._replace(items=found)


MOST_JOBS: Final = 100
"""Open activities whose jobs are read for the details of a run."""
_WITHOUT_ERROR: Final = frozenset({Status.OPEN, Status.COMPLETED, Status.CONTINUED_AS_NEW})


class ReadsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    async def history(self, run: int, first: int, limit: int, *, namespace: str) -> Page[Event]:
        """Return up to ``limit`` events of a run of a namespace from the event ``first`` on."""

    def stranded(self) -> Collection[tuple[str, str, str]]:
        """Return namespaces, types and versions of runs that have waited for a minute for a worker with their code."""


class RunReadingCalls:
    """Answers with all about one run."""

    def __init__(self, workflows: ReadsRuns, service: JobService, jobs: JobCalls, runs: RunLookup) -> None:
        self._workflows = workflows
        self._service = service
        self._jobs = jobs
        self._runs = runs
        self.handlers: Handlers = {ShowRun: self._show, ReadHistory: self._history}

    async def _show(self, request: ShowRun, _: Call) -> RunDetails:
        shown = await self._runs.find(request.namespace, request.key)
        if isinstance(shown, Unbegun):
            return unbegun_details(self._runs.unbegun_info(shown), shown.job)
        info = self._runs.info(shown, frozenset(self._workflows.stranded()))
        row = shown.row
        root = None if Status(row.status) in _WITHOUT_ERROR else await self._jobs.find(row.root, row.namespace)
        return run_details(
            info,
            shown,
            await self._activities(shown),
            None if root is None else root.error,
            parent=await self._parent(shown),
            handle_of=self._service.handle_of,
        )

    async def _parent(self, shown: ShownRun) -> str | None:
        """Return the key of a child's parent."""
        run = shown.state.parent_run
        if not run:
            return None
        parent = await self._runs.show(Key(run=run, namespace=shown.row.namespace))
        return self._runs.handle(run if isinstance(parent, list) else parent.row.root, run)

    async def _activities(self, shown: ShownRun) -> list[ActivityInfo]:
        """Return the open activities of a run, the first ones with what their jobs add."""
        found: list[ActivityInfo] = []
        for activity in shown.state.activities.values():
            namespace = shown.row.namespace
            reads = activity.job and len(found) < MOST_JOBS
            job = await self._jobs.find(activity.job, namespace) if reads else None
            found.append(activity_info(self._service.handle_of(activity.job).decode(), activity, job))
        return found

    async def _history(self, request: ReadHistory, _: Call) -> HistoryPage:
        check_number("limit", request.limit)
        if request.first < 1:
            raise ApiError(Code.INVALID, f"from is the number of an event, from 1 on, not {request.first}")
        shown = await self._runs.find(request.namespace, request.key)
        if isinstance(shown, Unbegun):
            return HistoryPage([], None, self._runs.unbegun_info(shown).status)
        row = shown.row
        page = await self._workflows.history(row.id, request.first, request.limit, namespace=request.namespace)
        if request.exact:
            events = [event_to_json(event) for event in page.items]
        else:
            events = [swf_event(event, native=request.native) for event in page.items]
        following = shown.state.new_run
        return HistoryPage(
            events,
            None if page.next is None else page.items[-1].id + 1,
            status_name(row.status),
            self._runs.handle(row.root, row.id),
            self._runs.handle(row.root, following) if following else None,
        )
