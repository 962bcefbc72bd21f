"""The program that imports the package once, and forks a process for each command that a test starts.

It imports nothing of the tests, because a command must not find it there. An order is one packet: marshalled ``arguments`` (as
for Python: ``-m MODULE …``, ``-P -m MODULE …`` or ``FILE …``), ``directory``, ``environment``, ``umask``, ``blocked`` signals,
``session``, ``group`` and ``numbers``, and the files that have these numbers in the process, the three standard ones first. The
answer is the pid of a process that executes it, or 0 if Python would start in another way with that environment. Orders come from
two sides:

- The tester that started this program, on the inherited socket (`Forker`). It becomes the parent of the command, so it can wait
  for it as for any child. For this it is a subreaper for the moment, and an intermediate process ends at once.
- Programs that stand in for the command (see ``stand_in.py``), on a listening socket. A second answer is the exit code. The
  command and its children are killed if the program is.

A command that starts processes of its own, such as workers, has a process like this one beside it, which forks them: it is a
child of the command, in its group, and ends with it. The command then orders as the tester does.

The program ends with the tester.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import marshal
import os
import pkgutil
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TIMEOUT = 60.0
"""Seconds for an answer."""
FILES = 64
"""The most descriptors of an order."""
HIGHEST = 1023
"""The number of a command's socket to the process that forks its children: higher than those of files that it opens."""
PARENTS = {("mainspring", "run"), ("mainspring", "worker"), ("mainspring.cli.worker_process", "")}
"""Modules, and words among their arguments, of commands that start processes."""
NOT_OF_FORKS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to the group of a command that are not for the process beside it."""


class Forker:
    """The side of the process that orders: what is forked becomes its child."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(TIMEOUT)
        self.descriptor = connection.fileno()
        self._lock = threading.Lock()
        self._libc = ctypes.CDLL(None)

    def fork(self, order: Mapping[str, Any], files: Sequence[int]) -> int:
        """Return the pid of a new process; 0 where the environment needs a fresh start. Raises OSError."""
        with self._lock:
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [marshal.dumps(dict(order))], files)
                answer = self._socket.recv(64)
            finally:
                self._libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
        if not answer:
            raise EOFError
        return int(answer)


SIGNATURE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]  # noqa: SLF001 - the one place where it starts a program


def forked(process: Any, arguments: Sequence[Any], fork: Callable[[Mapping[str, Any], Sequence[int]], int]) -> bool:
    """Start the program of a ``subprocess.Popen`` by a fork; return False where that would make a difference.

    ``arguments`` are those of its method ``_execute_child``, which this takes the place of.
    """
    values = SIGNATURE.bind(process, *arguments).arguments
    words = _words(values["args"])
    if (
        not _is_forkable(words)
        or any(values[name] for name in ("executable", "preexec_fn", "shell"))
        or any(values[name] is not None for name in ("gid", "gids", "uid"))
        or not values["close_fds"]
        or values["umask"] != -1
        or values["process_group"] > 0
    ):
        return False
    standard = [values["p2cread"], values["c2pwrite"], values["errwrite"]]
    passed = sorted(values["pass_fds"])
    order = {
        "arguments": words[1:],
        "directory": os.fsdecode(values["cwd"] or Path.cwd()),
        "environment": dict(os.environ if values["env"] is None else values["env"]),
        "umask": _umask(),
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "session": values["start_new_session"],
        "group": values["process_group"] == 0,
        "numbers": [0, 1, 2, *passed],
    }
    pid = fork(order, [*(number if file == -1 else file for number, file in enumerate(standard)), *passed])
    if not pid:
        return False
    process.pid = pid
    process._child_created = True  # noqa: SLF001 - what the method does
    process._close_pipe_fds(  # noqa: SLF001 - what the method does
        *(values[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
    )
    return True


def _words(given: Any) -> list[str]:
    return [os.fsdecode(word) for word in ([given] if isinstance(given, str | bytes | os.PathLike) else given)]


def _is_forkable(words: Sequence[str]) -> bool:
    """Return whether this runs a module or a program in a file, without options for Python but ``-P``."""
    return words[0] == sys.executable and (words[1] == "-m" or words[1:3] == ["-P", "-m"] or words[1].endswith(".py"))


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


class Forks:
    """Serves orders until the socket of the process that orders closes; ``listener``: that of stand-ins."""

    def __init__(self, tester: socket.socket, listener: socket.socket | None = None) -> None:
        self._tester = tester
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(tester, selectors.EVENT_READ)
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ)
        self._commands: dict[socket.socket, tuple[int, int]] = {}
        """By the connection of each stand-in, the pid of its command and the descriptor of this process."""

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Execute orders. Returns an order with its files in the process that has to execute it, and None at the end."""
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
                    self._close()
                    return order, files

    def _start_for_tester(self) -> bool:
        """Start a process whose parent is the tester; return whether this is the process."""
        go, going = os.pipe()
        reply, replying = os.pipe()
        # The parent may send a signal at once: it waits until the process is what was ordered.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        intermediate = os.fork()
        if not intermediate:
            pid = os.fork()
            if pid:
                os.write(replying, b"%d" % pid)
                os._exit(0)
            os.close(going)
            if not os.read(go, 1):  # the parent is the tester from here on
                os._exit(1)
            os.close(go)
            os.close(reply)
            os.close(replying)
            return True
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
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

    def _close(self) -> None:
        self._selector.close()
        for one in (self._tester, self._listener, *self._commands):
            if one is not None:
                one.close()
        for _, descriptor in self._commands.values():
            os.close(descriptor)


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return an order and its files; None at the end of the connection."""
    try:
        data, files, _, _ = socket.recv_fds(connection, LARGEST, FILES)
    except ConnectionError:
        return None, []
    return (marshal.loads(data) if data else None), files


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if value and name.startswith(READ_AT_START) and name not in READ_LATE
    }


