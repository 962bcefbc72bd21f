"""The scene that a node of an earlier version leaves in a store: jobs in all states, schedules and unfinished fire times.

`make` runs it with that version's code: ``python scene.py STORE``. It ends as a crash does. Its time is a fixed hour in 2023, so
that due times do not depend on the time of the test.
"""
# mypy: ignore-errors
# The code uses the interfaces of that version.

from __future__ import annotations

import os
import sys

from mainspring.jobs.model import Options, Priority, Retry, State
from mainspring.jobs.rules import Event
from mainspring.resources.rules import FunctionLimits, Limits
from mainspring.resources.store import SaveLimits
from mainspring.schedules.model import At, Overlap
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.scheduling import SECOND, START, Scheduling
from tests.engines import postgres_engine, sqlite_engine

HOUR = 3600 * SECOND


def play_jobs(store: Store) -> None:
    """Create jobs, one function for each state."""
    store.submitted(function=b"waiting", payload=b"second")
    store.submitted(function=b"waiting", payload=b"third", unique=b"third", options=Options(tags=["seen"]))
    store.submitted(function=b"waiting", payload=b"first", priority=Priority.HIGH)
    store.submitted(function=b"later", state=State.SCHEDULED, due_us=NOW + HOUR)
    store.submitted(function=b"late", expires_us=NOW + SECOND)
    for key in (b"red", b"blue", b"red"):
        store.submitted(function=b"keyed", payload=key, key=key)
    store.leased(function=b"held", unique=b"held", options=Options(retry=Retry(max_attempts=3), timeout=60.0))
    store.assign(store.leased(function=b"runs", payload=b"x" * 1000))
    store.end(store.leased(function=b"retried"), Event.RETRY, due_us=NOW + SECOND, error=b'{"type":"E"}')
    store.end(store.leased(function=b"done", unique=b"kept", options=Options(keep_unique=1e9)), result=b"the result")
    store.end(store.leased(function=b"failed", payload=b"again"), Event.FAIL, error=b'{"type":"E"}')
    store.cancel(store.submitted(function=b"cancelled").id)
    limits = FunctionLimits(b"keyed", commanded=Limits(concurrency=5, concurrency_per_key=1))
    store.group(SaveLimits(limits))


def play_schedules(s: Scheduling) -> None:
    """Create schedules, and their fire times of the first minute, most of them with unfinished runs."""
    s.add("fired", args=b"arguments")
    s.add("runs")
    s.add("queues", overlap=Overlap.QUEUE)
    s.add("one")
    s.add("other")
    s.add("both", parents=("one", "other"))
    s.add("waits", wait_for_children=True)
    s.add("last", parents=("waits",))
    s.add("joins", function=b"joined", unique=b"joined")
    s.add("paused")
    s.add("gone", trigger=At(START))
    s.add("once", trigger=At(START))
    s.store.submitted(function=b"joined", unique=b"joined")
    s.change("pause", "paused")
    s.declare("shop", b"digest")
    s.fire()
    for name in ("runs", "queues"):
        s.running(name)
    for name in ("one", "waits", "gone", "once"):
        s.run(name)
    s.change("remove", "gone")
    s.at(1)
    s.fire("queues")


def main(url: str) -> None:
    """Open a store, create the scene, and exit without closing the store."""
    engine = postgres_engine if url.startswith("postgresql:") else sqlite_engine
    store = Store(lambda: engine(url), "old")
    play_jobs(store)
    play_schedules(Scheduling(lambda: engine(url), store))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
