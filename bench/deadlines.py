"""Ten thousand jobs whose deadlines pass in the same second: the delay of their events."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from generator import LoadError
from http_api import Http
from measure import Cell, Run, Scale, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Contestant, Server

JOBS = 10_000
BATCH = 1_000
LEAD = 8.0
"""Seconds before the deadlines at which the first job is submitted: longer than a node fetches ahead."""
LIMIT = 20.0
"""Seconds after the deadlines by which all events must be there."""
API = "/api/v1/namespaces/default"


def cell(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> Cell:
    """Return the cell for a store; ``wrapped`` adapts the scenario to its server."""
    served = replace(contestant, command=f"{contestant.command} --http 127.0.0.1:0")
    return Cell(
        key=key,
        measure=f"10,000 deadlines in the same second on {store}: p99 from the deadline to its event",
        required="2 s, each once",
        unit="ms",
        sides=(Side(f"mainspring {store}", served, wrapped(lateness)),),
        under=2000.0,
    )


def lateness(server: Server, scale: Scale) -> Run:
    """Return the p99 of the milliseconds from a deadline to the time of its event. Raises LoadError unless each has one."""
    http = Http(server)
    jobs = scale.count(JOBS, 2_000)
    last = json.loads(http.fetch(f"{API}/events?type=job.overdue&after=end"))["last"]  # from now on they are wanted
    due = time.time() + LEAD
    handles: set[str] = set()
    began = time.time()
    for _ in range(jobs // BATCH):
        job = {"function": "nobody", "deadline": due - time.time()}
        found = json.loads(http.fetch(f"{API}/jobs/batch", [job] * BATCH))
        handles.update(one["handle"] for one in found["items"])
    submitted = time.time() - began
    if time.time() > due:
        raise LoadError(f"the jobs were not stored in time: they took {submitted:.1f} s")
    seen: dict[str, float] = {}
    for event in _events(http, last, jobs, due + LIMIT):
        if event["job"] in seen or event["job"] not in handles:
            raise LoadError(f"an event comes twice, or is about another job: {event}")
        seen[event["job"]] = (_seconds(event["time"]) - _seconds(_due(event["data"]))) * 1e3
    if len(seen) != jobs:
        raise LoadError(f"{jobs} deadlines had {len(seen)} events")
    late = sorted(seen.values())
    details = {
        "jobs": jobs,
        "submitted_s": submitted,
        "p50_ms": late[len(late) // 2],
        "p99_ms": late[len(late) * 99 // 100],
        "max_ms": late[-1],
    }
    return Run(details["p99_ms"], details)


def _events(http: Http, last: str, number: int, until: float) -> Iterator[dict[str, Any]]:
    """Yield the events behind a number, until there are so many or a time has come; then those that have come by then."""
    found = 0
    while found < number and time.time() < until:
        page = json.loads(http.fetch(f"{API}/events?type=job.overdue&after={last}&wait=2&limit=1000"))
        yield from page["items"]
        found, last = found + len(page["items"]), page["last"]


def _due(data: dict[str, Any]) -> str:
    due: str = data["due_at"]
    return due


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
