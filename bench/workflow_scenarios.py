"""The scenarios of workflows: a client program, a node on SQLite and worker processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import processor_time
import python_api
import scenarios
from admin import connect, counts, decisions
from generator import LoadError, load
from measure import Run, Scale
from servers import StartError, descendants

from mainspring.workflows.history import (
    TimerFired,
    TimerStarted,
    WorkflowExecutionCompleted,
    decode_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from servers import Server

HERE = Path(__file__).resolve().parent
APP = HERE / "workflow_app.py"
CLIENT = [sys.executable, str(HERE / "workflow_client.py")]
TASK = "echo"
CONCURRENCY = 32
START_SECONDS = 30.0
LONG_STEPS = 24_900
"""Steps of a run with about 25,000 events."""
LONG_SLEEP = 8.0
"""Seconds in which the worker of the long run is replaced."""
PAGE_CACHE_JOBS = 600_000
"""Queued jobs with random uniques, whose pages are more than a node's page cache."""
TIMER_SECONDS = 10.0
SETTLE_SECONDS = 3.0
MAPPED = 10_000
"""Items of a map, which is too large for one history."""


@dataclass(frozen=True)
class Runs:
    """Runs (or activities) per second of a workflow that concurrent clients start and await."""

    workflow: str
    runs: int
    quick: int
    clients: int = 1
    workers: tuple[str, ...] = ("",)
    """For each worker process, its functions; empty: all."""
    each: int = 1
    """The activities of a run, if they are counted instead of runs."""

    def __call__(self, server: Server, scale: Scale) -> Run:
        runs = scale.count(self.runs, self.quick)
        with worker_processes(server, self.workers) as workers:
            cpu = _Cpu(server, workers)
            figures = client(server, "runs", self.workflow, runs, self.clients)
            return Run(figures["rate"] * self.each, {**figures, **cpu.used()})


class _Cpu:
    """The processor seconds of a node and of workers since this object was created."""

    def __init__(self, server: Server, workers: Sequence[int]) -> None:
        self._pids = (server.pids()[0], *workers)
        self._before = self._now()

    def _now(self) -> list[float]:
        return [processor_time.seconds(pid) for pid in self._pids]

    def used(self) -> dict[str, Any]:
        """Return the seconds of the node, and those of each worker."""
        node, *workers = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return {"node_cpu_s": node, "workers_cpu_s": workers}


@dataclass(frozen=True)
class Signals:
    """Acknowledged signals per second; each run then shows that it has received all of them."""

    runs: int
    seconds: float = 5.0

    def __call__(self, server: Server, scale: Scale) -> Run:
        with worker_processes(server) as workers:
            cpu = _Cpu(server, workers)
            figures = client(server, "signals", scale.count(self.runs, min(self.runs, 100)), self.seconds)
            return Run(figures["rate"], {**figures, **cpu.used()})


@dataclass
class Figure:
    """One of several figures of a scenario. The first cell of a turn runs it, and the others read their figures."""

    name: str
    scenario: Callable[[Server, Scale], dict[str, Any]]
    taken: list[dict[str, Any]]
    """The figures of the turns so far, shared by the cells."""
    turn: int = field(default=0, init=False)

    def __call__(self, server: Server, scale: Scale) -> Run:
        if self.turn == len(self.taken):
            self.taken.append(self.scenario(server, scale))
        figures = self.taken[self.turn]
        self.turn += 1
        return Run(figures[self.name], figures)


def figures(scenario: Callable[[Server, Scale], dict[str, Any]], *names: str) -> list[Figure]:
    """Return the scenarios for the figures of one scenario, which runs once per turn."""
    taken: list[dict[str, Any]] = []
    return [Figure(name, scenario, taken) for name in names]


def tool(name: str, count: int, least: int) -> Callable[[Server, Scale], dict[str, Any]]:
    """Return a scenario of `workflow_tools`, which needs no server."""

    def scenario(server: Server, scale: Scale) -> dict[str, Any]:
        command = [sys.executable, str(HERE / "workflow_tools.py"), name, str(scale.count(count, least))]
        done = subprocess.run(
            command, env=python_api.environment(server), stdout=subprocess.PIPE, text=True, timeout=120, check=True
        )
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures

    return scenario


