"""Calls that read runs: lists, details and histories. Runs that have not begun are waiting jobs of workflows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from mainspring import namespaces
from mainspring.api.handlers.pages import no_place, number_of, rfc3339, size_of
from mainspring.api.handlers.run_holds import holds_of_run
from mainspring.api.handlers.run_rows import (
    activity_info,
    add_times,
    run_details,
    run_handle,
    run_info,
    status_name,
    unbegun_details,
    unbegun_info,
)
from mainspring.api.request import PAGE_LIMIT, ApiError, Code, Page, Touches
from mainspring.api.workflows import (
    STATUS_BY_NAME,
    HistoryPage,
    ListWorkflowRuns,
    ReadHistory,
    RunDetails,
    ShowRun,
)
from mainspring.callbacks import converted
from mainspring.clock import to_us, us_of
from mainspring.jobs.model import State
from mainspring.jobs.store import CountSome
from mainspring.namespaces import ANY, name_of, namespace_of
from mainspring.queries import JobFilter, QueryJobs
from mainspring.sizes import PAGE
from mainspring.storage.engine import Page as StoredPage
from mainspring.storage.reads import REMEDY
from mainspring.workflows.history_json import event_to_json, swf_event
from mainspring.workflows.model import Key, Status, key_of
from mainspring.workflows.store import ListRuns, ShownRun, Unbegun

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from mainspring.api.handlers.jobs import JobCalls
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.workflows import ActivityInfo, RunInfo
    from mainspring.callbacks import Ask
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.workflows.history import Event
    from mainspring.workflows.store import Shown

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
        return key_of(namespace, text)

    def run_id(self, text: str) -> int:
        """Return the number of the run that a page continues after. Raises ApiError."""
        key = self.key(ANY, text)
        if key.workflow_id:
            raise ApiError(Code.INVALID, f"{text!r} is not the `next` of an earlier answer, nor a run's handle")
        return key.run or key.job

    def handle(self, root: int, run: int) -> str:
        """Return the handle of one run of a root job."""
        return run_handle(self._service.handles.of(root).decode(), run)

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
        held = self._service.table.find(job_id)
        if held is not None and not held.stored:
            why = f"a client waits for the job {key} of {job.function}, which is not stored before a worker or a run begins"
        elif job.state in UNBEGUN_END:
            why = f"the job {key} of {job.function} ended before a run began ({job.state})"
        else:
            why = f"{key} is a job of the task {job.function}, and not a run of a workflow"
        return ApiError(Code.RUN_NOT_FOUND, f"{why}; use mainspring jobs show {key}")

    def unbegun_info(self, unbegun: Unbegun) -> RunInfo:
        """Return the row of a run that has not begun."""
        handle = self._service.handles.of(unbegun.job.id).decode()
        is_paused = self._service.functions.limits_of(unbegun.job.function).paused
        return unbegun_info(handle, unbegun, to_us(self._service.clock.wall()), is_paused=is_paused)

    def info(self, shown: ShownRun, stranded: Collection[tuple[str, str, str]]) -> RunInfo:
        """Return the row of a run. ``stranded``: the namespaces, types and versions whose runs wait for a worker."""
        handle = self._service.handles.of(shown.row.root).decode()
        return run_info(handle, shown, to_us(self._service.clock.wall()), stranded=is_stranded(shown, stranded))


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


class DefinedWorkflows(Protocol):
    """The definitions of workflows; `workflows.definitions` implements it."""

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""


class UnbegunWorkflows(Protocol):
    """The workflows of a node; `workflows.service` implements it."""

    @property
    def definitions(self) -> DefinedWorkflows:
        """Their definitions."""

    async def show(self, key: Key) -> Shown:
        """Return one run; without one, the jobs that the key may name, whose runs have not begun."""


class UnbegunRuns:
    """The jobs of workflows whose runs have not begun."""

    def __init__(self, service: JobService, workflows: UnbegunWorkflows) -> None:
        self._service = service
        self._workflows = workflows

    async def matching(self, request: ListWorkflowRuns, before: int | None) -> StoredPage[Unbegun]:
        """Return those that match a request, with ids below ``before``, newest first. All from `StoredPage.next` on are there."""
        if (
            request.since is not None
            or request.open
            or request.closed
            or request.parked
            or request.stranded
            or request.paused
        ):
            return StoredPage([])
        if request.status is not None and request.status not in STATES:
            return StoredPage([])
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
        return StoredPage([Unbegun(job, is_workflow=True) for job in found], page.next, page.searched_us)

    async def _named(self, namespace: str, workflow_id: str, states: list[State]) -> StoredPage[Job]:
        key = Key(workflow_id=workflow_id, namespace=namespace)
        shown = await self._workflows.show(key)
        jobs = shown if isinstance(shown, list) else []
        return StoredPage([one.job for one in jobs if one.is_workflow and one.job.state in states])

    async def _all(self, request: ListWorkflowRuns, states: list[State], before: int | None) -> StoredPage[Job]:
        """Read the jobs of each function that has any by the store's counts: usually none."""
        functions = [
            function
            for function in self._workflows.definitions.functions()
            if namespace_of(function) == request.namespace and request.type in {None, name_of(function).decode()}
        ]
        if not functions:
            return StoredPage([])
        counts = (await self._service.reads.read(CountSome(functions=tuple(functions)))).counts
        pages: list[StoredPage[Job]] = []
        for function, state in sorted({(function, state) for function, state, _ in counts if state in states}):
            where = JobFilter(states=(State(state),), function=function)
            query = QueryJobs(where=where, after=before, limit=request.limit)
            pages.append(await self._service.reads.read(query))
        jobs = [job for page in pages for job in page.items]
        places = [(page.next, page.searched_us) for page in pages if page.next is not None]
        return StoredPage(jobs, *max(places)) if places else StoredPage(jobs)


