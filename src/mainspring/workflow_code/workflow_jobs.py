"""The jobs of a workflow: its activities and local steps, from their commands to their ends.

A `WorkflowJob` is also a future of the workflow's loop. Its command has the arguments, their size and the options.

A cancelled job ends as its mode requires (`client.options.CancelMode`, `WorkflowJob.cancel`). When the main task has ended,
the tasks that it leaves are cancelled, and with them the jobs that they wait for. The run closes when the jobs of mode ``wait``,
and the compensations of sagas, have ended. The close deletes the jobs of other open activities, except those of mode ``abandon``.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from functools import partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from mainspring.client.job import Job
from mainspring.client.options import check_key, check_short
from mainspring.client.outcomes import Reason
from mainspring.client.payload import Signature
from mainspring.errors import JobCancelled, JobFailed, JobTimedOut, PayloadError, UsageError, WorkflowUsageError
from mainspring.jobs.model import JobFailure, Options, Priority, Retry, encode_options
from mainspring.workflow_code.loop import SHIELDED
from mainspring.workflow_code.matching import earlier_payloads
from mainspring.workflow_code.model import StepCall
from mainspring.workflows.history_json import digest_of, same_digest
from mainspring.workflows.requests import ScheduleActivityTask, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mainspring.client.inside import ActivityCall
    from mainspring.client.options import CancelMode
    from mainspring.workflow_code.carried import CarriedResults
    from mainspring.workflow_code.loop import WorkflowLoop
    from mainspring.workflow_code.model import Record, StepOutcome, Transaction

R = TypeVar("R")


class WorkflowJob(Job[R], asyncio.Future[R]):  # result, cancel and others are chosen here
    """An activity or a local step. ``await job`` returns its result, or raises as ``Job.result`` does outside of workflows.

    ``handle`` names it in errors, such as ``charge #3``. ``number`` is that of its command or step.
    """

    def __init__(
        self,
        loop: WorkflowLoop,
        connections: Any,
        title: str,
        number: int,
        decode: Callable[[bytes], R],
        request_cancel: Callable[[WorkflowJob[R]], None],
        mode: CancelMode = "try",
    ) -> None:
        asyncio.Future.__init__(self, loop=loop)
        Job.__init__(self, connections, f"{title} #{number}", decode)
        self.number = number
        self._hash = loop.next_hash()
        self._request_cancel = request_cancel
        self._mode = mode
        self._cancel_message: object = None
        self._is_cancelling = False
        """Whether the code has cancelled it."""

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"WorkflowJob({self.handle!r}, {self.state})"

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.Future.__await__(self)

    __iter__ = __await__

    def result(self, timeout: object = None) -> R:
        """Return the result of an ended job, or raise its error.

        Raises WorkflowUsageError before its end: ``await job`` waits.
        """
        if not self.done() or timeout is not None:
            raise WorkflowUsageError(
                f"{self.handle} may not have ended, and workflow code cannot block: write `await job` instead of job.result()"
            )
        try:
            return asyncio.Future.result(self)
        finally:
            del self  # the error's traceback refers to this frame, and the job to the error

    async def aresult(self, timeout: object = None) -> R:  # noqa: ASYNC109 - as in Job
        """Wait for the result, like ``await job``."""
        if timeout is not None:
            raise WorkflowUsageError(
                f"{self.handle}: aresult has no timeout inside of a workflow: write `async with asyncio.timeout(…): await job`"
            )
        return await self

    def cancel(self, reason: object = None, msg: object = None) -> bool:  # type: ignore[override]
        """Cancel the job as its option ``cancel`` says. Returns whether it had not ended yet.

        ``try`` and ``wait`` ask an activity's worker to stop. With ``wait``, the job ends when the activity has ended; otherwise
        its waiters get CancelledError at once. asyncio calls this too, when it cancels a task that waits for the job.
        """
        if self.done():
            return False
        message = reason if msg is None else msg
        if not self._is_cancelling:
            self._is_cancelling = True
            self._cancel_message = message
            if self._mode != "abandon":
                self._request_cancel(self)
        return self.waits or asyncio.Future.cancel(self, msg=message)

    @property
    def waits(self) -> bool:
        """Whether a cancelled job ends only when its activity has ended."""
        return self._mode == "wait"

    @property
    def state(self) -> str:
        """``running`` until the job has ended; then ``succeeded``, ``failed`` or ``cancelled``."""
        if not self.done():
            return "running"
        if self.cancelled():
            return "cancelled"
        error = self.exception()
        return "succeeded" if error is None else "cancelled" if isinstance(error, JobCancelled) else "failed"

    def info(self) -> dict[str, Any]:
        """Raise WorkflowUsageError: the server is asked outside of workflows."""
        raise WorkflowUsageError(f"{self.handle}: workflow code cannot ask the server about a job; use job.state")

    # Used by the run.

    def succeed(self, data: bytes) -> None:
        """Set the result from its encoded form. One that cannot be decoded becomes the job's error."""
        if self.done():
            return
        try:
            value = self.decode(data)
        except Exception as error:  # noqa: BLE001 - raised in the workflow, where it can be handled
            if isinstance(error, PayloadError):
                error.received = True
            self.fail(error)
        else:
            self.set_result(value)

    def take_over(self, data: bytes) -> bool:
        """Set the result to that of an earlier run. Return False if today's code cannot read it: then the job has to execute."""
        try:
            value = self.decode(data)
        except Exception:  # noqa: BLE001 - of whatever the type of the result is
            return False
        self.set_result(value)
        return True

    def fail(self, error: Exception) -> None:
        """Set the error."""
        if not self.done():
            self.set_exception(error)
            self._log_traceback = False  # an activity that nobody awaits may fail

    def end_cancelled(self) -> None:
        """Note that an activity has ended as cancelled: by the code, or from outside."""
        if self._is_cancelling:
            asyncio.Future.cancel(self, msg=self._cancel_message)
        else:
            self.fail(JobCancelled(self.handle, f"{self.handle} was cancelled"))

    def end(self, result: bytes, attempt: int, *, failed: bool) -> None:
        """Set the result or the error of a local step."""
        if failed:
            self.fail(error_of(self.handle, result, attempt))
        else:
            self.succeed(result)


