"""The watch over a worker's event loop: a blocked loop runs no other coroutine, reads no message and sends no heartbeat.

The thread of a `LoopWatch` logs the stack of a loop that has been blocked for some seconds, reports to the servers which job
blocks it, and ends the process. If the thread cannot run, because the process is stopped or never releases the interpreter, the
supervisor kills the process two seconds later. A process under a debugger is not judged.

The thread of a `Watchdog` watches the code of workflows, which blocks the loop sooner: it logs the stack of an activation after a
second, and ends nothing.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog

from mainspring.jobs.model import is_users
from mainspring.worker.current import running_job
from mainspring.worker.execution import MAX_TRACEBACK, execute_coroutine
from mainspring.worker.supervisor import INTERVAL, STOP_LIMIT, TurnClock
from mainspring.worker.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from mainspring.worker.current import CurrentJob
    from mainspring.worker.delivery import Origin
    from mainspring.worker.session import Key
    from mainspring.worker.watcher import Watched as WatchedWork
    from mainspring.worker.workflows.runs import Run

ERROR_TYPE: Final = "WorkerFrozen"
"""The type of the error of an attempt that has blocked the loop."""

_log = structlog.get_logger("mainspring.worker")


class Blocking(NamedTuple):
    """The code that blocks a loop."""

    what: str
    """``task f``, ``workflow w``; empty if it is unknown."""
    origin: Origin | None
    """Its delivery, or that of the decision whose step it is."""
    function: str = ""
    """The task, if it is one."""
    handle: str = ""


class Frozen(NamedTuple):
    """A report to one server."""

    server: str
    deliveries: list[Key]
    blocking: Key | None
    message: str
    stack: str


def params_of(frozen: Frozen) -> dict[str, Any]:
    """Return the params of the call ``worker.frozen``."""
    deliveries = [[handle.decode(), token.decode()] for handle, token in frozen.deliveries]
    blocking = None if frozen.blocking is None else [part.decode() for part in frozen.blocking]
    error = {"type": ERROR_TYPE, "message": frozen.message, "traceback": frozen.stack}
    return {"deliveries": deliveries, "blocking": blocking, "error": error}


class Turns(Protocol):
    """The numbers that a worker process shares with its supervisor; `job_counters.JobCounters` implements it."""

    def turned(self) -> None:
        """Count a turn of the loop."""

    def not_turning(self) -> None:
        """Note that the loop does not run."""

    def ends(self, function: str) -> None:
        """Note that the process ends because it is frozen, by this function if it is known."""

    @property
    def stopping(self) -> bool:
        """Whether the supervisor stops the process."""


class Watched(Protocol):
    """The worker on the loop."""

    def deliveries_by_server(self) -> dict[str, list[Key]]:
        """Return some deliveries of each of its connections, by the names of its servers. Called from another thread."""

    def activation(self) -> tuple[str, Origin | None] | None:
        """Return the workflow whose code runs, and the delivery of its decision. Called from another thread."""


class LoopWatch:
    """Watches the loop of the calling thread, and ends the process if the loop is blocked for ``limit`` seconds.

    ``report`` sends a report to a server, and takes a few seconds at most. ``end`` ends the process at once. ``clock`` is
    monotonic.
    """

    def __init__(
        self,
        worker: Watched,
        turns: Turns,
        limit: float,
        report: Callable[[Frozen], None],
        end: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._turns = turns
        self._limit = limit
        self._report = report
        self._end = end
        self._clock = clock
        self._counted = 0
        self._quiet = TurnClock(clock())
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._turn()
        threading.Thread(target=self._watch, name="mainspring watch of the loop", daemon=True).start()

    def stop(self) -> None:
        """End the watch, because the loop ends."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        self._turns.not_turning()

    def _turn(self) -> None:
        self._counted += 1
        self._turns.turned()
        self._timer = self._loop.call_later(INTERVAL, self._turn)

    # ---- in the watching thread ----

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            if self.look():
                return

    def look(self) -> bool:
        """Look whether the loop turns; if it is frozen, report that, end the process, and return True."""
        counted = self._counted
        quiet = self._quiet.look(counted, self._clock())
        stopping = self._turns.stopping
        if quiet < (min(self._limit, STOP_LIMIT) if stopping else self._limit):
            return False
        if _is_debugged():
            self._turns.turned()  # for the supervisor
            return False
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the documented way to another thread's stack
        blocking = self._blocking(frame)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        where = _place(frame, users=bool(blocking.what))
        self._turns.ends(blocking.function)
        _log.error(
            "the event loop is blocked: the worker process is replaced, and its other jobs are given back",
            seconds=round(quiet, 1),
            blocked_by=blocking.what or "unknown code",
            handle=blocking.handle or None,
            at=where,
            do="await in place of blocking, or make the task a plain function, which runs in a thread",
            stack=stack,
        )
        if blocking.origin is not None or stopping:
            message = f"{blocking.what or 'code'} has blocked the event loop of its worker for {quiet:.0f} s at {where}"
            for report in self._reports(None if stopping else blocking.origin, message, stack):
                self._report(report)
        if self._counted != counted:
            _log.warning("the event loop turns again, too late", seconds=round(quiet, 1))
        self._end()
        return True

    def _reports(self, origin: Origin | None, message: str, stack: str) -> list[Frozen]:
        reports = []
        for server, keys in self._worker.deliveries_by_server().items():
            blocking = origin.key if origin is not None and origin.link.name == server else None
            if keys:
                reports.append(Frozen(server, keys, blocking, message, stack[-MAX_TRACEBACK:]))
        return reports

    def _blocking(self, frame: FrameType | None) -> Blocking:
        """Return the code that blocks the loop: workflow code, a coroutine on the stack, or a task of asyncio that it started."""
        activation = self._worker.activation()
        if activation is not None:
            return Blocking(f"workflow {activation[0]}", activation[1])
        job = _job_on(frame) or _job_of(self._loop)
        if job is None:
            return Blocking("", None)
        return Blocking(f"task {job.function}", job.origin, job.function, job.handle)


