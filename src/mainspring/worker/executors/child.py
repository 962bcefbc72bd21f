"""A process that runs functions for its worker: ``python -m mainspring.worker.executors.child FD PARENT SELECTOR``.

(`mainspring worker` starts `mainspring.cli.task_process` instead, which also configures logging like the worker's.)

The messages between a worker and its task processes are MessagePack, each after its length in four bytes.

The main thread runs the functions. A second thread reads, so that the end of the pipe ends the process at any time.
Signals that stop a worker do nothing here, because the worker lets its jobs finish.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import threading
from contextlib import nullcontext
from contextvars import Context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from mainspring.client import environment
from mainspring.errors import MainspringError, ServerError, UsageError, WorkerFullError
from mainspring.worker.around import Life
from mainspring.worker.current import CurrentJob, JobStopped
from mainspring.worker.execution import RELEASED, Settlement, execute, execute_coroutine, failure, stop_settlement
from mainspring.worker.job_log import LogLine  # noqa: TC001 - msgspec reads the annotations
from mainspring.worker.log_records import capturing
from mainspring.worker.processes import die_with, disown, do_nothing, new_event_loop, resident_bytes
from mainspring.worker.selector import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from mainspring.client.inside import Awaited
    from mainspring.worker.current import TokenRequest
    from mainspring.worker.registry import Function, Registry


class Run(msgspec.Struct, tag="run", array_like=True):
    """A job to run."""

    function: str
    handle: bytes
    unique: bytes
    info: bytes
    payload: bytes


class Halt(msgspec.Struct, tag="halt", array_like=True):
    """A request to stop the running job."""

    reason: str


class Leave(msgspec.Struct, tag="leave", array_like=True):
    """A request to end, after the running job."""


class Refuse(msgspec.Struct, tag="refuse", array_like=True):
    """The end of a wait of the running job with an error: the worker has no place for the awaited job."""

    number: int
    message: str


class Opened(msgspec.Struct, tag="opened", array_like=True):
    """The answer to a request for a completion token; ``error`` is empty if it is stored."""

    number: int
    kind: str = ""
    error: str = ""


class OpenToken(msgspec.Struct, tag="token", array_like=True):
    """A request of the running job for a completion token; the process chooses the number."""

    number: int
    digest: str
    expires: float
    heartbeat: float | None


class Begun(msgspec.Struct, tag="begun", array_like=True):
    """The process is ready for its first job, or has failed to start because of ``error``."""

    error: str = ""


class Progress(msgspec.Struct, tag="progress", array_like=True):
    """The progress of the running job."""

    done: int
    total: int
    text: str = ""


class Data(msgspec.Struct, tag="told", array_like=True):
    """Data or a warning of the running job for waiting clients. The tag is older than the name."""

    data: bytes
    warning: bool


class Logged(msgspec.Struct, tag="logged", array_like=True):
    """A line of the log of the running job."""

    line: LogLine


class Published(msgspec.Struct, tag="published", array_like=True):
    """A value that the running job has published."""

    name: str
    value: bytes


class Written(msgspec.Struct, tag="written", array_like=True):
    """An item that the running job has written to a stream."""

    name: str
    item: bytes


class Flush(msgspec.Struct, tag="flush", array_like=True):
    """A request to store all items of the running job; the process chooses the number. `Opened` is the answer."""

    number: int


class WaitBegun(msgspec.Struct, tag="waits", array_like=True):
    """The begin of a wait of the running job for another one; the process chooses the number."""

    number: int
    handle: str


class WaitEnded(msgspec.Struct, tag="continues", array_like=True):
    """The end of such a wait."""

    number: int


class Ended(msgspec.Struct, tag="ended", array_like=True):
    """The end of the running job; ``memory`` is the process's resident size in bytes."""

    outcome: bytes
    detail: bytes
    data: bytes
    memory: int


