"""Calls that start runs, send them signals and other requests, and name the versions of workflows and their workers.

`runs` has the calls that read runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import UNSET

from mainspring.api.handlers.functions import end_of_pause
from mainspring.api.handlers.pages import names_in_row, numbered, rfc3339
from mainspring.api.handlers.run_rows import status_name, unbegun_status
from mainspring.api.handlers.runs import (
    ListsRuns,
    ReadsRuns,
    RunListCalls,
    RunLookup,
    RunReadingCalls,
    ShowsRuns,
    ambiguous,
    unread,
)
from mainspring.api.request import ApiError, Code, Page
from mainspring.api.submitting import JobOptions, bytes_of, checked_levels, has_arguments, size_problem
from mainspring.api.workflows import (
    CHILD_POLICIES,
    FORK_CALLS,
    CacheInfo,
    CancelRun,
    ChangedRuns,
    DeciderInfo,
    ForkedRun,
    ListDeciders,
    ListVersions,
    MoveRun,
    PauseRun,
    ReachedRun,
    RemovedVersion,
    RemoveVersion,
    RerunRun,
    ResetRun,
    ResumeRun,
    SignalRun,
    StartedRun,
    StartRun,
    TerminateRun,
    UnparkAllRuns,
    UnparkRun,
    VersionInfo,
)
from mainspring.quantities import format_duration
from mainspring.workflows import requests
from mainspring.workflows.carrying import Choice
from mainspring.workflows.forking import Change, ForkPlan, Point
from mainspring.workflows.store import ShownRun
from mainspring.workflows.store import Start as NewRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.access.caller import Act
    from mainspring.access.idempotency import KeyedAct
    from mainspring.api.handlers.jobs import JobCalls
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.handlers.submitting import SubmitCalls
    from mainspring.jobs.roots import Stored
    from mainspring.jobs.service import JobService
    from mainspring.workflows.decider_workers import DeciderRow
    from mainspring.workflows.definitions import VersionRow
    from mainspring.workflows.history import ChildPolicy
    from mainspring.workflows.model import Key, Limits
    from mainspring.workflows.store import Begun, Forked, Moved


class TakesRequests(Protocol):
    """Requests to the runs of a node; `workflows.service.RunRequests` implements it."""

    async def signal(self, signal: requests.Signal) -> requests.Reached:
        """Record a signal."""

    async def request_cancel(self, key: Key, reason: str, request: int, act: Act | None = None) -> requests.Reached:
        """Ask a run to cancel itself."""

    async def terminate(
        self, key: Key, reason: str, children: ChildPolicy | None, act: Act | None = None
    ) -> requests.Reached:
        """End a run at once; ``children`` replaces the policies of its children."""

    async def move(self, key: Key, version: str, act: Act | None = None) -> Moved:
        """Give a run another version, if its code has recorded nothing."""

    async def fork(self, key: Key, change: Change, act: Act | None = None, *, dry_run: bool = False) -> Forked:
        """Begin a fork of a run, or tell what it would have."""

    async def pause(self, key: Key, *, reason: str, by: str, until_us: int, act: Act | None = None) -> requests.Reached:
        """Pause a run, or change its pause."""

    async def resume(self, key: Key, act: Act | None = None) -> requests.Reached:
        """End the pause of a run."""

    async def unpark(self, key: Key | None, namespace: str, act: Act | None = None) -> int:
        """Let a parked run go on; without a key, all of a namespace. Return their number."""


class Workflows(ListsRuns, ReadsRuns, ShowsRuns, Protocol):
    """The runs of a node; `workflows.service` implements it."""

    async def start(self, start: NewRun) -> Begun:
        """Store a root job and begin its run; see ``workflows.store.Start``."""

    async def start_once(self, start: NewRun, keyed_act: KeyedAct) -> Stored:
        """Do the same in one transaction with the answer to the request. Raises RepeatedError."""

    @property
    def requests(self) -> TakesRequests:
        """The requests to runs."""


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
        self._service = service
        self._runs = RunLookup(workflows, service, jobs)
        self._submits = submits
        self._limits = limits
        self.handlers: Handlers = {
            **RunListCalls(workflows, service, self._runs).handlers,
            **RunReadingCalls(workflows, service, jobs, self._runs).handlers,
            StartRun: self._start,
            SignalRun: self._signal,
            CancelRun: self._cancel,
            TerminateRun: self._terminate,
            MoveRun: self._move,
            ResetRun: self._reset,
            PauseRun: self._pause,
            ResumeRun: self._resume,
            RerunRun: self._rerun,
            UnparkRun: self._unpark,
            UnparkAllRuns: self._unpark_all,
        }

    # ---- starting ----

    async def _start(self, request: StartRun, call: Call) -> StartedRun:
        timeout = request.timeout
        longest = self._limits.timeout
        if timeout is not None and not 0 < timeout <= longest:
            limit, given = format_duration(longest), format_duration(timeout) if timeout > 0 else f"{timeout} seconds"
            raise ApiError(Code.INVALID, f"a run at this node lasts from 1us to {limit}: timeout is {given}")
        payload, unique = bytes_of(request), request.id.encode()
        options = JobOptions(
            priority=request.priority,
            start_within=request.start_within,
            deadline=request.deadline,
            concurrency_key=request.concurrency_key,
        )
        function = request.function.encode()
        job = self._submits.job(request.namespace, function, payload, unique, options, call.caller, creates=False)

        def answer(begun: Begun | Stored) -> StartedRun:
            if (why := begun.refused.get(job.id)) is not None:
                raise ApiError(Code.WORKFLOW_NOT_FOUND, why)
            joined = begun.joined.get(job.id)
            root = job.id if joined is None else joined.id
            handle = self._service.handles.of(root).decode()
            return StartedRun(handle, self._runs.handle(root, root), request.id or handle, joined is not None)

        start = NewRun(job, request.version, timeout or 0.0)
        if call.once is None:
            return answer(await self._workflows.start(start))
        return answer(await self._workflows.start_once(start, call.once.act(answer)))

    # ---- requests to runs ----

    async def _signal(self, request: SignalRun, call: Call) -> ReachedRun:
        signal = requests.Signal(
            self._runs.key(request.namespace, request.key),
            request.name,
            _value(request),
            requests.request_number(request.request),
            call.caller.depth,
        )
        if "\0" in request.name:
            raise ApiError(Code.INVALID, f"the name of the signal, {request.name!r}, has a NUL: leave it out")
        if (problem := size_problem(signal.input, self._limits.largest)) is not None:
            raise ApiError(problem.code, problem.message)
        return await self._reached(request, await self._workflows.requests.signal(signal))

    async def _cancel(self, request: CancelRun, call: Call) -> ReachedRun:
        key, number = self._runs.key(request.namespace, request.key), requests.request_number(request.request)
        act = call.act(request.reason)
        return await self._reached(
            request, await self._workflows.requests.request_cancel(key, request.reason, number, act)
        )

    async def _terminate(self, request: TerminateRun, call: Call) -> ReachedRun:
        act = call.act(request.reason)
        key = self._runs.key(request.namespace, request.key)
        children = None if request.children is None else CHILD_POLICIES[request.children]
        return await self._reached(
            request, await self._workflows.requests.terminate(key, request.reason, children, act)
        )

    async def _pause(self, request: PauseRun, call: Call) -> ReachedRun:
        until_us = end_of_pause(request.until, self._service.clock.wall(), "the run")
        act = call.act(request.reason)
        key, by = self._runs.key(request.namespace, request.key), call.caller.name
        paused = await self._workflows.requests.pause(key, reason=request.reason, by=by, until_us=until_us, act=act)
        return await self._reached(request, paused)

    async def _resume(self, request: ResumeRun, call: Call) -> ReachedRun:
        act = call.act()
        key = self._runs.key(request.namespace, request.key)
        return await self._reached(request, await self._workflows.requests.resume(key, act))

    async def _reached(
        self, request: SignalRun | CancelRun | TerminateRun | PauseRun | ResumeRun, reached: requests.Reached
    ) -> ReachedRun:
        key = request.key
        match reached.verdict:
            case "unknown":
                raise await self._runs.unknown(request.namespace, key)
            case "ambiguous":
                raise ambiguous(key)
            case "unread":
                raise unread(key, reached.fault)
            case "closed":
                status = status_name(reached.status).replace("_", " ")
                raise ApiError(
                    Code.CONFLICT,
                    f"the run {key} is closed ({status}) and takes no requests; start another one with: mainspring"
                    " workflows start",
                )
            case "unbegun":
                raise ApiError(
                    Code.CONFLICT,
                    f"the run {key} has not begun: to keep the runs of its workflow from beginning, use: mainspring"
                    " functions pause",
                )
            case "older":
                raise ApiError(
                    Code.CONFLICT,
                    "a node of an earlier version shares the store and would go on with a paused run: pause it once all"
                    " nodes have this version",
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
        handle = self._service.handles.of(reached.root).decode()
        run = self._runs.handle(reached.root, reached.run)
        waiting = reached.waiting
        status = status_name(reached.status) if waiting is None else unbegun_status(waiting)
        return ReachedRun(handle, run, status, reached.verdict == "repeated")

    async def _move(self, request: MoveRun, call: Call) -> ReachedRun:
        key, version = request.key, request.version
        target = self._runs.key(request.namespace, key)
        act = call.act(version)
        moved = await self._workflows.requests.move(target, version, act)
        why = ""
        match moved.verdict:
            case "unknown":
                raise await self._runs.unknown(request.namespace, key)
            case "ambiguous":
                raise ambiguous(key)
            case "unread":
                raise unread(key, moved.fault)
            case "unregistered":
                raise ApiError(
                    Code.WORKFLOW_NOT_FOUND,
                    f"no worker has registered version {version} of the workflow; registered: {', '.join(moved.versions)}",
                )
            case "closed":
                why = f"is closed ({status_name(moved.status).replace('_', ' ')})"
            case "unbegun":
                why = "has not begun: it gets its version when it begins"
            case "recorded":
                why = (
                    "cannot be moved, because its code has made decisions that another version may not repeat: start a worker"
                    " with its version, or end the run and start another one"
                )
        if why:
            raise ApiError(Code.CONFLICT, f"the run {key} {why}")
        handle = self._service.handles.of(moved.root).decode()
        return ReachedRun(handle, self._runs.handle(moved.root, moved.run), "open", moved.verdict == "same")

    async def _reset(self, request: ResetRun, call: Call) -> ForkedRun:
        key = self._runs.key(request.namespace, request.key)
        change = Change(_point(request), drop_signals=request.drop_signals, reason=request.reason)
        act = call.act(request.reason)
        forked = await self._workflows.requests.fork(key, change, act, dry_run=request.dry_run)
        return await self._forked(request.namespace, request.key, forked)

    async def _rerun(self, request: RerunRun, call: Call) -> ForkedRun:
        payload = bytes_of(request) if has_arguments(request) else None
        skip = {name: checked_levels(msgspec.json.encode(result)) for name, result in (request.skip or {}).items()}
        for data in (payload or b"", *skip.values()):
            if (problem := size_problem(data, self._limits.largest)) is not None:
                raise ApiError(problem.code, problem.message)
        change = Change(
            None,
            Choice(request.from_call or "", request.repeat, skip),
            payload,
            request.version,
            request.drop_signals,
            request.reason,
        )
        key = self._runs.key(request.namespace, request.key)
        act = call.act(request.reason)
        forked = await self._workflows.requests.fork(key, change, act, dry_run=request.dry_run)
        return await self._forked(request.namespace, request.key, forked)

    async def _forked(self, namespace: str, key: str, forked: Forked) -> ForkedRun:
        match forked.verdict:
            case "unknown":
                raise await self._runs.unknown(namespace, key)
            case "ambiguous":
                raise ambiguous(key)
            case "unread":
                raise unread(key, forked.fault)
            case "unbegun":
                raise ApiError(Code.CONFLICT, f"the run {key} has not begun: there is nothing to repeat")
            case "open":
                rival = f": {self._service.handles.of(forked.rival).decode()}" if forked.rival else ""
                raise ApiError(
                    Code.CONFLICT,
                    f"the run {key} is closed, and its workflow id has an open run{rival}; give that one, or wait until it has"
                    " ended",
                )
            case "refused":
                raise ApiError(Code.CONFLICT, f"{key}: {forked.fault}")
            case "unregistered":
                listed = ", ".join(forked.versions) or "none"
                raise ApiError(
                    Code.WORKFLOW_NOT_FOUND,
                    f"no worker has registered the version of the workflow for the new run; registered: {listed}",
                )
        plan = forked.plan or ForkPlan()
        handle = run = None
        if forked.run:
            handle = self._service.handles.of(forked.root).decode()
            run = self._runs.handle(forked.root, forked.run)
        return ForkedRun(
            self._runs.handle(forked.source_root, forked.source),
            handle,
            run,
            plan.point,
            plan.kept,
            list(plan.carried[-FORK_CALLS:]),
            list(plan.repeated[:FORK_CALLS]),
            plan.signals,
            plan.dropped,
            plan.dropped_signals,
            len(plan.carried),
            len(plan.repeated),
            list(plan.given),
        )

    async def _unpark(self, request: UnparkRun, call: Call) -> ChangedRuns:
        found = await self._runs.find(request.namespace, request.key)
        if isinstance(found, ShownRun) and found.fault:
            raise unread(request.key, found.fault)
        key = self._runs.key(request.namespace, request.key)
        act = call.act()
        return ChangedRuns(await self._workflows.requests.unpark(key, request.namespace, act))

    async def _unpark_all(self, request: UnparkAllRuns, call: Call) -> ChangedRuns:
        act = call.act(of="all")
        return ChangedRuns(await self._workflows.requests.unpark(None, request.namespace, act))


def _point(request: ResetRun) -> Point:
    """Return the decision that a request names. Raises ApiError."""
    given = [request.event is not None, request.before is not None, request.first, request.last]
    if sum(given) != 1:
        raise ApiError(Code.INVALID, "give one of event, before, first and last: the decision that is made anew")
    if request.event is not None:
        return Point(event=request.event)
    if request.before is not None:
        return Point(before=request.before)
    return Point(end="first" if request.first else "last")


def _value(request: SignalRun) -> bytes:
    """Return the bytes of a signal's value; none for none. Raises ApiError."""
    if request.value is not UNSET and request.payload is not UNSET:
        raise ApiError(Code.INVALID, "give value or payload, not both")
    if request.payload is not UNSET:
        return request.payload
    return b"" if request.value is UNSET else checked_levels(bytes(request.value))


