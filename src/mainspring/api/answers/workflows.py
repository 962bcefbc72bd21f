"""Calls about workflows: start, list and show runs, read their histories, and send them signals and other requests."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import UNSET

from mainspring.api.answers.run_rows import (
    activity_info,
    run_details,
    run_handle,
    run_info,
    status_name,
    unbegun_details,
    unbegun_info,
    unbegun_status,
)
from mainspring.api.answers.unbegun_runs import STATES, UnbegunRuns
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import PAGE_LIMIT, ApiError, Code, check_number
from mainspring.api.submitting import JobOptions, size_problem
from mainspring.api.workflows import (
    CHILD_POLICIES,
    STATUS_BY_NAME,
    Cancel,
    Events,
    History,
    Input,
    List,
    Listed,
    Number,
    Reached,
    RunDetails,
    RunInfo,
    Show,
    Signal,
    Start,
    Started,
    Terminate,
    Unpark,
)
from mainspring.clock import to_us
from mainspring.quantities import format_duration
from mainspring.workflows import requests
from mainspring.workflows.history_files import event_to_json
from mainspring.workflows.model import Key, Limits, Status
from mainspring.workflows.store import ListRuns, Unbegun
from mainspring.workflows.swf_events import swf_event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from mainspring.api.answers.jobs import JobCalls
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.submitting import SubmitCalls
    from mainspring.api.answers.waiting import Ask
    from mainspring.api.workflows import ActivityInfo
    from mainspring.errors import MainspringError
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.storage.query import Page
    from mainspring.workflows.history import ChildPolicy, Event
    from mainspring.workflows.store import Begun, Shown, ShownRun

    Failed = Callable[[MainspringError], None]

CLOSED: Final = tuple(int(status) for status in Status if not status.open)
KEY_LIMIT: Final = 128
"""Bytes of a key: more than any unique, and any handle with a run."""
_WITHOUT_ERROR: Final = frozenset({Status.OPEN, Status.COMPLETED, Status.CONTINUED_AS_NEW})
UNBEGUN_END: Final = frozenset({"cancelled", "expired"})
"""The states of jobs that ended before a worker or a run began."""
MOST_JOBS: Final = 100
"""Open activities whose jobs are read for the details of a run."""


class Workflows(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    def start(self, job: Job, version: str, timeout: float, done: Callable[[Begun], None], failed: Failed) -> None:
        """Store a root job and begin its run; see ``workflows.store.Start``."""

    def signal(self, signal: requests.Signal, done: Callable[[requests.Reached], None], failed: Failed) -> None:
        """Record a signal."""

    def request_cancel(
        self, key: Key, reason: str, request: int, done: Callable[[requests.Reached], None], failed: Failed
    ) -> None:
        """Ask a run to cancel itself."""

    def terminate(
        self,
        key: Key,
        reason: str,
        children: ChildPolicy | None,
        done: Callable[[requests.Reached], None],
        failed: Failed,
    ) -> None:
        """End a run at once; ``children`` replaces the policies of its children."""

    def unpark(self, key: Key | None, done: Callable[[int], None], failed: Failed) -> None:
        """Let a parked run go on; without a key, all of them. ``done`` is called with their number."""

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""

    def list(self, query: ListRuns, done: Callable[[Page[ShownRun]], None], failed: Failed) -> None:
        """Read runs."""

    def show(self, key: Key, done: Callable[[Shown], None], failed: Failed) -> None:
        """Read one run; without one, the jobs that the key may name, whose runs have not begun."""

    def history(self, run: int, first: int, limit: int, done: Callable[[Page[Event]], None], failed: Failed) -> None:
        """Read up to ``limit`` events of a run from the event ``first`` on."""

    def stranded(self) -> Collection[tuple[str, str]]:
        """Return types and versions of runs that have waited for a minute, because no worker with their code is connected."""


class WorkflowCalls:
    """Answers for the runs of a node."""

    def __init__(
        self,
        workflows: Workflows,
        service: JobService,
        jobs: JobCalls,
        submits: SubmitCalls,
        limits: Limits,
    ) -> None:
        self._workflows = workflows
        self._unbegun = UnbegunRuns(service, workflows)
        self._service = service
        self._jobs = jobs
        self._submits = submits
        self._limits = limits
        self.handlers: Handlers = {
            Start: self._start,
            List: self._list,
            Show: self._show,
            History: self._history,
            Signal: self._signal,
            Cancel: self._cancel,
            Terminate: self._terminate,
            Unpark: self._unpark,
        }

    # ---- starting ----

    async def _start(self, request: Start) -> Started:
        timeout = request.timeout
        longest = self._limits.timeout
        if timeout is not None and not 0 < timeout <= longest:
            limit, given = format_duration(longest), format_duration(timeout) if timeout > 0 else f"{timeout} seconds"
            raise ApiError(Code.INVALID, f"a run at this node lasts from 1us to {limit}: timeout is {given}")
        payload, unique = _bytes(request, b""), request.unique.encode()
        options = JobOptions(priority=request.priority)
        job = self._submits.job(request.function.encode(), payload, unique, options, creates=False)
        begun: Begun = await Later(
            lambda done, failed: self._workflows.start(job, request.version, timeout or 0.0, done, failed)
        )
        if (why := begun.refused.get(job.id)) is not None:
            raise ApiError(Code.WORKFLOW_NOT_FOUND, why)
        joined = begun.joined.get(job.id)
        root = job.id if joined is None else joined.id
        handle = self._service.handle_of(root).decode()
        return Started(handle, self._run(root, root), request.unique or handle, joined is not None)

    # ---- reading ----

    async def _list(self, request: List) -> Listed:
        check_number("limit", request.limit)
        if sum((request.open, request.closed, request.parked, request.stranded, request.status is not None)) > 1:
            raise ApiError(Code.INVALID, "give one of open, closed, parked, stranded and status")
        after = None if request.after is None else self._run_id(request.after)
        unbegun = await self._unbegun.matching(request, after)
        if request.status in STATES:
            waiting = [self._unbegun_info(one) for one in unbegun]
            return Listed(waiting, waiting[-1].run if len(waiting) == request.limit else None)
        statuses: tuple[int, ...] = ()
        if request.status is not None:
            statuses = (STATUS_BY_NAME[request.status],)
        elif request.closed:
            statuses = CLOSED
        elif request.open or request.parked or request.stranded:
            statuses = (Status.OPEN,)
        stranded = frozenset(self._workflows.stranded())
        found: list[ShownRun] = []
        while stranded or not request.stranded:
            query = ListRuns(
                status=statuses,
                parked=request.parked,
                needs_decision=request.stranded,
                type=request.type,
                workflow_id=request.id,
                since_us=to_us(request.since or 0),
                after=after,
                limit=PAGE_LIMIT if request.stranded else request.limit,
            )
            page: Page[ShownRun] = await Later(partial(self._workflows.list, query))
            found += [one for one in page.items if not request.stranded or _is_stranded(one, stranded)]
            after = page.next
            if after is None or len(found) >= request.limit:
                break
        rows = {one.row.id: self._info(one, stranded) for one in found}
        last = found[-1].row.id if found and after is not None else 0
        rows |= {one.job.id: self._unbegun_info(one) for one in unbegun if one.job.id > last}
        runs = [rows[run] for run in sorted(rows, reverse=True)[: request.limit]]
        return Listed(runs, runs[-1].run if runs and (after is not None or len(rows) > len(runs)) else None)

    async def _show(self, request: Show) -> RunDetails:
        shown = await self._find(request.key)
        if isinstance(shown, Unbegun):
            return unbegun_details(self._unbegun_info(shown), shown.job)
        info = self._info(shown, frozenset(self._workflows.stranded()))
        row = shown.row
        root = None if Status(row.status) in _WITHOUT_ERROR else await self._jobs.find(row.root)
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
        parent: Shown = await Later(lambda done, failed: self._workflows.show(Key(run=run), done, failed))
        return self._run(run if isinstance(parent, list) else parent.row.root, run)

    async def _activities(self, shown: ShownRun) -> list[ActivityInfo]:
        """Return the open activities of a run, the first ones with what their jobs add."""
        found: list[ActivityInfo] = []
        for activity in shown.state.activities.values():
            job = await self._jobs.find(activity.job) if activity.job and len(found) < MOST_JOBS else None
            found.append(activity_info(self._service.handle_of(activity.job).decode(), activity, job))
        return found

    async def _history(self, request: History) -> Events:
        check_number("limit", request.limit)
        if request.first < 1:
            raise ApiError(Code.INVALID, f"from is the number of an event, from 1 on, not {request.first}")
        shown = await self._find(request.key)
        if isinstance(shown, Unbegun):
            return Events([], None, self._unbegun_info(shown).status)
        row = shown.row
        page: Page[Event] = await Later(
            lambda done, failed: self._workflows.history(row.id, request.first, request.limit, done, failed)
        )
        if request.exact:
            events = [event_to_json(event) for event in page.items]
        else:
            events = [swf_event(event, native=request.native) for event in page.items]
        following = shown.state.new_run
        return Events(
            events,
            None if page.next is None else page.items[-1].id + 1,
            status_name(row.status),
            self._run(row.root, row.id),
            self._run(row.root, following) if following else None,
        )

    async def _find(self, key: str) -> ShownRun | Unbegun:
        """Return the run of a key, or the job whose run is to begin. Raises ApiError."""
        parsed = self._key(key)
        shown: Shown = await Later(lambda done, failed: self._workflows.show(parsed, done, failed))
        if not isinstance(shown, list):
            return shown
        if not shown:
            raise await self._unknown(key)
        if len(shown) > 1:
            raise _ambiguous(key)
        return shown[0]

    async def _unknown(self, key: str) -> ApiError:
        """Return the refusal of a key that names no run."""
        job_id = self._key(key).job
        job = await self._jobs.find(job_id) if job_id else None
        if job is None:
            return ApiError(
                Code.RUN_NOT_FOUND,
                f"no run has the handle or workflow id {key}: it never existed here, or is no longer kept; mainspring workflows"
                " list shows those there are",
            )
        held = self._service.find_held(job_id)
        if held is not None and not held.stored:
            why = f"a client waits for the job {key} of {job.function}, which is not stored before a worker or a run begins"
        elif job.state in UNBEGUN_END:
            why = f"the job {key} of {job.function} ended before a run began ({job.state})"
        else:
            why = f"{key} is a job of the task {job.function}, and not a run of a workflow"
        return ApiError(Code.RUN_NOT_FOUND, f"{why}; use mainspring jobs show {key}")

    # ---- requests to runs ----

    async def _signal(self, request: Signal) -> Reached:
        signal = requests.Signal(
            self._key(request.key), request.name, _bytes(request, b""), _request_key(request.request)
        )
        if (problem := size_problem(signal.input, self._limits.largest)) is not None:
            raise ApiError(problem.code, problem.message)
        return await self._reached(request.key, lambda done, failed: self._workflows.signal(signal, done, failed))

    async def _cancel(self, request: Cancel) -> Reached:
        key, number = self._key(request.key), _request_key(request.request)
        return await self._reached(
            request.key,
            lambda done, failed: self._workflows.request_cancel(key, request.reason, number, done, failed),
        )

    async def _terminate(self, request: Terminate) -> Reached:
        key = self._key(request.key)
        children = None if request.children is None else CHILD_POLICIES[request.children]
        return await self._reached(
            request.key, lambda done, failed: self._workflows.terminate(key, request.reason, children, done, failed)
        )

    async def _reached(self, key: str, ask: Ask) -> Reached:
        reached: requests.Reached = await Later(ask)
        match reached.verdict:
            case "unknown":
                raise await self._unknown(key)
            case "ambiguous":
                raise _ambiguous(key)
            case "closed":
                status = status_name(reached.status).replace("_", " ")
                raise ApiError(
                    Code.CONFLICT,
                    f"the run {key} is closed ({status}) and takes no requests; start another one with: mainspring"
                    " workflows start",
                )
            case "full" if not reached.run:
                raise ApiError(
                    Code.CONFLICT,
                    f"the run {key} has not begun, and takes no more signals before its begin: start a worker with the"
                    " workflow, and send the signal again",
                )
            case "full":
                raise ApiError(
                    Code.CONFLICT,
                    f"the run {key} takes no more signals: a history has at most {self._limits.events} events, and the last"
                    f" {self._limits.reserved} are for its own decisions; send fewer signals to a run, or let it end"
                    " earlier and start another one",
                )
        handle = self._service.handle_of(reached.root).decode()
        run = self._run(reached.root, reached.run)
        waiting = reached.waiting
        status = status_name(reached.status) if waiting is None else unbegun_status(waiting)
        return Reached(handle, run, status, reached.verdict == "repeated")

    async def _unpark(self, request: Unpark) -> Number:
        if (request.key is None) is not request.all:
            raise ApiError(Code.INVALID, "give a key, or `all`: exactly one of these")
        key = None if request.key is None else self._key(request.key)
        if request.key is not None:
            await self._find(request.key)
        number: int = await Later(lambda done, failed: self._workflows.unpark(key, done, failed))
        return Number(number)

    # ---- keys and rows ----

    def _key(self, text: str) -> Key:
        """Return a run's key from its text. Raises ApiError."""
        if not 0 < len(text.encode()) <= KEY_LIMIT:
            raise ApiError(Code.INVALID, "a run has a handle, such as H:node:1000000000001, or a workflow id: give one")
        handle, _, run = text.rpartition("@")
        if self._service.id_of(handle.encode()) is not None and run.isdecimal() and len(run) <= 18:
            return Key(run=int(run))
        root = self._service.id_of(text.encode())
        return Key(workflow_id=text) if root is None else Key(job=root)

    def _run_id(self, text: str) -> int:
        """Return the number of the run that a page continues after. Raises ApiError."""
        key = self._key(text)
        if key.workflow_id:
            raise ApiError(Code.INVALID, f"{text!r} is not the `next` of an earlier answer, nor a run's handle")
        return key.run or key.job

    def _run(self, root: int, run: int) -> str:
        return run_handle(self._service.handle_of(root).decode(), run)

    def _unbegun_info(self, unbegun: Unbegun) -> RunInfo:
        handle = self._service.handle_of(unbegun.job.id).decode()
        is_paused = self._service.spec_of(unbegun.job.function).paused
        return unbegun_info(handle, unbegun, to_us(self._service.wall()), is_paused=is_paused)

    def _info(self, shown: ShownRun, stranded: Collection[tuple[str, str]]) -> RunInfo:
        handle = self._service.handle_of(shown.row.root).decode()
        return run_info(handle, shown, to_us(self._service.wall()), stranded=_is_stranded(shown, stranded))


def _is_stranded(shown: ShownRun, stranded: Collection[tuple[str, str]]) -> bool:
    row = shown.row
    return bool(row.decision) and row.parked is None and (row.type, row.version) in stranded


def _ambiguous(key: str) -> ApiError:
    return ApiError(
        Code.CONFLICT,
        f"several jobs that have not started have the unique {key}: give the handle of the one that is the run;"
        f" mainspring jobs list --unique {key} lists them",
    )


def _bytes(request: Input, default: bytes) -> bytes:
    """Return the bytes of an input. Raises ApiError."""
    if request.input is not UNSET and request.payload_base64 is not UNSET:
        raise ApiError(Code.INVALID, "give `input` or `payload_base64`, not both")
    if request.payload_base64 is not UNSET:
        return request.payload_base64
    return default if request.input is UNSET else bytes(request.input)


def _request_key(text: str | None) -> int:
    """Return the hash that identifies a request; 0 for none."""
    return 0 if text is None else int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) or 1