_OF_WORK: Final = frozenset({Watcher._look.__code__, Watcher._submit.__code__, Watcher._copy_log.__code__})  # noqa: SLF001 - it runs users' code
"""The coroutines that call the methods of work in other systems."""


def _job_on(frame: FrameType | None) -> CurrentJob | None:
    """Return the job whose coroutine runs on a stack."""
    while frame is not None:
        if frame.f_code is execute_coroutine.__code__:
            job: CurrentJob = frame.f_locals["job"]
            return job
        if frame.f_code in _OF_WORK:
            watched: WatchedWork = frame.f_locals["one"]
            return watched.job
        frame = frame.f_back
    return None


def _job_of(loop: asyncio.AbstractEventLoop) -> CurrentJob | None:
    """Return the job in whose context a loop's current task runs. Python 3.11 does not show the context of a task."""
    task = asyncio.current_task(loop)
    if (
        type(task) is not asyncio.Task
    ):  # the placeholders of `executors.eager` must not be used, and their jobs are on the stack
        return None
    context = getattr(task, "get_context", None)
    return None if context is None else context().get(running_job)


def _place(frame: FrameType | None, *, users: bool) -> str:
    """Return the place of a frame as ``file:line``; if ``users``, that of the innermost frame of users' code around it."""
    own = frame
    while users and own is not None and not is_users(own.f_code.co_filename):
        own = own.f_back
    frame = own or frame
    return "an unknown place" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_debugged() -> bool:
    """Return whether a debugger of Python may hold the loop's thread."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return "pydevd" in sys.modules or (
        monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
    )


ACTIVATION_LIMIT: Final = 1.0
"""Seconds of an activation after which its stack is logged."""
ACTIVATION_INTERVAL: Final = 0.5

_workflow_log = structlog.get_logger("mainspring.workflows")


class Watchdog:
    """Watches the activations of one thread. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._run: Run | None = None
        self._begun = 0.0
        self._reported = False
        self._stopped = threading.Event()
        self._thread = 0

    def start(self) -> None:
        """Watch the activations of the calling thread."""
        self._thread = threading.get_ident()
        threading.Thread(target=self._watch, name="mainspring watchdog of workflows", daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()

    @property
    def run(self) -> Run | None:
        """The run whose code runs at the moment. Any thread may read it."""
        return self._run

    def begin(self, run: Run) -> None:
        """An activation begins."""
        self._begun = self._clock()
        self._reported = False
        self._run = run

    def end(self) -> None:
        """The activation has ended."""
        self._run = None

    def _watch(self) -> None:
        while not self._stopped.wait(ACTIVATION_INTERVAL):
            self.look()

    def look(self) -> None:
        """Log the stack of an activation that takes too long, once. The watching thread calls this."""
        run, seconds = self._run, self._clock() - self._begun
        if run is None or self._reported or seconds < ACTIVATION_LIMIT:
            return
        self._reported = True
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the documented way to another thread's stack
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        _workflow_log.warning(
            "the code of a workflow blocks its worker",
            run=run.id,
            seconds=round(seconds, 1),
            do="move the computation into a task, and await task.step(…) or task.submit(…)",
            stack=stack,
        )
