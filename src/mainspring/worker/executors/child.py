"""A process that runs functions for its worker: ``python -m mainspring.worker.executors.child FD PARENT SELECTOR``.

The main thread runs the functions; a second one reads, so that the end of the pipe ends the process in the middle of
anything. Signals that stop a worker do nothing here: the worker lets its jobs finish.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextvars import Context
from queue import SimpleQueue
from typing import TYPE_CHECKING

from mainspring.errors import MainspringError
from mainspring.worker.current import CurrentJob
from mainspring.worker.executors.frames import (
    Begun,
    Ended,
    Halt,
    Progress,
    Run,
    Told,
    ToParent,
    Unframer,
    decode_to_child,
    frame,
)
from mainspring.worker.forks import disown
from mainspring.worker.memory import resident_bytes
from mainspring.worker.mortality import die_with
from mainspring.worker.performance import failure, perform
from mainspring.worker.selector import load_registry

if TYPE_CHECKING:
    from mainspring.worker.registry import Registry


class Child:
    """The process's end of the pipe. It is also the reporter of the job that runs."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pid = os.getpid()
        self._pipe = pipe
        self._pipe.set_inheritable(False)
        disown(lambda: [pipe.fileno()])
        self._writing = threading.Lock()
        self._runs: SimpleQueue[Run] = SimpleQueue()
        self._job: CurrentJob | None = None

    def progress(self, job: CurrentJob, done: int, total: int) -> None:  # noqa: ARG002 - there is only one
        """Pass progress on."""
        self.send(Progress(done, total))

    def tell(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:  # noqa: ARG002
        """Pass data on."""
        self.send(Told(data, warning))

    def send(self, message: ToParent) -> None:
        """Write one message; the end of the pipe ends the process.  What a task has forked off has nothing to say."""
        if os.getpid() != self._pid:
            return
        try:
            with self._writing:
                self._pipe.sendall(frame(message))
        except OSError:
            os._exit(1)

    def serve(self, registry: Registry) -> None:
        """Run what comes, one after the other, for ever."""
        threading.Thread(target=self._read, name="mainspring-pipe", daemon=True).start()
        while True:
            run = self._runs.get()
            job = CurrentJob(run.handle, run.unique, run.function, run.info, self)
            self._job = job
            function = registry.get(run.function)
            if function is None:
                settlement = failure("UsageError", f"the process's app has no task named {run.function!r}")
            else:
                settlement = Context().run(perform, function, run.payload, job)
            if os.getpid() != self._pid:
                os._exit(0)  # a fork of the task that came back from it, too
            self._job = None
            self.send(Ended(*settlement, resident_bytes()))

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
                if isinstance(message, Halt):
                    job = self._job
                    if job is not None:
                        job.ask_to_stop(message.reason)
                else:
                    self._runs.put(message)


def _do_nothing(number: int, frame: object) -> None:
    """Handle a signal."""


def main() -> None:
    """Load the App and serve."""
    descriptor, parent, selector = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    die_with(parent, signal.SIGKILL)
    # Not SIG_IGN, which programs that tasks start would inherit: nobody could terminate them.
    signal.signal(signal.SIGINT, _do_nothing)
    signal.signal(signal.SIGTERM, _do_nothing)
    child = Child(socket.socket(fileno=descriptor))
    try:
        registry = load_registry(selector)
    except MainspringError as error:
        child.send(Begun(str(error)))
        return
    child.send(Begun())
    child.serve(registry)


if __name__ == "__main__":
    main()
