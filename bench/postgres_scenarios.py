"""The scenarios for nodes on PostgreSQL, each with its figure."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import statistics
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from admin import connect, counts
from generator import LoadError, load
from measure import Run, Scale
from scenarios import CAN_DO, PRE_SLEEP, WIDE, packet
from streaming import Holder, await_jobs, peers

from postgres import programs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_fleet import Fleet

    from postgres import Database, ServerOnPostgres

LEASE = 15.0
"""Seconds of the nodes' default lease."""
HELD = 10_000
IDLE_WORKERS = 16
STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]+): (.{1,60})")


def death(fleet: Fleet, scale: Scale) -> Run:
    """Return the seconds until one job of a killed node runs elsewhere."""
    return recovery(fleet, scale, held_jobs=1)


def recovery(fleet: Fleet, _: Scale, held_jobs: int = HELD) -> Run:
    """Return the seconds until all jobs of a killed node run elsewhere.

    The node is killed just after a heartbeat: by its lease alone, it would live longest. Its workers hold all jobs, and the
    workers of the other nodes have places for all of them.
    """
    victim, *others = fleet.nodes
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(peers([victim.port], _holder))
        load(victim, "submit", jobs=held_jobs, unique="random", **WIDE)
        await_jobs(held, held_jobs, 20)
        _await(fleet.database, f"SELECT count(*) = {held_jobs} FROM mainspring.jobs WHERE state = 3", "t")
        heirs = stack.enter_context(peers([node.port for node in others], _holder))
        counter = "SELECT counter FROM mainspring.nodes WHERE about->>'name' = 'n1'"
        before = fleet.database.sql(counter)
        while fleet.database.sql(counter) == before:
            time.sleep(0.01)
        victim.stop(signal.SIGKILL)
        killed_at = time.monotonic()
        first_at = await_jobs(heirs, 1, LEASE * 4)
        last_at = await_jobs(heirs, held_jobs, LEASE * 4)
    details = {
        "jobs": held_jobs,
        "seconds": last_at - killed_at,
        "first_job_after_s": first_at - killed_at,
        "lease_s": LEASE,
        "by_node": [len(heir.handles) for heir in heirs],
    }
    return Run(last_at - killed_at, details)


def _holder(port: int) -> Holder:
    return Holder(port, "bench", HELD)


def _await(database: Database, query: str, value: str) -> None:
    deadline = time.monotonic() + 20
    while (found := database.sql(query)) != [[value]]:
        if time.monotonic() > deadline:
            raise LoadError(f"{query}: {found}")
        time.sleep(0.05)


def idle(fleet: Fleet, scale: Scale) -> Run:
    """Return the queries per second of a fleet that has run jobs, has workers, and is idle."""
    load(fleet, "e2e", jobs=2_000, workers=6, **WIDE)
    with _sleepers(fleet, IDLE_WORKERS):
        time.sleep(12)  # wait for the work after the jobs: the journal is folded, and the first sweep is done
        found = statements_per_second(fleet.database, scale.count(60, 10))
        for node in fleet.nodes:
            with connect(f"127.0.0.1:{node.port}") as connection:
                if counts(connection, "bench").workers != IDLE_WORKERS:
                    raise LoadError(f"{node.contestant.name} is not the one that the workers had connected to")
    return Run(found["rate"], {"seconds": found["seconds"], "queries_per_s": found["by_kind"]})


def statements_per_second(database: Database, seconds: float) -> dict[str, Any]:
    """Return how many statements per second the database logs, in all and by their beginnings."""
    database.set(log_statement="all")
    time.sleep(0.5)
    before, started_at = len(database.log()), time.monotonic()
    time.sleep(seconds)
    seconds = time.monotonic() - started_at
    logged = database.log()[before:]
    database.set(log_statement="none")
    kinds = Counter(re.sub(r"\d+", "N", " ".join(found[1].split())) for found in STATEMENT.finditer(logged))
    by_kind = {kind: round(number / seconds, 2) for kind, number in kinds.most_common()}
    return {"rate": kinds.total() / seconds, "seconds": seconds, "by_kind": by_kind}


@contextlib.contextmanager
def _sleepers(fleet: Fleet, each: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for node in fleet.nodes:
            for _ in range(each):
                worker = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=20))
                worker.sendall(packet(CAN_DO, b"bench") + packet(PRE_SLEEP))
        yield


