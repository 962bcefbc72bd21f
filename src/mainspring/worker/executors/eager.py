"""A coroutine that begins in the caller's turn of the loop: if it never waits, it ends there, too.

asyncio has eager tasks from Python 3.12 on. An `Execution` makes a task only if the coroutine waits or uses its task. It saves
a turn of the loop. Where many coroutines begin in one turn, tasks of asyncio take a microsecond less each.
"""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextvars import Context

_enter, _leave = asyncio.tasks._enter_task, asyncio.tasks._leave_task  # noqa: SLF001 - documented, for other kinds of tasks


class Execution:
    """Runs a coroutine in a context up to its first wait, and the rest in ``task``.

    ``ended``: there is no rest, and ``result`` is what the coroutine has returned. Its errors are raised here.
    """

    __slots__ = ("_awaited", "_context", "_coroutine", "_loop", "ended", "result", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._context = context
        self._awaited: Any = None
        self.ended = False
        self.result: Any = None
        task = self.task = _Unused.__new__(_Unused)
        task.execution = self
        outer = asyncio.current_task(loop)
        if outer is not None:
            _leave(loop, outer)
        _enter(loop, task)
        try:
            self._awaited = context.run(coroutine.send, None)
        except StopIteration as end:
            self.ended = True
            self.result = end.value
        except BaseException:
            self.ended = True
            raise
        finally:
            _leave(loop, task)
            if outer is not None:
                _enter(loop, outer)
        if not self.ended:
            if self._awaited is not None:
                self._awaited._asyncio_future_blocking = False  # noqa: SLF001 - others may wait for it before the task does
            self.begin_task()

    def begin_task(self) -> None:
        """Turn the placeholder into a task, unless it is one already."""
        task = self.task
        if type(task) is _Unused:
            object.__setattr__(task, "__class__", _Used)
            del task.execution
            rest = self._rest()
            rest.send(None)
            task.__init__(rest, loop=self._loop, context=self._context)  # type: ignore[misc]

    async def _rest(self) -> Any:
        """Run the rest of the coroutine. The first turn of the task goes on after the first ``yield``."""
        try:
            await _yield(None)
        except BaseException as error:
            if self.ended:
                raise
            if self._awaited is not None:
                self._awaited.cancel()  # as a task does with the future that it waits for
            return await _resume(self._coroutine, None, error)
        return self.result if self.ended else await _resume(self._coroutine, self._awaited, None)


class _Task(asyncio.Task[Any]):
    """The task of an execution."""

    execution: Execution


class _Used(_Task):
    """A task that has begun."""


class _Unused(_Task):
    """A placeholder for a task that nothing has used. It becomes a task at its first use, or at the first wait."""

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "execution").begin_task()
        return getattr(self, name)


@types.coroutine
def _yield(awaited: Any) -> Generator[Any, Any, None]:
    yield awaited


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, Any], awaited: Any, error: BaseException | None) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that waits for a future (None: for the loop's next turn); with ``error``, raise it there."""
    while True:
        if error is None:
            if awaited is not None:
                awaited._asyncio_future_blocking = True  # noqa: SLF001 - as `await` sets it
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - the coroutine gets every error of its task
                error = thrown
            else:
                return (yield from coroutine)
        try:
            awaited = coroutine.throw(error)
        except StopIteration as end:
            return end.value
        error = None
