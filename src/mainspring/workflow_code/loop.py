"""The event loop of one run: it runs the workflow's coroutines between two decisions, in the same order in every process.

The loop has no sockets and no clock of its own. Its time is the decision's time, and its timers are durable: a timer that
is pending when nothing else is ready becomes a command. ``asyncio.wait``, ``as_completed`` and ``TaskGroup`` keep futures and
tasks in sets, whose order depends on the hashes of their members. The hash of a future or task of this loop is therefore its
number and not its address. A constant of the run is added to it: otherwise the first tasks of all runs would have the same
hash, and asyncio's own set of all tasks would become slow.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.errors import WorkflowUsageError
from mainspring.quantities import format_duration
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

_logger = logging.getLogger("mainspring.workflow")

SHIELDED: Final = ContextVar("SHIELDED", default=False)
"""Whether a task undoes something, so that it is not cancelled when the main task ends."""

_HASHES: Final = 1 << 60
"""Hashes of one run begin below this number."""


def _shown(callback: object) -> str:
    try:
        return repr(callback)
    except BaseException as worse:  # noqa: BLE001 - of a class of users, which may raise anything
        return f"(it cannot be shown: {type(worse).__name__})"


class WorkflowFuture(asyncio.Future[Any]):
    """A future whose hash is its number."""

    __slots__ = ("number",)

    def __init__(self, loop: WorkflowLoop) -> None:
        self.number = loop.next_hash()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class WorkflowTask(asyncio.Task[Any]):
    """A task whose hash is its number."""

    def __init__(
        self, coro: Coroutine[Any, Any, Any], loop: WorkflowLoop, name: str | None, context: Context | None
    ) -> None:
        self.number = loop.next_hash()  # asyncio puts the task into a set of all tasks
        self._run_loop = loop
        self._postponed = 0
        """Requests to cancel that the task gets after an outcome that it has not got yet."""
        self.owes = False
        """Whether its code has not got a cancellation, because it waits for a job that has to end first."""
        self.own_context = copy_context() if context is None else context
        super().__init__(
            coro, loop=loop, name=name or f"workflow-task-{loop.order_of(self.number)}", context=self.own_context
        )

        # A run that is dropped without an eviction, as after a mismatch, has pending tasks.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self.number

    @property
    def waits(self) -> bool:
        """Whether a cancellation waits for the end of a job, directly or by tasks that wait for each other."""
        return self._run_loop.semantics >= 1 and bool(getattr(self._fut_waiter, "waits", False))  # type: ignore[attr-defined]

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task.

        If it waits for a job that has to end first, and gets its outcome, it is cancelled where it waits next. That is so, too,
        if the job has ended, and the task has not gone on yet.
        """
        if self._cancel_where_it_waits(msg):
            return True
        return super().cancel(msg)

    def cancelling(self) -> int:
        """Return the number of requests to cancel, without those that ``uncancel`` has taken back."""
        return super().cancelling() + self._postponed

    def uncancel(self) -> int:
        """Take back a request to cancel, and return the number of the others."""
        if not self._postponed:
            return super().uncancel()
        self._postponed -= 1
        return self.cancelling()

    def cancel_later(self, msg: Any = None) -> None:
        """Cancel a task where it waits, for a request that it has got before and could not follow, unless that is over."""
        if not self.cancelling() or self.done():
            return
        if self._run_loop.semantics >= 1 and self._cancel_where_it_waits(msg, counted=True):
            return
        self.owes = False
        super().cancel(msg)
        super().uncancel()  # it counts as one request

    def _cancel_where_it_waits(self, msg: Any, *, counted: bool = False) -> bool:
        """Return whether the job for which the task waits takes a request to cancel, so that the task gets it later.

        ``counted``: the request is among those of ``cancelling``.
        """
        waiter: Any = self._fut_waiter  # type: ignore[attr-defined]
        if waiter is not None and waiter.done():
            gives_first = getattr(waiter, "waits", False) or isinstance(waiter, WorkflowTask)
            if counted or not gives_first or waiter.cancelled() or self._run_loop.semantics < 1:
                return False
            self.owes = True
            self._postponed += 1
            self._loop.call_soon(self._cancel_after_outcome, msg)
            return True
        if not getattr(waiter, "waits", False):
            return False
        self.owes = True
        waiter.add_done_callback(partial(self._end_waiting, msg))  # runs after the task has gone on
        return counted and bool(waiter.cancel(msg))

    def _cancel_after_outcome(self, msg: Any) -> None:
        if self._postponed and not self.done():
            self._postponed -= 1
            self.owes = False
            self.cancel(msg)

    def _end_waiting(self, msg: Any, waiter: Any) -> None:
        if waiter.cancelled():
            self.owes = False
        elif not isinstance(waiter, WorkflowTask) or waiter.owes:
            self.cancel_later(msg)
        else:  # the code of that task has got the cancellation, and gone on
            self.owes = False


