"""The end of a workflow's code: a decision that closes the run, a reason to park it, or its eviction.

A run that has failed may be begun again, in the same way as one that continues. An eviction ends the coroutines of a run that
leaves the worker's memory.

A `Saga` is a block of workflow code that undoes what it has done if an error or a cancellation leaves it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, overload

import msgspec

from mainspring.client.submission import Submission
from mainspring.errors import CompensationFailed, JobCancelled, PayloadError, UsageError, WorkflowUsageError
from mainspring.jobs import model as jobs
from mainspring.jobs.model import JobFailure, backoff, encodable, place_of, text_of, traceback_of
from mainspring.workflow_code.api import current
from mainspring.workflow_code.loop import SHIELDED
from mainspring.workflow_code.matching import same_result
from mainspring.workflow_code.model import ContinueAsNew, Evicted
from mainspring.workflow_code.workflow_jobs import check_size
from mainspring.workflows.model import YEAR, Parked
from mainspring.workflows.requests import (
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    FailWorkflowExecution,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from mainspring.workflow_code.api import Calls
    from mainspring.workflow_code.loop import WorkflowLoop
    from mainspring.workflow_code.matching import Same
    from mainspring.workflow_code.model import RunState
    from mainspring.workflows.requests import Decision

_REASON_LIMIT: Final = 256
"""Characters of a failure's reason; SWF's limit."""
_DETAILS_LIMIT: Final = 30_000
"""Characters of the traceback."""

_encode = msgspec.json.Encoder().encode


def close_of(
    main: asyncio.Task[object], calls: Calls, encode: Callable[[object], bytes], *, cancel_requested: bool
) -> Decision:
    """Return the decision that closes the run of a finished main task. ``encode`` encodes its result, or raises PayloadError."""
    number, largest = calls.next_number(), calls.state.limits.largest
    failure = calls.closing.failure
    error = failure or (None if main.cancelled() else main.exception())
    continuation = continuation_of(error)
    if continuation is not None:
        return continue_as_new(number, continuation, calls)
    if failure is None and main.cancelled():
        if cancel_requested:
            return CancelWorkflowExecution(number)
        return _fail(
            number, "CancelledError", "the workflow cancelled itself: nobody has asked the run to cancel", None
        )
    if error is None:
        try:
            result = encode(main.result())
            check_size(result, largest, "the workflow's result", "store it elsewhere and return its name")
        except PayloadError as refused:
            error = refused
        else:
            return CompleteWorkflowExecution(number, result)
    lines = traceback_of(error, error.__traceback__)[-_DETAILS_LIMIT:]
    failed = _fail(number, encodable(type(error).__name__), text_of(error), lines)
    # A run that was to end itself is not begun again.
    return failed if cancel_requested else another_attempt(failed, error, calls) or failed


def same_close(main: asyncio.Task[object]) -> Same | None:
    """Return how to compare the result or the next arguments of a finished main task with recorded ones."""
    error = None if main.cancelled() else main.exception()
    if error is None:
        return None if main.cancelled() else partial(same_result, main.result())
    continuation = continuation_of(error)
    return None if continuation is None else continuation.same


def _is_defect(error: BaseException, state: RunState) -> bool:
    """Return whether an error is a defect of the code: one of ``park_on``, or a call that can never be right.

    A received value that does not fit its type is none: it may come from a client.
    """
    if isinstance(error, (*state.code.park_on, WorkflowUsageError)):
        return True
    is_refused = isinstance(error, UsageError) and not (isinstance(error, PayloadError) and error.received)
    return is_refused and state.semantics >= 1


def _fail(number: int, kind: str, message: str, lines: str | None) -> FailWorkflowExecution:
    return FailWorkflowExecution(
        number, kind[:_REASON_LIMIT], _encode(JobFailure(kind, message[:_DETAILS_LIMIT], lines))
    )


def defect_of(left: BaseException, state: RunState) -> Parked | None:
    """Return why an error that left the workflow parks its run; None: it fails the run.

    It parks the run if it is a defect, or a group that has one.
    """
    error = next(
        (one for one in (left, *(leaves_of(left) if state.semantics >= 1 else ())) if _is_defect(one, state)), None
    )
    if error is None:
        return None
    text = text_of(error)[:_DETAILS_LIMIT]
    return Parked(
        "defect", f"{type(error).__name__}: {text}{place_of(error)}; correct the code, and start a worker with it"
    )


def continuation_of(error: BaseException | None) -> ContinueAsNew | None:
    """Return the request to continue as new that a workflow has raised, also inside the exception groups of task groups.

    None if there is none, or if a group has other errors, too: they fail the run.
    """
    if isinstance(error, ContinueAsNew):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [*leaves_of(error)]
    requests = [one for one in found if isinstance(one, ContinueAsNew)]
    return requests[0] if len(requests) == len(found) else None


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Return the errors of an exception group and of the groups inside of it; none if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            if isinstance(one, BaseExceptionGroup):
                yield from leaves_of(one)
            else:
                yield one


def continue_as_new(number: int, found: ContinueAsNew, calls: Calls) -> ContinueAsNewWorkflowExecution:
    """Return the decision to continue as new. The next run gets the signals that the code has not received."""
    return ContinueAsNewWorkflowExecution(number, found.payload, found.version, unread=calls.unread_signals())


def another_attempt(
    failed: FailWorkflowExecution, error: BaseException, calls: Calls
) -> ContinueAsNewWorkflowExecution | None:
    """Return the decision to begin a failed run again after a delay; None if the policy of its workflow does not allow it."""
    retry, started = calls.state.code.retry, calls.started
    if retry is None or started.attempt >= retry.max_attempts or not retry.allows(error):
        return None
    delay = backoff(msgspec.convert(retry.wire(), jobs.Retry), started.attempt, calls.rng.random())
    return ContinueAsNewWorkflowExecution(
        failed.number, started.input, delay=min(delay, YEAR), attempt=started.attempt + 1, failure=failed.details
    )


ROUNDS: Final = 100
"""How often the code of a run may catch Evicted and go on."""
_logger = logging.getLogger("mainspring.workflow")


def throw_evicted(loop: WorkflowLoop) -> None:
    """Throw Evicted into each coroutine where it waits, the newest first, until all have ended.

    The tasks stay pending: nothing of a normal end happens, such as callbacks. The coroutines are held until they are closed, so
    that the collector does not end them later, in another thread.
    """
    rounds = ROUNDS
    for task in reversed(list(loop.tasks)):
        coroutine: Any = task.get_coro()
        rounds = _end(partial(task.own_context.run, coroutine.throw, Evicted()), rounds)
        _end(coroutine.close, 1)
    for generator in loop.open_generators():
        closing = generator.aclose()
        rounds = _end(partial(loop.context.run, closing.send, None), rounds)
        _end(closing.close, 1)
    if rounds <= 0:
        _logger.warning(
            "a workflow caught Evicted a hundred times and went on: let BaseException pass, or catch Exception instead"
        )


class _EveryCallback:
    """Equal to every callback."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