CLOSED: Final = tuple(int(status) for status in Status if not status.open)


class ListsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    @property
    def definitions(self) -> DefinedWorkflows:
        """The definitions of workflows."""

    async def show(self, key: Key) -> Shown:
        """Return one run; without one, the jobs that the key may name, whose runs have not begun."""

    async def list_part(self, query: ListRuns) -> StoredPage[ShownRun]:
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

    async def _list(self, request: ListWorkflowRuns, _: Call) -> Page[RunInfo]:
        chosen = (
            request.open,
            request.closed,
            request.parked,
            request.paused,
            request.stranded,
            request.overdue,
        )
        if sum((*chosen, request.status is not None)) > 1:
            raise ApiError(Code.INVALID, "give one of open, closed, parked, paused, stranded, overdue and status")
        before = None if request.cursor is None else self._runs.run_id(request.cursor)
        unbegun = await self._unbegun.matching(request, before)
        stranded = frozenset(self._workflows.stranded())
        begun: StoredPage[ShownRun] = StoredPage([])
        if request.status not in STATES and (stranded or not request.stranded):
            begun = await self._begun(request, before, stranded)
        infos = await converted(begun.items, partial(self._runs.info, stranded=stranded))
        rows = {one.row.id: (one.row.started_us, info) for one, info in zip(begun.items, infos, strict=True)}
        rows |= {one.job.id: (one.job.created_us, self._runs.unbegun_info(one)) for one in unbegun.items}
        if request.overdue:
            rows = {run: row for run, row in rows.items() if row[1].overdue_since is not None}
        places = [(one.next, one.searched_us) for one in (begun, unbegun) if one.next is not None]
        place, searched_us = max(places, default=(0, 0))
        newest = sorted((run for run in rows if run >= place), reverse=True)
        if len(newest) > request.limit:
            newest = newest[: request.limit]
            place, searched_us = newest[-1], rows[newest[-1]][0]
        runs = [rows[run][1] for run in newest]
        following = self._runs.handle(place, place) if place else None
        return Page(runs, following, rfc3339(searched_us))

    async def _begun(
        self, request: ListWorkflowRuns, after: int | None, stranded: Collection[tuple[str, str, str]]
    ) -> StoredPage[ShownRun]:
        """Read the runs that have begun."""
        statuses: tuple[int, ...] = ()
        if request.status is not None:
            statuses = (STATUS_BY_NAME[request.status],)
        elif request.closed:
            statuses = CLOSED
        elif request.open or request.parked or request.paused or request.stranded or request.overdue:
            statuses = (Status.OPEN,)
        query = ListRuns(
            namespace=request.namespace,
            status=statuses,
            parked=request.parked,
            paused=request.paused,
            needs_decision=request.stranded,
            type=request.type,
            workflow_id=request.id,
            since_us=0 if request.since is None else us_of(request.since),
            after=after,
            limit=PAGE_LIMIT if request.stranded or request.overdue else request.limit,
            bytes=PAGE.most,
            closed_states=False,
        )
        page = await self._workflows.list_part(query)
        if request.stranded:
            return page._replace(items=[one for one in page.items if is_stranded(one, stranded)])
        return page


