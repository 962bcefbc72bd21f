"""Child processes: Python modules that import nothing from the working directory, and that Ctrl-C does not interrupt.

A terminal sends SIGINT to all processes at once, but their parent stops them. The parent starts them with SIGINT blocked, because
during its imports Python would end with a traceback. The child unblocks the signal when it ignores it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


REAPING_INTERVAL: Final = 1.0
"""Seconds between two searches for orphans."""

_children: Final[weakref.WeakSet[subprocess.Popen[bytes]]] = weakref.WeakSet()
"""The processes that `spawn` has started: only their owners may read their exit codes."""


def python(*arguments: str) -> list[str]:
    """Return the command that runs Python with arguments, such as ``-m`` and a module.

    A ``queue.py`` in the working directory must not replace the module of the standard library: ``-P`` leaves this directory out
    of the import path. `mainspring.worker.selector` adds the directories of the user's code behind the standard library.
    """
    return [sys.executable, "-P", *arguments]


def spawn(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process without input that will call `ignore_interrupts`; it inherits these descriptors.  Raises OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(  # noqa: S603 - this program's interpreter
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=descriptors
        )
        _children.add(process)
        return process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def do_nothing(number: int, frame: object) -> None:
    """Ignore a signal in this process alone: programs inherit SIG_IGN, and could then not be interrupted or terminated."""


def ignore_interrupts() -> None:
    """Ignore SIGINT; for processes that `spawn` has started."""
    signal.signal(signal.SIGINT, do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


async def reap_orphans() -> None:
    """Reap the orphans that this process inherits, until cancelled: those of a container whose first process this is.

    Run it on the thread that starts the child processes with `spawn`.
    """
    while True:
        while (orphan := _ended_orphan()) is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
        await asyncio.sleep(REAPING_INTERVAL)


def _ended_orphan() -> int | None:
    """Return a child process that has ended and that this program has not started."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    # Own children hide the orphans behind them for a moment: the threads of `ended` reap them.
    return None if found is None or found.si_pid in {process.pid for process in _children} else found.si_pid


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended, and return its exit code.

    A thread waits for each process, because asyncio cannot start its processes with SIGINT blocked.
    """
    loop = asyncio.get_running_loop()
    code: asyncio.Future[int] = loop.create_future()

    def set_code(number: int) -> None:
        if not code.done():
            code.set_result(number)

    def wait() -> None:
        number = process.wait()
        try:
            loop.call_soon_threadsafe(set_code, number)
        except RuntimeError:
            pass  # the loop is closed

    threading.Thread(target=wait, name=f"mainspring child {process.pid}", daemon=True).start()
    return await code
