"""A node in memory whose wall clock is wrong for a moment: ahead or behind, by an hour up to years, and then corrected.

While the clock is wrong, due times come early or late with it. Afterwards, nothing may wait for the wrong time to come.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mainspring import App, JobTimedOut, NotFoundError, workflow
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


@app.task
def hold(gate: int) -> int:
    """Wait until the test opens a gate."""
    HELD.release()
    assert GATES[gate].wait(60)
    return gate


HELD, GATES = threading.Semaphore(0), [threading.Event(), threading.Event()]


@STEPS
def test_attempts_that_run_while_the_clock_is_wrong_have_their_time(error: int) -> None:
    for gate in GATES:
        gate.clear()
    with in_memory(app, schedules=False) as fleet:
        jobs = [hold.options(run_timeout="40s").submit(gate) for gate in range(2)]
        try:
            for _ in jobs:
                assert HELD.acquire(timeout=60)
            for step in (error, -error):
                fleet.clock.step(step)
                fleet.advance("15s", settle=False)
                assert [job.state for job in jobs] == ["running"] * 2
            GATES[0].set()
            assert jobs[0].result(60) == 0
            fleet.advance("20s", settle=False)
            with pytest.raises(JobTimedOut):
                jobs[1].result(60)
        finally:
            for gate in GATES:
                gate.set()


def test_a_clock_that_is_ahead_deletes_what_will_be_old_then_and_nothing_else() -> None:
    """The node keeps ended jobs for a day, and runs for 14 days."""
    with in_memory(app, schedules=False) as fleet:

        def ended() -> list[Any]:
            jobs: list[Any] = [quick.submit(1), until_deadline.submit()]
            fleet.settle()
            jobs[1].signal(go, "on")
            fleet.advance("2m")
            assert [job.state for job in jobs] == ["succeeded", "succeeded"]
            return jobs

        def kept(*jobs: Any) -> list[bool]:
            fleet.advance("1h")  # until all has been swept
            return [_is_kept(job) for job in jobs]

        before, delayed, open_run = ended(), quick.options(delay="300d").submit(7), waiting(fleet, naps, 30)
        fleet.clock.step(-YEAR)
        behind = ended()
        assert kept(*before, *behind) == [True] * 4
        fleet.clock.step(YEAR)
        assert kept(*before, *behind) == [True, True, False, False]
        for error, expected in ((20 * HOUR, [True, True]), (2 * DAY, [False, True]), (20 * DAY, [False, False])):
            fleet.clock.step(error)
            ahead = ended()
            assert kept(*before, *ahead) == [*expected, True, True]
            fleet.clock.step(-error)
            assert kept(*ahead, *ended(), delayed, open_run) == [True] * 6
        assert (delayed.state, open_run.details()["status"]) == ("scheduled", "open")


def _is_kept(job: Any) -> bool:
    try:
        return bool(job.info())
    except NotFoundError:
        return False
