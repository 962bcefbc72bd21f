"""The cells of the Python API: a client program, a server on SQLite and one worker process, in separate processes."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import processor_time
import servers
from admin import connect, counts
from measure import Cell, NotMeasured, Run, Scale, Side
from servers import SOURCES, StartError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from servers import Contestant, Server

HERE = Path(__file__).resolve().parent
CONCURRENCY = 32
START_SECONDS = 30.0


def cells(sqlite: Contestant) -> list[Cell]:
    """Return the cells; they always run with Mainspring, even if another server replaces it in other cells."""
    return [
        Cell(
            key="api-e2e",
            measure="Python API, no-op task, one worker process: end to end",
            required="10,000/s",
            unit="jobs/s",
            sides=(Side("mainspring sqlite", sqlite, end_to_end),),
            at_least=10_000,
        ),
        Cell(
            key="api-results",
            measure="the same until the client has every result",
            required="",
            unit="jobs/s",
            sides=(Side("mainspring sqlite", sqlite, until_results),),
        ),
        Cell(
            key="api-bulk",
            measure="Python API: bulk submit",
            required="30,000/s",
            unit="jobs/s",
            sides=(Side("mainspring sqlite", sqlite, bulk_submit),),
            at_least=30_000,
        ),
        Cell(
            key="api-latency",
            measure="Python API: p50 of submit-to-result",
            required="2 ms",
            unit="ms",
            sides=(Side("mainspring sqlite", sqlite, submit_to_result),),
            under=2.0,
        ),
    ]


def end_to_end(server: Server, scale: Scale) -> Run:
    """Return the jobs per second from the first submit until the server has settled the last job."""
    return with_a_worker(server, "e2e", scale)


def until_results(server: Server, scale: Scale) -> Run:
    """Return the jobs per second from the first submit until the client has the last result."""
    return with_a_worker(server, "results", scale)


def with_a_worker(server: Server, mode: str, scale: Scale) -> Run:
    """Run the client in a mode, with one worker process."""
    with worker(server) as pid:
        cpu_before = processor_time.seconds(pid)
        details = _client(server, mode, scale.count(50_000, 2_000))
        return Run(details["rate"], {**details, "worker_cpu_s": processor_time.seconds(pid) - cpu_before})


def bulk_submit(server: Server, scale: Scale) -> Run:
    """Return the acknowledged jobs per second of submit_many, without workers."""
    _require_mainspring()
    details = _client(server, "bulk", scale.count(200_000, 10_000))
    return Run(details["rate"], details)


def submit_to_result(server: Server, scale: Scale) -> Run:
    """Return the median of the milliseconds from submit to result, for one job after another."""
    with worker(server):
        details = _client(server, "latency", scale.count(2_000, 200))
        return Run(details["p50_ms"], details)


def _client(server: Server, mode: str, jobs: int) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "api_client.py"), mode, str(jobs)]
    return processes.figures_of(command, environment(server))


@contextlib.contextmanager
def worker(server: Server) -> Iterator[int]:
    """Run one worker process, and wait until it is registered."""
    _require_mainspring()
    command = [sys.executable, "-m", "mainspring", "worker", str(HERE / "noop_app.py")]
    command += ["--server", _address(server), "--concurrency", str(CONCURRENCY), "--processes", "1"]
    log = server.directory / "worker.log"
    with processes.running(command, log, environment(server)) as process:
        _await_registration(server, process, log)
        yield process.pid


def _await_registration(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    with connect(_address(server)) as connection:
        while not counts(connection, "noop").workers:
            if process.poll() is not None or time.monotonic() > deadline:
                raise StartError(f"the worker did not start: {log.read_text()[-500:]}")
            time.sleep(0.02)


def _require_mainspring() -> None:
    if str(SOURCES) not in sys.path:
        sys.path.insert(0, str(SOURCES))
    if importlib.util.find_spec("mainspring.app") is None:
        raise NotMeasured("this Mainspring has no Python API")


def _address(server: Server) -> str:
    ports = server.ports if isinstance(server, servers.Nodes) else [server.port]
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def environment(server: Server) -> dict[str, str]:
    """Return the environment of a program that connects to a server."""
    return {**servers.environment(), "MAINSPRING_SERVER": _address(server)}
