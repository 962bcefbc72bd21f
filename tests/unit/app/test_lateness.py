"""Listeners of lateness in a test of an App: time passes by ``advance`` and ``result``, and they run at the times set."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from mainspring import App, Event, workflow
from mainspring.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from mainspring.testing.app import InMemory

MINUTE = timedelta(minutes=1)
app = App(name="late")
seen: list[tuple[str, str, datetime]] = []
"""The functions of events, the option or the cause, and the times at which the listener has run."""
fleets: list[InMemory] = []
holds = threading.Event()


@app.task(start_within="5m", deadline="2h")
def report() -> None: ...


@app.task(deadline="2h")
def hold() -> None:
    assert holds.wait(10)


@app.workflow(deadline="3h")
async def order(hours: int) -> str:
    await workflow.sleep(timedelta(hours=hours))
    return "done"


@app.scheduled(cron="0 * * * *", start_within="10m", overlap="forbid", name="hourly")
def sync() -> None: ...


@app.on("job.overdue", "schedule.overdue")
def tell(event: Event) -> None:
    seen.append((event.function or "", event.data.why or event.data.kind, fleets[0].now))


@pytest.fixture
def fleet() -> Iterator[InMemory]:
    seen.clear()
    holds.clear()
    with in_memory(app) as running:
        fleets[:] = [running]
        yield running


def since(begun: datetime) -> list[tuple[str, str, int]]:
    """Return the events in order, each with the minutes since the begin: the clock passes a time by a moment."""
    return [(subject, why, round((at - begun) / MINUTE)) for subject, why, at in seen]


def test_time_stops_where_a_job_is_late(fleet: InMemory) -> None:
    begun = fleet.now
    app.functions.pause(report)
    report.submit()
    fleet.advance("3h")
    assert since(begun) == [("report", "start_within", 5), ("report", "deadline", 120)]


def test_a_job_that_runs_is_late_while_time_passes(fleet: InMemory) -> None:
    begun = fleet.now
    job = hold.submit()
    fleet.advance("119m", settle=False)
    assert seen == []
    fleet.advance("2m", settle=False)
    holds.set()
    assert job.result(5) is None
    fleet.settle()
    ((function, kind, minutes),) = since(begun)
    assert (function, kind) == ("hold", "deadline")
    assert minutes in {120, 121}, "time goes on while the listener runs"


def test_a_job_that_ends_in_time_is_not_late(fleet: InMemory) -> None:
    report.submit()
    fleet.advance("3h")
    assert seen == []


def test_a_wait_for_the_result_of_a_run_stops_where_it_is_late(fleet: InMemory) -> None:
    begun = fleet.now
    assert fleet.result(order.submit(24)) == "done"
    assert since(begun) == [("order", "deadline", 180)], "schedules do not fire meanwhile, and are not late for it"
    app.functions.pause(sync)
    begun = fleet.now.replace(minute=0, second=0)
    fleet.advance("3h")
    assert since(begun)[1:] == [("hourly", "start_within", 70), ("hourly", "overlap", 130)]


def test_a_schedule_that_starts_nothing_is_late(fleet: InMemory) -> None:
    app.functions.pause(sync)
    begun = fleet.now.replace(minute=0, second=0)
    fleet.advance("3h")
    assert since(begun) == [("hourly", "start_within", 70), ("hourly", "overlap", 130)], "the first job holds up others"
