"""Writers of log lines that never wait for a reader: lines that nobody takes are kept up to a limit, then dropped and counted.

A pipe that is not read, a terminal after Ctrl-S and a syslog daemon that hangs would otherwise block the thread that logs: the
event loop of a node, or the stop of a process. A disk that is full for a moment delays the lines.

`unblock_standard_error` gives a process such a ``sys.stderr``, for its log and for all other text that it writes there.

`LogSettings` has the settings of the log of a node or a worker.

Log lines of a node about jobs in trouble: failed attempts that no worker logs, and functions without workers.

A function with pending jobs and no worker has a misspelt name, or its workers were never started.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import heapq
import io
import os
import select
import socket
import stat
import sys
import syslog
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Protocol

import msgspec
import structlog

from mainspring.clock import from_us
from mainspring.jobs.model import JobFailure
from mainspring.jobs.rules import Event, Outcome
from mainspring.jobs.settlement_records import NODE_LOST
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from _typeshed import ReadableBuffer

    from mainspring.ids import Handles
    from mainspring.jobs.function_index import Registered
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.rules import Settlement
    from mainspring.log_limit import AttemptEnd, AttemptLog

LogFormat = Literal["auto", "text", "json"]
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log's level, format and destination."""

    level: str = "info"
    """One of `LOG_LEVELS`."""

    format: LogFormat = "auto"
    """``text`` for people, ``json`` for programs; ``auto``: text on a terminal, JSON elsewhere."""

    file: Path | None = None
    """Reopened at SIGHUP; None: standard error."""

    tracebacks: bool = False
    """Workers log the tracebacks of failed attempts at any level, not only at ``debug``."""

    enabled: bool = True
    """False: nothing is logged."""

    syslog: bool = False
    """Write to the system's log instead of a file."""


BACKLOG: Final = 1 << 20
"""Bytes that a writer keeps while its destination takes none."""

LAST_WAIT: Final = 1.0
"""Seconds for which a process that ends waits until its last lines are taken."""

RETRY_AFTER: Final = 1.0
"""Seconds until a full disk is tried again."""

OPEN_FLAGS: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags that open a file, a pipe or a terminal without waiting, and so that writes do not wait."""

_RETRIED: Final = frozenset({errno.EAGAIN, errno.ENOSPC, errno.EDQUOT})
"""Errors after which a later write may succeed. After others, such as EPIPE, the lines are dropped at once."""


class Outlet(Protocol):
    """A destination of bytes."""

    blocks: bool
    """Whether `write` may wait for a reader: then only a thread of the writer calls it."""

    def write(self, data: bytes) -> int:
        """Write some of the data and return the number of bytes. Raises OSError."""

    def wait(self) -> None:
        """Wait until `write` is worth another attempt."""

    def close(self) -> None:
        """Close the outlet's own descriptor."""


class _Plain:
    """A descriptor of a file on a disk, or of anything else that cannot be opened without blocking."""

    def __init__(self, descriptor: int, *, blocks: bool, owned: bool) -> None:
        self._descriptor = descriptor
        self._owned = owned
        self.blocks = blocks

    def write(self, data: bytes) -> int:
        return os.write(self._descriptor, data)

    def wait(self) -> None:
        time.sleep(RETRY_AFTER)

    def close(self) -> None:
        if self._owned:
            os.close(self._descriptor)