MOST_JOBS: Final = 100
"""Open activities whose jobs are read for the details of a run."""
MOST_FORKS: Final = 20
"""The newest runs of a workflow id among which one is sought that has begun with a part of a run."""
_WITHOUT_ERROR: Final = frozenset({Status.OPEN, Status.COMPLETED, Status.CONTINUED_AS_NEW})


class ReadsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    async def history(self, run: int, first: int, limit: int, *, namespace: str) -> StoredPage[Event]:
        """Return up to ``limit`` events of a run of a namespace from the event ``first`` on."""

    async def list_part(self, query: ListRuns) -> StoredPage[ShownRun]:
        """Return the runs that one read finds: the page may be short and have a next one."""

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
            details = unbegun_details(self._runs.unbegun_info(shown), shown.job)
            add_times(details, shown.job, to_us(self._service.clock.wall()))
            return details
        info = self._runs.info(shown, frozenset(self._workflows.stranded()))
        row = shown.row
        root = None if Status(row.status) in _WITHOUT_ERROR else await self._jobs.find(row.root, row.namespace)
        details = run_details(
            info,
            shown,
            await self._activities(shown),
            None if root is None else root.error,
            parent=await self._parent(shown),
            handle_of=self._service.handles.of,
        )
        if Status(row.status).open:
            found = await self._service.clients.show(row.root, row.namespace)
            if (job := found[0]) is not None:
                add_times(details, job, to_us(self._service.clock.wall()), shown.state)
            if shown.state.holds:
                details.holds = await holds_of_run(self._service, row.id)
        else:
            details.forked_to = await self._forked_to(shown)
        return details

    async def _forked_to(self, shown: ShownRun) -> str | None:
        """Return the key of the newest run that has begun with a part of a closed one."""
        row = shown.row
        query = ListRuns(
            namespace=row.namespace,
            workflow_id=row.workflow_id,
            since_us=row.closed_us,
            limit=MOST_FORKS,
            bytes=PAGE.most,
        )
        for one in (await self._workflows.list_part(query)).items:
            if one.state.forked_run == row.id:
                return self._runs.handle(one.row.root, one.row.id)
        return None

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
            found.append(activity_info(self._service.handles.of(activity.job).decode(), activity, job))
        return found

    async def _history(self, request: ReadHistory, _: Call) -> HistoryPage:
        shown = await self._runs.find(request.namespace, request.key)
        place: int | None = None
        if request.cursor is not None:
            shown, place = await self._placed(shown, request.cursor)
        if isinstance(shown, Unbegun):
            return HistoryPage([], status=self._runs.unbegun_info(shown).status)
        row = shown.row

        async def read(first: int, limit: int) -> StoredPage[Event]:
            return await self._workflows.history(row.id, first, limit, namespace=request.namespace)

        part = _HistoryPart(request, read)
        if request.reverse:
            following = await part.backward(row.events if place is None else place)
        else:
            following = await part.forward(request.first if place is None else place)
        next_run = shown.state.new_run
        return HistoryPage(
            part.rows,
            None if following is None else f"{row.id}.{following}",
            status=status_name(row.status),
            run=self._runs.handle(row.root, row.id),
            next_run=self._runs.handle(row.root, next_run) if next_run else None,
        )

    async def _placed(self, shown: ShownRun | Unbegun, place: str) -> tuple[ShownRun, int]:
        """Return the run of a place, and an event of it: the key may name a later run by now. Raises ApiError."""
        run, event = map(number_of, place.partition(".")[::2])
        if isinstance(shown, ShownRun):
            if shown.row.id == run:
                return shown, event
            earlier = await self._runs.show(Key(run=run, namespace=shown.row.namespace))
            # Others may have another type, for which the caller has no grant.
            if not isinstance(earlier, list) and earlier.row.type == shown.row.type:
                return earlier, event
        raise no_place(place)