def error_of(handle: str, details: bytes, attempt: int, reason: str = "") -> JobFailed:
    """Return the error of a failed activity or step. ``details`` is a JobFailure as JSON, or text of a foreign worker."""
    found = read_failure(details, reason)
    if found.type == "Timeout" and found.traceback is None:  # a task may raise an exception of this name
        return JobTimedOut(handle, found.type, found.message, found.traceback, attempt)
    return JobFailed(handle, found.type, found.message, found.traceback, attempt)


def read_failure(details: bytes, reason: str) -> Reason:
    """Return a recorded failure."""
    try:
        return msgspec.json.decode(details, type=Reason)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Reason(reason, details.decode("utf-8", "replace"))


class Closing:
    """The reasons to delay the close of a run."""

    def __init__(self) -> None:
        self.begun = False
        """Whether the main task has ended."""
        self.compensating = 0
        """The number of sagas that are running their compensations."""
        self.failure: Exception | None = None
        """The failure of compensations for which no task waits."""
        self._jobs: dict[WorkflowJob[Any], None] = {}
        """Open jobs of mode ``wait``, in order."""

    def add(self, job: WorkflowJob[Any]) -> None:
        """Let the close wait for a new job, if its mode is ``wait``."""
        if job.waits and not SHIELDED.get():
            self._jobs[job] = None
            job.add_done_callback(self._remove)

    def begin(self) -> None:
        """Cancel the jobs that the close waits for, whether a task waits for them or not."""
        self.begun = True
        for job in list(self._jobs):
            job.cancel()

    @property
    def delayed(self) -> bool:
        """Whether a job or a compensation delays the close."""
        return bool(self._jobs or self.compensating)

    def _remove(self, job: Any) -> None:
        self._jobs.pop(job, None)


_ELSEWHERE: Final = "store it elsewhere and pass its name"


def check_size(data: bytes, largest: int, what: str, remedy: str = _ELSEWHERE) -> None:
    """Raise PayloadError for a value that no history of the store can hold."""
    if len(data) > largest:
        raise PayloadError(f"{what} has {len(data):,} bytes, and the store takes at most {largest:,}: {remedy}")


class Numbers:
    """Numbers the commands of a run."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Return the number of a new command."""
        self.last += 1
        return self.last


# ---- activities ----

PRIORITIES: Final = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW, None: Priority.NORMAL}


