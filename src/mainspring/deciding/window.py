"""Many calls of workflow code, with a limit on those that are open at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mainspring.deciding.endings import defect_of
from mainspring.deciding.loop import WorkflowFuture, WorkflowTask
from mainspring.errors import JobCancelled

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from mainspring.deciding.api import Calls


class Window(WorkflowFuture):
    """A future of the outcomes of calls, in order. An outcome is a result or an error.

    ``start`` begins a call by its index. At most ``limit`` are open; the end of one starts the next. A cancellation cancels the
    open calls and ends the window when they have ended. A call that cannot start does the same, and its error is the window's.
    An error of ``park_on`` parks the run if workflow code has raised it; the error of a job is an outcome.
    """

    __slots__ = ("_calls", "_error", "_limit", "_message", "_next", "_open", "_outcomes", "_start", "_stopped")

    def __init__(self, calls: Calls, start: Callable[[int], asyncio.Future[Any]], number: int, limit: int) -> None:
        super().__init__(calls.loop)
        self._calls = calls
        self._start = start
        self._limit = limit
        self._outcomes: list[Any] = [None] * number
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._stopped = False
        self._message: Any = None
        self._error: BaseException | None = None
        calls.loop.gatherings.add(self)
        self._fill()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the open calls, and start no others."""
        if self.done():
            return False
        self._stopped = True
        self._message = msg
        for future in list(self._open.values()):
            future.cancel(msg)
        if not self._open:
            self._finish()
        return True

    def _fill(self) -> None:
        while self._next < len(self._outcomes) and len(self._open) < self._limit and not self._stopped:
            index = self._next
            self._next += 1
            try:
                future = self._start(index)
            except Exception as error:  # noqa: BLE001 - raised where the code waits for the window
                self._end_by(error.with_traceback(None))  # which refers to this frame
                return
            self._open[index] = future
            future.add_done_callback(partial(self._end, index))
        if not self._open and not self.done():
            self._finish()

    def _end(self, index: int, future: asyncio.Future[Any]) -> None:
        del self._open[index]
        if future.cancelled():
            self._outcomes[index] = JobCancelled(f"item {index}", f"item {index} was cancelled")
        else:
            error = future.exception()
            if error is not None and not isinstance(error, Exception) and self._calls.state.semantics >= 1:
                self._end_by(error)  # such as ContinueAsNew: it is no outcome
            elif error is not None and isinstance(future, WorkflowTask):
                self._calls.note_defect(defect_of(error, self._calls.state))
            self._outcomes[index] = future.result() if error is None else error
            del error
        if not self._stopped:
            self._fill()
        elif not self._open and not self.done():
            self._finish()

    def _end_by(self, error: BaseException) -> None:
        """Cancel the open calls, and end the window with an error when they have ended."""
        self._error = self._error or error
        self.cancel()

    def _finish(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        if self._error is not None:
            self.set_exception(self._error)
        elif self._stopped:
            super().cancel(self._message)
        else:
            self.set_result(outcomes)
