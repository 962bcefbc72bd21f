"""The supervisor of worker processes, which restarts them, and the counters that they share with it.

A worker process that ends by itself is restarted at once. For a while it runs without the functions that were running when
it ended (`Backoff`):

- A function caused the crash if it was the only one, or if one of its suspects has recently crashed a process of its own.
  Only such functions are then left out, for longer after each crash.
- If any of several functions may be the cause, all of them are left out for the shortest time, after every crash, because
  most of them are innocent.

A worker process counts its running jobs, and the turns of its event loop, in shared memory (`JobCounters`). Its supervisor
reads them while the process lives, and after it has died. The worker updates them at each start and end of a job, without a
system call. A pipe would need system calls for each batch, and would wake the supervisor.

::

    length of the names   4 bytes
    names                 JSON, an array of the functions' names, and padding to a multiple of 4 bytes
    jobs                  a counter of 4 bytes: all running jobs
    for each function     two such counters: its jobs in this process, its suspects that have crashed a process of their own
    turns                 rises with each turn of the loop; 0 while no loop runs
    stopping              1 once the supervisor stops the process; the supervisor writes it
    ends                  1 once the process ends because its loop is blocked
    by                    the number of the function that blocks the loop, from 1; 0 if it is unknown

A `TurnClock` tells how long the loop has not turned, as an observer in another thread or process sees it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from mainspring.worker.processes import ended, spawn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mainspring.worker.delivery import Delivery

FIRST_DELAY: Final = 0.5
"""Seconds of the first delay; each further one is twice as long."""
LAST_DELAY: Final = 30.0
"""Seconds of the longest delay."""
HEALTHY_AFTER: Final = 30.0
"""Seconds without a crash after which the delays begin again with the first."""
CRASHER_FOR: Final = 300.0
"""Seconds for which a function counts as the cause of crashes, after one of its suspects has crashed a process of its own."""


class Delay:
    """A delay that doubles with each crash, and is reset after a time without crashes. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until = 0.0

    def next(self, now: float) -> float:
        """Return the delay after a crash at this time."""
        if now - self._until > HEALTHY_AFTER:
            self._seconds = 0.0
        self._seconds = min(self._seconds * 2, LAST_DELAY) or FIRST_DELAY
        self._until = now + self._seconds
        return self._seconds


class Backoff:
    """The functions that one supervisor's workers leave out."""

    def __init__(self) -> None:
        self._delays: dict[str, Delay] = {}
        self._until: dict[str, float] = {}
        self._crashers: dict[str, float] = {}

    def crashed(self, running: Collection[str], crashers: Collection[str], now: float) -> dict[str, float]:
        """Return for how many seconds each function is left out after the crash of a process that was running these.

        ``crashers``: functions whose suspects have crashed processes of their own in a current worker process.
        """
        for name in crashers:
            self._crashers[name] = now
        causes = [name for name in running if now - self._crashers.get(name, -CRASHER_FOR) < CRASHER_FOR]
        if not causes and len(running) == 1:
            causes = list(running)
        if causes:
            delays = {name: self._delays.setdefault(name, Delay()).next(now) for name in causes}
        else:
            delays = dict.fromkeys(running, FIRST_DELAY)
        for name, delay in delays.items():
            self._until[name] = max(now + delay, self._until.get(name, 0.0))
        return delays

    def left_out(self, now: float) -> dict[str, float]:
        """Return the functions that a process started now leaves out, each with the time until which it does."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        return dict(self._until)


_WORD: Final = 4
_MOST: Final = 2**32 - 2
_LAST_WORDS: Final = 4
"""The words about the loop."""


class Counts(NamedTuple):
    """The values of the counters."""

    jobs: int
    """The number of running jobs, in this process or in processes of their own."""
    running: frozenset[str]
    """The functions that run in the worker's process; if it has crashed, one of them is the cause."""
    crashers: frozenset[str]
    """The functions with a suspect that has crashed a process of its own."""
    turns: int = 0
    """Of the event loop; 0 while none runs."""
    ends: bool = False
    """Whether the process ends because its loop is blocked."""
    blocking: str = ""
    """The function that blocks it; empty if it is unknown."""


def create_counters() -> int:
    """Return the descriptor of new counters.  Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mainspring-counters")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read_counters(descriptor: int) -> Counts | None:
    """Return the values of the counters; None if no worker has initialized them."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    length = int.from_bytes(data[:_WORD], "little")
    if not length:
        return None
    names: list[str] = msgspec.json.decode(data[_WORD : _WORD + length])
    counters = memoryview(data)[_padded(_WORD + length) :].cast("I")
    running = frozenset(name for at, name in enumerate(names) if counters[1 + 2 * at])
    crashers = frozenset(name for at, name in enumerate(names) if counters[2 + 2 * at])
    turns, _, ends, by = counters[-_LAST_WORDS:]
    return Counts(counters[0], running, crashers, turns, bool(ends), names[by - 1] if by else "")