class Table(Protocol):
    """The versions of a node; `workflows.version_table` implements it."""

    async def list(self, namespace: str, name: str | None) -> Sequence[VersionRow]:
        """Return the versions of a workflow, or of all of a namespace."""

    async def remove(self, namespace: str, name: str, version: str, act: Act | None = None) -> bool:
        """Remove a version that nothing needs; return whether it existed."""


class VersionCalls:
    """Answers for the versions of workflows, and for the workers that decide their runs.

    ``deciders`` returns the workers of a namespace at all nodes, with the names of their nodes.
    """

    def __init__(self, table: Table, deciders: Callable[[str], Iterable[tuple[str, DeciderRow]]]) -> None:
        self._table = table
        self._deciders = deciders
        self.handlers: Handlers = {
            ListVersions: self._versions,
            RemoveVersion: self._remove,
            ListDeciders: self._workers,
        }

    async def _versions(self, request: ListVersions, _: Call) -> Page[VersionInfo]:
        rows = await self._table.list(request.namespace, request.type)
        if request.type is not None and not rows:
            raise _unknown(request.type)
        return numbered(request, [_info(row) for row in rows])

    async def _remove(self, request: RemoveVersion, call: Call) -> RemovedVersion:
        version = request.namespace, request.type, request.version
        act = call.act(of=f"{request.type}@{request.version}")
        if not await self._table.remove(*version, act):
            versions = ", ".join(row.version for row in await self._table.list(request.namespace, request.type))
            if not versions:
                raise _unknown(request.type)
            raise ApiError(
                Code.WORKFLOW_NOT_FOUND,
                f"the workflow {request.type} has no version {request.version}; it has: {versions}",
            )
        return RemovedVersion(request.type, request.version, "removed")

    async def _workers(self, request: ListDeciders, _: Call) -> Page[DeciderInfo]:
        return numbered(
            request,
            [
                DeciderInfo(
                    worker=row.worker,
                    node=node,
                    versions=names_in_row(row.versions),
                    decisions=row.decisions,
                    steps=row.steps,
                    places=row.places,
                    full=row.decisions - row.steps >= row.places,
                    draining=row.draining,
                    cache=None if row.cache is None else CacheInfo(**row.cache._asdict()),
                )
                for node, row in self._deciders(request.namespace)
            ],
        )


def _unknown(name: str) -> ApiError:
    return ApiError(
        Code.WORKFLOW_NOT_FOUND,
        f"no worker has registered a workflow named {name}; mainspring workflows versions lists those there are",
    )


def _info(row: VersionRow) -> VersionInfo:
    return VersionInfo(
        type=row.type,
        version=row.version,
        open=row.open,
        parked=row.parked,
        workers=row.workers,
        last_seen_at=rfc3339(row.last_seen_us),
        gets_new_runs=row.gets_new_runs,
        needed=row.needed,
    )
