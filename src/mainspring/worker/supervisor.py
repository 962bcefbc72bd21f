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
from mainspring.worker.turn_clock import INTERVAL, STOP_LIMIT, TurnClock, is_traced

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

RECYCLED_EXIT: Final = 85
"""The exit code of a worker that has ended in order to be restarted."""

FROZEN_EXIT: Final = 86
"""The exit code of a worker that has ended because its event loop was blocked."""

KILL_MARGIN: Final = 2.0
"""Seconds for which a blocked process has the chance to end itself, before it is killed."""

REPORT_TIME: Final = 15.0
"""Seconds for a process that ends itself to report to its servers."""

FATAL_EXITS: Final = frozenset({2, 3})
"""Exit codes that a restart would repeat: the App or the settings are wrong, or a server is not Mainspring. A task may end its
process with the same codes: these count only while no job runs."""

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
    turns: TurnClock


class Supervisor:
    """Runs ``processes`` processes of a command, and restarts those that end before ``stop``.

    ``command`` returns the arguments of a process. A process that crashed with running jobs is restarted at once, and leaves
    their functions out for a while. A process that crashed without jobs is restarted after a delay.

    A process whose event loop has not turned for ``frozen_after`` seconds ends itself, or is killed. 0: its loop is not watched.
    """

    def __init__(self, command: Callable[[Start], Sequence[str]], processes: int, frozen_after: float = 0) -> None:
        self._frozen_after = frozen_after
        self._hurries = False
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

    def hurry(self) -> None:
        """Detect frozen processes sooner, and replace none: their node stops, and waits for their jobs."""
        self._hurries = True
        for living in self._living.values():
            job_counters.request_stop(living.counters)

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
        watch = asyncio.create_task(self._watch(), name="mainspring watch of workers")
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._processes):
                    group.create_task(self._keep(number), name=f"mainspring worker {number}")
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        return self._code

    async def _watch(self) -> None:
        """Kill frozen processes."""
        while self._frozen_after:
            await asyncio.sleep(INTERVAL)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Kill the processes that are frozen at this time, and that do not end by themselves."""
        hurries = self._hurries or self._stopping.is_set()
        for number, living in self._living.items():
            counts = job_counters.read(living.counters)
            if counts is None:
                continue
            quiet = living.turns.look(counts.turns, now)
            limit = min(self._frozen_after, STOP_LIMIT) if hurries else self._frozen_after
            if quiet < limit + (REPORT_TIME if counts.ends else KILL_MARGIN) or is_traced(living.process.pid):
                continue
            _log.error(
                "a worker process is frozen and is killed",
                process=number,
                pid=living.process.pid,
                seconds=round(quiet, 1),
                jobs=counts.jobs,
            )
            living.process.kill()

    async def _keep(self, number: int) -> None:
        delays = Delay()
        while not self._stopping.is_set():
            descriptor = job_counters.create()
            try:
                start = Start(number, descriptor, self._backoff.left_out(time.monotonic()))
                process = spawn(self._command(start), descriptors=(descriptor,))
                self._living[number] = _Living(process, descriptor, TurnClock(time.monotonic()))
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
            if self._stopping.is_set() or self._hurries:
                return
            if code == RECYCLED_EXIT:
                _log.info("worker recycled", process=number, pid=process.pid)
            elif code == FROZEN_EXIT and counts is not None:
                culprits = frozenset({counts.blocking}) if counts.blocking else counts.running
                left_out = self._backoff.crashed(culprits, (), time.monotonic())
                _log.warning("frozen worker replaced", process=number, pid=process.pid, again_in=0, left_out=left_out)
            elif counts is not None and counts.running:
                left_out = self._backoff.crashed(counts.running, self._crashers() | counts.crashers, time.monotonic())
                _log.warning("worker ended", process=number, pid=process.pid, code=code, again_in=0, left_out=left_out)
            elif code in FATAL_EXITS:
                self._code = code
                self.stop()
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
        self.hurry()
        for living in self._living.values():
            living.process.send_signal(number)  # does nothing if the process has just ended
