"""A node in memory whose wall clock is wrong for a moment: ahead or behind, by an hour up to years, and then corrected.

While the clock is wrong, due times come early or late with it. Afterwards, nothing may wait for the wrong time to come.
"""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import App, workflow
from mainspring.testing import InMemory, in_memory

HOUR, DAY, YEAR = 3600, 86_400, 366 * 86_400
STEPS = pytest.mark.parametrize(
    "error", [HOUR, -HOUR, DAY, -DAY, 10 * YEAR, -10 * YEAR], ids=["+1h", "-1h", "+1d", "-1d", "+10y", "-10y"]
)

app = App()
go = app.signal("go", str)
ticks: list[int] = []


@app.scheduled(every="1m", misfire="skip")
def tick() -> None:
    ticks.append(1)


@app.task(schedule_to_close="10m")
async def quick(number: int) -> int:
    return number


@app.workflow(timeout="300d")
async def naps(seconds: int) -> int:
    """Sleep for so many seconds after a signal, and return what the code's clock says about it."""
    await quick.submit(0)
    await go.receive()
    begun = workflow.now()
    await workflow.sleep(seconds)
    await quick.submit(1)
    return round((workflow.now() - begun).total_seconds())


@app.workflow(timeout="300d")
async def until_deadline() -> int:
    await go.receive()
    deadline, turns = workflow.now().timestamp() + 60, 0
    while workflow.now().timestamp() < deadline:
        await workflow.sleep(20)
        turns += 1
    return turns


def waiting(fleet: InMemory, flow: Any, *args: Any) -> Any:
    """Return a new run that waits for its signal."""
    job = flow.submit(*args)
    fleet.settle()
    assert "go" in job.details()["waits_for"]
    return job


def times(fleet: InMemory, job: Any) -> list[float]:
    return [event["at_us"] / 1e6 for event in fleet.history(job).events]


@STEPS
def test_after_the_correction_nothing_waits_for_the_wrong_time(error: int) -> None:
    # A clock that is ten years ahead makes five million fire times of a minute due: they would take minutes.
    fires = error < YEAR
    with in_memory(app, schedules=fires) as fleet:
        earlier = waiting(fleet, naps, 30)
        delayed = quick.options(delay="2h").submit(7)
        fleet.advance("1s")
        fleet.clock.step(error)
        fleet.advance("70s")
        inside, looping = waiting(fleet, naps, 30), waiting(fleet, until_deadline)
        fleet.clock.step(-error)
        fleet.advance("2s")
        ticks.clear()
        after = waiting(fleet, naps, 30)
        jobs = [after]
        if error < YEAR:
            jobs.append(earlier)  # otherwise its timeout has come
        if error > -YEAR:
            jobs += [inside, looping]  # otherwise their timeouts, of the wrong time, have come
        for job in jobs:
            job.signal(go, "on")
        fleet.advance("29s")
        assert all(job.details()["status"] == "open" for job in jobs)
        fleet.advance("2s")
        assert [job.result(5) for job in jobs if job is not looping] == [30] * len(
            [job for job in jobs if job is not looping]
        )
        fleet.advance("2m")
        assert looping not in jobs or looping.result(5) == 3
        assert len(ticks) in ({2, 3} if fires else {0}), "one each minute"
        assert quick.submit(3).result(5) == 3
        for job in jobs:
            assert times(fleet, job) == sorted(times(fleet, job)), "events are in order"
        assert all(at < fleet.clock.wall() for at in times(fleet, after)), (
            "nothing of the wrong time is left in a new run"
        )
        assert delayed.state == ("succeeded" if error > 2 * HOUR else "scheduled")
        fleet.advance("2h")
        assert delayed.state == "succeeded"
