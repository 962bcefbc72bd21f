"""The cells of the pages: first byte and first paint at half load, the weight, and the page of a long history."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import paint
from generator import LoadError
from http_api import Http
from measure import Cell, Run, Side
from python_api import worker
from workflow_scenarios import client, figures, worker_processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from filled import Fill
    from measure import Scale
    from servers import Contestant, Server

MAIN: Final = ("/", "/jobs", "/functions", "/schedules", "/nodes")
WITH_WORKFLOWS: Final = (*MAIN, "/workflows")
ROWS: Final = 50
LOADS: Final = 15
"""Loads of each page in Chromium."""
STEPS: Final = 20_500
ROUNDS: Final = 15
"""Of 100 activities with three events each: with the steps, 25,000 events, and some more for the decisions."""
HISTORY_LIMIT: Final = 50_000
HISTORY_SECONDS: Final = 120.0
_API: Final = "/api/v1/namespaces/default"
_FILE: Final = re.compile(r'<(?:script|link|img)\b[^>]*?\b(?:src|href)="([^"]+)"')
_STREAM: Final = re.compile(r"\bdata-stream=")
_DRAWING: Final = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_SHAPE: Final = re.compile(r"<(?:rect|line|path|circle|ellipse|polygon|polyline|text|use)\b")


def cells(
    key: str,
    store: str,
    contestant: Contestant,
    fill: Fill,
    wrapped: Callable[[Any], Any] = lambda scenario: scenario,
    *,
    workflows: bool = True,
) -> list[Cell]:
    """Return the cells for a store; ``wrapped`` adapts a scenario to its server; with ``workflows``, also those of workflows."""
    served = replace(contestant, command=f"{contestant.command} --http 127.0.0.1:0")
    paths = WITH_WORKFLOWS if workflows else MAIN

    def scenario(server: Server, scale: Scale) -> dict[str, Any]:
        return main_pages(server, scale, paths)

    def paints(server: Server, scale: Scale) -> Run:
        return main_paints(server, scale, paths)

    def cell(name: str, measure: str, required: str, unit: str, figure: Any, on: Contestant, under: float) -> Cell:
        side = Side(f"mainspring {store}", on, wrapped(figure))
        return Cell(f"{key}-{name}", f"pages on {store}: {measure}", required, unit, (side,), under=under, once=True)

    behind, filled = f"with {fill.jobs:,} jobs at half load", fill.contestant(served)
    p50, p99, page, assets, needed = figures(scenario, "p50_ms", "p99_ms", "page_kb", "assets_kb", "needed")
    found = [
        cell("p50", f"median until the first byte of the main pages {behind}", "20 ms", "ms", p50, filled, 20.0),
        cell("p99", "the same, p99", "80 ms", "ms", p99, filled, 80.0),
        cell("paint", f"median until the first paint of the slowest {behind}", "300 ms", "ms", paints, filled, 300.0),
        cell("weight", f"the largest of them, with {ROWS} rows each", "100 KB", "KB", page, filled, 100.0),
        cell("assets", "their files, compressed", "60 KB", "KB", assets, filled, 60.0),
        cell("requests", "requests for one of them", "6", "requests", needed, filled, 6.5),
    ]
    if workflows:
        long = replace(served, command=f"{served.command} --workflow-events {HISTORY_LIMIT}")
        first, size, shapes = figures(long_history, "p99_ms", "page_kb", "shapes")
        what = "a run with 25,000 events"
        found += [
            cell("history", f"p99 until the first byte of {what}", "300 ms", "ms", first, long, 300.0),
            cell("history-weight", f"the page of {what}", "250 KB", "KB", size, long, 250.0),
            cell("history-shapes", f"the drawing of {what}", "500 shapes", "shapes", shapes, long, 500.5),
        ]
    return found


def main_pages(server: Server, scale: Scale, paths: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures of the main pages, each with 50 rows if there is a list of them."""
    http = Http(server)
    _fill_lists(http, server, paths)
    with worker(server), http.half_load(scale) as half:
        found = http.run("pages", scale.count(30, 5), 2, 50, *paths)
    page = http.fetch(paths[0]).decode()
    files = {path: len(http.fetch(path, Accept_Encoding="gzip")) for path in set(_FILE.findall(page))}
    return {
        **found,
        "half_load": half,
        "page_kb": max(found["weights"].values()) / 1e3,
        "assets_kb": sum(files.values()) / 1e3,
        "files": files,
        "needed": 1 + len(files) + len(_STREAM.findall(page)),
    }


def main_paints(server: Server, scale: Scale, paths: tuple[str, ...]) -> Run:
    """Return the first paints of the main pages, each with 50 rows if there is a list of them."""
    http = Http(server)
    _fill_lists(http, server, paths)
    with worker(server), http.half_load(scale) as half:
        run = paint.first_paints(f"http://{http.address}", http.token, paths, scale.count(LOADS, 2))
    return Run(run.figure, {**run.details, "half_load": half})


def _fill_lists(http: Http, server: Server, paths: tuple[str, ...]) -> None:
    for number in range(ROWS):
        http.fetch(f"{_API}/jobs", {"function": f"page{number:02}", "args": []})
        schedule = {"name": f"nightly{number:02}", "function": "page00", "cron": "0 3 * * *"}
        http.fetch(f"{_API}/schedules", schedule)
    if "/workflows" in paths:
        with worker_processes(server):
            client(server, "sleepers", ROWS)


def long_history(server: Server, scale: Scale) -> dict[str, Any]:
    """Return the figures of the page of a run with many events."""
    http = Http(server)
    with worker_processes(server):
        given = [scale.count(STEPS, 2_000), ROUNDS]
        http.fetch(f"{_API}/workflows", {"function": "long_and_wide", "id": "long", "args": given})
        run = _asleep(http)
    found = http.run("pages", scale.count(10, 2), 1, 50, "/workflows/long")
    drawing = "".join(_DRAWING.findall(http.fetch("/workflows/long").decode()))
    return {
        **found,
        "events": run["events"],
        "page_kb": max(found["weights"].values()) / 1e3,
        "shapes": len(_SHAPE.findall(drawing)),
    }


def _asleep(http: Http) -> dict[str, Any]:
    """Return the run once it sleeps. Raises LoadError if that takes too long."""
    deadline = time.monotonic() + HISTORY_SECONDS
    while True:
        run: dict[str, Any] = json.loads(http.fetch(f"{_API}/workflows/long"))
        if run["timers"]:
            return run
        if run["closed_at"] or time.monotonic() > deadline:
            raise LoadError(f"the long run does not sleep: {run}")
        time.sleep(0.1)