def cold_decision(server: Server, scale: Scale) -> dict[str, Any]:
    """Return the seconds from a timer until a worker that has nothing of a long run has closed it, and its growth in MB."""
    steps = scale.count(LONG_STEPS, 2_000)
    with contextlib.ExitStack() as stack:
        with worker_processes(server):
            command = [*CLIENT, "long", str(steps), str(LONG_SLEEP)]
            environment = python_api.environment(server)
            program = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
            stack.callback(program.kill)
            asleep = _line(program)
        with worker_processes(server) as (worker,):
            before = _memory_kib(worker, "VmRSS")
            ended = _line(program)
            growth = _memory_kib(worker, "VmHWM") - before
    server.stop()
    (events,) = _histories(server)
    (fired,) = (event for event in events if isinstance(event, TimerFired))
    (closed,) = (event for event in events if isinstance(event, WorkflowExecutionCompleted))
    return {
        "seconds": (closed.at_us - fired.at_us) / 1e6,
        "growth_mb": growth * 1024 / 1e6,
        "events": len(events),
        **asleep,
        **ended,
    }


def rerun(server: Server, scale: Scale) -> dict[str, Any]:
    """Return the seconds of a rerun of a long run with one changed input. It executes that step and the one of its group."""
    with worker_processes(server):
        done = client(server, "rerun", scale.count(1_000, 1_000))
    assert done["executed"] == 2, done
    return done


def mapped(server: Server, scale: Scale) -> dict[str, Any]:
    """Return the rate of the activities of one map, and the growth of its worker in MB."""
    with worker_processes(server) as workers:
        before = _memory_kib(workers[0], "VmRSS")
        cpu = _Cpu(server, workers)
        done = client(server, "map", scale.count(MAPPED, MAPPED))
        growth = _memory_kib(workers[0], "VmHWM") - before
        return {**done, "growth_mb": growth * 1024 / 1e6, **cpu.used()}


def sleepers(server: Server, scale: Scale) -> dict[str, Any]:
    """Return the costs of many sleeping runs: memory of the node in MB, disk in KB for each, and seconds of a restart.

    Queued jobs first fill the page cache of SQLite, which belongs to a node without workflows, too.
    """
    runs = scale.count(scenarios.MILLION, 10_000)
    started_with = server.rss_kib()
    load(server, "submit", jobs=scale.count(PAGE_CACHE_JOBS, 2_000), unique="random", **scenarios.WIDE)
    disk = _disk(server)  # without the log of the running node: its jobs count for the runs
    with worker_processes(server):
        before = server.rss_kib()
        started = client(server, "sleepers", runs)
    time.sleep(SETTLE_SECONDS)
    at_work = server.rss_kib()
    server.stop()
    disk = _disk(server) - disk
    os.sync()
    restart = scenarios.time_to_first_job(server, runs)
    time.sleep(SETTLE_SECONDS)
    return {
        "memory_mb": (max(at_work, server.rss_kib()) - before) * 1024 / 1e6,
        "disk_kb": disk / 1e3 / runs,
        "restart_s": restart.figure,
        "rss_kib": {
            "at the start": started_with,
            "with queued jobs": before,
            "with all runs": at_work,
            "after the restart": server.rss_kib(),
        },
        **started,
    }


def _disk(server: Server) -> int:
    return (server.directory / "jobs.db").stat().st_size


@dataclass(frozen=True)
class Timers:
    """Timers of as many runs, due within 10 s. A timer that does not fire exactly once is an error.

    Without deciders (workers stop before the first timer) the figure is the p99 of the milliseconds from a timer's time until it
    is recorded. With deciders it is timers per second, from the first timer's time until the last run has closed.
    """

    runs: int
    quick: int
    deciders: bool

    def __call__(self, server: Server, scale: Scale) -> Run:
        runs = scale.count(self.runs, self.quick)
        with worker_processes(server):
            figures = client(server, "timers", runs, TIMER_SECONDS, int(self.deciders))
        if not self.deciders:
            time.sleep(max(0.0, figures["last"] + SETTLE_SECONDS - time.time()))
        server.stop()
        figures |= timer_figures(runs, _histories(server), figures["first"])
        return Run(figures["rate"] if self.deciders else figures["p99_ms"], figures)


