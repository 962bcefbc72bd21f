"""Workflows in tests: a clock that skips, stand-ins for tasks, crashes of the worker, and histories."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, JobFailed, Rate, Retry, UsageError, workflow
from mainspring.testing import InMemory, assert_replays, in_memory
from mainspring.worker.workflows.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mainspring.worker.workflows.runs import RunningStep

app = App()
approved = app.signal("approved", str)
attempts = count(1)
executed: list[str] = []


@app.task(retry=Retry(max_attempts=5, initial="1h", factor=2, jitter=0))
async def charge(number: int) -> str:
    executed.append("charge")
    if next(attempts) < 3:
        raise ConnectionError("away")
    return f"payment {number}"


@app.task(retry=Retry(max_attempts=3, initial="1h", jitter=0))
def flaky() -> int:
    executed.append("flaky")
    raise OSError("away")


def compute(number: int) -> int:
    return number + 1


@app.workflow
async def monthly(number: int) -> str:
    payment = await charge.submit(number)
    await workflow.sleep(timedelta(days=30))
    return payment


@app.workflow
async def steps(number: int) -> int:
    try:
        number += await flaky.step()
    except OSError:
        number += 100
    return await workflow.step(compute, number)


@app.workflow
async def approval() -> str:
    return await approved.receive()


@app.workflow
async def impatient() -> str:
    return await approved.receive(timeout="3d")


@app.workflow
async def two_steps() -> list[int]:
    first = await workflow.step(compute, 1)
    await workflow.sleep(60)
    return [first, await workflow.step(compute, 2)]


numbers = count(1)


@app.task
def plain(number: int) -> int:
    return number


@pytest.fixture
def fleet() -> Iterator[InMemory]:
    executed.clear()
    with in_memory(app) as fleet:
        yield fleet


def test_a_result_skips_over_sleeps_and_backoffs(fleet: InMemory) -> None:
    before = fleet.now
    assert fleet.result(monthly.submit(17)) == "payment 17"
    passed = fleet.now - before
    assert timedelta(days=30, hours=2) <= passed < timedelta(days=30, hours=2, minutes=1)
    assert executed == ["charge"] * 3


def test_a_result_skips_over_the_backoffs_of_steps(fleet: InMemory) -> None:
    before = fleet.now
    fleet.mock(compute, 7)
    with pytest.raises(JobFailed, match="OSError"):
        fleet.result(steps.submit(1))
    assert executed == ["flaky"] * 3
    assert timedelta(hours=2) <= fleet.now - before < timedelta(hours=2, minutes=1)


def test_a_step_that_begins_in_the_next_turn_of_the_loop_is_no_pause(
    fleet: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, seen = Steps._plan, []  # noqa: SLF001 - there is no other way into this turn of the loop

    def plan_now(self: Steps, step: RunningStep) -> None:
        step.due_us = -1
        plan(self, step)
        decider = fleet._decider  # noqa: SLF001 - it is at work, and nothing public shows that
        assert decider is not None
        seen.append(decider.pausing())

    monkeypatch.setattr(Steps, "_plan", plan_now)
    with pytest.raises(JobFailed, match="OSError"):
        fleet.result(steps.submit(1))
    assert seen == [None, None]


def test_a_result_skips_to_the_time_out_of_a_wait_and_to_delayed_jobs(fleet: InMemory) -> None:
    with pytest.raises(JobFailed, match="TimeoutError"):
        fleet.result(impatient.submit())
    assert fleet.result(plain.options(delay="40d").submit(3)) == 3


def test_a_run_that_waits_for_a_signal_is_named(fleet: InMemory) -> None:
    job = approval.options(id="order-17").submit()
    before = fleet.now
    with pytest.raises(TimeoutError, match=r"approval \(order-17\) does not end: .* it waits for: approved"):
        fleet.result(job)
    assert fleet.now - before < timedelta(seconds=1)
    job.signal(approved, "eva")
    assert fleet.result(job) == "eva"


def test_a_job_that_becomes_due_too_late_is_named(fleet: InMemory) -> None:
    job = plain.options(delay="40d").submit(3)
    with pytest.raises(TimeoutError, match=r"plain \(H:test:\d+\) is scheduled, and nothing is due within 1d"):
        fleet.result(job, within="1d")
    with pytest.raises(UsageError, match="is no job of this fleet"):
        fleet.result(app.job("H:x"))


def test_a_schedule_that_fires_for_ever_does_not_keep_the_clock_skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.testing.passing_time.SKIP_TIMEOUT", 0.2)
    busy = App()

    @busy.scheduled(every="1s")
    def tick() -> None: ...

    @busy.workflow
    async def waits() -> str:
        return await approved.receive()

    with in_memory(busy) as fleet:
        job = waits.submit()
        with pytest.raises(TimeoutError, match="other things have been due for 200ms, such as a schedule's fire times"):
            fleet.result(job, schedules=True)
        with pytest.raises(
            TimeoutError, match=r"nothing is due within 366d \(schedules do not fire meanwhile, unless you give"
        ):
            fleet.result(job)


@pytest.mark.parametrize("schedules", [True, False])
def test_a_result_does_not_fire_the_schedules_that_it_skips_over(*, schedules: bool) -> None:
    often, ticks = App(), list[int]()

    @often.scheduled(every="1s")
    def tick() -> None:
        ticks.append(1)

    @often.workflow
    async def month() -> str:
        await workflow.sleep("30d")
        return "a month"

    with in_memory(often, schedules=schedules) as fleet:
        begun = fleet.now
        assert fleet.result(month.submit()) == "a month"
        assert fleet.now - begun >= timedelta(days=30)
        assert len(ticks) <= schedules, "one at the start"
        ticks.clear()
        fleet.advance("3s")
        assert len(ticks) == (3 if schedules else 0), "they go on afterwards, where there are any"


def test_the_clock_does_not_skip_to_the_timeout_of_a_later_attempt() -> None:
    retried = App()

    @retried.workflow(retry=Retry(max_attempts=2, initial="1m"), timeout="1d")
    async def twice() -> str:
        if workflow.info().attempt == 1:
            await workflow.sleep("10s")
            raise ValueError("the first one")
        return await approved.receive()

    with in_memory(retried) as fleet:
        begun = fleet.now
        job = twice.submit()
        with pytest.raises(TimeoutError, match="it waits for: approved"):
            fleet.result(job)
        assert fleet.now - begun < timedelta(hours=1)
        fleet.advance("1d")
        assert job.details()["status"] == "timed_out"


def test_code_that_blocks_the_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.testing.app.BLOCKED_AFTER", 1.0)
    loops, begun = App(), threading.Event()

    @loops.workflow
    async def turns() -> None:
        begun.set()
        while begun.is_set():
            pass

    place = r"at .*test_workflow_kit\.py:\d+ in .*turns: await what takes long"
    with pytest.raises(TimeoutError, match=place), in_memory(loops) as fleet:
        fleet.result(turns.submit())
    begun.clear()
    with pytest.raises(TimeoutError, match=place), in_memory(loops):  # at the end of the block
        assert all((turns.submit(), begun.wait(60)))


def test_tasks_that_block_in_threads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.testing.passing_time.SETTLE_TIMEOUT", 0.3)
    waits, go = App(), threading.Event()

    @waits.task
    def stands() -> None:
        go.wait(60)

    with in_memory(waits) as fleet:
        stands.submit()
        with pytest.raises(
            TimeoutError, match=r"still run: stands, in threads at .*test_workflow_kit\.py:\d+ in .*stands"
        ):
            fleet.settle()
        go.set()


unordered = App()
MOST = 9


@unordered.task
async def note(name: str) -> str:
    return name


@unordered.workflow
async def each(names: list[str]) -> None:
    for name in set(names[:MOST]):
        await note.submit(name)


@unordered.workflow
async def in_order(names: list[str]) -> None:
    for name in sorted(set(names[:MOST])):
        await note.submit(name)


NAMES = ["ada", "bob", "cleo", "dan", "eve", "fay", "gus", "hal"]


def test_the_order_of_a_set_is_found_by_a_replay_in_another_process() -> None:
    def run() -> None:
        with in_memory(unordered) as fleet:
            fleet.result(each.submit(NAMES))

    with pytest.raises(
        AssertionError, match=r"the code depends on the order of a set, or on another hash.*(?s:.)*each@1"
    ):
        run()


def test_other_differences_in_another_process_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process does not have what a test has replaced."""
    monkeypatch.setattr(f"{__name__}.MOST", 2)
    with in_memory(unordered) as fleet:
        fleet.result(in_order.submit(NAMES))


