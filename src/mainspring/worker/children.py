"""Processes that Ctrl-C does not end: a terminal sends SIGINT to all processes at once, and the parent decides for its own.

The parent starts them with SIGINT blocked: during its imports, Python would end with a traceback. The child unblocks the signal
once it ignores it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def spawn(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process without input, which calls `ignore_interrupts`; it has these descriptors, too.  Raises OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=descriptors
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Be a process that `spawn` has started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended; returns its code.

    Each has a thread that waits: the loop's own processes cannot be started with SIGINT blocked.
    """
    loop = asyncio.get_running_loop()
    code: asyncio.Future[int] = loop.create_future()

    def tell(number: int) -> None:
        if not code.done():
            code.set_result(number)

    def wait() -> None:
        number = process.wait()
        try:
            loop.call_soon_threadsafe(tell, number)
        except RuntimeError:
            pass  # the loop is closed: the wait is over

    threading.Thread(target=wait, name=f"mainspring child {process.pid}", daemon=True).start()
    return await code
