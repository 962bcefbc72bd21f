"""The scenarios of workflows on PostgreSQL at scale: a dead node with many runs, sleeping runs, timers, and lists."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import processor_time
import psycopg
import python_api
import workflow_fill
from generator import LoadError, load
from measure import Run, Scale
from postgres_scenarios import LEASE, statements_per_second
from scenarios import MILLION
from streaming import REGISTER, Holder, await_jobs, peers
from workflow_scenarios import CLIENT, SETTLE_SECONDS, TIMER_SECONDS, client, timer_figures, worker_processes

from mainspring.workflows.history import decode_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_fleet import Fleet
    from servers import Server

    from postgres import Database, ServerOnPostgres

ORIGINALS = 100
"""Runs of each kind that are copied."""
AT_WORK = 20_000
"""Runs that workers start and decide besides the copied ones: they fill the nodes' caches."""
OPEN_RUNS = 10_000
LEAD = 8.0
"""Seconds before the first timer at which the nodes have to run: longer than they fetch ahead."""
HEARTBEAT, BEATEN = 1015, 1016
BEATS = 1_000
"""Decisions of one heartbeat."""
TURNS = 3
LISTERS = 10
LIST_INTERVAL = 0.1
LIST_SECONDS = 60


class Decider(Holder):
    """A worker that takes the decisions of a workflow and keeps them, as long as it sends heartbeats for them."""

    def __init__(self, port: int, workflow: str, places: int) -> None:
        super(Holder, self).__init__(port)
        self.handles = set()
        self._jobs: list[tuple[str, str]] = []
        self.send(REGISTER, workflow.encode(), json.dumps({"workflow": {"version": "1"}, "decisions": places}).encode())

    def handle_packet(self, kind: int, body: bytes) -> None:
        if kind == BEATEN:
            if json.loads(body)["lost"]:
                raise LoadError("a worker has lost decisions")
            return
        super().handle_packet(kind, body)
        handle, token = body.split(b"\0", 2)[:2]
        self._jobs.append((handle.decode(), token.decode()))

    def beat(self) -> None:
        """Send heartbeats."""
        for first in range(0, len(self._jobs), BEATS):
            self.send(HEARTBEAT, json.dumps({"jobs": self._jobs[first : first + BEATS]}).encode())
        self.receive_all()


def decided_elsewhere(fleet: Fleet, scale: Scale) -> Run:
    """Return the seconds from SIGKILL of a node until other nodes have handed out the due decisions of all its runs.

    All runs begin at the node, and its worker has all of their decisions. It is killed just after a heartbeat.
    """
    runs = scale.count(OPEN_RUNS, 1_000)
    victim, *others = fleet.nodes
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(peers([victim.port], lambda port: Decider(port, "sleep_long", runs)))
        program = stack.enter_context(
            subprocess.Popen(
                [*CLIENT, "starts", str(runs)], env=python_api.environment(victim), stdout=subprocess.DEVNULL
            )
        )
        await_jobs(held, runs, 120)
        if program.wait(60):
            raise LoadError("the client has failed")
        time.sleep(1)
        held[0].beat()
        heirs = stack.enter_context(
            peers([node.port for node in others], lambda port: Decider(port, "sleep_long", runs))
        )
        time.sleep(2)
        counter = "SELECT counter FROM mainspring.nodes WHERE about->>'name' = 'n1'"
        before = fleet.database.sql(counter)
        held[0].beat()
        while fleet.database.sql(counter) == before:
            time.sleep(0.01)
        held[0].beat()
        if any(heir.handles for heir in heirs):
            raise LoadError("a node has decisions of the other one before its death")
        victim.stop(signal.SIGKILL)
        killed_at = time.monotonic()
        first_at = await_jobs(heirs, 1, LEASE * 4)
        last_at = await_jobs(heirs, runs, LEASE * 4)
        time.sleep(1)
        twice = sum(len(heir.handles) for heir in heirs) - runs
        if twice:
            raise LoadError(f"{twice} decisions were handed out by two nodes")
    details = {
        "runs": runs,
        "first_after_s": first_at - killed_at,
        "seconds": last_at - killed_at,
        "by_node": [len(heir.handles) for heir in heirs],
    }
    return Run(last_at - killed_at, details)


def originals(server: ServerOnPostgres) -> None:
    """Make the runs that `workflow_fill` copies."""
    with worker_processes(server):
        client(server, "originals", ORIGINALS)
        time.sleep(2)


