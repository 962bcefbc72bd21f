"""Sagas: blocks of workflow code that undo what they have done if an error or a cancellation leaves them."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, overload

from mainspring.client.submission import Submission
from mainspring.errors import CompensationFailed, JobCancelled, WorkflowUsageError
from mainspring.jobs.model import text_of
from mainspring.workflow_code.api import current
from mainspring.workflow_code.endings import defect_of
from mainspring.workflow_code.loop import SHIELDED
from mainspring.workflow_code.model import Evicted

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mainspring.workflow_code.api import Calls

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