MOST_READS: Final = 20
"""Reads of a history for one page, apart from the rest of a part."""
PART: Final = 500
"""Events that are read at a time for a filter."""


class _HistoryPart:
    """Reads the events of one request, as ``rows``. ``read`` reads up to a number of events, and fewer if they are large."""

    def __init__(
        self, request: ReadHistory, read: Callable[[int, int], Coroutine[Ask, Any, StoredPage[Event]]]
    ) -> None:
        self._request = request
        self._read = read
        self._kinds = frozenset(request.kinds)
        self._reads = 0
        self._size = 0
        self.rows: list[dict[str, Any]] = []

    @property
    def _goes_on(self) -> bool:
        return len(self.rows) < self._request.limit and self._reads < MOST_READS

    def _most(self) -> int:
        """Return how many events to read: without a filter no more than are wanted."""
        return PART if self._kinds else min(PART, self._request.limit - len(self.rows))

    def _keep(self, event: Event) -> bool:
        """Keep an event that matches, and return whether the page has had room for it."""
        if self._kinds and type(event).__name__ not in self._kinds:
            return True
        if len(self.rows) == self._request.limit:
            return False
        row = event_to_json(event) if self._request.exact else swf_event(event, native=self._request.native)
        self._size += size_of([row])
        if self._size > PAGE.most and self.rows:
            return False
        self.rows.append(row)
        return True

    async def forward(self, first: int) -> int | None:
        """Read from an event on; return the one at which the next page begins."""
        while self._goes_on:
            page = await self._read(first, self._most())
            self._reads += 1
            for event in page.items:
                if not self._keep(event):
                    return event.id
            if page.next is None:
                return None
            first = page.items[-1].id + 1
        return first

    async def backward(self, last: int) -> int | None:
        """Read from an event back; return the one at which the next page begins."""
        lowest, most = self._request.first, PART
        while last >= lowest and self._goes_on:
            most = min(most, self._most())
            first = max(lowest, last - most + 1)
            part = await self._between(first, last)
            if part is None:  # they are too large together: begin nearer to the end
                most = max(1, (last - first + 1) // 4)
                self._reads = 0  # at most six times, so that each page has an event
                continue
            for event in reversed(part):
                if not self._keep(event):
                    return event.id
            last = first - 1
        return last if last >= lowest else None

    async def _between(self, first: int, last: int) -> list[Event] | None:
        """Return the events from one to another; None if they are larger than a page."""
        found: list[Event] = []
        size = 0
        at: int | None = first
        while at is not None and at <= last:
            page = await self._read(at, last - at + 1)
            self._reads += 1
            found += page.items
            size += page.size
            at = None if page.next is None else page.items[-1].id + 1
            if size > PAGE.most and at is not None and at <= last:
                return None
        return found
