"""The executor of functions in processes of their own: for CPU-bound work, and work that must be stoppable by force."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import msgspec
import structlog

from mainspring.client import environment
from mainspring.client.inside import Awaited
from mainspring.errors import UsageError
from mainspring.jobs.rules import LONGEST_PREPARATION
from mainspring.worker.current import TokenRequest
from mainspring.worker.delivery import Delivery, Finish, Finished
from mainspring.worker.execution import Settlement, failure, stop_settlement
from mainspring.worker.executors.child import (
    Begun,
    Data,
    Ended,
    Flush,
    Halt,
    Leave,
    Logged,
    Opened,
    OpenToken,
    Progress,
    Published,
    Refuse,
    Run,
    ToChild,
    Unframer,
    WaitBegun,
    WaitEnded,
    Written,
    decode_to_parent,
    frame,
)
from mainspring.worker.processes import python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import MainspringError
    from mainspring.worker.current import CurrentJob

TASK_PROCESS: Final = tuple(python("-m", "mainspring.worker.executors.child"))
"""The command of a process that runs functions, without its arguments."""

LEAVE_GRACE: Final = 15.0
"""Seconds that an idle process has to end by itself before it is killed."""

CANCEL_GRACE: Final = 5.0
"""Seconds that a cancelled function has to stop by itself before its process is killed."""

_log = structlog.get_logger(__name__)


def _publish(job: CurrentJob, message: Published) -> None:
    """Pass on a value. A local step publishes none; its process does not know that it runs one."""
    try:
        job.publish(message.name, msgspec.json.decode(message.value))
    except UsageError as refusal:
        _log.warning("a published value was dropped", reason=str(refusal))


def _write(job: CurrentJob, message: Written) -> None:
    """Pass on an item of a stream. A local step writes none; its process does not know that it runs one."""
    try:
        job.pass_item(message.name, message.item)
    except UsageError as refusal:
        _log.warning("an item of a stream was dropped", reason=str(refusal))


class ProcessExecutor:
    """Runs each delivery in one of at most ``most`` processes, which import the App that ``selector`` names.

    Processes are reused; `shrink` keeps at most ``kept`` of them. A process that was killed, or has grown beyond ``max_rss``
    bytes, is replaced when the next job needs it. ``command`` starts a process; the arguments of
    `mainspring.worker.executors.child` are appended to it. ``prepares`` is called with a delivery that waits until its process
    has started, which does not count as its run time, and again, with True, when it begins. ``ends_orderly``: idle processes get
    the time to end by themselves, because they have something to close.
    """

    def __init__(
        self,
        kept: int,
        selector: str | None,
        finish: Finish,
        *,
        most: int,
        max_rss: int | None = None,
        command: Sequence[str] = TASK_PROCESS,
        prepares: Callable[[Delivery, bool], None] = lambda _delivery, _ready: None,
        ends_orderly: bool = False,
    ) -> None:
        self._kept = kept
        self._limit = most
        self._selector = selector
        self._finish = finish
        self._max_rss = max_rss
        self._command = command
        self.prepares = prepares
        self._ends_orderly = ends_orderly
        # Tasks may change it: when a process starts must make no difference.
        start = environment.kept()
        self._environment = {**os.environ, **({} if start is None else start.variables)}
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Child] = []
        self._busy: dict[Delivery, _Child] = {}
        self._waiting: deque[Delivery] = deque()
        self._warned: set[str] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._leaving: set[_Child] = set()

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:  # noqa: ARG002 - only the thread executor uses it
        """Run deliveries in idle processes or new ones."""
        self._waiting.extend(deliveries)
        while self._waiting and (self._idle or len(self._busy) < self._limit):
            delivery = self._waiting.popleft()
            try:
                child = self._idle.pop() if self._idle else self._spawn()
            except OSError as error:
                self._report(delivery, failure("ProcessDied", f"no process could be started: {error}"), 0)
                continue
            self._busy[delivery] = child
            child.run(delivery)

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:
        """Kill the function's process at once, or request the function to stop and kill its process after a grace."""
        child = self._busy.get(delivery)
        if child is None:
            if delivery in self._waiting:
                self._waiting.remove(delivery)
                self._report(delivery, stop_settlement(delivery.job), 0)
        elif at_once:
            child.kill()
        else:
            child.send(Halt(delivery.job.stop_reason or ""))
            child.reaper = self._loop.call_later(CANCEL_GRACE, child.kill)

    def begun(self, delivery: Delivery) -> float:
        """Return the loop's time at which a delivery has begun or begins at the latest; the present if it waits for a process."""
        child = self._busy.get(delivery)
        return self._loop.time() if child is None else child.begun

    def shrink(self) -> None:
        """End the idle processes beyond the number to keep."""
        while self._idle and len(self._idle) + len(self._busy) > self._kept:
            self._dismiss(self._idle.pop())

    async def close(self) -> None:
        """End all processes, the busy ones by force, and wait until they have ended."""
        for child in self._busy.values():
            child.kill()
        while self._idle:
            self._dismiss(self._idle.pop())
        while self._ends or self._busy or self._leaving:
            if self._ends:
                await asyncio.wait(self._ends)
            else:
                await asyncio.sleep(0.01)  # until the ends of their pipes have arrived

    def _dismiss(self, child: _Child) -> None:
        """End a process that runs no job."""
        self._leaving.add(child)
        if self._ends_orderly:
            child.send(Leave())
            child.reaper = self._loop.call_later(LEAVE_GRACE, child.kill)
        else:
            child.kill()

    def _spawn(self) -> _Child:
        if self._selector is None:
            raise FileNotFoundError("this App was not loaded from a file or module, so a process cannot import it")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(True)  # user code may have set a default timeout, and the other process shares this flag
        try:
            process = subprocess.Popen(  # noqa: S603 - this program's interpreter
                [*self._command, str(theirs.fileno()), str(os.getpid()), self._selector],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=self._environment,
                process_group=0,  # to kill it with all processes that its function has started
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return _Child(self, process, ours)

    # Called by the children.

    def ended(self, child: _Child, message: Ended) -> None:
        """Process the end of a function."""
        delivery, seconds = child.done()
        if delivery is None:
            return
        del self._busy[delivery]
        if self._max_rss is not None and message.memory > self._max_rss:
            self._dismiss(child)
        else:
            self._idle.append(child)
        self._report(delivery, Settlement(message.outcome, message.detail, message.data), seconds)

    def waits(self, delivery: Delivery) -> None:
        """Warn once that a function in a process waits for another job."""
        name = delivery.function.name
        if delivery.function.executor == "process" and name not in self._warned:
            self._warned.add(name)
            _log.warning(
                "a task in a process waits for other jobs",
                function=name,
                remedy="each wait keeps a process and its memory: let the awaited job submit the next step, or run this task in "
                "a thread or as a coroutine",
            )

    def died(self, child: _Child, error: str) -> None:
        """Process the end of a process, or of its pipe; then the process is killed."""
        if child in self._idle:
            self._idle.remove(child)
        self._leaving.discard(child)
        delivery, seconds = child.done()
        end = self._loop.create_task(self._reap(child, delivery, error, seconds))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)

    async def _reap(self, child: _Child, delivery: Delivery | None, error: str, seconds: float) -> None:
        code = await asyncio.to_thread(child.wait)
        if delivery is None:
            return
        del self._busy[delivery]
        if delivery.job.cancel_requested and child.killed:
            settlement = stop_settlement(delivery.job)
        else:
            delivery.died = True
            settlement = failure("ProcessDied", error or f"the job's process {_cause(code)}")
        self._report(delivery, settlement, seconds)

    def _report(self, delivery: Delivery, settlement: Settlement, seconds: float) -> None:
        self._loop.call_soon(self._finish, [Finished(delivery, settlement, seconds)])
        if self._waiting:
            self.start([], brief=False)


