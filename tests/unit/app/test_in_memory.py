from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator  # noqa: TC003 - annotations are resolved at run time
from datetime import timedelta
from typing import Any

import pytest
import structlog

from mainspring import (
    App,
    Data,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobLost,
    Progress,
    Rate,
    RefusedError,
    Retry,
    Snooze,
    UsageError,
    Warned,
    current_job,
)
from mainspring.testing import in_memory
from mainspring.worker.processes import new_event_loop

app = App("127.0.0.1:1")
begun, go = threading.Event(), threading.Event()


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(retry=Retry(max_attempts=4, initial=10, factor=2, jitter=0))
async def flaky(good: int) -> int:
    if current_job().attempt < good:
        raise ConnectionError("not yet")
    return current_job().attempt


@app.task
async def loop_kind() -> str:
    return type(asyncio.get_running_loop()).__module__


@app.task(executor="process")
def square(x: int) -> int:
    return x * x


@app.task
def nested(x: int) -> int:
    return add.submit(x).result(5)


@app.task(timeout=30)
async def endless() -> None:
    begun.set()
    await asyncio.Event().wait()


@app.task
def sleepy() -> float:
    if not begun.is_set():
        begun.set()
        raise Snooze(100)
    return time.monotonic()


@app.task
def waits_for_many(numbers: list[int]) -> int:
    return sum(job.result() for job in nested.submit_many(numbers))


@app.task
def streams(parts: int) -> str:
    job = current_job()
    while not go.wait(0.001):
        job.data(b"early")
    for number in range(parts):
        job.data(b"part %d" % number)
    job.warning(b"careful")
    job.progress(parts, parts)
    return "done"


@pytest.fixture(autouse=True)
def _events() -> None:
    begun.clear()
    go.clear()


def test_node_and_worker_run_on_the_event_loop_of_real_ones() -> None:
    with contextlib.closing(new_event_loop()) as loop, in_memory(app):
        assert loop_kind.submit().result(timeout=10) == type(loop).__module__


def test_tasks_run() -> None:
    with in_memory(app) as fleet:
        jobs = [add.submit(1, b=2), square.submit(3), nested.submit(4)]
        fleet.settle()
        assert [job.state for job in jobs] == ["succeeded"] * 3
        assert [job.result(5) for job in jobs] == [3, 9, 5]
        assert list(app.results(add.submit_many(range(100)))) == list(range(1, 101))


def test_output_of_a_task_is_streamed() -> None:
    expected = [Data(b"part 0"), Data(b"part 1"), Warned(b"careful"), Progress(2, 2)]
    with in_memory(app):
        job = streams.submit(2)
        events = job.stream(timeout=10)
        assert next(events) == Data(b"early")
        go.set()
        assert [event for event in events if event != Data(b"early")] == expected
        assert job.result(0) == "done"

        async def stream() -> None:
            job = await streams.asubmit(2)
            events = job.astream(timeout=10)
            assert await anext(events) == Data(b"early")
            go.set()
            assert [event async for event in events if event != Data(b"early")] == expected
            assert await job.aresult(0) == "done"
            await app.aclose()

        go.clear()
        asyncio.run(stream())


def test_time_passes_when_the_test_advances_it() -> None:
    with in_memory(app) as fleet:
        begin = fleet.now
        later = add.options(delay=timedelta(days=3)).submit(1)
        fixed = add.options(run_at=begin + timedelta(days=2)).submit(2)
        fleet.advance(timedelta(days=2, seconds=-1))
        assert [fixed.state, later.state] == ["scheduled", "scheduled"]
        fleet.advance(1)
        assert [fixed.state, later.state] == ["succeeded", "scheduled"]
        fleet.advance("1d")
        assert later.result(5) == 2
        assert fleet.now - begin >= timedelta(days=3)


def test_all_backoffs_fit_into_one_advance() -> None:
    with in_memory(app) as fleet:
        job = flaky.submit(4)
        fleet.advance(69)
        assert job.state == "scheduled"
        fleet.advance(2)
        assert job.result(5) == 4
        hopeless = flaky.submit(9)
        fleet.advance(timedelta(hours=1))
        with pytest.raises(JobFailed, match="attempt 4"):
            hopeless.result(5)


def test_timeouts_snoozes_expiry_and_cancel() -> None:
    with in_memory(app) as fleet:
        stuck = endless.submit()
        assert begun.wait(5)
        fleet.advance(31, settle=False)
        with pytest.raises(JobFailed):
            stuck.result(5)
        begun.clear()
        snoozed = sleepy.submit()
        fleet.advance(99)
        assert snoozed.state == "scheduled"
        fleet.advance(2)
        assert snoozed.state == "succeeded"
        expired = app.function("nobody").options(expires=5).submit(b"")
        cancelled = add.options(delay=5).submit(1)
        assert cancelled.cancel() == "cancelled"
        fleet.advance(6)
        with pytest.raises(JobExpired):
            expired.result(5)
        with pytest.raises(JobCancelled):
            cancelled.result(5)


def test_a_task_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.testing.passing_time.SETTLE_TIMEOUT", 0.1)
    with in_memory(app) as fleet:
        endless.submit()
        with pytest.raises(TimeoutError, match="endless"):
            fleet.settle()