def next_order(forks: Forks) -> dict[str, Any] | None:
    """Execute orders until the end, or until this process is one that was ordered: then return its order."""
    while (ordered := forks.serve()) is not None:
        order, files = ordered
        if order["session"]:
            os.setsid()
        elif order["group"]:
            os.setpgid(0, 0)
        to_forks = None
        if _is_parent(order["arguments"]):
            to_forks, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = os.getpid()
            if not os.fork():
                to_forks.close()
                for file in files:
                    os.close(file)
                _stand_beside(command)
                forks = Forks(ours)
                continue
            ours.close()
        _become(order, files, to_forks)
        return order
    return None


def _is_parent(arguments: Sequence[str]) -> bool:
    """Return whether a command starts processes."""
    at = arguments.index("-m") + 1 if "-m" in arguments[:2] else 0
    module = arguments[at] if at else Path(arguments[0]).name
    return any(module == name and (not word or word in arguments[at + 1 :]) for name, word in PARENTS)


def _stand_beside(command: int) -> None:
    """Be the process that forks the children of a command: it ends with the command, and not by signals to its group."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != command:
        os._exit(1)
    for number in NOT_OF_FORKS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _become(order: Mapping[str, Any], files: Sequence[int], to_forks: socket.socket | None) -> None:
    """Leave nothing of this program but its modules: this process is the command from now on."""
    numbers = order["numbers"]
    above = max(numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    kept = list(moved)
    if to_forks is not None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        forker = Forker(socket.socket(fileno=fcntl.fcntl(to_forks, fcntl.F_DUPFD_CLOEXEC, min(HIGHEST, most - 1))))
        to_forks.close()
        kept.append(forker.descriptor)
        _fork_children(forker)
    begin = 3
    for number in sorted(kept):
        os.closerange(begin, number)
        begin = number + 1
    os.closerange(begin, 1 << 20)
    for number, file in zip(numbers, moved, strict=True):
        os.dup2(file, number)
        os.close(file)
    for one in NOT_OF_FORKS:
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    gc.enable()


def _fork_children(forker: Forker) -> None:
    """Have the package's own processes that this one starts forked."""
    default = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # noqa: SLF001 - the one place where it starts a program
    own = os.getpid()

    def fork(order: Mapping[str, Any], files: Sequence[int]) -> int:
        try:
            return forker.fork(order, files)
        except (OSError, EOFError):
            return 0

    def execute_child(process: Any, *arguments: Any) -> None:
        words = _words(SIGNATURE.bind(process, *arguments).arguments["args"])
        of_package = words[1:3] == ["-P", "-m"] and words[3].startswith("mainspring.")
        if os.getpid() != own or not of_package or not forked(process, arguments, fork):
            default(process, *arguments)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]  # noqa: SLF001 - as above


def execute(order: dict[str, Any]) -> None:
    """Be the process of an order, as Python would after its start; SystemExit and other exceptions end it as usual."""
    os.chdir(order["directory"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    # Bytecode counts for its source by the second of the last change and the size. Pages change a program several times a second.
    sys.dont_write_bytecode = True
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = _opened(number, name, mode, getattr(sys, name), unbuffered=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.orig_argv = [sys.executable, *order["arguments"]]
    word, *arguments = order["arguments"]
    if word == "-P":
        _set_safe_path()
        word, *arguments = arguments
    if word == "-m":
        if sys.flags.safe_path:
            del sys.path[0]
        else:
            sys.path[0] = os.getcwd()  # noqa: PTH109 - a string
        module, *arguments = arguments
        sys.argv = ["-m", *arguments]
        sys.modules.pop(module, None)  # it was imported with the others
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(word))  # noqa: PTH120 - as Python itself does
        sys.argv = [word, *arguments]
        runpy.run_path(word, run_name="__main__")


def _set_safe_path() -> None:
    """Set the flag of ``-P``, which Python has no way to change."""
    index = type(sys.flags).__match_args__.index("safe_path")
    set_item = ctypes.pythonapi.PyStructSequence_SetItem
    set_item.argtypes, set_item.restype = [ctypes.py_object, ctypes.c_ssize_t, ctypes.py_object], None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(True))  # the sequence owns what it gets
    set_item(sys.flags, index, True)


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
    order = next_order(Forks(socket.socket(fileno=tester), socket.socket(fileno=listener)))
    if order is not None:
        try:
            execute(order)
        except SystemExit as end:
            exit_at_once(end)
        else:
            exit_at_once(SystemExit())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
