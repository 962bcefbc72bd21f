"""Processes of Mainspring: how they start, what they inherit, the event loop that they run, and how they end.

Child processes are Python modules that import nothing from the working directory. A terminal sends SIGINT to all processes at
once, but their parent stops them. The parent starts them with SIGINT blocked, because during its imports Python would end with
a traceback. The child unblocks the signal when it ignores it. A child ends with its parent (`die_with`).

A task's fork (``os.fork``, ``multiprocessing``) inherits the worker's handler of SIGTERM, and the descriptor through which
signals wake the worker's loop: SIGTERM to the fork would stop the worker. It also inherits open connections, which would
outlive the worker, so that the server would not detect the worker's end. `disown` separates the fork from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


_PR_SET_PDEATHSIG = 1


def die_with(parent: int, how: signal.Signals) -> None:
    """Make the kernel send this process a signal when the parent ends; exit at once if the parent has already ended.

    This works on Linux only; elsewhere, the process must detect the end of the pipe to its parent. (The kernel watches the
    parent's *thread*, so the parent must start its children from a thread that lives as long as the process.)
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def disown(descriptors: Callable[[], Iterable[int]]) -> None:
    """Make all later forks of this process reset SIGTERM and close the descriptors that ``descriptors`` returns."""
    masks = threading.local()

    def block() -> None:
        # A SIGTERM that arrives before the fork has reset its handler would still wake the worker.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def reset() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors():
            # A closed number could be reused, and the descriptor's owner would then close another file.
            os.dup2(null, descriptor)
        os.close(null)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)


def resident_bytes() -> int:
    """Return this process's resident size; on systems that do not provide it, the largest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop, or of asyncio on a platform without it."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop  # noqa: PLC0415 - commands without a loop start without it

    return uvloop.new_event_loop()