def build_activity(
    number: int,
    call: ActivityCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    largest: int,
    completion: tuple[float, float] | None = None,
) -> ScheduleActivityTask:
    """Return the command for an activity; ``completion`` as of `jobs.model.Options`.

    Raises WorkflowUsageError for options of jobs that no activity has.
    """
    _check_options(call)
    title = f"{call.name} #{number}"
    payload = call.codec.encode_recorded(args, kwargs)
    check_size(payload, largest, f"the input of {title}")
    given = call.options
    options = Options(
        retry=None if given.retry is None else Retry(**given.retry.wire()),
        timeout=given.timeout,
        heartbeat=given.heartbeat,
        start_within=given.start_within,
        deadline=given.deadline,
        completion=completion,
    )
    key = given.concurrency_key or ""
    if callable(call.key):
        key = check_key(call.key(*args, **kwargs), f"{call.name}: the concurrency_key of these arguments")
    return ScheduleActivityTask(
        number=number,
        activity_id=str(number),
        function=call.name.encode(),
        input=payload,
        task_priority=PRIORITIES[given.priority],
        schedule_to_start=given.schedule_to_start or given.expires or 0,
        schedule_to_close=given.schedule_to_close or 0,
        options=b"" if options == _NO_OPTIONS else encode_options(options),
        key=key.encode(),
        abandoned=given.cancel == "abandon",
    )


_NO_OPTIONS: Final = Options()


def _check_options(call: ActivityCall) -> None:
    given = call.options
    if call.unique:
        raise WorkflowUsageError(
            f"{call.name}: an activity has no unique, because it belongs to one run; the run's unique is its workflow id: give "
            "it where the workflow is submitted, and limit activities by concurrency and concurrency_key"
        )
    if given.delay is not None or given.run_at is not None:
        raise WorkflowUsageError(
            f"{call.name}: an activity has neither delay nor run_at: write `await workflow.sleep(…)` before it"
        )
    if given.keep_unique is not None:
        raise WorkflowUsageError(f"{call.name}: an activity has no keep_unique, because it has no unique: leave it out")
    if given.on_conflict is not None or given.debounce is not None:
        raise WorkflowUsageError(
            f"{call.name}: an activity has neither on_conflict nor debounce, because it has no unique: leave them out"
        )
    if given.expires == 0:
        raise WorkflowUsageError(
            f"{call.name}: expires is 0, which would end the activity at once: leave it out for none"
        )
    if call.transactional:
        raise WorkflowUsageError(
            f"{call.name}: an activity is recorded with its run and not in a transaction of yours: leave connection out"
        )


# ---- local steps ----


class LocalStep:
    """A local step that has no result yet."""

    __slots__ = ("_arguments", "call", "job")

    def __init__(
        self, call: StepCall, job: WorkflowJob[Any], arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ) -> None:
        self.call = call
        self.job = job
        self._arguments = arguments

    def digest(self, result: bytes, *, failed: bool) -> int:
        """Return the digest of function, arguments and result."""
        return digest_of(self.call.name.encode(), self.call.payload, b"failed" if failed else b"", result)

    def is_recorded_as(self, digest: int, result: bytes, *, failed: bool) -> bool:
        """Return whether a recorded digest is that of the step, or what earlier code would have recorded for its arguments."""
        if same_digest(digest, self.digest(result, failed=failed)):
            return True
        if self._arguments is None:
            return False
        name, kind = self.call.name.encode(), b"failed" if failed else b""
        earlier = earlier_payloads(self.call.signature, *self._arguments)
        return any(digest == digest_of(name, payload, kind, result) for payload in earlier)


