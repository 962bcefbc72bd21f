"""Executors in the worker's own process: of plain functions in threads, and of coroutine functions on the worker's event loop.

The hand-over of a job to a thread and of its outcome to the loop takes longer than a short function. Therefore jobs are handed
over in batches, each thread fetches its next job itself, and one call to the loop returns all outcomes so far. While
functions are brief, one thread is woken per batch instead of one per job, because the others would only contend for the
interpreter's lock. If that thread is blocked, a timer wakes others.

A coroutine begins in the caller's turn of the loop: if it never waits, it ends there, too. asyncio has eager tasks from Python
3.12 on. An `Execution` makes a task only if the coroutine waits or uses its task. It saves a turn of the loop. Where many
coroutines begin in one turn, tasks of asyncio take a microsecond less each.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import types
from collections import deque
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from mainspring.worker.delivery import Delivery, Finish, Finished
from mainspring.worker.execution import RELEASED, Settlement, execute, execute_coroutine, failure_of, stop_settlement

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence

WAKE_OTHERS_AFTER: Final = 0.002
"""Seconds after which other threads are woken for a batch of brief jobs."""


CLOSE_LIMIT: Final = 10.0
"""Seconds for which the code around a coroutine that has ended goes on after the request to stop."""


class ThreadExecutor:
    """Runs functions in at most ``most`` threads, which start when they are needed; `shrink` keeps at least ``kept``."""

    def __init__(self, kept: int, finish: Finish, *, most: int) -> None:
        self._kept = kept
        self._limit = most
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._todo: deque[Delivery] = deque()
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        self._finished: deque[Finished] = deque()
        self._notified = False
        self._started = 0
        self._held = 0  # deliveries handed to the threads and not yet finished
        self._rescue: asyncio.TimerHandle | None = None

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:
        """Queue deliveries for the threads."""
        self._todo.extend(deliveries)
        self._held += len(deliveries)
        if brief:
            self._wake(1, threads=1)
            if self._held > 1 and self._rescue is None:
                self._rescue = self._loop.call_later(WAKE_OTHERS_AFTER, self._wake_more)
        else:
            self._wake(len(deliveries), threads=self._held)

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:
        """Do nothing: a thread cannot be stopped by force, and the job has the request to stop."""

    def shrink(self) -> None:
        """End the idle threads beyond the number to keep."""
        kept = max(self._kept, self._held)
        for _ in range(self._started - kept):  # at least this many threads are idle; each ends with one False
            self._wake_ups.put(False)
        self._started = min(self._started, kept)

    async def close(self) -> None:
        """Make the threads end after their current job."""
        if self._rescue is not None:
            self._rescue.cancel()
        for _ in range(self._started):
            self._wake_ups.put(False)

    def _wake_more(self) -> None:
        self._rescue = None
        if self._todo:
            self._wake(len(self._todo), threads=self._held)

    def _wake(self, count: int, *, threads: int) -> None:
        """Wake ``count`` threads, and start threads until there are ``threads`` of them, up to the limit.

        With one thread for each held job, every waiting job has a free thread, even if the others run for a long time.
        """
        for _ in range(min(count, self._limit)):
            self._wake_ups.put(True)
        while self._started < min(self._limit, threads):
            self._started += 1
            threading.Thread(target=self._work, name=f"mainspring-task-{self._started}", daemon=True).start()

    def _work(self) -> None:
        take, clock, finished = self._todo.popleft, time.perf_counter, self._finished
        getpid, pid = os.getpid, os.getpid()
        while self._wake_ups.get():
            while True:
                try:
                    delivery = take()
                except IndexError:
                    break
                begun = clock()
                # A fresh context, so that the next job on this thread does not inherit variables of this one.
                settlement = Context().run(execute, delivery.function, delivery.payload, delivery.job)
                if getpid() != pid:
                    os._exit(0)  # a fork of the task that has returned from it
                finished.append(Finished(delivery, settlement, clock() - begun))
                del delivery, settlement  # an idle thread keeps nothing of its last job
                if not self._notified:
                    self._notified = True
                    try:
                        self._loop.call_soon_threadsafe(self._deliver)
                    except RuntimeError:
                        return  # the loop is closed: the worker did not wait for this job

    def _deliver(self) -> None:
        self._notified = False  # first, so that later outcomes call again
        batch: list[Finished] = []
        while self._finished:
            batch.append(self._finished.popleft())
        self._held -= len(batch)
        if batch:
            self._finish(batch)


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


class CoroutineExecutor:
    """Runs each delivery on the running loop; one that has to wait becomes a task."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Delivery, asyncio.Task[Settlement]] = {}
        self._finished: list[Finished] = []
        self._delivering = False

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:  # noqa: ARG002 - only the thread executor uses it
        """Run a lone delivery up to its first wait, which saves a turn of the loop. Tasks of several ones take less time."""
        begun = self._loop.time()
        if len(deliveries) == 1:
            settlement = self.run(deliveries[0], begun)
            if settlement is not None:
                self._end(deliveries[0], settlement, begun, lone=True)
            return
        for delivery in deliveries:
            coroutine = execute_coroutine(delivery.function, delivery.payload, delivery.job)
            self._go_on(delivery, self._loop.create_task(coroutine, context=Context()), begun)

    def run(self, delivery: Delivery, begun: float) -> Settlement | None:
        """Run a delivery up to its first wait. If there is none, return its settlement; else the rest runs in a task."""
        coroutine = execute_coroutine(delivery.function, delivery.payload, delivery.job)
        try:
            execution = Execution(coroutine, self._loop, Context())
        except BaseException as error:  # noqa: BLE001 - as in `_done`
            return failure_of(error, final=False)
        if execution.ended:
            settlement: Settlement = execution.result
            return settlement
        self._go_on(delivery, execution.task, begun)
        return None

    def _go_on(self, delivery: Delivery, task: asyncio.Task[Settlement], begun: float) -> None:
        self._tasks[delivery] = task
        task.add_done_callback(partial(self._done, delivery, begun))

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:  # noqa: ARG002 - a coroutine has only one way to stop
        """Cancel the task. If only the code around the function goes on, let it close what is open, within `CLOSE_LIMIT`."""
        task = self._tasks.get(delivery)
        if task is None:
            return
        if delivery.job.is_closing:
            self._loop.call_later(CLOSE_LIMIT, task.cancel)
        else:
            task.cancel()

    def shrink(self) -> None:
        """Do nothing: there are no idle tasks."""

    async def close(self) -> None:
        """Cancel the running tasks, and wait for them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    def _done(self, delivery: Delivery, begun: float, task: asyncio.Task[Settlement]) -> None:
        del self._tasks[delivery]
        if task.cancelled():  # before its first step; later, `execute_coroutine` settles it
            settlement = stop_settlement(delivery.job) if delivery.job.cancel_requested else RELEASED
        else:
            error = task.exception()
            settlement = task.result() if error is None else failure_of(error, final=False)
        self._end(delivery, settlement, begun)

    def _end(self, delivery: Delivery, settlement: Settlement, begun: float, *, lone: bool = False) -> None:
        """Report the end of a delivery with others that end in this turn of the loop; a ``lone`` one at once."""
        waits = bool(self._finished)
        self._finished.append(Finished(delivery, settlement, self._loop.time() - begun))
        if lone and not waits and not self._delivering:
            self._deliver()
        elif not waits:
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        batch, self._finished = self._finished, []
        self._delivering = True  # the callback may start deliveries: they end in a later turn, without recursion
        try:
            self._finish(batch)
        finally:
            self._delivering = False