def timer_figures(runs: int, histories: Iterator[list[Any]], first: float) -> dict[str, Any]:
    """Return how late the timers of runs were, and their rate since the first one. Raises LoadError unless each fired once."""
    late_ms: list[float] = []
    last_us = fired = 0
    for events in histories:
        of_run = _lateness(events)
        late_ms += of_run
        fired += bool(of_run)
        last_us = max(last_us, events[-1].at_us)
    late_ms.sort()
    if not len(late_ms) == fired == runs:
        raise LoadError(f"{len(late_ms)} timers of {fired} of {runs} runs fired")
    return {
        "p50_ms": statistics.median(late_ms),
        "p99_ms": late_ms[int(runs * 0.99)],
        "max_ms": late_ms[-1],
        "rate": runs / (last_us / 1e6 - first),
    }


def _lateness(events: Sequence[Any]) -> list[float]:
    """Return the milliseconds from the times of a run's timers until they are recorded."""
    due_us = {event.id: event.fire_us for event in events if isinstance(event, TimerStarted)}
    return [(event.at_us - due_us.pop(event.started)) / 1e3 for event in events if isinstance(event, TimerFired)]


def _histories(server: Server) -> Iterator[list[Any]]:
    """Yield the events of each run of a node that has stopped."""
    database = sqlite3.connect(server.directory / "jobs.db")
    try:
        blocks = database.execute("SELECT run, block FROM history ORDER BY run, first")
        for _, of_run in itertools.groupby(blocks, lambda row: row[0]):
            yield [event for _, block in of_run for event in decode_events(block)]
    finally:
        database.close()


def client(server: Server, *arguments: object) -> dict[str, Any]:
    """Run the client program."""
    return processes.figures_of([*CLIENT, *map(str, arguments)], python_api.environment(server))


@contextlib.contextmanager
def worker_processes(server: Server, functions: Sequence[str] = ("",)) -> Iterator[list[int]]:
    """Run worker processes, each with some functions or (if empty) all, and wait until they are registered."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_worker(server, number, selected)) for number, selected in enumerate(functions)]
        _await_registrations(server, functions, started)
        yield [process.pid for process in started]


def _worker(server: Server, number: int, functions: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mainspring", "worker", str(APP), "--concurrency", str(CONCURRENCY)]
    command += ["--functions", functions] if functions else []
    return processes.running(command, server.directory / f"worker-{number}.log", python_api.environment(server))


def _await_registrations(server: Server, functions: Sequence[str], started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until each function, or the decisions of a workflow, has as many workers as processes that select it."""
    deadline = time.monotonic() + START_SECONDS
    expected = [name if name == TASK else decisions(name) for name in (name or TASK for name in functions)]
    with connect(python_api.environment(server)["MAINSPRING_SERVER"]) as connection:
        while any(counts(connection, name).workers < expected.count(name) for name in expected):
            ended = [process for process in started if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "".join(log.read_text()[-500:] for log in server.directory.glob("worker-*.log"))
                raise StartError(f"a worker did not start: {logs}")
            time.sleep(0.02)


def _line(program: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of JSON that a client prints. Raises LoadError if it fails instead."""
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        raise LoadError(f"{program.args} has failed")
    figures: dict[str, Any] = json.loads(line)
    return figures


def _memory_kib(pid: int, field_name: str) -> int:
    """Return a field of the status of a worker's processes, such as VmRSS or its greatest value VmHWM."""
    statuses = [Path(f"/proc/{one}/status").read_text() for one in (pid, *descendants(pid))]
    return sum(
        int(line.split()[1]) for status in statuses for line in status.splitlines() if line.startswith(f"{field_name}:")
    )