def test_a_result_skips_over_the_waits_of_limited_tasks() -> None:
    slow = App()

    @slow.task(rate=Rate(1, per=60))
    def limited(number: int) -> int:
        return number

    @slow.workflow
    async def fan_out() -> list[int]:
        return await asyncio.gather(*(limited.submit(number) for number in range(5)))

    with in_memory(slow) as fleet:
        before = fleet.now
        assert fleet.result(fan_out.submit()) == [0, 1, 2, 3, 4]
        assert timedelta(minutes=4) <= fleet.now - before < timedelta(minutes=6)


def test_mocks_replace_tasks_and_steps(fleet: InMemory) -> None:
    fleet.mock(charge, "mocked")
    fleet.mock("flaky", lambda: 5)
    fleet.mock(compute, lambda number: number * 2)
    assert fleet.result(monthly.submit(17)) == "mocked"
    assert fleet.result(steps.submit(1)) == 12
    fleet.mock(compute, ValueError("no"))
    with pytest.raises(JobFailed, match="ValueError: no"):
        fleet.result(steps.submit(1))
    assert executed == []


def test_a_mock_ends_with_its_block() -> None:
    with in_memory(app) as fleet:
        fleet.mock(plain, 7)
        assert fleet.result(plain.submit(1)) == 7
    with in_memory(app) as fleet:
        assert fleet.result(plain.submit(1)) == 1
    assert plain(1) == 1