class _Child(asyncio.Protocol):
    """The worker's end of one process."""

    def __init__(self, executor: ProcessExecutor, process: subprocess.Popen[bytes], pipe: socket.socket) -> None:
        self._executor = executor
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._unframer = Unframer()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._delivery: Delivery | None = None
        self._awaited: dict[int, Awaited] = {}
        self._begun = 0.0
        self._error = ""
        self._is_ready = False
        """Whether it has imported the App."""
        self.killed = False
        self.reaper: asyncio.TimerHandle | None = None
        self._connecting = self._loop.create_task(self._connect(pipe))

    async def _connect(self, pipe: socket.socket) -> None:
        await self._loop.create_connection(lambda: self, sock=pipe)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.writelines(self._unsent)
        self._unsent = []

    def data_received(self, data: bytes) -> None:
        for body in self._unframer.feed(data):
            message = decode_to_parent(body)
            delivery = self._delivery
            match message:
                case Ended():
                    self._executor.ended(self, message)
                case Progress() if delivery is not None:
                    delivery.job.progress(message.done, message.total, message.text)
                case Data() if delivery is not None:
                    (delivery.job.warning if message.warning else delivery.job.data)(message.data)
                case Logged() if delivery is not None:
                    delivery.job.write_log(message.line)
                case Published() if delivery is not None:
                    _publish(delivery.job, message)
                case Written() if delivery is not None:
                    _write(delivery.job, message)
                case Flush() if delivery is not None:
                    delivery.job.flush_streams(partial(self._opened, delivery, message.number))
                case WaitBegun() if delivery is not None:
                    self._executor.waits(delivery)
                    awaited = Awaited(message.handle, partial(self._refuse, message.number))
                    self._awaited[message.number] = awaited
                    delivery.job.waits(awaited)
                case OpenToken() if delivery is not None:
                    delivery.job.open_completion(
                        TokenRequest(message.digest, message.expires, message.heartbeat),
                        partial(self._opened, delivery, message.number),
                    )
                case WaitEnded() if delivery is not None and message.number in self._awaited:
                    delivery.job.continues(self._awaited.pop(message.number))
                case Begun():
                    self._error = message.error
                    self._is_ready = not message.error
                    if delivery is not None and self._is_ready:
                        self._begun = min(self._loop.time(), self._begun + LONGEST_PREPARATION)
                        self._executor.prepares(delivery, True)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the process's exit code has the cause
        self._executor.died(self, self._error)

    def run(self, delivery: Delivery) -> None:
        """Send the process a job."""
        self._delivery = delivery
        self._begun = self._loop.time()
        if not self._is_ready:
            self._executor.prepares(delivery, False)
        handle, unique, info = delivery.job.raw
        self.send(Run(delivery.function.name, handle, unique, info, delivery.payload))

    @property
    def begun(self) -> float:
        """The loop's time at which its delivery has begun, or begins at the latest: the import of the App is no running time."""
        return self._begun if self._is_ready else self._begun + LONGEST_PREPARATION

    def send(self, message: ToChild) -> None:
        """Write one message."""
        if self._transport is None:
            self._unsent.append(frame(message))
        else:
            self._transport.write(frame(message))

    def _opened(self, delivery: Delivery, number: int, error: MainspringError | None) -> None:
        if delivery is self._delivery:
            self.send(Opened(number) if error is None else Opened(number, type(error).__name__, str(error)))

    def _refuse(self, number: int, error: BaseException) -> None:
        self.send(Refuse(number, str(error)))

    def done(self) -> tuple[Delivery | None, float]:
        """Remove the process's delivery, and return it with its run time in seconds."""
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            for awaited in self._awaited.values():
                delivery.job.continues(awaited)
            self._awaited.clear()
        if self.reaper is not None:
            self.reaper.cancel()
            self.reaper = None
        return delivery, self._loop.time() - self._begun

    def kill(self) -> None:
        """Kill the process and all processes that its function has started; ``died`` follows."""
        self.killed = True
        self._kill()

    def wait(self) -> int:
        """Wait for the process to end and return its exit code; kill it after 1 s, if it has only closed its pipe."""
        try:
            return self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._process.wait()

    def _kill(self) -> None:
        if self._process.returncode is None:  # otherwise its id may belong to another process by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _cause(code: int) -> str:
    if code >= 0:
        return f"ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system may have been out of memory" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
