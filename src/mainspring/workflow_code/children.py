"""The children that workflow code starts, and its signals and cancel requests to other runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.client.run import encode_signal
from mainspring.errors import JobFailed, JobTimedOut, NotFoundError, UsageError, WorkflowUsageError
from mainspring.ids import Handles
from mainspring.workflow_code.carried import SINCE as CARRIED_SINCE
from mainspring.workflow_code.model import Evicted
from mainspring.workflow_code.workflow_jobs import PRIORITIES, WorkflowJob, check_size, error_of
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import CHILD_TAG, PART_TAG
from mainspring.workflows.requests import (
    RequestCancelExternalWorkflowExecution,
    SignalExternalWorkflowExecution,
    StartChildWorkflowExecution,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from mainspring.client.inside import ChildCall
    from mainspring.client.run import SignalType
    from mainspring.workflow_code.carried import CarriedResults
    from mainspring.workflow_code.loop import WorkflowLoop
    from mainspring.workflow_code.matching import Same
    from mainspring.workflow_code.model import RunState
    from mainspring.workflow_code.workflow_jobs import Closing, Numbers
    from mainspring.workflows import history

R = TypeVar("R")

_POLICIES = {
    "terminate": ChildPolicy.TERMINATE,
    "cancel": ChildPolicy.REQUEST_CANCEL,
    "abandon": ChildPolicy.ABANDON,
    None: ChildPolicy.TERMINATE,
}


class ChildJob(WorkflowJob[R]):
    """A child run. ``await job`` returns its result, or raises as for a run outside of workflows. ``send`` sends a signal."""

    def __init__(self, send: Callable[[ChildJob[Any], str, bytes], asyncio.Future[None]], *args: Any) -> None:
        super().__init__(*args)
        self._send = send
        self.is_carried = False
        """Whether it was a child of an earlier run, whose result this run has taken over."""

    def signal(self, signal: SignalType[Any] | str, value: Any = None) -> asyncio.Future[None]:
        """Send the child a signal. Awaiting it returns when the child has it, and raises NotFoundError if it is not open."""
        return self._send(self, *encode_signal(signal, value))

    async def asignal(self, signal: SignalType[Any] | str, value: Any = None) -> None:
        """Send the child a signal, and wait until it has it."""
        await self.signal(signal, value)


class Children:
    """The open children of a run, and its unanswered requests to other runs.

    ``issue`` adds a command, and ``numbers`` numbers it.
    """

    def __init__(
        self,
        state: RunState,
        loop: WorkflowLoop,
        closing: Closing,
        issue: Callable[..., None],
        numbers: Numbers,
        carried: CarriedResults | None = None,
    ) -> None:
        self._state = state
        self._loop = loop
        self._closing = closing
        self._issue = issue
        self._numbers = numbers
        self._jobs: dict[int, ChildJob[Any]] = {}
        """Open children, by the numbers of their commands."""
        self._initiated: dict[int, ChildJob[Any]] = {}
        """The same by the events that initiated them."""
        self._requests: dict[int, tuple[asyncio.Future[None], str]] = {}
        """Requests that are not recorded yet, and what they do, by the numbers of their commands."""
        self._sent: dict[int, tuple[asyncio.Future[None], str]] = {}
        """Recorded requests without an answer, and what they do, by the events that initiated them."""
        self._carried = carried
        """Results that a rerun has taken over."""
        self.lasting = 0
        """The number of the code's calls whose effects go on after the end of the run."""

    def count_lasting(self) -> None:
        """Count a call of another part of the code's interface whose effect goes on after the end of the run."""
        self.lasting += 1

    # ---- called by the code ----

    def submit(
        self, call: ChildCall, args: tuple[Any, ...], kwargs: dict[str, Any], same: Same | None = None
    ) -> ChildJob[Any]:
        """Start a child."""
        limits = self._state.limits
        if len(self._jobs) >= limits.open_children:
            raise WorkflowUsageError(
                f"{call.name}: the run has {limits.open_children:,} open children, and no more are allowed: submit them in "
                "smaller groups, or use an asyncio.Semaphore"
            )
        options = call.options
        if "\0" in call.unique:
            raise UsageError(f"{call.name}: the unique {call.unique!r} has a NUL, and a workflow id has none")
        if options.delay is not None or options.run_at is not None:
            raise WorkflowUsageError(
                f"{call.name}: a child has neither delay nor run_at: write `await workflow.sleep(…)` before it"
            )
        payload = call.codec.encode_recorded(args, kwargs)
        number = self._numbers.next()
        title = f"{call.name} #{number}"
        check_size(payload, limits.largest, f"the input of {title}")
        job: ChildJob[Any] = ChildJob(
            self._signal_child,
            self._loop,
            call.connections,
            call.name,
            number,
            call.decode,
            self._cancel,
            options.cancel or "try",
        )
        carried = self._carried if self._state.semantics >= CARRIED_SINCE else None
        if carried is not None and carried.child(call.name, payload, job.take_over):
            job.is_carried = True
            return job
        self.lasting += 1
        self._closing.add(job)
        self._jobs[number] = job
        self._issue(
            StartChildWorkflowExecution(
                number,
                call.unique,
                call.name,
                options.version or "",
                payload,
                task_priority=PRIORITIES[options.priority],
                child_policy=_POLICIES[options.child_policy],
                execution_timeout=options.timeout or 0,
                tags=(PART_TAG if call.is_part else CHILD_TAG,),
                start_within=options.start_within or 0,
                deadline=options.deadline or 0,
                key="" if call.is_part else options.concurrency_key or "",
            ),
            same,
        )
        return job

    def _cancel(self, job: WorkflowJob[Any]) -> None:
        if not self._state.evicted:
            number = self._numbers.next()
            reason = f"its parent has cancelled {job.handle}"
            self._issue(RequestCancelExternalWorkflowExecution(number, "", reason=reason, child=job.number))

    def _signal_child(self, job: ChildJob[Any], name: str, data: bytes) -> asyncio.Future[None]:
        if self._state.evicted:
            raise Evicted
        check_size(data, self._state.limits.largest, f"the value of signal {name}")
        if job.is_carried:
            ended: asyncio.Future[None] = self._loop.create_future()
            ended.set_exception(NotFoundError(f"{job.handle} has ended in an earlier run: it takes no signal {name}"))
            return ended
        number = self._numbers.next()
        self._issue(SignalExternalWorkflowExecution(number, "", name, 0, data, child=job.number))
        return self._request(number, f"signal {name} to {job.handle}")

    def signal(self, key: str, name: str, data: bytes) -> asyncio.Future[None]:
        """Send a signal to another run."""
        check_size(data, self._state.limits.largest, f"the value of signal {name}")
        workflow_id, run = _address(key)
        number = self._numbers.next()
        self._issue(SignalExternalWorkflowExecution(number, workflow_id, name, run, data))
        return self._request(number, f"signal {name} to the run {key}")

    def request_cancel(self, key: str, reason: str) -> asyncio.Future[None]:
        """Ask another run to cancel itself."""
        workflow_id, run = _address(key)
        number = self._numbers.next()
        self._issue(RequestCancelExternalWorkflowExecution(number, workflow_id, run, reason=reason))
        return self._request(number, f"cancel the run {key}")

    def _request(self, number: int, what: str) -> asyncio.Future[None]:
        self.lasting += 1
        future: asyncio.Future[None] = self._loop.create_future()
        self._requests[number] = future, what
        return future

    # ---- called by the run ----

    def initiated(self, event: Any) -> None:
        """Note the event that records a command."""
        job = self._jobs.get(event.number)
        if job is not None:
            self._initiated[event.id] = job
        request = self._requests.pop(event.number, None)
        if request is not None:
            self._sent[event.id] = request

    def refused(self, event: history.StartChildWorkflowExecutionFailed) -> None:
        """End a child that has not begun."""
        self._initiated.pop(event.initiated, None)
        job = self._jobs.pop(event.number, None)
        if job is not None:
            kind, message = _refusal(event)
            job.fail(JobFailed(job.handle, kind, message, None, 0))

    def completed(self, event: history.ChildWorkflowExecutionCompleted) -> int:
        """Give the result of a child to the code. Return its bytes."""
        job = self._take(event.initiated)
        if job is None:
            return 0
        job.succeed(event.result)
        return len(event.result)

    def failed(self, event: history.ChildWorkflowExecutionFailed) -> None:
        """Fail a child."""
        job = self._take(event.initiated)
        if job is not None:
            job.fail(error_of(job.handle, event.details, 1, event.reason))

    def timed_out(self, event: history.ChildWorkflowExecutionTimedOut) -> None:
        """Fail a child that took too long."""
        job = self._take(event.initiated)
        if job is not None:
            message = "the run took longer than its execution timeout"
            job.fail(JobTimedOut(job.handle, "Timeout", message, None, 1, event.timeout.value.lower()))

    def canceled(self, event: history.ChildWorkflowExecutionCanceled) -> None:
        """End a child as cancelled."""
        job = self._take(event.initiated)
        if job is not None:
            job.end_cancelled()

    def terminated(self, event: history.ChildWorkflowExecutionTerminated) -> None:
        """Fail a child that was terminated."""
        job = self._take(event.initiated)
        if job is not None:
            why = f"the run was terminated: {event.reason}" if event.reason else "the run was terminated"
            job.fail(JobFailed(job.handle, "WorkflowTerminated", why, None, 1))

    def answered(self, event: Any) -> None:
        """Resolve a request that has reached the other run."""
        future, _ = self._sent.pop(event.initiated, (None, ""))
        if future is not None and not future.done():
            future.set_result(None)

    def unanswered(self, event: Any) -> None:
        """Fail a request that has reached no open run."""
        future, what = self._sent.pop(event.initiated, (None, ""))
        if future is not None and not future.done():
            future.set_exception(
                NotFoundError(
                    f"cannot {what}: no open run has this name, or its history is full; give the handle of a run, or the unique "
                    "with which it was started"
                )
            )
            future._log_traceback = False  # noqa: SLF001 - the code may ignore the answer

    def close(self) -> list[asyncio.Future[Any]]:
        """Forget all children and requests, and return their futures."""
        futures: list[asyncio.Future[Any]] = [*self._jobs.values()]
        futures += [future for future, _ in (*self._requests.values(), *self._sent.values())]
        for one in (self._jobs, self._initiated, self._requests, self._sent):
            one.clear()
        return futures

    def _take(self, initiated: int) -> ChildJob[Any] | None:
        job = self._initiated.pop(initiated, None)
        if job is not None:
            self._jobs.pop(job.number, None)
        return job


def _address(key: str) -> tuple[str, int]:
    """Return the workflow id or the number of a run, whichever the key gives; the other one is empty or 0."""
    handle, _, run = key.partition("@")
    root = Handles.parse(handle.encode())
    if root is None or (run and not run.isdecimal()):
        return key, 0
    return "", int(run or root)


def _refusal(event: history.StartChildWorkflowExecutionFailed) -> tuple[str, str]:
    """Return the type and the message of the error of a child that has not begun."""
    if event.cause == "WORKFLOW_ALREADY_RUNNING":
        return "WorkflowAlreadyRunning", (
            f"the workflow id {event.workflow_id} has an open run, or a start that waits: give the child another unique, or show "
            f"the run with `mainspring workflows show {event.workflow_id}`"
        )
    if event.cause == "WORKFLOW_TYPE_DOES_NOT_EXIST":
        version = (
            f"version {event.version} of the workflow {event.type}" if event.version else f"the workflow {event.type}"
        )
        return "WorkflowNotRegistered", f"no worker has registered {version}: start a worker with it first"
    return event.cause, "the node did not start the child"