@pytest.mark.parametrize("wrong", [monthly, "monthly", "none", 7, App().task(name="other")(compute)])
def test_a_mock_of_anything_else_is_refused(fleet: InMemory, wrong: Any) -> None:
    with pytest.raises(UsageError):
        fleet.mock(wrong, 1)


def test_a_run_goes_on_by_replay_after_a_crash(fleet: InMemory) -> None:
    called: list[int] = []

    def compute_once(number: int) -> int:
        called.append(number)
        return number

    fleet.mock(compute, compute_once)
    job = two_steps.submit()
    fleet.settle()
    fleet.crash_worker()
    assert fleet.result(job) == [1, 2]
    assert called == [1, 2]


def test_a_history_is_read_saved_and_replayed(fleet: InMemory, tmp_path: Path) -> None:
    job = two_steps.submit()
    fleet.result(job)
    history = fleet.history(job)
    assert history.kinds()[0] == "WorkflowExecutionStarted"
    assert history.kinds()[-1] == "WorkflowExecutionCompleted"
    assert history.kinds().count("TimerFired") == 1
    history.save(tmp_path / "h.json")
    assert_replays(app, tmp_path)
    with pytest.raises(FileExistsError):
        history.save(tmp_path / "h.json")
    with pytest.raises(UsageError, match="has no history"):
        fleet.history(plain.submit(1))


def test_code_that_does_not_repeat_itself_is_shown(fleet: InMemory) -> None:
    fleet.mock(charge, "paid")
    with pytest.raises(AssertionError, match=r"^unrepeatable \(.*\) is parked: the code differs") as parked:
        fleet.result(unrepeatable.submit())
    assert "\n   recorded: activity #4 charge [1]\n   code: activity #4 charge [2]" in str(parked.value)


@app.workflow
async def unrepeatable() -> None:
    for _ in range(3):
        await workflow.sleep("1d")
    await charge.submit(next(numbers))
    await workflow.sleep("1d")


def test_the_last_decision_is_checked_too(fleet: InMemory) -> None:
    fleet.mock(charge, "paid")
    with pytest.raises(
        AssertionError, match="the code differs from the history: recorded is return 1, the code has return 2"
    ):
        fleet.result(counting.submit())


@app.workflow
async def counting() -> int:
    return next(results)


results = count(1)


def test_runs_without_a_result_are_checked_at_the_end_of_the_block() -> None:
    with pytest.raises(AssertionError, match="the code differs from the history"), in_memory(app) as fleet:  # noqa: PT012
        counting.submit()
        fleet.settle()