def request_stop(descriptor: int) -> None:
    """Note for the process that it is stopped; do nothing if it has not initialized the counters."""
    size = os.fstat(descriptor).st_size
    if size:
        os.pwrite(descriptor, (1).to_bytes(_WORD, sys.byteorder), size - (_LAST_WORDS - 1) * _WORD)


class JobCounters:
    """The worker's side of the counters; its methods are called on the loop's thread."""

    def __init__(self, descriptor: int, functions: Sequence[str]) -> None:
        """Initialize the counters, and close the descriptor.  Raises OSError."""
        names = msgspec.json.encode(functions)
        begin = _padded(_WORD + len(names))
        os.ftruncate(descriptor, begin + _WORD * (1 + 2 * len(functions) + _LAST_WORDS))
        memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        memory[_WORD : _WORD + len(names)] = names
        self._counters = memoryview(memory)[begin:].cast("I")
        self._indexes = {name: 1 + 2 * at for at, name in enumerate(functions)}
        self._turns, self._stopping, self._ends, self._by = (
            1 + 2 * len(functions) + word for word in range(_LAST_WORDS)
        )
        memory[:_WORD] = len(names).to_bytes(_WORD, "little")

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        """Count jobs that are about to start."""
        counters = self._counters
        counters[0] += len(deliveries)
        for delivery in deliveries:
            if delivery.executor != "process":
                counters[self._indexes[delivery.function.name]] += 1

    def ended(self, deliveries: Iterable[Delivery]) -> None:
        """Count jobs that have ended, after `begun` has counted them."""
        counters = self._counters
        for delivery in deliveries:
            counters[0] -= 1
            index = self._indexes[delivery.function.name]
            if delivery.executor != "process":
                counters[index] -= 1
            elif delivery.died and delivery.function.executor != "process":
                counters[index + 1] += 1

    # ---- the loop: `loop_watch.Turns` ----

    def turned(self) -> None:
        """Count a turn of the loop."""
        self._counters[self._turns] = self._counters[self._turns] % _MOST + 1

    def not_turning(self) -> None:
        """Note that the loop does not run."""
        self._counters[self._turns] = 0

    def ends(self, function: str) -> None:
        """Note that the process ends because it is frozen, by this function if it is known."""
        self._counters[self._by] = (self._indexes.get(function, -1) + 1) // 2
        self._counters[self._ends] = 1

    @property
    def stopping(self) -> bool:
        """Whether the supervisor stops the process."""
        return bool(self._counters[self._stopping])


def _padded(size: int) -> int:
    return -(-size // _WORD) * _WORD


INTERVAL: Final = 0.5
"""Seconds between two turns that a loop counts, and between two looks at them."""
LONGEST_LOOK: Final = 2.0
"""Seconds that one look counts at most."""
STOP_LIMIT: Final = 2.0
"""Seconds for which a loop may be blocked during a stop."""


class TurnClock:
    """The time for which a number of turns has stood still. ``now`` is monotonic.

    The time counts the observer's own looks: a machine that was suspended, or a group of processes that was stopped together with
    the observer, has not frozen.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._turns = 0
        self.quiet = 0.0
        """Seconds."""

    def look(self, turns: int, now: float) -> float:
        """Look at the number; return for how many seconds it has not changed. 0 turns: the loop does not run."""
        passed, self._now = now - self._now, now
        if turns != self._turns or not turns:
            self._turns = turns
            self.quiet = 0.0
        else:
            self.quiet += min(passed, LONGEST_LOOK)
        return self.quiet


def is_traced(pid: int) -> bool:
    """Return whether a debugger of the system, such as gdb, has attached to a process. Linux shows that; elsewhere: False."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return any(line.split()[1] != "0" for line in status.splitlines() if line.startswith("TracerPid:"))


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
            request_stop(living.counters)

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
            counts = read_counters(living.counters)
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
            descriptor = create_counters()
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
                counts = read_counters(descriptor)
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

    def _counts(self) -> list[Counts]:
        read = [read_counters(living.counters) for living in self._living.values()]
        return [counts for counts in read if counts is not None]

    def _signal(self, number: signal.Signals) -> None:
        self._stopping.set()
        self.hurry()
        for living in self._living.values():
            living.process.send_signal(number)  # does nothing if the process has just ended