ToChild: TypeAlias = Run | Halt | Leave | Refuse | Opened
ToParent: TypeAlias = (
    Begun | Progress | Data | Logged | Published | Written | Flush | WaitBegun | WaitEnded | Ended | OpenToken
)

_encode = msgspec.msgpack.Encoder().encode
decode_to_child: Final = msgspec.msgpack.Decoder(ToChild).decode
decode_to_parent: Final = msgspec.msgpack.Decoder(ToParent).decode


def frame(message: ToChild | ToParent) -> bytes:
    """Encode a message, after its length."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class Unframer:
    """Splits a stream into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the bodies that they complete."""
        self._buffer += data
        bodies: list[bytes] = []
        position = 0
        while len(self._buffer) - position >= 4:
            end = position + 4 + int.from_bytes(self._buffer[position : position + 4], "big")
            if end > len(self._buffer):
                break
            bodies.append(bytes(self._buffer[position + 4 : end]))
            position = end
        del self._buffer[:position]
        return bodies


class Child:
    """The process's end of the pipe, and the reporter of its running job."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pid = os.getpid()
        self._pipe = pipe
        self._pipe.settimeout(None)  # user code may have set a default timeout, here or in the worker
        self._pipe.set_inheritable(False)
        disown(lambda: [pipe.fileno()])
        self._writing = threading.Lock()
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._job: CurrentJob | None = None
        self._numbers = itertools.count(1)
        self._awaited: dict[Awaited, int] = {}
        self._asked: dict[int, Callable[[MainspringError | None], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Settlement] | None = None

    def progress(self, job: CurrentJob, done: int, total: int, text: str) -> None:  # noqa: ARG002 - there is only one
        """Send progress to the worker."""
        self.send(Progress(done, total, text))

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:  # noqa: ARG002
        """Send data or a warning to the worker."""
        self.send(Data(data, warning))

    def write_log(self, job: CurrentJob, line: LogLine) -> None:  # noqa: ARG002
        """Send a line to the worker."""
        self.send(Logged(line))

    def publish(self, job: CurrentJob, name: str, value: bytes) -> None:  # noqa: ARG002
        """Send a value to the worker."""
        self.send(Published(name, value))

    def write_item(self, job: CurrentJob, name: str, item: bytes) -> int:  # noqa: ARG002
        """Send an item to the worker. A full pipe waits."""
        self.send(Written(name, item))
        return 0

    def flush_streams(self, job: CurrentJob, done: Callable[[MainspringError | None], None]) -> None:  # noqa: ARG002
        """Let the worker store all items."""
        number = next(self._numbers)
        self._asked[number] = done
        self.send(Flush(number))

    def waits(self, job: CurrentJob, awaited: Awaited) -> None:  # noqa: ARG002
        """Notify the worker that the job waits for another one."""
        number = next(self._numbers)
        self._awaited[awaited] = number
        self.send(WaitBegun(number, awaited.handle))

    def continues(self, job: CurrentJob, awaited: Awaited) -> None:  # noqa: ARG002
        """Notify the worker that such a wait is over."""
        self.send(WaitEnded(self._awaited.pop(awaited)))

    def open_completion(
        self, job: CurrentJob, request: TokenRequest, done: Callable[[MainspringError | None], None]
    ) -> None:
        """Ask the server for a completion token, through the worker."""
        del job
        number = next(self._numbers)
        self._asked[number] = done
        self.send(OpenToken(number, *request))

    def _opened(self, message: Opened) -> None:
        done = self._asked.pop(message.number, None)
        if done is not None:
            kind = UsageError if message.kind == UsageError.__name__ else ServerError
            done(kind(message.error) if message.error else None)

    def send(self, message: ToParent) -> None:
        """Write one message; the end of the pipe ends the process.  Forks of a task send nothing."""
        if os.getpid() != self._pid:
            return
        try:
            with self._writing:
                self._pipe.sendall(frame(message))
        except OSError:
            os._exit(1)

    def start(self, registry: Registry) -> Life:
        """Run the hooks of the start. Raises WorkerStartError."""
        life = Life(registry, is_task_process=True)
        if life.has_ends:
            self._loop = new_event_loop()
            self._loop.run_until_complete(life.start())
        return life

    def serve(self, registry: Registry, life: Life) -> None:
        """Run jobs one after the other, until the worker asks the process to leave."""
        threading.Thread(target=self._read, name="mainspring-pipe", daemon=True).start()
        while (run := self._runs.get()) is not None:
            job = CurrentJob(run.handle, run.unique, run.function, run.info, self)
            self._job = job
            function = registry.get(run.function)
            if function is not None:
                function = life.surround(function)
            if function is None:
                settlement = failure("UsageError", f"the process's app has no task named {run.function!r}")
            elif function.executor == "coroutine":
                settlement = self._run_coroutine(function, run.payload, job)
            else:
                settlement = Context().run(execute, function, run.payload, job)
            if os.getpid() != self._pid:
                os._exit(0)  # a fork of the task that has returned from it
            self._job = None
            self.send(Ended(*settlement, resident_bytes()))
        if life.has_ends and self._loop is not None:
            self._loop.run_until_complete(life.close())

    def _run_coroutine(self, function: Function, payload: bytes, job: CurrentJob) -> Settlement:
        """Run a coroutine function, whose job is isolated in this process, on a loop that all such jobs share."""
        if self._loop is None:
            self._loop = new_event_loop()  # not that of a policy which the user has set
        task = self._task = self._loop.create_task(execute_coroutine(function, payload, job), context=Context())
        if job.cancel_requested:
            task.cancel()
        try:
            return self._loop.run_until_complete(task)
        except asyncio.CancelledError:  # before its first step
            return stop_settlement(job) if job.cancel_requested else RELEASED
        finally:
            self._task = None

    def _read(self) -> None:
        unframer = Unframer()
        while True:
            try:
                data = self._pipe.recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                os._exit(1)
            for body in unframer.feed(data):
                message = decode_to_child(body)
                match message:
                    case Run():
                        self._runs.put(message)
                    case Halt():
                        self._halt(message.reason)
                    case Leave():
                        self._runs.put(None)
                    case Refuse():
                        self._refuse(message)
                    case Opened():
                        self._opened(message)

    def _halt(self, reason: str) -> None:
        """Request the running job to stop, and end its waits for other jobs."""
        job = self._job
        if job is not None:
            job.ask_to_stop(reason)
            task = self._task
            if task is not None and not job.is_closing:  # the worker kills the process if that takes long
                task.get_loop().call_soon_threadsafe(task.cancel)
            for awaited in list(self._awaited):
                awaited.refuse(JobStopped(reason))

    def _refuse(self, message: Refuse) -> None:
        for awaited, number in list(self._awaited.items()):
            if number == message.number:
                awaited.refuse(WorkerFullError(message.message))


def _without_context(_selector: str) -> AbstractContextManager[None]:
    return nullcontext()


def main(arguments: Sequence[str], importing: Callable[[str], AbstractContextManager[None]] = _without_context) -> None:
    """Load the App and serve; the import runs inside the context manager of ``importing(selector)``."""
    descriptor, parent, selector = int(arguments[0]), int(arguments[1]), arguments[2]
    die_with(parent, signal.SIGKILL)
    signal.signal(signal.SIGINT, do_nothing)
    signal.signal(signal.SIGTERM, do_nothing)
    child = Child(socket.socket(fileno=descriptor))
    start = environment.now()
    try:
        with importing(selector):
            registry = load_registry(selector)
        life = child.start(registry)
    except MainspringError as error:
        child.send(Begun(str(error)))
        return
    environment.keep(start)
    child.send(Begun())
    with capturing():
        child.serve(registry, life)


if __name__ == "__main__":
    main(sys.argv[1:])