def sleepers(fleet: Fleet, scale: Scale) -> dict[str, Any]:
    """Return the costs of many sleeping runs on three nodes.

    The growth of the node that has grown most, in MB; the disk of each run, in KB; and the statements per second of the idle
    fleet, with a worker process that is connected to all nodes.
    """
    runs = scale.count(MILLION, 10_000)
    originals(fleet.nodes[0])
    for node in fleet.nodes:
        node.stop()
        node.start()
    with worker_processes(fleet):
        time.sleep(SETTLE_SECONDS)
        before = [node.rss_kib() for node in fleet.nodes]
        disk = workflow_fill.fill(fleet.database, workflow_fill.Fill(runs))
        client(fleet, "sleepers", scale.count(AT_WORK, 1_000))
        time.sleep(SETTLE_SECONDS)
        at_work = [node.rss_kib() for node in fleet.nodes]
        time.sleep(30)  # the work after the last runs
        statements = statements_per_second(fleet.database, scale.count(60, 10))
        after = [node.rss_kib() for node in fleet.nodes]
    grown = [max(both) - first for first, *both in zip(before, at_work, after, strict=True)]
    return {
        "memory_mb": max(grown) * 1024 / 1e6,
        "disk_kb": disk / 1e3,
        "statements": statements["rate"],
        "rss_kib": {"before": before, "at work": at_work, "idle": after},
        "statements_by_kind": statements["by_kind"],
    }


@dataclass(frozen=True)
class Timers:
    """Timers of as many runs, due within 10 s, without deciders: the p99 of the milliseconds until they are recorded.

    Copied runs, which no node has in memory. A timer that does not fire exactly once is an error.
    """

    runs: int
    quick: int

    def __call__(self, fleet: Fleet, scale: Scale) -> Run:
        runs = scale.count(self.runs, self.quick)
        originals(fleet.nodes[0])
        for node in fleet.nodes:
            node.stop()
        before_fill = time.time()
        workflow_fill.fill_timers(
            fleet.database, runs // 10, before_fill + 365 * 86_400, TIMER_SECONDS
        )  # how long it takes
        first = time.time() + 20 * (time.time() - before_fill) + LEAD + 10
        workflow_fill.fill_timers(fleet.database, runs, first, TIMER_SECONDS, place=10**8)
        for node in fleet.nodes:
            node.start()
        if time.time() > first - LEAD:
            raise LoadError("the runs were not copied in time")
        time.sleep(max(0.0, first - time.time()))
        nodes_cpu, database_cpu = _cpu(fleet), fleet.database.cpu_seconds()
        time.sleep(TIMER_SECONDS + SETTLE_SECONDS)
        figures: dict[str, Any] = {
            "nodes_cpu_s": [now - then for now, then in zip(_cpu(fleet), nodes_cpu, strict=True)],
            "database_cpu_s": fleet.database.cpu_seconds() - database_cpu,
        }
        last_us = int((first + TIMER_SECONDS) * 1e6)
        while fleet.database.sql(f"SELECT FROM mainspring.runs_open WHERE due_us <= {last_us} LIMIT 1"):
            time.sleep(1)
        figures |= timer_figures(runs, histories(fleet.database), first)
        return Run(figures["p99_ms"], figures)


def _cpu(fleet: Fleet) -> list[float]:
    return [processor_time.seconds(pid) for pid in fleet.pids()]


def histories(database: Database) -> Iterator[list[Any]]:
    """Yield the events of each run."""
    with psycopg.connect(database.dsn) as connection, connection.cursor("blocks") as cursor:
        cursor.itersize = 10_000
        cursor.execute("SELECT run, block FROM mainspring.history ORDER BY run, first")
        for _, of_run in itertools.groupby(cursor, lambda row: row[0]):
            yield [event for _, block in of_run for event in decode_events(block)]


def lists(server: ServerOnPostgres, scale: Scale) -> dict[str, Any]:
    """Return the slowest median and the slowest page of lists with many runs, and durable submits beside listing clients.

    The last figure is the p99 of submits with window 1 while ten clients list, divided by that without them.
    """
    originals(server)
    server.stop()
    workflow_fill.fill(
        server.database, workflow_fill.Fill(scale.count(MILLION, 10_000), scale.count(10 * MILLION, 20_000))
    )
    server.start()
    time.sleep(SETTLE_SECONDS)
    alone = client(server, "lists", 1, scale.count(LIST_SECONDS, 10), 0)["lists"]
    submits = beside_lists(server, scale.count(3_000, 500))
    return {
        "p99_ms": max(one["p99_ms"] for one in alone.values()),
        "max_ms": max(one["max_ms"] for one in alone.values()),
        "ratio": submits["ratio"],
        "alone": alone,
        "submits": submits,
    }


def beside_lists(server: Server, count: int) -> dict[str, Any]:
    """Return the p99 of durable submits without and with clients that list runs, in turns, and the ratio of their medians."""
    without: list[float] = []
    beside: list[float] = []
    listed: list[Any] = []
    for turn in range(TURNS):
        without.append(load(server, "submit", jobs=count, first=2 * turn * count)["latency_us"]["p99"])
        command = [*CLIENT, "lists", str(LISTERS), "0", str(LIST_INTERVAL)]
        environment = python_api.environment(server)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as program:
            time.sleep(1)
            beside.append(load(server, "submit", jobs=count, first=(2 * turn + 1) * count)["latency_us"]["p99"])
            output, _ = program.communicate("")
        if program.returncode:
            raise LoadError("the clients that list runs have failed")
        listed.append(json.loads(output.splitlines()[-1])["lists"])
    medians = statistics.median(without), statistics.median(beside)
    return {"ratio": medians[1] / medians[0], "p99_us": medians, "lists": listed}
