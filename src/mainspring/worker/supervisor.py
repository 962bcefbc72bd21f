"""Several worker processes, kept alive."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.worker.children import ended, spawn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

RECYCLED_EXIT: Final = 85
"""The exit code of a worker that has ended to be started anew."""

HOPELESS_EXITS: Final = frozenset({2})
"""Exit codes after which a new start would end the same way: the App or the settings are wrong."""

FIRST_DELAY: Final = 0.5
LAST_DELAY: Final = 30.0
HURRY: Final = signal.SIGUSR2
"""Tells a supervised process to stop now. No other signal is left to say so: SIGTERM may come twice, from the supervisor and
from systemd or a container, and a terminal sends SIGINT to all processes at once.
"""

HEALTHY_AFTER: Final = 30.0
"""Seconds of life after which a worker's crash is taken for a single mishap."""

_log = structlog.get_logger(__name__)


class Supervisor:
    """Runs ``processes`` processes of a command, and starts one again that ends before ``stop``.

    ``command`` is called with the number of the process, from 0 on, and returns its arguments.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], processes: int) -> None:
        self._command = command
        self._processes = processes
        self._living: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = asyncio.Event()
        self._code = 0

    def stop(self, *, now: bool = False) -> None:
        """Have all processes end politely; ``now``: without waiting for running jobs, also in a polite stop."""
        if now:
            self._signal(HURRY)
        elif not self._stopping.is_set():
            self._signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """Stop politely; called in a stop: stop now."""
        self.stop(now=self._stopping.is_set())

    def kill(self) -> None:
        """End all processes by force."""
        self._signal(signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [process.pid for process in self._living.values()]

    async def run(self) -> int:
        """Keep the processes running until ``stop``; return 0, or the exit code of a hopeless one."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._processes):
                    group.create_task(self._keep(number), name=f"mainspring worker {number}")
        finally:
            self.kill()  # nothing is left, unless this was cancelled
        return self._code

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            begun = loop.time()
            process = self._living[number] = spawn(self._command(number))
            try:
                code = await ended(process)
            finally:
                del self._living[number]
            if self._stopping.is_set():
                return
            if code == RECYCLED_EXIT:
                _log.info("worker recycled", process=number, pid=process.pid)
                continue
            if code in HOPELESS_EXITS:
                self._code = code
                self.stop()
                return
            if loop.time() - begun > HEALTHY_AFTER:
                delay = FIRST_DELAY
            _log.warning("worker ended", process=number, pid=process.pid, code=code, again_in=delay)
            try:
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            delay = min(delay * 2, LAST_DELAY)

    def _signal(self, number: signal.Signals) -> None:
        self._stopping.set()
        for process in self._living.values():
            process.send_signal(number)  # does nothing where it has just ended
