"""The scenarios: the steps on a server that produce a figure."""

from __future__ import annotations

import signal
import socket
import sqlite3
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generator import load
from measure import NotMeasured, Run, Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Server

MILLION = 1_000_000
WIDE = {"window": 256, "conns": 8}
STALL_SECONDS = 20.0
CAN_DO, PRE_SLEEP, NOOP, GRAB_JOB, NO_JOB, JOB_ASSIGN = 1, 4, 6, 9, 10, 11


@dataclass(frozen=True)
class Rate:
    """Jobs (or echoes) per second of one run of the generator: `jobs` in the full form, `quick` in the quick one."""

    mode: str
    jobs: int
    quick: int
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, server: Server, scale: Scale) -> Run:
        details = load(server, self.mode, jobs=scale.count(self.jobs, self.quick), **dict(self.options))
        return Run(details["rate"], details)


def rate(mode: str, jobs: int, quick: int, **options: Any) -> Rate:
    return Rate(mode, jobs, quick, tuple(options.items()))


def unique_submits_behind(queued: int, quick_queued: int, unique: str) -> Callable[[Server, Scale], Run]:
    """Submit 50,000 jobs with uniques to a server that already has `queued` jobs with uniques."""

    def scenario(server: Server, scale: Scale) -> Run:
        waiting = scale.count(queued, quick_queued)
        preload = load(server, "submit", jobs=waiting, unique=unique, **WIDE)
        details = load(server, "submit", jobs=scale.count(50_000, 2_000), first=waiting, unique=unique, **WIDE)
        return Run(details["rate"], {**details, "preload": preload})

    return scenario


def memory_growth(server: Server, _: Scale) -> Run:
    """Return the MB by which resident memory grows from 1M to 10M queued jobs of 12 bytes."""
    first = load(server, "submit", jobs=MILLION, **WIDE)
    at_first = server.rss_kib()
    more = load(server, "submit", jobs=9 * MILLION, first=MILLION, **WIDE)
    at_last = server.rss_kib()
    details = {"rss_kib_at_1m": at_first, "rss_kib_at_10m": at_last, "rates": [first["rate"], more["rate"]]}
    return Run((at_last - at_first) * 1024 / 1e6, details)


def memory_growth_where_it_fits(server: Server, scale: Scale) -> Run:
    """Return the same for a server that stores jobs in memory: 10M jobs need about 8 GB."""
    if _available_gib() < 16:
        raise NotMeasured("gearmand needs 16 GiB of free memory for 10M jobs")
    return memory_growth(server, scale)


def restart(server: Server, scale: Scale) -> Run:
    """Return the seconds from the start of the process to the first assigned job, after SIGKILL with 1M stored jobs."""
    jobs = scale.count(MILLION, 20_000)
    load(server, "submit", jobs=jobs, **WIDE)
    server.stop(signal.SIGKILL)
    return time_to_first_job(server, jobs)


def restart_of_gearmand(server: Server, scale: Scale) -> Run:
    """Return the same with 100,000 jobs: with a million gearmand assigns none within 20 seconds.

    The queue is filled through SQLite, because submitting takes a minute and a half.
    """
    jobs = scale.count(100_000, 20_000)
    load(server, "submit", jobs=1, unique="seq")  # creates the file and its table
    server.stop()
    database = sqlite3.connect(server.directory / "queue.db")
    with database:
        rows = ((f"order-{job:012d}", "bench", 1, b"%012d" % job, 0) for job in range(1, jobs))
        database.executemany("INSERT INTO gearman_queue VALUES (?, ?, ?, ?, ?)", rows)
    database.close()
    return time_to_first_job(server, jobs)


def time_to_first_job(server: Server, jobs: int) -> Run:
    started_at = time.perf_counter()
    server.start()
    listening_after = time.perf_counter() - started_at
    with socket.create_connection(("127.0.0.1", server.port), timeout=STALL_SECONDS) as worker:
        _grab_one(worker)
    seconds = time.perf_counter() - started_at
    return Run(seconds, {"stored_jobs": jobs, "listening_after_s": listening_after, "first_job_after_s": seconds})


def _grab_one(worker: socket.socket) -> None:
    """Grab jobs as a worker does, sleeping in between, until one is assigned."""
    worker.sendall(packet(CAN_DO, b"bench") + packet(GRAB_JOB))
    for kind in _packet_types(worker):
        if kind == JOB_ASSIGN:
            return
        if kind == NO_JOB:
            worker.sendall(packet(PRE_SLEEP))
        elif kind == NOOP:
            worker.sendall(packet(GRAB_JOB))


def packet(kind: int, body: bytes = b"") -> bytes:
    """Return a request of the Gearman protocol."""
    return b"\0REQ" + struct.pack(">II", kind, len(body)) + body


def _packet_types(connection: socket.socket) -> Iterator[int]:
    stream = connection.makefile("rb")
    while header := stream.read(12):
        kind, length = struct.unpack(">4xII", header)
        stream.read(length)
        yield kind


def _available_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0