class _Polled(_Plain):
    """A pipe or a terminal that was opened without blocking."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, blocks=False, owned=True)

    def wait(self) -> None:
        _await_writable(self._descriptor)


class _Socket:
    """A socket, such as that of systemd's journal, which cannot be opened again."""

    blocks = False

    def __init__(self, descriptor: int) -> None:
        # SOCK_NONBLOCK keeps Python from changing the flags, which other processes share; MSG_DONTWAIT applies to one call.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, os.dup(descriptor))

    def write(self, data: bytes) -> int:
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def wait(self) -> None:
        _await_writable(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()


class SyslogOutlet:
    """The system's log."""

    blocks = True

    def __init__(self) -> None:
        syslog.openlog("mainspring", syslog.LOG_PID, syslog.LOG_DAEMON)

    def write(self, data: bytes) -> int:
        """Send whole lines."""
        for line in data.decode("utf-8", "replace").splitlines():
            syslog.syslog(line.replace("\0", "\\x00"))
        return len(data)

    def wait(self) -> None:
        """Do nothing: `write` raises no errors."""

    def close(self) -> None:
        """Do nothing."""


def _await_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll(1000 * RETRY_AFTER)  # a limit, because the descriptor may be closed meanwhile


def outlet_of(descriptor: int, *, owned: bool = False) -> Outlet:
    """Return the outlet of an open file. ``owned``: it was opened with O_NONBLOCK, and its outlet closes it."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return _Plain(descriptor, blocks=False, owned=owned)
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        if owned:
            return _Polled(descriptor)
        # Opened again: the flag O_NONBLOCK must not apply to others who have the same descriptor.
        with contextlib.suppress(OSError):  # the file of another user, or a system without /proc
            return _Polled(os.open(f"/proc/self/fd/{descriptor}", OPEN_FLAGS))
    elif stat.S_ISSOCK(mode) and sys.platform == "linux":
        return _Socket(descriptor)
    return _Plain(descriptor, blocks=True, owned=owned)


def _plain_notice(lines: int) -> str:
    return f"mainspring: {lines} lines of this log were dropped\n"


class LogWriter:
    """Writes lines in their order, and never blocks the thread that calls `write`."""

    def __init__(self, outlet: Outlet, limit: int = BACKLOG) -> None:
        self._outlet = outlet
        self._limit = limit
        self._backlog: deque[bytes] = deque()
        self._size = 0
        self._missing = 0
        self._thread: threading.Thread | None = None
        # Reentrant: the collection of garbage inside `write` may call a finalizer that writes a line.
        self._changed = threading.Condition(threading.RLock())
        self._notice: Callable[[int], str] = _plain_notice
        self.dropped = 0
        """Number of dropped lines since the start."""
        _WRITERS.add(self)

    def write(self, data: bytes) -> None:
        """Write one or more whole lines, or keep them for later, or drop and count them."""
        with self._changed:
            if not self._backlog and not self._missing and not self._outlet.blocks:
                data = self._try(data)
            if data:
                self._keep(data)

    def replace(self, outlet: Outlet) -> None:
        """Write to another outlet from now on, and close the last one."""
        with self._changed:
            last, self._outlet = self._outlet, outlet
            last.close()
            self._changed.notify_all()

    def count_with(self, notice: Callable[[int], str]) -> None:
        """Write, from now on, the line that ``notice`` returns for a number of dropped lines in their place."""
        self._notice = notice

    def finish(self, seconds: float = LAST_WAIT) -> None:
        """Wait until all lines are written, for some seconds at most."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._backlog or self._missing:
                if (left := until - time.monotonic()) <= 0:
                    return
                self._changed.wait(left)

    def close(self) -> None:
        """Write what can be written now, and close the outlet."""
        self.finish()
        with self._changed:
            self._outlet.close()
            self._outlet = _Nowhere()

    def after_fork(self) -> None:
        """Forget the lines that the parent process writes, and its thread."""
        self._changed = threading.Condition(threading.RLock())
        self._backlog.clear()
        self._size = self._missing = 0
        self._thread = None

    def _try(self, data: bytes) -> bytes:
        """Write data at once, and return the part that has to be written later."""
        try:
            while data:
                data = data[self._outlet.write(data) :]
        except OSError as error:
            if error.errno in _RETRIED:
                return data
            self._drop(data)
        except ValueError:  # a closed file
            self._drop(data)
        return b""

    def _drop(self, data: bytes) -> None:
        self.dropped += max(1, data.count(b"\n"))

    def _keep(self, data: bytes) -> None:
        # Once lines are missing, the next ones follow when there is space again for many: else each gap would be one line long.
        if self._size + len(data) > (self._limit // 2 if self._missing else self._limit):
            before = self.dropped
            self._drop(data)
            self._missing += self.dropped - before
        else:
            if self._missing:
                self._append(self._take_notice())
            self._append(data)
        if self._thread is None:
            self._thread = threading.Thread(target=self._drain, name="mainspring log", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter ends
                self._thread = None
        self._changed.notify_all()

    def _append(self, data: bytes) -> None:
        self._backlog.append(data)
        self._size += len(data)

    def _take_notice(self) -> bytes:
        missing, self._missing = self._missing, 0
        return self._notice(missing).encode("utf-8", "backslashreplace")

    def _drain(self) -> None:
        """Write the kept lines when the outlet takes them; the thread's function."""
        while True:
            with self._changed:
                while not self._backlog and not self._missing:
                    self._changed.notify_all()
                    self._changed.wait()
                if not self._backlog:
                    self._append(self._take_notice())
                outlet = self._outlet
                data = self._backlog[0]
                if not outlet.blocks:
                    refusal = self._write_first(outlet, data)
            if outlet.blocks:
                refusal = self._write_first(outlet, data)
            if refusal == errno.EAGAIN:
                with contextlib.suppress(OSError, ValueError):  # the outlet was replaced and closed
                    outlet.wait()
            elif refusal:
                with self._changed:
                    self._changed.wait(RETRY_AFTER)

    def _write_first(self, outlet: Outlet, data: bytes) -> int:
        """Write the first kept line, or a part of it. Return 0, or the number of an error after which it is written later."""
        try:
            number = outlet.write(data)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _RETRIED:
                return error.errno or errno.EAGAIN
            with self._changed:
                if outlet is self._outlet:  # otherwise it was closed, and its successor gets the lines
                    self._drop(data)
                    self._remove(len(data), data)
            return 0
        with self._changed:
            self._remove(number, data)
        return 0

    def _remove(self, number: int, data: bytes) -> None:
        self._size -= number
        if number < len(data):
            self._backlog[0] = data[number:]
        else:
            self._backlog.popleft()


class _Nowhere:
    """The outlet of a closed writer."""

    blocks = False

    def write(self, data: bytes) -> int:
        return len(data)

    def wait(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


_WRITERS: Final[weakref.WeakSet[LogWriter]] = weakref.WeakSet()
"""All writers of this process: the end of an interpreter and a fork are events of the whole process."""


def dropped_lines() -> int:
    """Return how many lines this process has dropped."""
    return sum(writer.dropped for writer in list(_WRITERS))


def finish_logs(seconds: float = LAST_WAIT) -> None:
    """Wait until the lines of all writers are written, for some seconds at most."""
    until = time.monotonic() + seconds
    for writer in list(_WRITERS):
        writer.finish(max(0.0, until - time.monotonic()))


def exit_now(code: int) -> NoReturn:
    """End this process with an exit code, without waiting for its threads and without its exit functions."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
        finish_logs()
    os._exit(code)


def _after_fork() -> None:
    for writer in list(_WRITERS):
        writer.after_fork()


atexit.register(finish_logs)
os.register_at_fork(after_in_child=_after_fork)


class _Raw(io.RawIOBase):
    """A descriptor whose writes go to a writer."""

    def __init__(self, writer: LogWriter, descriptor: int) -> None:
        self._writer = writer
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        text = bytes(data)
        self._writer.write(text)
        return len(text)


class UnblockedStream(io.TextIOWrapper):
    """A text stream for a descriptor, with the interface of ``sys.stderr``. Its writes never block."""

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        self.writer = LogWriter(outlet_of(descriptor))
        self._descriptor = descriptor
        raw = io.BufferedWriter(_Raw(self.writer, descriptor))
        super().__init__(raw, encoding, "backslashreplace", line_buffering=True)

    @property
    def mode(self) -> str:
        """That of every standard stream."""
        return "w"

    @property
    def name(self) -> str:
        """That of the stream which this one replaces."""
        return "<stderr>"

    def follow(self) -> None:
        """Write to the file that the descriptor has now, and close the last one."""
        self.writer.replace(outlet_of(self._descriptor))


def unblock_standard_error() -> None:
    """Replace ``sys.stderr`` by a stream whose writes never block; do nothing if it is one, or is not descriptor 2."""
    stream = sys.stderr
    if isinstance(stream, UnblockedStream):
        return
    try:
        if stream.fileno() != 2:  # replaced by a test or an embedding program
            return
        stream.flush()
        sys.stderr = UnblockedStream(2, stream.encoding)
    except (OSError, ValueError, AttributeError):  # closed, or no file
        return


HOW_LOGGED: Final[dict[Outcome, AttemptEnd]] = {
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.LOST: "lost",
}
GIVEN_UP: Final[AttemptEnd] = "given up"
"""The job ended without another attempt: its last one was lost with a node and has a line already."""

UNDECIDED: Final = "unknown"
"""The job is back in its queue; the next node that claims it decides whether its policy allows another attempt."""

_SUCCEEDED: Final = Outcome.SUCCEEDED

_failure = msgspec.json.Decoder(JobFailure).decode


class FailedAttempts:
    """Logs attempts that timed out or were lost, and failed ones of plain workers. ``wall`` returns seconds since 1970."""

    def __init__(self, log: AttemptLog, handles: Handles, wall: Callable[[], float]) -> None:
        self._log = log
        self._handles = handles
        self._wall = wall

    def ended(self, settlements: Sequence[Settlement]) -> None:
        """Log the failed attempts among settlements: see `mainspring.jobs.settlement.AttemptsEnded`."""
        for settlement in settlements:
            outcome = settlement.outcome
            if outcome is _SUCCEEDED or settlement.reported:
                continue
            if outcome is not None:
                how = HOW_LOGGED.get(outcome)
                if how is not None:
                    self._write(how, settlement)
            elif settlement.event is Event.FAIL:
                self._write(GIVEN_UP, settlement)

    def _write(self, how: AttemptEnd, settlement: Settlement) -> None:
        job = settlement.job
        function = function_text(job.function)
        if not self._log.allows(function):
            return
        next_retry: float | str | None = None
        if settlement.event is Event.RETRY:
            next_retry = from_us(settlement.due_us)
        elif settlement.event is Event.LOSE:
            next_retry = UNDECIDED if settlement.why == NODE_LOST else self._wall()
        error = settlement.why
        if not error:
            failed = _failure(settlement.error)
            error = f"{failed.type}: {failed.message}"
        attempt = settlement.counted + settlement.suspected  # a suspected attempt does not count, but has a number
        self._log.write(how, function, self._handles.of(job.id).decode(), attempt, error, next_retry)


NO_WORKER_GRACE: Final = 2.0
"""Seconds for which jobs may lack a worker before a line is logged: enough for workers to reconnect."""
NO_WORKER_LOG_INTERVAL: Final = 60.0
"""Seconds between two lines about one function."""
MAX_LINES: Final = 20
"""Functions with their own line in any `NO_WORKER_LOG_INTERVAL`; one more line counts the others."""

log = structlog.get_logger("mainspring.node")


class Unserved:
    """Logs functions with pending jobs and no worker at any node, among those that ``functions`` returns.

    ``mine`` returns whether this node logs a function: in a fleet one node logs each. ``grace`` is in seconds. In a fleet it is
    longer than the time between two heartbeats, because the list of other nodes' workers may be that old.
    """

    def __init__(
        self,
        functions: Callable[[], Iterable[FunctionQueue]],
        registered: Registered,
        *,
        mine: Callable[[str], bool],
        grace: float = NO_WORKER_GRACE,
    ) -> None:
        self._functions = functions
        self._registered = registered
        self._mine = mine
        self._grace = grace
        self._since: dict[bytes, float] = {}
        """Monotonic times since which functions with pending jobs have had no worker."""
        self._logged: dict[bytes, float] = {}
        """Monotonic times of the last lines that are younger than `NO_WORKER_LOG_INTERVAL`."""
        self._counted = float("-inf")
        """Monotonic time of the last line that counted the other functions."""

    def check(self, now: float) -> None:
        """Log the functions that are due at a monotonic time; the node calls this about once a second."""
        found = [queue for queue in self._functions() if not queue.workers and queue.waits()]
        found = [queue for queue in found if self._registered.has(queue.name) is False]
        self._since = {queue.name: self._since.get(queue.name, now) for queue in found}
        self._logged = {name: at for name, at in self._logged.items() if now - at < NO_WORKER_LOG_INTERVAL}
        due = [queue for queue in found if self._is_due(queue, now)]
        room = MAX_LINES - len(self._logged)
        for queue in heapq.nlargest(room, due, key=lambda queue: queue.waiting()):
            self._logged[queue.name] = now
            log.warning(
                "jobs wait for a function without a worker", function=function_text(queue.name), jobs=queue.waiting()
            )
        if len(due) > room and now - self._counted >= NO_WORKER_LOG_INTERVAL:
            self._counted = now
            log.warning("jobs wait for more functions without a worker", functions=len(due) - room)

    def _is_due(self, queue: FunctionQueue, now: float) -> bool:
        name = queue.name
        return name not in self._logged and now - self._since[name] >= self._grace and self._mine(function_text(name))
