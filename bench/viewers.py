"""The cells of viewers: jobs per second while people look at pages, the age of the numbers that they see, and silent clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import processes
from generator import LoadError, load
from http_api import Http
from measure import Cell, Side
from python_api import environment
from scenarios import WIDE
from workflow_scenarios import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from measure import Scale
    from servers import Contestant, Server

HERE: Final = Path(__file__).resolve().parent
PAIRS: Final = 8
SECONDS: Final = 5.0
"""Of one turn."""
FUNCTIONS: Final = 50
MOST_FUNCTIONS: Final = 1000
"""The functions of the silent clients' streams: the largest sample that there is."""
MIX: Final = (
    (0.75, "overview=true&troubles=true", "/"),
    (0.2, "job={handle}&logs={handle}", ""),
    (0.05, "functions=true", ""),
)
"""The parts of the viewers who look at the overview, which is loaded again when its facts change, at one running job each, and at
functions."""
SILENT: Final = 500
CALLERS: Final = 2
"""One caller gets only three quarters of the streams."""
SILENT_MIB: Final = 64.0
HEALTH_SECONDS: Final = 0.5
_API: Final = "/api/v1/namespaces/default"


def cells(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> list[Cell]:
    """Return the cells for a store; ``wrapped`` adapts a scenario to its server."""
    served = replace(contestant, command=f"{contestant.command} --http 127.0.0.1:0")

    def cell(name: str, measure: str, required: str, unit: str, figure: Any, **bounds: float) -> Cell:
        side = Side(f"mainspring {store}", served, wrapped(figure))
        return Cell(f"{key}-{name}", f"viewers on {store}: {measure}", required, unit, (side,), once=True, **bounds)

    many, age = figures(Viewers(200), "ratio", "age_p95_ms")
    (few,) = figures(Viewers(20), "ratio")
    memory, beside = figures(beside_silent_clients, "mib", "ratio")
    no_cost = "jobs/s end to end, window 256, 8 connections, while one process reads {} streams"
    return [
        cell("200", no_cost.format(200), "0.95 x the same bytes from a stub", "x", many, at_least=0.95),
        cell("20", no_cost.format(20), "0.98 x the same bytes from a stub", "x", few, at_least=0.98),
        cell("age", "p95 of the age of the numbers that one of 200 sees", "2 s", "ms", age, under=2000.0),
        cell("silent", f"memory of {SILENT} that read nothing", "64 MiB", "MiB", memory, under=SILENT_MIB),
        cell("silent-jobs", "jobs/s beside them", "0.95 x without them", "x", beside, at_least=0.95),
    ]


@dataclass(frozen=True)
class Viewers:
    """Jobs per second while so many look, divided by those while their process reads a stub, in turns of one server."""

    number: int

    def __call__(self, server: Server, scale: Scale) -> dict[str, Any]:
        """Return the median of the ratios, and the ages of the numbers."""
        watched = Http(server, payloads=True)
        functions = [{"function": f"page{number:02}", "args": []} for number in range(FUNCTIONS)]
        watched.fetch(f"{_API}/jobs/batch", functions)
        looked_at: list[dict[str, Any]] = []

        def beside_viewers(load_once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            with _client("read", watched.address, str(record), streams=streams) as end:
                loaded = load_once()
                looked_at.append(end())
            return loaded

        def beside_stub(load_once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            with (
                _stub(record) as address,
                _client("read", address, str(Path(scratch) / "again"), streams=streams) as end,
            ):
                loaded = load_once()
                end()
            return loaded

        with (
            tempfile.TemporaryDirectory() as scratch,
            _tasks(server, self._part(1)) as handles,
            _healthy(watched.address),
        ):
            record = Path(scratch) / "record"
            streams = [(path, watched.token, page) for path, page in self._paths(handles)]
            pairs = _in_turns(server, scale, beside_viewers, beside_stub)
        ages, shown = (sorted(age for one in looked_at for age in one.pop(name)) for name in ("ages", "shown"))
        if not shown:
            raise LoadError("no numbers were sent")
        return {
            **pairs,
            "age_p95_ms": _percentile(shown, 95),
            "age_p50_ms": _percentile(shown, 50),
            "late_p95_ms": _percentile(ages, 95),
            "late_p99_ms": _percentile(ages, 99),
            "looked_at": looked_at,
        }

    def _part(self, at: int) -> int:
        return round(self.number * MIX[at][0])

    def _paths(self, handles: list[str]) -> list[tuple[str, str]]:
        """Return the paths of the streams with their pages: those of the overview first."""
        return [
            (f"{_API}/live?{query.format(handle=handles[number % len(handles)])}", page)
            for at, (_, query, page) in enumerate(MIX)
            for number in range(self._part(at))
        ]


def beside_silent_clients(server: Server, scale: Scale) -> dict[str, Any]:
    """Return the growth of the server's memory with clients that read nothing, and the jobs per second beside them."""
    watched = Http(server)
    many = [{"function": f"page{number:03}", "args": []} for number in range(MOST_FUNCTIONS)]
    watched.fetch(f"{_API}/jobs/batch", many)
    tokens = [watched.token, *(Http(server).token for _ in range(CALLERS - 1))]
    streams = [(f"{_API}/live?functions=true", tokens[number % CALLERS], "") for number in range(SILENT)]
    grown: list[float] = []
    answers: list[dict[str, int]] = []

    def beside(load_once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        before = server.rss_kib()
        with _client("silent", watched.address, streams=streams) as end:
            loaded = load_once()
            grown.append((server.rss_kib() - before) / 1024)
            answers.append(end())
        return loaded

    with _healthy(watched.address):
        pairs = _in_turns(server, scale, beside, lambda load_once: load_once())
    if any(one.get("200", 0) + one.get("503", 0) != SILENT or not one.get("200") for one in answers):
        raise LoadError(f"the clients were answered with {answers}")
    return {**pairs, "mib": max(grown), "grown_mib": grown, "answers": answers}


def _in_turns(
    server: Server, scale: Scale, *sides: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the ratios of the jobs per second beside two things, A B B A…, and of the server's processor time for a job."""
    load(server, "e2e", jobs=scale.count(50_000, 5_000), workers=16, **WIDE)
    rate = load(server, "e2e", jobs=scale.count(50_000, 5_000), workers=16, **WIDE)["rate"]
    jobs = int(rate * scale.count(int(SECONDS), 2))

    def load_once() -> dict[str, Any]:
        return load(server, "e2e", jobs=jobs, workers=16, **WIDE)

    taken: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number in range(scale.count(PAIRS, 2)):
        loaded: dict[int, dict[str, Any]] = {}
        for side in ((0, 1), (1, 0))[number % 2]:
            loaded[side] = sides[side](load_once)
        taken.append((loaded[0], loaded[1]))
    rates = [one["rate"] / other["rate"] for one, other in taken]
    processor = [one["server_cpu_s"] / other["server_cpu_s"] for one, other in taken]
    return {
        "ratio": statistics.median(rates),
        "ratios": rates,
        "processor_ratio": statistics.median(processor),
        "processor_ratios": processor,
        "rates": [[one["rate"], other["rate"]] for one, other in taken],
        "server_us_per_job": [[side["server_cpu_s"] / jobs * 1e6 for side in pair] for pair in taken],
    }


@contextlib.contextmanager
def _client(mode: str, *arguments: str, streams: list[tuple[str, str, str]]) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the client while it has its streams; the yielded function ends it, and returns its figures. Raises LoadError."""
    command = [sys.executable, str(HERE / "viewers_client.py"), mode, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            client.stdin.write(json.dumps(streams) + "\n")
            client.stdin.flush()
            if client.stdout.readline() != "ready\n":
                raise LoadError(f"the viewers did not get their streams: {client.communicate()[1][-500:]}")

            def end() -> dict[str, Any]:
                output, errors = client.communicate()
                if client.returncode:
                    raise LoadError(f"the viewers have failed: {errors[-500:]}")
                found: dict[str, Any] = json.loads(output)
                return found

            yield end
        finally:
            client.kill()


@contextlib.contextmanager
def _stub(record: Path) -> Iterator[str]:
    """Run the stub, and yield its address."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "viewers_client.py"), "stub", str(record)], stdout=subprocess.PIPE, text=True
    ) as stub:
        assert stub.stdout is not None
        try:
            yield stub.stdout.readline().strip()
        finally:
            stub.kill()


@contextlib.contextmanager
def _tasks(server: Server, number: int) -> Iterator[list[str]]:
    """Run so many jobs that report their progress and log lines, and yield their handles."""
    settings = environment(server)
    app = str(HERE / "viewers_app.py")
    worker = [sys.executable, "-m", "mainspring", "worker", app, "--server", settings["MAINSPRING_SERVER"]]
    worker += ["--concurrency", str(number), "--processes", "1", "--grace", "0"]
    with processes.running(worker, server.directory / "worker.log", settings):
        handles: list[str] = json.loads(processes.output_of([sys.executable, app, str(number)], settings))
        yield handles


@contextlib.contextmanager
def _healthy(address: str) -> Iterator[None]:
    """Check the health of the node all along. Raises LoadError if it was not healthy once."""
    is_over, wrong = threading.Event(), list[str]()

    def check() -> None:
        while not is_over.wait(HEALTH_SECONDS):
            connection = http.client.HTTPConnection(address, timeout=5)
            try:
                connection.request("GET", "/healthz")
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as error:
                wrong.append(repr(error))
            else:
                if status != http.client.OK:
                    wrong.append(str(status))
            finally:
                connection.close()

    checker = threading.Thread(target=check)
    checker.start()
    try:
        yield
    finally:
        is_over.set()
        checker.join()
    if wrong:
        raise LoadError(f"/healthz was not 200 at {len(wrong)} times: {wrong[:3]}")


def _percentile(ranked: list[float], n: int) -> float:
    return round(1000 * ranked[min(len(ranked) * n // 100, len(ranked) - 1)], 1)