def test_the_asyncio_methods() -> None:
    async def main() -> Any:
        job = await add.asubmit(1)
        result = await job.aresult(5)
        await app.aclose()
        return result

    with in_memory(app):
        assert asyncio.run(main()) == 2


def test_afterwards_the_app_has_its_old_servers() -> None:
    with in_memory(app):
        pass
    assert [str(address) for address in app.servers()] == ["127.0.0.1:1"]
    with in_memory(app):
        assert add.submit(1).result(5) == 2


def test_tasks_that_wait_for_tasks_leave_places_for_them() -> None:
    with in_memory(app, concurrency=1) as fleet:
        jobs = waits_for_many.submit_many([([1, 2, 3],)] * 5)
        fleet.settle()
        assert [job.result(5) for job in jobs] == [9] * 5


def test_a_request_key_joins_the_job_of_the_first_submit() -> None:
    """Also after the job has ended."""
    keyed, other = add.options(request_key="k"), add.options(request_key="other")
    with in_memory(app) as fleet:
        first = keyed.submit(1)
        assert (keyed.submit(1).handle, keyed.submit(1).joined) == (first.handle, True)
        assert first.result(5) == 2
        fleet.settle()
        assert keyed.submit(1).handle == first.handle
        with pytest.raises(RefusedError, match="another submit"):
            keyed.submit(2)
        assert other.submit(1).handle != first.handle
        fleet.advance("25h")
        assert keyed.submit(2).handle != first.handle, "a key is kept for a day"


def test_the_traceback_of_a_task_begins_with_its_code() -> None:
    with in_memory(app), pytest.raises(JobFailed) as failed:
        flaky.options(retry=Retry(max_attempts=1)).submit(9).result(5)
    first = (failed.value.traceback or "").splitlines()[1]
    assert __file__ in first


@app.task(keep_result="1m")
def brief(number: int) -> int:
    return number


@app.task(keep_result="10m", retry=Retry(max_attempts=1))
def longer(number: int) -> float:
    return 1 / number


@app.task(ignore_result=True)
def ignored(number: int) -> Iterator[int]:
    return iter([number])


def test_results_are_kept_as_long_as_their_task_declares() -> None:
    def found(*jobs: Any) -> list[Any]:
        """Return the results that the node still has: a client keeps one that it has got."""
        results: list[Any] = []
        for job in jobs:
            try:
                results.append(app.job(job.handle).result(5))
            except JobLost:
                results.append(None)
        return results

    with in_memory(app) as fleet:
        first, slower, second = brief.submit(1), longer.submit(2), brief.submit(3)
        unique = brief.options(unique="u", keep_unique="1h").submit(4)
        other, failed = add.submit(1), longer.submit(0)
        fleet.settle()
        fleet.advance("50s")
        third = brief.submit(5)
        fleet.settle()
        assert found(first, slower, second, third) == [b"1", b"0.5", b"3", b"5"]
        fleet.advance("20s")
        assert found(first, slower, second, third, unique, other) == [None, b"0.5", None, b"5", b"4", b"2"]
        fleet.advance("10m")
        assert found(slower, third, unique, other) == [None, None, b"4", b"2"]
        assert failed.state == "failed"


def test_an_ignored_result_is_neither_sent_nor_checked() -> None:
    with in_memory(app):
        job = ignored.submit(1)
        assert job.result(5) is None
        assert job.info()["output_size"] == 0


@pytest.mark.parametrize("span", [0, "0.5s", -1, "soon", True])
def test_a_result_is_kept_for_a_second_at_least(span: Any) -> None:
    with pytest.raises(UsageError, match="keep_result"):
        App().task(keep_result=span)


@app.task(rate=Rate(1, per="1m"))
def rated(number: int) -> int:
    return number


def test_jobs_over_a_limit_start_as_the_clock_advances() -> None:
    with in_memory(app) as fleet:
        jobs = rated.submit_many([1, 2, 3])
        fleet.settle()
        assert [job.state for job in jobs].count("succeeded") == 1
        fleet.advance("1m")
        assert [job.state for job in jobs].count("succeeded") == 2
        fleet.advance("1m")
        assert list(app.results(jobs)) == [1, 2, 3]


def test_jobs_of_a_paused_task_wait_for_its_resumption() -> None:
    with in_memory(app) as fleet:
        app.functions.pause(add)
        job = add.submit(1)
        fleet.advance("1h")
        assert job.state == "pending"
        app.functions.resume(add)
        assert fleet.result(job) == 2


@pytest.fixture
def _default_logs() -> Iterator[None]:
    """Let structlog be as in a process of its own, whatever other tests have configured."""
    config = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if config is not None:
        structlog.configure(**config)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.usefixtures("_default_logs")
def test_nothing_is_printed(
    captured: bool, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task(concurrency=2)
    def greet() -> str:
        structlog.get_logger("their.own").info("a line of the task")
        return "hello"

    if captured:
        with structlog.testing.capture_logs():  # it leaves structlog configured
            pass
    before = structlog.get_config()["logger_factory"]
    caplog.set_level("INFO")
    with in_memory(app) as fleet:
        assert fleet.result(greet.submit()) == "hello"
    out, err = capfd.readouterr()
    assert ("a line of the task" in out, len(out.splitlines()), err) == (True, 1, "")
    assert any(record.name == "mainspring" for record in caplog.records)
    assert structlog.get_config()["logger_factory"] is before
