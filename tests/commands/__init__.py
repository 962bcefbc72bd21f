"""Processes of the command: ``start`` and ``run`` take the place of ``subprocess.Popen`` and ``subprocess.run``.

A start of the command takes a quarter of a second of processor time, and a server half a second: nearly all of it for imports.
So one process for each tester imports the package once, and forks a process for each command (see ``forks.py``). A test gets a
child of its own, with its arguments, environment, directory and files; signals, exit codes and processor time are those of any
child. So are those of the processes that the command starts, such as workers: its own process of this kind forks them. A command
starts in the default way where a fork would differ: with variables that Python reads at its start, or as another user. A test
about the start itself, imports, or the command line in the list of processes says ``fresh=True``.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.commands.forks import Forker, forked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT: Final = 60.0
PROGRAM: Final = Path(__file__).with_name("forks.py")
STAND_IN: Final = Path(__file__).with_name("stand_in.py")


class ForkServerError(Exception):
    """The process that forks commands has ended, or does not answer; the message ends with what it wrote."""


class ForkServer:
    """The process that forks the commands of this tester. It ends with the tester."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open as long as the process runs
        self._directory = tempfile.TemporaryDirectory(prefix="forks-", ignore_cleanup_errors=True)
        self.address = str(Path(self._directory.name, "s"))
        """The socket where programs that take the command's place order it."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forker = Forker(self._socket)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(64)
            descriptors = theirs.fileno(), listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=descriptors,
            )

    def stand_ins(self, directory: Path) -> None:
        """Write the programs ``mainspring`` and ``python`` that have their commands forked, for a directory of PATH."""
        for name, script in (
            ("mainspring", shutil.which("mainspring", path=Path(sys.executable).parent)),
            ("python", ""),
        ):
            program = shlex.join([sys.executable, "-IS", str(STAND_IN), self.address, sys.executable, script or ""])
            (directory / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            (directory / name).chmod(0o755)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, order: Mapping[str, Any], files: Sequence[int]) -> int:
        """Start a process, and return its pid: it is a child of this process.

        Returns 0 where the environment needs a fresh start. Raises ForkServerError.
        """
        try:
            return self._forker.fork(order, files)
        except EOFError:
            raise ForkServerError(
                f"the process that forks commands has ended with {self._end()}: {self._written()}"
            ) from None
        except OSError as error:
            raise ForkServerError(f"no command was started: {error!r}: {self._written()}") from error

    def close(self) -> None:
        """End the server. Its commands go on."""
        self._socket.close()
        self._end()
        self._log.close()
        self._directory.cleanup()

    def _end(self) -> int:
        return self._process.wait(TIMEOUT)

    def _written(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")[-3000:]


_servers: Final[dict[int, ForkServer]] = {}
"""By the pid of the process that uses it: a fork of a tester starts another one."""
_lock: Final = threading.Lock()


def fork_server() -> ForkServer:
    """Return the server of this process; the first call starts it."""
    with _lock:
        own = os.getpid()
        if own not in _servers:
            _servers.clear()
            _servers[own] = server = ForkServer()
            atexit.register(_close, own, server)
        return _servers[own]


def _close(owner: int, server: ForkServer) -> None:
    if os.getpid() == owner:
        server.close()


class Command(subprocess.Popen[Any]):
    """A process that was started by a fork where that makes no difference."""

    def _execute_child(self, *arguments: Any) -> None:
        if not forked(self, arguments, fork_server().fork):
            super()._execute_child(*arguments)  # type: ignore[misc]


def start(arguments: Sequence[str | os.PathLike[str]], *, fresh: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Start a command; the options are those of ``subprocess.Popen``. ``fresh``: not by a fork."""
    return (subprocess.Popen if fresh else Command)(arguments, **options)


def run(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    input: Any = None,  # noqa: A002 - the name in subprocess
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    fresh: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as ``subprocess.run`` does; the process is killed at the time-out."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with start(arguments, fresh=fresh, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            error.output, error.stderr = process.communicate()
            raise
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done
