"""Calls about workflows: start runs, and send them signals and other requests. `run_lists` and `run_reading` have the others."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from msgspec import UNSET

from mainspring.api.answers.once import act_once
from mainspring.api.answers.run_lists import ListsRuns, RunListCalls
from mainspring.api.answers.run_lookup import RunLookup, ShowsRuns, ambiguous, unread
from mainspring.api.answers.run_reading import ReadsRuns, RunReadingCalls
from mainspring.api.answers.run_rows import status_name, unbegun_status
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.api.submitting import JobOptions, bytes_of, checked_levels, size_problem
from mainspring.api.workflows import (
    CHILD_POLICIES,
    Cancel,
    Move,
    Number,
    Reached,
    Signal,
    Start,
    Started,
    Terminate,
    Unpark,
)
from mainspring.quantities import format_duration
from mainspring.workflows import requests
from mainspring.workflows.store import ShownRun
from mainspring.workflows.store import Start as NewRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.acts import Act
    from mainspring.access.caller import Caller
    from mainspring.access.once import Once
    from mainspring.access.replies import KeptReply, RequestKey, Reservation
    from mainspring.api.answers.jobs import JobCalls
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.submitting import SubmitCalls
    from mainspring.api.answers.waiting import Ask
    from mainspring.jobs.model import Job
    from mainspring.jobs.roots import Stored
    from mainspring.jobs.service import JobService
    from mainspring.workflows.history import ChildPolicy
    from mainspring.workflows.model import Key, Limits
    from mainspring.workflows.requests import Failed
    from mainspring.workflows.store import Begun, Moved


class Workflows(ListsRuns, ReadsRuns, ShowsRuns, Protocol):
    """The runs of a node; `workflows.service` implements it."""

    def start(self, job: Job, version: str, timeout: float, done: Callable[[Begun], None], failed: Failed) -> None:
        """Store a root job and begin its run; see ``workflows.store.Start``."""

    def start_once(
        self,
        start: NewRun,
        key: RequestKey,
        reply: Callable[[Stored], KeptReply],
        done: Callable[[Stored | Reservation], None],
        failed: Failed,
    ) -> None:
        """Do the same in one transaction with the answer that ``reply`` returns."""

    def signal(self, signal: requests.Signal, done: Callable[[requests.Reached], None], failed: Failed) -> None:
        """Record a signal."""

    def request_cancel(
        self,
        key: Key,
        reason: str,
        request: int,
        done: Callable[[requests.Reached], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """Ask a run to cancel itself."""

    def terminate(
        self,
        key: Key,
        reason: str,
        children: ChildPolicy | None,
        done: Callable[[requests.Reached], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """End a run at once; ``children`` replaces the policies of its children."""

    def move(
        self, key: Key, version: str, done: Callable[[Moved], None], failed: Failed, act: Act | None = None
    ) -> None:
        """Give a run another version, if its code has recorded nothing."""

    def unpark(
        self,
        key: Key | None,
        namespace: str,
        done: Callable[[int], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """Let a parked run go on; without a key, all of a namespace. ``done`` is called with their number."""


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
            Start: self._start,
            Signal: self._signal,
            Cancel: self._cancel,
            Terminate: self._terminate,
            Move: self._move,
            Unpark: self._unpark,
        }

    # ---- starting ----

    async def _start(self, request: Start, caller: Caller, once: Once | None) -> Started:
        timeout = request.timeout
        longest = self._limits.timeout
        if timeout is not None and not 0 < timeout <= longest:
            limit, given = format_duration(longest), format_duration(timeout) if timeout > 0 else f"{timeout} seconds"
            raise ApiError(Code.INVALID, f"a run at this node lasts from 1us to {limit}: timeout is {given}")
        payload, unique = bytes_of(request), request.id.encode()
        options = JobOptions(priority=request.priority)
        function = request.function.encode()
        job = self._submits.job(request.namespace, function, payload, unique, options, caller, creates=False)

        def answer(begun: Begun | Stored) -> Started:
            if (why := begun.refused.get(job.id)) is not None:
                raise ApiError(Code.WORKFLOW_NOT_FOUND, why)
            joined = begun.joined.get(job.id)
            root = job.id if joined is None else joined.id
            handle = self._service.handle_of(root).decode()
            workflow_id = request.id or handle
            return Started(handle, self._runs.handle(root, root), workflow_id, joined is not None, workflow_id)

        start = NewRun(job, request.version, timeout or 0.0)
        if once is None:
            begun: Begun = await Later(lambda done, failed: self._workflows.start(*start, done, failed))
            return answer(begun)
        return await act_once(once, partial(self._workflows.start_once, start, once.key), answer)

    # ---- requests to runs ----

    async def _signal(self, request: Signal) -> Reached:
        signal = requests.Signal(
            self._runs.key(request.namespace, request.key),
            request.name,
            _value(request),
            _request_key(request.request),
        )
        if (problem := size_problem(signal.input, self._limits.largest)) is not None:
            raise ApiError(problem.code, problem.message)
        return await self._reached(request, lambda done, failed: self._workflows.signal(signal, done, failed))

    async def _cancel(self, request: Cancel, caller: Caller) -> Reached:
        key, number = self._runs.key(request.namespace, request.key), _request_key(request.request)
        act = caller.act(request.call, request.key, request.reason, namespace=request.namespace)
        return await self._reached(
            request,
            lambda done, failed: self._workflows.request_cancel(key, request.reason, number, done, failed, act),
        )

    async def _terminate(self, request: Terminate, caller: Caller) -> Reached:
        act = caller.act(request.call, request.key, request.reason, namespace=request.namespace)
        key = self._runs.key(request.namespace, request.key)
        children = None if request.children is None else CHILD_POLICIES[request.children]
        return await self._reached(
            request,
            lambda done, failed: self._workflows.terminate(key, request.reason, children, done, failed, act),
        )

    async def _reached(self, request: Signal | Cancel | Terminate, ask: Ask) -> Reached:
        key = request.key
        reached: requests.Reached = await Later(ask)
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
        run = self._runs.handle(reached.root, reached.run)
        waiting = reached.waiting
        status = status_name(reached.status) if waiting is None else unbegun_status(waiting)
        return Reached(handle, run, status, reached.verdict == "repeated")

    async def _move(self, request: Move, caller: Caller) -> Reached:
        key, version = request.key, request.version
        target = self._runs.key(request.namespace, key)
        act = caller.act(request.call, key, version, namespace=request.namespace)
        moved: Moved = await Later(lambda done, failed: self._workflows.move(target, version, done, failed, act))
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
        handle = self._service.handle_of(moved.root).decode()
        return Reached(handle, self._runs.handle(moved.root, moved.run), "open", moved.verdict == "same")

    async def _unpark(self, request: Unpark, caller: Caller) -> Number:
        if (request.key is None) is not request.all:
            raise ApiError(Code.INVALID, "give a key, or `all`: exactly one of these")
        key = None if request.key is None else self._runs.key(request.namespace, request.key)
        if request.key is not None:
            found = await self._runs.find(request.namespace, request.key)
            if isinstance(found, ShownRun) and found.fault:
                raise unread(request.key, found.fault)
        namespace = request.namespace
        act = caller.act(request.call, request.key or "all", namespace=namespace)
        number: int = await Later(lambda done, failed: self._workflows.unpark(key, namespace, done, failed, act))
        return Number(number)


def _value(request: Signal) -> bytes:
    """Return the bytes of a signal's value; none for none. Raises ApiError."""
    if request.value is not UNSET and request.payload is not UNSET:
        raise ApiError(Code.INVALID, "give value or payload, not both")
    if request.payload is not UNSET:
        return request.payload
    return b"" if request.value is UNSET else checked_levels(bytes(request.value))


def _request_key(text: str | None) -> int:
    """Return the hash that identifies a request; 0 for none."""
    return 0 if text is None else int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) or 1
