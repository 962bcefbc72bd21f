"""The program that imports the package once, and forks a process for each command that a test starts.

It imports nothing of the tests, because a command must not find it there. An order is one packet: marshalled ``arguments`` (as
for Python: ``-m MODULE …`` or ``FILE …``), ``directory``, ``environment``, ``umask`` and ``session``, and the three standard
files as descriptors. The answer is the pid of a process that executes it, or 0 if Python would start in another way with that
environment. Orders come from two sides:

- The tester that started this program, on the inherited socket. It becomes the parent of the command, so it can wait for it as
  for any child. For this it is a subreaper for the moment, and an intermediate process ends at once.
- Programs that stand in for the command (see ``stand_in.py``), on a listening socket. A second answer is the exit code. The
  command and its children are killed if the program is.

The program ends with the tester.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import marshal
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 1 << 20
READ_AT_START = ("PYTHON", "LC_", "LD_", "LANG", "MALLOC_", "OPENSSL_", "GLIBC_", "UV_")
"""Beginnings of variables that Python, or a library, reads only once."""
READ_LATE = {"PYTHONUNBUFFERED"}
NOT_OF_COMMANDS = {"mainspring.__main__", "mainspring.testing"}
THEIR_LATE_IMPORTS = (
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "encodings.idna",
)
"""Modules of other packages that these import when they are used."""


class Forks:
    """Serves orders until the tester's socket closes."""

    def __init__(self, tester: socket.socket, listener: socket.socket) -> None:
        self._tester = tester
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(tester, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._commands: dict[socket.socket, tuple[int, int]] = {}
        """By the connection of each stand-in, the pid of its command and the descriptor of this process."""

    def serve(self) -> dict[str, Any] | None:
        """Execute orders. Returns an order in the process that has to execute it, and None at the end of the tester."""
        while True:
            for key, _ in self._selector.select():
                order = None
                mine = False
                if key.data is not None:
                    self._report_end(key.data)
                elif key.fileobj is self._listener:
                    self._selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    order, files = _receive(key.fileobj)
                    if order is None:
                        if key.fileobj is self._tester:
                            return None
                        self._forget(key.fileobj)
                    elif _read_at_start(order["environment"]) != _read_at_start(os.environ):
                        key.fileobj.send(b"0")
                    elif key.fileobj is self._tester:
                        mine = self._start_for_tester()
                    else:
                        mine = self._start_for(key.fileobj)
                    for file in () if mine else files:
                        os.close(file)
                if mine and order is not None:
                    self._become(order, files)
                    return order

    def _start_for_tester(self) -> bool:
        """Start a process whose parent is the tester; return whether this is the process."""
        go, going = os.pipe()
        reply, replying = os.pipe()
        intermediate = os.fork()
        if not intermediate:
            pid = os.fork()
            if pid:
                os.write(replying, b"%d" % pid)
                os._exit(0)
            os.close(going)
            if not os.read(go, 1):  # the parent is the tester from here on
                os._exit(1)
            return True
        os.waitpid(intermediate, 0)
        self._tester.send(os.read(reply, 32))
        os.write(going, b"g")
        for descriptor in (go, going, reply, replying):
            os.close(descriptor)
        return False

    def _start_for(self, stand_in: socket.socket) -> bool:
        """Start a process for a stand-in; return whether this is the process."""
        pid = os.fork()
        if not pid:
            return True
        descriptor = os.pidfd_open(pid)
        self._commands[stand_in] = pid, descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, stand_in)
        with contextlib.suppress(OSError):  # it has been killed, and its end is the next event
            stand_in.send(b"%d" % pid)
        return False

    def _forget(self, stand_in: socket.socket) -> None:
        self._selector.unregister(stand_in)
        if stand_in in self._commands:
            os.killpg(self._commands[stand_in][0], signal.SIGKILL)
            self._report_end(stand_in)
        stand_in.close()

    def _report_end(self, stand_in: socket.socket) -> None:
        if stand_in not in self._commands:
            return  # killed by an event of the same moment
        pid, descriptor = self._commands.pop(stand_in)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            stand_in.send(b"%d" % os.waitstatus_to_exitcode(status))

    def _become(self, order: dict[str, Any], files: list[int]) -> None:
        """Leave nothing of this program but its modules: this process is the command from now on."""
        if order["session"]:
            os.setsid()
        self._selector.close()
        for one in (self._tester, self._listener, *self._commands):
            one.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 1 << 20)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.enable()


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return an order and its files; None at the end of the connection."""
    try:
        data, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
    except ConnectionError:
        return None, []
    return (marshal.loads(data) if data else None), files


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if value and name.startswith(READ_AT_START) and name not in READ_LATE
    }


def execute(order: dict[str, Any]) -> None:
    """Be the process of an order, as Python would after its start; SystemExit and other exceptions end it as usual."""
    os.chdir(order["directory"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = _opened(number, name, mode, getattr(sys, name), unbuffered=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    word, *arguments = order["arguments"]
    if word == "-m":
        sys.path[0] = os.getcwd()  # noqa: PTH109 - a string
        module, *arguments = arguments
        sys.argv = ["-m", *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(word))  # noqa: PTH120 - as Python itself does
        sys.argv = [word, *arguments]
        runpy.run_path(word, run_name="__main__")


def _opened(number: int, name: str, mode: str, before: Any, *, unbuffered: bool) -> io.TextIOWrapper:
    """Return a standard stream as Python makes it at its start."""
    raw = open(number, f"{mode}b", 0 if unbuffered and mode == "w" else -1, closefd=False)  # noqa: SIM115 - a descriptor
    file: Any = getattr(raw, "raw", raw)
    file.name = f"<{name}>"
    stream = io.TextIOWrapper(
        raw,
        encoding=before.encoding,
        errors=before.errors,
        newline=None if mode == "r" else "\n",
        line_buffering=not unbuffered and (number == 2 or raw.isatty()),
        write_through=unbuffered,
    )
    stream.mode = mode  # type: ignore[misc]
    return stream


def exit_at_once(end: SystemExit) -> None:
    """End this process as Python does, but do not take all modules apart: that takes longer than most commands.

    The collector runs, so that Python can complain about coroutines that were never awaited. Returns what is left to Python.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what multiprocessing calls before it ends a process
    atexit._run_exitfuncs()  # noqa: SLF001 - as above
    end.__traceback__ = None
    gc.collect()
    if end.code is not None and not isinstance(end.code, int):
        raise end
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        raise end from None
    os._exit((end.code or 0) & 0xFF)


def import_all(package: str = "mainspring") -> None:
    """Import what the commands import."""
    imported = importlib.import_module(package)
    for found in pkgutil.iter_modules(imported.__path__, f"{package}."):
        if found.name in NOT_OF_COMMANDS:
            continue
        if found.ispkg:
            import_all(found.name)
        else:
            importlib.import_module(found.name)


def main(tester: int, listener: int) -> None:
    """Serve orders, and be what they ask for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    import_all()
    for name in THEIR_LATE_IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    forks = Forks(socket.socket(fileno=tester), socket.socket(fileno=listener))
    order = forks.serve()
    if order is not None:
        del forks
        try:
            execute(order)
        except SystemExit as end:
            exit_at_once(end)
        else:
            exit_at_once(SystemExit())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
