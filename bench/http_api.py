"""The cells of the HTTP API: submits, batches, and reads while workers run no-op jobs at half speed."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
from generator import LoadError
from measure import Cell, Run, Scale, Side
from python_api import environment, worker
from scenarios import MILLION
from servers import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from filled import Fill
    from servers import Contestant, Server

HERE = Path(__file__).resolve().parent
CONNECTIONS = 16
SECONDS = 8.0
LISTS = (
    "limit=50",
    "state=pending&limit=50",
    "state=failed&limit=50",
    "state=succeeded&limit=50",
    "state=running&limit=50",
    "state=scheduled&state=expired&limit=50",
    "function=f&limit=50",
    "function=f91&state=failed&limit=50",
    "function=rare0&limit=50",
    "tag=often&limit=50",
    "tag=seldom&limit=50",
    "unique=u1000&limit=50",
    "key=k&limit=50",
    "error_type=E7&limit=50",
    "error_type=Rare&limit=50",
    "created_to={middle}&limit=50",
    "created_from={middle}&created_to={later}&state=failed&limit=50",
)
"""Each kind of list that people ask for; {middle} and {later} are times four and three hours ago."""
WORST = "function=rare3&state=failed&state=succeeded&state=cancelled&created_from=2026-01-01T00:00:00Z&error_type=E"
"""A rare function, three states, a time and an error: the search passes over all jobs."""
TURNS = 3
WORST_MS = 150.0
"""The p99 within which each answer of the worst search comes, which may continue later."""
PORT_SECONDS = 5.0
"""A server prints its HTTP port just after the port by which it counts as started."""
_HTTP = re.compile(r"^listening http (127\.0\.0\.1:\d+)", re.MULTILINE)


def cells(
    key: str, store: str, contestant: Contestant, fill: Fill, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> list[Cell]:
    """Return the cells for a store; ``wrapped`` adapts a scenario to its server."""
    served = replace(contestant, command=f"{contestant.command} --http 127.0.0.1:0")
    filled = fill.contestant(served)
    behind = f"{fill.jobs:,} jobs"
    slower = 1.5 if fill.jobs > MILLION else 1.0

    def cell(name: str, measure: str, required: str, unit: str, scenario: Any, on: Any = served, **bounds: Any) -> Cell:
        side = Side(f"mainspring {store}", on, wrapped(scenario))
        return Cell(f"{key}-{name}", f"HTTP API on {store}: {measure}", required, unit, (side,), **bounds)

    return [
        cell("submit", "single durable submits, 16 kept connections", "1,500/s", "jobs/s", submits, at_least=1500),
        cell("batch", "batches of 1,000 jobs, 2 connections", "40,000/s", "jobs/s", batches, at_least=40_000),
        cell("get", "p99 of GET of a job at half load", "10 ms", "ms", gets, under=10.0, once=True),
        cell(
            "list",
            f"p99 of lists with {behind} at half load",
            f"{80 * slower:g} ms, p50 {20 * slower:g} ms",
            "ms",
            Lists(20 * slower),
            filled,
            under=80.0 * slower,
            once=True,
        ),
        cell(
            "worst",
            f"p99 of durable submits, window 1, beside the worst filter over {behind}, divided by that without",
            "2 x, each answer in 150 ms",
            "x",
            submits_beside_the_worst_filter,
            filled,
            under=2.0,
            once=True,
        ),
    ]


def submits(server: Server, scale: Scale) -> Run:
    """Return the single submits per second."""
    return _rate(Http(server).run("submit", scale.count(10, 2), CONNECTIONS))


def batches(server: Server, scale: Scale) -> Run:
    """Return the jobs per second in batches."""
    return _rate(Http(server).run("batch", scale.count(10, 2), 2, 1000))


def gets(server: Server, scale: Scale) -> Run:
    """Return the p99 of the milliseconds of a GET at half load."""
    http = Http(server)
    with worker(server), http.half_load(scale) as half:
        found = http.run("get", SECONDS, 4, 20)
    return Run(found["p99_ms"], {**found, "half_load": half})


@dataclass(frozen=True)
class Lists:
    """Lists at half load: the p99 of the milliseconds until the answer. Raises LoadError if the median is above a bound."""

    p50_ms: float

    def __call__(self, server: Server, scale: Scale) -> Run:
        """Take turns with the kinds of lists."""
        http = Http(server)
        middle, later = (_rfc3339(time.time() - 3600 * hours) for hours in (4, 3))
        queries = [query.format(middle=middle, later=later) for query in LISTS]
        with worker(server), http.half_load(scale) as half:
            found = http.run("list", scale.count(30, 5), 2, 50, *queries)
        if found["p50_ms"] > self.p50_ms:
            raise LoadError(f"the median of lists is {found['p50_ms']} ms, and the p99 {found['p99_ms']} ms: {found}")
        return Run(found["p99_ms"], {**found, "half_load": half})


def submits_beside_the_worst_filter(server: Server, _: Scale) -> Run:
    """Return the p99 of submits beside searches, divided by the p99 without, in turns.

    Raises LoadError if the p99 of the searches' answers is above WORST_MS.
    """
    http = Http(server)
    alone, beside, searches = [], [], []
    for _ in range(TURNS):
        alone.append(http.run("submit", 4, 1))
        with http.running("list", 5, 2, 20, WORST) as search:
            time.sleep(0.5)
            beside.append(http.run("submit", 4, 1))
            searches.append(json.loads(search()))
    slowest = max(one["p99_ms"] for one in searches)
    if slowest > WORST_MS:
        raise LoadError(f"answers of the search took {slowest} ms")
    ratio = sum(one["p99_ms"] for one in beside) / sum(one["p99_ms"] for one in alone)
    return Run(ratio, {"alone": alone, "beside": beside, "searches": searches})


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rate(found: dict[str, Any]) -> Run:
    return Run(found["rate"], found)


class Http:
    """The HTTP port of a server, with a token for it: with ``payloads`` one that may also read logs."""

    def __init__(self, server: Server, *, payloads: bool = False) -> None:
        deadline = time.monotonic() + PORT_SECONDS
        while (found := _HTTP.search((server.directory / "output.log").read_text(errors="replace"))) is None:
            if time.monotonic() > deadline:
                raise StartError(f"{server.contestant.name} has no HTTP port")
            time.sleep(0.01)
        command = [sys.executable, "-m", "mainspring", "tokens", "create", "--name", "bench", "--role", "admin"]
        command += ["--payloads"] if payloads else []
        self.address: str = found[1]
        self.token = processes.output_of(command, environment(server)).strip()
        self._environment = {**environment(server), "HTTP_ADDRESS": self.address, "HTTP_TOKEN": self.token}

    def fetch(self, path: str, body: object = None, **headers: str) -> bytes:
        """Return the body of the answer to a GET, or to a POST of JSON. Raises LoadError if it is refused."""
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as refused:
            raise LoadError(f"{path}: {refused.code}: {refused.read()[:500]!r}") from refused

    def run(self, mode: str, *arguments: object) -> dict[str, Any]:
        """Run the client, and return its figures."""
        return processes.figures_of(self._command(mode, *arguments), self._environment)

    @contextlib.contextmanager
    def running(self, mode: str, *arguments: object) -> Iterator[Callable[[], str]]:
        """Run the client meanwhile; the yielded function returns its output once it has ended."""
        command = self._command(mode, *arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment) as client:
            try:
                yield lambda: client.communicate()[0]
            finally:
                client.kill()

    @contextlib.contextmanager
    def half_load(self, scale: Scale) -> Iterator[float]:
        """Run no-op jobs at half of the speed that was measured before."""
        self.run("drain", 0, 1, 5_000)
        rate = self.run("drain", 0, 1, scale.count(60_000, 5_000))["rate"] / 2
        with self.running("paced", 3600, 1, rate):
            time.sleep(2)
            yield rate

    @staticmethod
    def _command(mode: str, *arguments: object) -> list[str]:
        if mode not in {"submit", "batch", "get", "list", "drain", "paced", "pages"}:
            raise LoadError(f"the client has no mode {mode}")
        return [sys.executable, str(HERE / "http_client.py"), mode, *map(str, arguments)]
