"""asyncio's ``gather``, ``wait_for`` and ``as_completed`` for workflow code, the same with every version of Python.

CPython has changed when they resume their callers: ``gather`` no longer waits a turn for futures that have ended (3.12), and
``wait_for`` no longer makes a task (3.12). A run that was begun with one version has to go on with the next one in the same
order. These functions replace asyncio's (see `guards`), and call them outside of workflows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mainspring.workflow_code.loop import WorkflowFuture, WorkflowLoop
from mainspring.workflow_code.model import ContinueAsNew
from mainspring.workflow_code.workflow_jobs import WorkflowJob

if TYPE_CHECKING:
    from collections.abc import Sequence

_GATHER: Final = asyncio.tasks.gather
_WAIT_FOR: Final = asyncio.tasks.wait_for
_AS_COMPLETED: Final = asyncio.tasks.as_completed


class _Gathering(WorkflowFuture):
    """The future of ``gather``. A cancellation of it cancels its children."""

    __slots__ = ("children", "stopping")

    def __init__(self, loop: WorkflowLoop, children: Sequence[asyncio.Future[Any]]) -> None:
        super().__init__(loop)
        self.children = children
        self.stopping = False
        loop.gatherings.add(self)

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        cancelled = [child.cancel(msg=msg) for child in self.children]
        self.stopping = self.stopping or any(cancelled)
        return any(cancelled)

    def fail(self, error: BaseException) -> None:
        """Set the error. A cancellation is not logged if nobody awaits it, as that of a task; asyncio's ``gather`` logs it."""
        self.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            self._log_traceback = False


def gather(*coros_or_futures: Any, return_exceptions: bool = False) -> Any:
    """Run ``asyncio.gather``."""
    loop = _workflow_loop()
    if loop is None:
        return _GATHER(*coros_or_futures, return_exceptions=return_exceptions)
    children_of: dict[Any, asyncio.Future[Any]] = {}
    for one in coros_or_futures:
        if one not in children_of:
            children_of[one] = asyncio.ensure_future(one)
    children = [children_of[one] for one in coros_or_futures]
    outer = _Gathering(loop, children)
    if not children:
        outer.set_result([])
        return outer
    open_children = len(children_of)

    def end(child: asyncio.Future[Any]) -> None:
        nonlocal open_children
        open_children -= 1
        error = _error_of(child)
        if outer.done():
            return
        if error is not None and (not return_exceptions or isinstance(error, ContinueAsNew)):
            outer.fail(error)
        elif not open_children:
            if outer.stopping:
                outer.fail(asyncio.CancelledError())
            else:
                outer.set_result([_value_of(one) for one in children])

    for child in children_of.values():
        child.add_done_callback(end)
    return outer


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    if not future.cancelled():
        return future.exception()
    try:
        future.result()
    except asyncio.CancelledError as error:
        return error.with_traceback(None)  # which refers to this frame, and so to the error itself
    return None


def _value_of(future: asyncio.Future[Any]) -> Any:
    error = _error_of(future)
    return future.result() if error is None else error


async def wait_for(fut: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - asyncio's function
    """Run ``asyncio.wait_for``."""
    loop = _workflow_loop()
    if loop is None:
        return await _WAIT_FOR(fut, timeout)
    if timeout is not None and timeout <= 0:
        fut = asyncio.ensure_future(fut)
        if not fut.done():
            fut.cancel()
            await asyncio.wait([fut])
        try:
            return fut.result()
        except asyncio.CancelledError as error:
            raise TimeoutError from error
    loop.guarded = fut.handle if isinstance(fut, WorkflowJob) else ""
    async with asyncio.timeout(timeout):
        loop.guarded = ""  # without a limit there is no timer
        return await fut


def as_completed(fs: Any, *, timeout: float | None = None) -> Any:
    """Run ``asyncio.as_completed`` on tasks: it keeps coroutines in a set, in the order of their addresses."""
    if _workflow_loop() is not None:
        fs = [asyncio.ensure_future(one) for one in dict.fromkeys(fs)]
    return _AS_COMPLETED(fs, timeout=timeout)


def _workflow_loop() -> WorkflowLoop | None:
    loop = asyncio._get_running_loop()  # noqa: SLF001 - None outside of loops
    return loop if isinstance(loop, WorkflowLoop) else None


REPLACED: Final = {"gather": gather, "wait_for": wait_for, "as_completed": as_completed}
"""The functions by their names in asyncio."""