_EVERY: Final[Any] = _EveryCallback()


def release(loop: WorkflowLoop, calls: Calls) -> None:
    """Break the cycles among the objects of a run: its memory is then freed at once, without a look of the collector.

    A future refers by its callbacks to the tasks that wait for it, and they refer to the future.
    """
    pending: list[Any] = [*loop.tasks, *loop.gatherings, *calls.close()]
    pending += [task._fut_waiter for task in loop.tasks]  # type: ignore[attr-defined] # noqa: SLF001 - of C and Python tasks
    for future in pending:
        if future is not None:
            future.remove_done_callback(_EVERY)
    loop.close()


def _end(act: Callable[[], object], rounds: int) -> int:
    """Repeat an act until it raises, at most ``rounds`` times. Return the rounds that are left."""
    while rounds > 0:
        rounds -= 1
        try:
            act()
        except BaseException:  # noqa: BLE001 - the coroutine has ended
            break
    del act  # it has Evicted, whose traceback refers to this frame
    return rounds


P = ParamSpec("P")


class _Compensation(NamedTuple):
    """A call that undoes something. It returns an awaitable, or nothing."""

    title: str
    call: Callable[[], Any]


class Saga:
    """A block whose compensations run backwards if an error or a cancellation leaves it.

    ``undo`` adds a compensation. Compensations are shielded from further cancels of their run, and all of them are tried. After
    them the error goes on; if some have failed, ``CompensationFailed`` is raised instead, with the error as its cause. After an
    error of ``park_on`` no compensation runs: it parks the run, and corrected code goes on.
    """

    def __init__(self) -> None:
        self._calls: Calls | None = None
        self._compensations: list[_Compensation] = []
        self._used = False

    async def __aenter__(self) -> Self:
        calls = current()
        if calls is None:
            raise WorkflowUsageError("a Saga works only inside of a workflow: use it in an @app.workflow function")
        if self._used:
            raise WorkflowUsageError("a Saga is used for one block: write `async with workflow.Saga() as saga:` again")
        self._used = True
        self._calls = calls
        return self

    @overload
    def undo(self, task: Submission[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def undo(self, task: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def undo(self, task: Any, /, *args: Any, **kwargs: Any) -> None:
        """Add a compensation: a task, which becomes an activity, or a function of workflow code.

        ``saga.undo(refund, payment)`` submits ``refund`` with its own options and retries; ``refund.options(…)`` changes them.
        ``saga.undo(refund.step, payment)`` runs it as a local step. Another function is called, and its result awaited.

        Raises TypeError or PayloadError if the arguments do not fit the task, and WorkflowUsageError outside of the block.
        """
        if inspect.isawaitable(task):
            if inspect.iscoroutine(task):
                task.close()
            raise WorkflowUsageError(
                "undo got a call that runs now: give the task and its arguments, undo(refund, payment)"
            )
        if self._calls is None:
            raise WorkflowUsageError("undo works only in the Saga's block: write `async with workflow.Saga() as saga:`")
        call: Any = task
        if isinstance(task, Submission):
            task.check_call(args, kwargs)
            call = task.submit
        elif not callable(task):
            raise WorkflowUsageError(f"undo takes a task or a function and its arguments, and not {task!r}")
        title = getattr(task, "name", None) or getattr(task, "__qualname__", None) or repr(task)
        self._compensations.append(_Compensation(title, partial(call, *args, **kwargs)))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        calls = self._calls
        try:
            if calls is not None and self._compensations and isinstance(error, (Exception, asyncio.CancelledError)):
                _park_defect(calls, error)
                await self._undo_all(calls, error)
        finally:
            self._calls = None
            self._compensations.clear()
            del error  # its traceback refers to this frame

    async def _undo_all(self, calls: Calls, error: BaseException) -> None:
        number = len(self._compensations)
        context = copy_context()
        context.run(SHIELDED.set, True)
        calls.closing.compensating += 1
        try:
            task = calls.loop.create_task(self._compensate(calls), name="saga", context=context)
            cancelled = await _wait_shielded(task)
            failures = task.result()
        finally:
            calls.closing.compensating -= 1
        if failures:
            cause = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
            failed = CompensationFailed.of(failures, number, cause)
            if calls.closing.begun:  # no code awaits the task
                calls.closing.failure = failed
            raise failed from error
        if cancelled is not None and not isinstance(error, asyncio.CancelledError):
            waiting: Any = asyncio.current_task()
            calls.loop.call_soon(waiting.cancel_later, *cancelled.args)

    async def _compensate(self, calls: Calls) -> list[tuple[str, Exception]]:
        """Run the compensations, the last one first. Return the names and errors of those that failed."""
        failures: list[tuple[str, Exception]] = []
        while self._compensations:
            title, call = self._compensations.pop()
            try:
                result = call()
                if inspect.isawaitable(result):
                    await result
            except asyncio.CancelledError:
                failures.append((title, JobCancelled(title, f"compensation {title} was cancelled")))
            except Exception as failure:  # noqa: BLE001 - raised with the others
                _park_defect(calls, failure)
                failure.add_note(f"in the compensation {title}")
                failures.append((title, failure))
        return failures


async def _wait_shielded(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Wait until a task has ended. Return the last cancellation of the wait; None if there was none."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error.with_traceback(None)  # which refers to this frame
    return cancelled


def _park_defect(calls: Calls, error: BaseException) -> None:
    """Park the run if an error is a defect of its code: its compensations would be decisions that no correction can take back."""
    defect = defect_of(error, calls.state)
    if defect is not None:
        calls.note_defect(defect)
        raise Evicted
