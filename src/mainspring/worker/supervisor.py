"""Worker processes, kept alive."""

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
"""The exit code of a worker that has ended to be started anew."""

FATAL_EXITS: Final = frozenset({2, 3})
"""Exit codes after which a new start would end the same way: the App or the settings are wrong, or a server is none."""

STOP_NOW_SIGNAL: Final = signal.SIGUSR2
"""Tells a supervised process to stop now. No other signal is left to say so: SIGTERM may come twice, from the supervisor and
from systemd or a container, and a terminal sends SIGINT to all processes at once.
"""

_log = structlog.get_logger(__name__)


class Start(NamedTuple):
    """What a process is started with."""

    number: int
    """Its place, from 0 on."""
    counters: int
    """The descriptor of its `counters`."""
    left_out: dict[str, float]
    """Functions that it leaves out for a while, each with the monotonic time until which it does."""


class _Living(NamedTuple):
    process: subprocess.Popen[bytes]
    counters: int


class Supervisor:
    """Runs ``processes`` processes of a command, and starts one again that ends before ``stop``.

    ``command`` returns the arguments of a process. One that crashed is started again at once where it had jobs, without their
    functions for a while; where it had none, after a wait.
    """

    def __init__(self, command: Callable[[Start], Sequence[str]], processes: int) -> None:
        self._command = command
        self._processes = processes
        self._living: dict[int, _Living] = {}
        self._backoff = Backoff()
        self._stopping = asyncio.Event()
        self._code = 0

    def stop(self, *, now: bool = False) -> None:
        """Have all processes end politely; ``now``: without waiting for running jobs, also in a polite stop."""
        if now:
            self._signal(STOP_NOW_SIGNAL)
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
        return [living.process.pid for living in self._living.values()]

    @property
    def running(self) -> int:
        """The number of jobs that the processes have under way."""
        seen = [job_counters.read(living.counters) for living in self._living.values()]
        return sum(one.jobs for one in seen if one is not None)

    async def run(self) -> int:
        """Keep the processes running until ``stop``; return 0, or the exit code of a hopeless one."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._processes):
                group.create_task(self._keep(number), name=f"mainspring worker {number}")
        return self._code

    async def _keep(self, number: int) -> None:
        waits = Delay()
        while not self._stopping.is_set():
            descriptor = job_counters.make()
            try:
                start = Start(number, descriptor, self._backoff.left_out(time.monotonic()))
                process = spawn(self._command(start), descriptors=(descriptor,))
                self._living[number] = _Living(process, descriptor)
                try:
                    code = await ended(process)
                except BaseException:  # cancelled: nothing is left behind
                    process.kill()
                    raise
                finally:
                    del self._living[number]
                seen = job_counters.read(descriptor)
            finally:
                os.close(descriptor)
            if self._stopping.is_set():
                return
            if code == RECYCLED_EXIT:
                _log.info("worker recycled", process=number, pid=process.pid)
            elif code in FATAL_EXITS:
                self._code = code
                self.stop()
            elif seen is not None and seen.running:
                left_out = self._backoff.crashed(seen.running, self._crashers() | seen.crashers, time.monotonic())
                _log.warning("worker ended", process=number, pid=process.pid, code=code, again_in=0, left_out=left_out)
            else:
                delay = waits.next(time.monotonic())
                _log.warning("worker ended", process=number, pid=process.pid, code=code, again_in=delay)
                try:
                    async with asyncio.timeout(delay):
                        await self._stopping.wait()
                except TimeoutError:
                    pass

    def _crashers(self) -> frozenset[str]:
        """Return the functions of which suspects have ended processes of their own."""
        seen = [job_counters.read(living.counters) for living in self._living.values()]
        return frozenset().union(*(one.crashers for one in seen if one is not None))

    def _signal(self, number: signal.Signals) -> None:
        self._stopping.set()
        for living in self._living.values():
            living.process.send_signal(number)  # does nothing where it has just ended
