"""The supervisor of worker processes, which restarts them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.worker import job_counters
from mainspring.worker.backoff import Backoff, Delay
from mainspring.worker.children import ended, spawn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

RECYCLED_EXIT: Final = 85
"""The exit code of a worker that has ended in order to be restarted."""

FATAL_EXITS: Final = frozenset({2, 3})
"""Exit codes that a restart would repeat: the App or the settings are wrong, or a server is not Mainspring."""

STOP_NOW_SIGNAL: Final = signal.SIGUSR2
"""The signal by which a supervised process stops now. SIGTERM and SIGINT cannot have this meaning: SIGTERM may arrive twice, from
the supervisor and from systemd or a container, and a terminal sends SIGINT to all processes at once.
"""

_log = structlog.get_logger(__name__)


class Start(NamedTuple):
    """The arguments of a process."""

    number: int
    """Its number, from 0."""
    counters: int
    """The descriptor of its `job_counters`."""
    left_out: dict[str, float]
    """Functions that it leaves out, each with the monotonic time until which it does."""


class _Living(NamedTuple):
    process: subprocess.Popen[bytes]
    counters: int


class Supervisor:
    """Runs ``processes`` processes of a command, and restarts those that end before ``stop``.

    ``command`` returns the arguments of a process. A process that crashed with running jobs is restarted at once, and leaves
    their functions out for a while. A process that crashed without jobs is restarted after a delay.
    """

    def __init__(self, command: Callable[[Start], Sequence[str]], processes: int) -> None:
        self._command = command
        self._processes = processes
        self._living: dict[int, _Living] = {}
        self._backoff = Backoff()
        self._stopping = asyncio.Event()
        self._code = 0

    def stop(self, *, now: bool = False) -> None:
        """Stop all processes gracefully; ``now``: without waiting for running jobs, even during a graceful stop."""
        if now:
            self._signal(STOP_NOW_SIGNAL)
        elif not self._stopping.is_set():
            self._signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """Stop gracefully; the second call stops now."""
        self.stop(now=self._stopping.is_set())

    def kill(self) -> None:
        """End all processes by force."""
        self._signal(signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [living.process.pid for living in self._living.values()]

    @property
    def running(self) -> int:
        """The number of jobs that run in the processes."""
        return sum(counts.jobs for counts in self._counts())

    async def run(self) -> int:
        """Keep the processes running until ``stop``; return 0, or the fatal exit code of a process."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._processes):
                group.create_task(self._keep(number), name=f"mainspring worker {number}")
        return self._code

    async def _keep(self, number: int) -> None:
        delays = Delay()
        while not self._stopping.is_set():
            descriptor = job_counters.create()
            try:
                start = Start(number, descriptor, self._backoff.left_out(time.monotonic()))
                process = spawn(self._command(start), descriptors=(descriptor,))
                self._living[number] = _Living(process, descriptor)
                try:
                    code = await ended(process)
                except BaseException:  # cancelled: leave no process behind
                    process.kill()
                    raise
                finally:
                    del self._living[number]
                counts = job_counters.read(descriptor)
            finally:
                os.close(descriptor)
            if self._stopping.is_set():
                return
            if code == RECYCLED_EXIT:
                _log.info("worker recycled", process=number, pid=process.pid)
            elif code in FATAL_EXITS:
                self._code = code
                self.stop()
            elif counts is not None and counts.running:
                left_out = self._backoff.crashed(counts.running, self._crashers() | counts.crashers, time.monotonic())
                _log.warning("worker ended", process=number, pid=process.pid, code=code, again_in=0, left_out=left_out)
            else:
                delay = delays.next(time.monotonic())
                _log.warning("worker ended", process=number, pid=process.pid, code=code, again_in=delay)
                try:
                    async with asyncio.timeout(delay):
                        await self._stopping.wait()
                except TimeoutError:
                    pass

    def _crashers(self) -> frozenset[str]:
        """Return the functions with suspects that have crashed processes of their own."""
        return frozenset().union(*(counts.crashers for counts in self._counts()))

    def _counts(self) -> list[job_counters.Counts]:
        read = [job_counters.read(living.counters) for living in self._living.values()]
        return [counts for counts in read if counts is not None]

    def _signal(self, number: signal.Signals) -> None:
        self._stopping.set()
        for living in self._living.values():
            living.process.send_signal(number)  # does nothing if the process has just ended