class StepSignatures:
    """The signatures of the functions that the code of a run makes its steps.

    Nothing keeps a function after its run: a closure, a lambda or a partial may hold any values. So only the signatures of
    functions that their modules keep anyway are shared by all runs. Of functions without annotations and defaults, only the names
    of their parameters are kept, by their code. The last other ones are kept with the run.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, tuple[Any, Signature]] = {}

    def of(self, call: Any, title: str, *, rest: bool = False) -> tuple[Signature, bool]:
        """Return the signature of a function, and whether its module keeps it; ``rest``: without the first parameter.

        Raises WorkflowUsageError if it cannot be read.
        """
        if rest:
            return self._of_rest(call, title), False
        try:
            if call.__class__ is FunctionType:
                shared = _of_modules.get(call)
                if shared is None and _is_of_module(call):
                    shared = _of_modules[call] = Signature(call, title)
                if shared is not None:
                    return shared, True
            last = self._last.get(id(call))
            return (self._new(call, title) if last is None else last[1]), False
        except (TypeError, ValueError) as error:
            raise WorkflowUsageError(
                f"the parameters of {title} cannot be read ({error}): define a function that calls it, and make that the step"
            ) from None

    def _new(self, call: Any, title: str) -> Signature:
        if call.__class__ is FunctionType:
            plain = not (call.__annotations__ or call.__defaults__ or call.__kwdefaults__ or call.__dict__)
            if plain and title == call.__qualname__:
                by_code = _of_codes.get(call.__code__)
                if by_code is None:
                    by_code = _of_codes[call.__code__] = Signature(call, title).without_function()
                return by_code
        found = Signature(call, title)
        if len(self._last) >= _LAST_KEPT:
            del self._last[next(iter(self._last))]
        self._last[id(call)] = call, found  # the function, too, so that no other one gets its id
        return found

    @staticmethod
    def _of_rest(call: Any, title: str) -> Signature:
        is_lasting = call.__class__ is FunctionType and _is_of_module(call)
        found = _rests_of_modules.get(call) if is_lasting else None
        if found is None:
            try:
                found = Signature(partial(call, None), title)
            except (TypeError, ValueError) as error:
                raise WorkflowUsageError(
                    f"{title} gets its connection as the first argument: give it a parameter for that ({error})"
                ) from None
            if is_lasting:
                _rests_of_modules[call] = found
        return found

    def clear(self) -> None:
        """Forget all functions of the run."""
        self._last.clear()


_of_modules: Final[WeakKeyDictionary[FunctionType, Signature]] = WeakKeyDictionary()
_rests_of_modules: Final[WeakKeyDictionary[FunctionType, Signature]] = WeakKeyDictionary()
"""Those without the first parameter."""
_of_codes: Final[WeakKeyDictionary[CodeType, Signature]] = WeakKeyDictionary()
_LAST_KEPT: Final = 8


def _is_of_module(call: FunctionType) -> bool:
    """Return whether a function is found in its module by its name."""
    found: Any = sys.modules.get(call.__module__)
    for name in call.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is call


def build_step(
    number: int,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None,
    record: Record,
    largest: int,
    signatures: StepSignatures,
    transaction: Transaction | None = None,
) -> StepCall:
    """Return the call of a local step. ``function`` is a task or a function."""
    if record not in ("each", "together"):
        raise UsageError(f"record is 'each' or 'together', not {record!r}")
    defined = getattr(function, "function", None)
    call: Any = function if defined is None else defined.call
    if not callable(call) or (defined is None and hasattr(function, "submit")):
        raise WorkflowUsageError(f"{function!r} cannot be a step: give a task of this App or a function, or use submit")
    title = name or (getattr(call, "__qualname__", "") if defined is None else str(defined.name))
    if not title:
        raise WorkflowUsageError(f"{call!r} has no __name__: give the step a name, workflow.step(f, …, name=…)")
    check_short(title, "a step's name")
    if transaction is not None:
        _check_transaction(transaction, title, is_task=defined is not None)
    signature, lasts = (
        signatures.of(call, title, rest=transaction is not None) if defined is None else (defined.signature, True)
    )
    payload = signature.encode_recorded(args, kwargs)
    check_size(payload, largest, f"the input of step {title} #{number}")
    if defined is None:
        executor: Any = "coroutine" if inspect.iscoroutinefunction(call) else "thread"
        return StepCall(number, title, call, signature, payload, record, executor, lasts=lasts, transaction=transaction)
    return StepCall(
        number,
        title,
        call,
        signature,
        payload,
        record,
        defined.executor,
        True,
        defined.retry,
        defined.timeout,
        lasts=True,
        middleware=defined.middleware,
    )


def _check_transaction(transaction: Transaction, title: str, *, is_task: bool) -> None:
    """Raise UsageError for a connection that no step can have."""
    if is_task:
        raise WorkflowUsageError(
            f"{title} is a task, which gets its arguments as JSON: make a plain function the step that gets the connection"
        )
    if not callable(transaction.open):
        kind = type(transaction.open)
        raise UsageError(
            f"connection is a {kind.__module__}.{kind.__qualname__}: give a function that opens one for each attempt of {title}, "
            "such as pool.acquire, pool.connection, engine.connect or a sessionmaker; steps of many runs run at the same time"
        )


_encode = msgspec.json.Encoder().encode


class LocalSteps:
    """The local steps of a run. ``largest`` limits the bytes of their inputs and results."""

    __slots__ = ("_fresh", "_largest", "_last", "_loop", "_running", "_signatures", "_steps", "_stopped")

    def __init__(self, loop: WorkflowLoop, largest: int) -> None:
        self._loop = loop
        self._largest = largest
        self._last = 0
        """The number of the last step."""
        self._signatures = StepSignatures()
        self._steps: dict[int, LocalStep] = {}
        """Steps without a result, by number."""
        self._fresh: list[int] = []
        """Steps that the code has called since the last turn."""
        self._running: set[int] = set()
        self._stopped: list[int] = []
        """Running steps that the code has cancelled since the last turn."""

    @property
    def open(self) -> bool:
        """Whether steps run or are to be started."""
        return bool(self._steps)

    def names(self) -> tuple[str, ...]:
        """Return the names of the steps that have no result."""
        return tuple(step.call.name for step in self._steps.values())

    def start(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        record: Record,
        transaction: Transaction | None = None,
        carried: CarriedResults | None = None,
        *,
        keeps: bool,
    ) -> WorkflowJob[Any]:
        """Run a function as a local step, unless ``carried`` has its result.

        ``keeps``: keep its arguments, to compare them with recorded ones.
        """
        number = self._last + 1
        call = build_step(number, function, args, kwargs, name, record, self._largest, self._signatures, transaction)
        self._last = number
        job: WorkflowJob[Any] = WorkflowJob(
            self._loop, None, call.name, number, call.signature.decode_result, self._cancel
        )
        if carried is not None and carried.step(call.name, call.payload, job.take_over):
            return job
        self._steps[number] = LocalStep(call, job, (args, kwargs) if keeps else None)
        self._fresh.append(number)
        return job

    def _cancel(self, job: WorkflowJob[Any]) -> None:
        self._steps.pop(job.number, None)
        if job.number in self._running:
            self._running.discard(job.number)
            self._stopped.append(job.number)

    def take(self, number: int) -> LocalStep | None:
        """Take a step that has ended; None: its result is not wanted."""
        self._running.discard(number)
        return self._steps.pop(number, None)

    def end(self, step: LocalStep, outcome: StepOutcome, batch: int) -> StepResult:
        """Give a result to the code, and return what is to be recorded."""
        result, is_failure = outcome.result, outcome.failed
        try:
            check_size(
                result, self._largest, f"the result of step {step.job.handle}", "store it elsewhere and return its name"
            )
        except PayloadError as error:
            result, is_failure = _encode(JobFailure("PayloadError", str(error))), True
        step.job.end(result, outcome.attempt, failed=is_failure)
        digest = step.digest(result, failed=is_failure)
        return StepResult(step.call.number, batch, step.call.name, result, digest, is_failure, outcome.attempt)

    def take_started(self, *, unrecorded: bool, each_unrecorded: bool) -> tuple[StepCall, ...]:
        """Return the steps that the code has called since the last turn and that have no result.

        ``unrecorded``: whether commands or results are not recorded yet; ``each_unrecorded``: whether results of steps are that
        must be recorded before the next effect.
        """
        if not self._fresh:
            return ()
        numbers, self._fresh = self._fresh, []
        started: list[StepCall] = []
        for number in numbers:
            step = self._steps.get(number)
            if step is not None:
                call = step.call
                waits = unrecorded if call.record == "each" else each_unrecorded
                started.append(call._replace(at_once=False) if waits else call)
                self._running.add(number)
        return tuple(started)

    def take_stopped(self) -> tuple[int, ...]:
        """Return the running steps that the code has cancelled since the last turn."""
        stopped, self._stopped = self._stopped, []
        return tuple(stopped)

    def close(self) -> list[WorkflowJob[Any]]:
        """Forget all steps, and return their futures."""
        jobs = [step.job for step in self._steps.values()]
        self._steps.clear()
        self._signatures.clear()
        return jobs