@dataclass(frozen=True)
class Thirds:
    """The rate in the last third of a period divided by the rate in the first, with or without a transaction that pins xmin.

    Jobs run in two ways in turns: directly, with waiting workers, and through a queue that is filled first and then drained.
    The figure is the lower ratio of the two. The details have the processor time per job, which separates dead rows from a busy
    machine.
    """

    pinned: bool
    seconds: int
    quick: int

    def __call__(self, server: ServerOnPostgres, scale: Scale) -> Run:
        jobs, first = scale.count(20_000, 5_000), 0
        _round(server, jobs, first)  # warm up: files and caches reach about their final sizes
        rounds: list[tuple[float, dict[str, float]]] = []
        with _pin(server.database) if self.pinned else contextlib.nullcontext():
            started_at = time.monotonic()
            before = _tables(server.database)
            while (now := time.monotonic() - started_at) < scale.count(self.seconds, self.quick):
                first += 2 * jobs
                rounds.append((now, _round(server, jobs, first)))
            after = _tables(server.database)
            seconds = time.monotonic() - started_at
        ratios = {what: _last_to_first(rounds, what, seconds) for what in rounds[0][1]}
        details = {
            "seconds": seconds,
            "ratios": ratios,
            "tables_at_first": before,
            "tables_at_last": after,
            "rounds": len(rounds),
            "medians_by_twelfths": [_medians(rounds, seconds / 12 * part, seconds / 12) for part in range(12)],
        }
        return Run(min(ratios["straight"], ratios["queued"]), details)


def _round(server: ServerOnPostgres, jobs: int, first: int) -> dict[str, float]:
    """Return the jobs per second of both ways, and the processor time of node and database per job in microseconds."""
    database_before = server.database.cpu_seconds()
    straight = load(server, "e2e", jobs=jobs, first=first, unique="random", workers=16, **WIDE)
    filled = load(server, "submit", jobs=jobs, first=first + jobs, unique="random", **WIDE)
    drained = load(server, "drain", jobs=jobs, first=first + jobs, workers=16)
    node = sum(run["server_cpu_s"] for run in (straight, filled, drained))
    database = server.database.cpu_seconds() - database_before
    return {
        "straight": straight["rate"],
        "queued": jobs / (filled["seconds"] + drained["seconds"]),
        "node_cpu_us": node / jobs / 2 * 1e6,
        "database_cpu_us": database / jobs / 2 * 1e6,
    }


def _medians(rounds: list[tuple[float, dict[str, float]]], start: float, length: float) -> dict[str, int]:
    within = [found for at, found in rounds if start <= at < start + length]
    return {what: round(statistics.median(found[what] for found in within)) for what in rounds[0][1] if within}


def _last_to_first(rounds: list[tuple[float, dict[str, float]]], what: str, seconds: float) -> float:
    first = [found[what] for at, found in rounds if at < seconds / 3]
    last = [found[what] for at, found in rounds if at >= seconds * 2 / 3]
    if not first or not last:
        raise LoadError("too few turns to compare the thirds")
    return statistics.median(last) / statistics.median(first)


@contextlib.contextmanager
def _pin(database: Database) -> Iterator[None]:
    """Keep a transaction open with a snapshot of the database: no row that dies from now on can be vacuumed."""
    session = subprocess.Popen(
        [programs() / "psql", "-qAtX", database.dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert session.stdin is not None
    assert session.stdout is not None
    try:
        session.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 'pinned' FROM pg_class LIMIT 1;\n")
        session.stdin.flush()
        if session.stdout.readline() != "pinned\n":
            raise LoadError("xmin could not be pinned")
        yield
        if session.poll() is not None:
            raise LoadError("the session that pinned xmin has ended")
    finally:
        session.kill()
        session.communicate()


def _tables(database: Database) -> dict[str, dict[str, Any]]:
    """Return sizes in bytes and numbers of live and dead rows of the tables that groups write."""
    rows = database.sql(
        "SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup FROM pg_stat_user_tables"
        " WHERE schemaname = 'mainspring' AND (n_live_tup > 0 OR n_dead_tup > 0) ORDER BY 2 DESC"
    )
    names = ("table_bytes", "index_bytes", "live", "dead")
    return {row[0]: dict(zip(names, map(int, row[1:]), strict=True)) for row in rows}
