"""Child processes that ignore Ctrl-C: a terminal sends SIGINT to all processes at once, but their parent stops them.

The parent starts them with SIGINT blocked, because during its imports Python would end with a traceback. The child unblocks
the signal when it ignores it.
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
    """Start a process without input that will call `ignore_interrupts`; it inherits these descriptors.  Raises OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(  # noqa: S603 - this program's interpreter
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=descriptors
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ignore SIGINT; for processes that `spawn` has started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


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