class DurableTimer(asyncio.TimerHandle):
    """A timer of a run; ``number`` is that of its command, 0 before the command is issued."""

    __slots__ = ("closed", "guards", "number")

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: WorkflowLoop, context: Context | None
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.number = 0
        self.guards = ""
        """The wait that it ends, for people; empty: it is a sleep."""
        self.closed = False
        """Whether it has fired, or its start was refused, so that there is nothing to cancel."""
        self._scheduled = True  # so that its cancellation is reported to the loop


class WorkflowLoop(asyncio.AbstractEventLoop):
    """The event loop of one run. ``seed`` is a constant of the run, the same in every process."""

    def __init__(
        self, seed: int, cancelled: Callable[[DurableTimer], None], check: Callable[[float], None] = lambda _: None
    ) -> None:
        self._first_hash = self._last_hash = (seed * 0x9E3779B97F4A7C15) % _HASHES
        self._cancelled = cancelled
        self._check = check
        """Raises WorkflowUsageError for a timer of so many seconds."""
        self._ready: deque[asyncio.Handle] = deque()
        self._now = 0.0
        self._generators: dict[int, weakref.ref[AsyncGenerator[Any, Any]]] = {}
        self._abandoned: list[AsyncGenerator[Any, Any]] = []
        self._closed = False
        self.running = False
        self.semantics = 0
        """The behaviour of the decision; see ``workflows.model.SEMANTICS``."""
        self.silent = False
        """Whether errors of callbacks are not logged, because an earlier execution has logged them."""
        self.guarded = ""
        """The wait that the next timer ends; see `DurableTimer`."""
        self.new_timers: list[DurableTimer] = []
        """Timers without a command, in order."""
        self.tasks: dict[WorkflowTask, None] = {}
        """Tasks that have not ended, in order."""
        self.gatherings: weakref.WeakSet[Any] = weakref.WeakSet()
        """The futures of ``gather``."""
        self.context = Context()
        self.workflow_calls: Any = None
        """The receiver of the calls that workflow code makes while this loop runs."""

    # ---- used by the run ----

    def next_hash(self) -> int:
        """Return the hash of a new future or task."""
        self._last_hash += 1
        return self._last_hash

    def order_of(self, number: int) -> int:
        """Return the place of a hash among those of the run, from 1."""
        return number - self._first_hash

    def traces(self) -> tuple[int, int, int, int]:
        """Return numbers that differ after any new future, task, callback or timer."""
        return self._last_hash, len(self._ready), len(self.new_timers), len(self.tasks)

    def begin(self) -> None:
        """Note that workflow code runs from now on."""
        self.running = True

    def end(self) -> None:
        """Note that workflow code has stopped."""
        self.running = False

    def set_time(self, seconds: float) -> None:
        """Set the loop's time."""
        self._now = seconds

    def ring(self, timer: DurableTimer) -> None:
        """Run a timer's callback with the next ``run_ready``."""
        timer.closed = True
        if not timer.cancelled():
            self._ready.append(timer)

    def run_ready(self) -> None:
        """Run callbacks until none is ready.

        The traceback of an error refers to this frame. The frame keeps no callback: it might refer to the error.
        """
        ready = self._ready
        while ready:
            handle: Any = ready.popleft()
            if handle.cancelled():
                continue
            callback, args, context = handle._callback, handle._args, handle._context  # noqa: SLF001 - a loop runs its handles
            handle._callback = handle._args = handle = None  # noqa: SLF001 - asyncio's callbacks refer to their handles
            try:
                context.run(callback, *args)
            except BaseException as error:  # noqa: BLE001 - as asyncio.Handle does
                if not self._ended_by(error):
                    self.call_exception_handler(
                        {"message": f"a callback failed: {_shown(callback)}", "exception": error}
                    )
        handle = callback = args = context = None

    def _ended_by(self, error: BaseException) -> bool:
        """Return whether a task has ended with an error: it raises SystemExit and KeyboardInterrupt out of its step, too.

        Like every error of a task, they belong to the run, and not to the worker that runs its code.
        """
        return isinstance(error, (SystemExit, KeyboardInterrupt)) and any(
            task.done() and not task.cancelled() and task._exception is error  # noqa: SLF001
            for task in self.tasks
        )

    def cancel_all(self) -> None:
        """Cancel all tasks that are not shielded."""
        for task in list(self.tasks):
            if not task.own_context.get(SHIELDED, False):
                task.cancel()

    def drop_timers(self) -> None:
        """Cancel the pending timers that have no command yet."""
        for timer in self.take_new_timers():
            timer.cancel()

    def take_new_timers(self) -> list[DurableTimer]:
        """Return the pending timers that have no command yet."""
        timers, self.new_timers = self.new_timers, []
        return [timer for timer in timers if not timer.cancelled()]

    def begin_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Note an asynchronous generator (the first hook of ``sys.set_asyncgen_hooks``)."""
        key = self._last_hash = self._last_hash + 1
        self._generators[key] = weakref.ref(generator, lambda _: self._generators.pop(key, None))

    def end_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an asynchronous generator that nothing refers to (the second hook).

        While workflow code runs, its last reference has just gone, as it does in each execution. Otherwise the collector found
        it, at a time that is another one in each process: it is kept until the eviction.
        """
        if self.running:
            closing = self.create_task(generator.aclose())  # the loop keeps it
            assert closing is not None
        elif not self._closed:
            self._abandoned.append(generator)

    def open_generators(self) -> list[AsyncGenerator[Any, Any]]:
        """Return the asynchronous generators that have not ended, the newest first."""
        found = [*self._abandoned, *(one for ref in self._generators.values() if (one := ref()) is not None)]
        return [one for one in reversed(found) if one.ag_frame is not None]

    # ---- used by asyncio and by workflow code ----

    def time(self) -> float:
        """Return the decision's time, in seconds since the run's start."""
        return self._now

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return whether workflow code is running."""
        return self.running

    def is_closed(self) -> bool:
        """Return whether the run was evicted or has ended."""
        return self._closed

    def close(self) -> None:
        """Drop all callbacks."""
        self._closed = True
        self._ready.clear()
        self.new_timers.clear()
        self.tasks.clear()
        self._generators.clear()
        self._abandoned.clear()
        self.workflow_calls = None
        self._cancelled = lambda _: None
        self._check = lambda _: None

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override] # typed by the base class
        """Run a callback after those that are ready."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override] # typed by the base class
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback after ``delay`` seconds: a durable timer."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override] # typed by the base class
        """Run a callback at a time of the loop: a durable timer, unless the time has come."""
        timer = DurableTimer(when, callback, args, self, context)
        is_timeout = isinstance(getattr(callback, "__self__", None), asyncio.Timeout)
        timer.guards, self.guarded = self.guarded or ("a timeout" if is_timeout else ""), ""
        if when <= self._now:
            self.ring(timer)
        else:
            self._check(when - self._now)
            self.new_timers.append(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, DurableTimer) and handle.number and not handle.closed:
            handle.closed = True
            self._cancelled(handle)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future."""
        return WorkflowFuture(self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, eager_start: bool | None = None
    ) -> asyncio.Task[Any]:
        """Run a coroutine in a new task, which starts with the next callbacks."""
        if eager_start:
            raise WorkflowUsageError("a workflow has no eager tasks: leave eager_start out")
        task = WorkflowTask(coro, self, name, context)
        self.tasks[task] = None
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)  # type: ignore[call-overload] # all tasks of the loop are WorkflowTasks

    def get_task_factory(self) -> None:
        """Return None: the loop creates its own tasks."""
        return

    def get_exception_handler(self) -> None:
        """Return None: the loop logs errors of callbacks."""
        return

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that no code has caught, unless an earlier execution has logged it."""
        if not self.silent and not self._closed:
            error = context.get("exception")
            _logger.error("%s", context.get("message"), exc_info=error)

    default_exception_handler = call_exception_handler

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: generators end with the run."""


_STEP: Final = "do it in a step: await f.step(…) or await workflow.step(f, …)"
_ACTIVITY: Final = "do it in a step, await f.step(…), or in an activity, await f.submit(…)"
_WORKER: Final = "the worker runs this loop"
_REFUSED: Final = {
    _STEP: (
        "run_in_executor set_default_executor shutdown_default_executor add_reader remove_reader add_writer remove_writer "
        "connect_read_pipe connect_write_pipe getaddrinfo getnameinfo sendfile"
    ),
    _ACTIVITY: (
        "create_connection create_server create_datagram_endpoint create_unix_connection create_unix_server start_tls "
        "connect_accepted_socket sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into "
        "sock_sendall sock_sendfile sock_sendto subprocess_exec subprocess_shell"
    ),
    "receive a signal: await app.signal(…).receive()": "call_soon_threadsafe add_signal_handler remove_signal_handler",
    _WORKER: "run_forever run_until_complete stop set_debug set_task_factory set_exception_handler",
}
_TITLES: Final = {"run_in_executor": "a thread or process"}


def _refusing(name: str, remedy: str) -> Any:
    title = f"a workflow's loop has no {name}"
    if name in _TITLES:
        title += f": workflow code does not use {_TITLES[name]}"

    def refuse(_loop: WorkflowLoop, *_args: Any, **_named: Any) -> Any:
        raise WorkflowUsageError(f"{title}; {remedy}")

    refuse.__name__ = name
    refuse.__doc__ = "Raise WorkflowUsageError."
    return refuse


for _remedy, _names in _REFUSED.items():
    for _name in _names.split():
        setattr(WorkflowLoop, _name, _refusing(_name, _remedy))


def check_timer(delay: float, loop: WorkflowLoop, started: int, limit: int) -> None:
    """Raise WorkflowUsageError for a timer that no node would start. ``started`` timers have commands."""
    if delay > YEAR:
        raise WorkflowUsageError(
            f"a timer of {format_duration(delay)} is longer than a run may last, {format_duration(YEAR)}: sleep in parts, or "
            "let a schedule start a later run"
        )
    if started + len(loop.new_timers) < limit:
        return
    if started + sum(not timer.cancelled() for timer in loop.new_timers) >= limit:
        raise WorkflowUsageError(
            f"the run has {limit:,} open timers, and no more are allowed: wait with fewer at a time, such as one sleep up to "
            "the earliest time"
        )
