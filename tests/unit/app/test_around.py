"""Middleware, hooks and provided values of an App whose tasks and workflows run in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from mainspring import App, CurrentJob, JobFailed, Provide, Retry, Snooze, current_job, workflow
from mainspring.errors import UsageError, WorkerStartError
from mainspring.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def tracing(app: App) -> list[str]:
    """Return what a middleware of the App sees."""
    seen: list[str] = []

    @app.middleware
    def trace(job: CurrentJob) -> Iterator[None]:
        assert current_job() is job
        try:
            result = yield
        except BaseException as error:
            seen.append(f"{job.function} {job.attempt} {type(error).__name__} {job.will_retry(error)}")
            raise
        seen.append(f"{job.function} {job.attempt} {result}")

    return seen


def engine() -> Iterator[str]:
    yield "engine"


def session(of: str = Provide(engine, per="worker")) -> Iterator[str]:
    yield f"session of {of}"


def plain(number: int, db: Annotated[str, Provide(session)]) -> str:
    return f"{number} {db}"


async def later(number: int, db: str = Provide(session)) -> str:
    await asyncio.sleep(0)
    return f"{number} {db}"


# ---- local steps ----


def test_local_steps_have_middleware_and_values_and_workflow_code_has_none() -> None:
    app = App()
    seen = tracing(app)
    own: list[str] = []

    def of_the_task(job: CurrentJob) -> Iterator[None]:
        own.append(job.function)
        yield

    @app.task(middleware=[of_the_task])
    def in_a_thread(db: str = Provide(session)) -> str:
        return db

    @app.task(retry=Retry(max_attempts=3, initial=1))
    async def flaky() -> int:
        if current_job().attempt < 3:
            raise OSError
        return current_job().attempt

    @app.workflow
    async def order(number: int) -> list[Any]:
        return [
            await workflow.step(plain, number),
            await workflow.step(later, number),
            await in_a_thread.step(),
            await flaky.step(),
            await in_a_thread.submit(),
            workflow.side_effect(lambda: 6),
        ]

    @app.workflow
    async def fails() -> None:
        await workflow.step(unreadable)

    def unreadable() -> None:
        raise ValueError

    with in_memory(app) as memory:
        assert memory.result(order.submit(1)) == [
            "1 session of engine", "1 session of engine", "session of engine", 3, "session of engine", 6
        ]  # fmt: skip
        assert seen == [
            "plain 1 1 session of engine",
            "later 1 1 session of engine",
            "in_a_thread 1 session of engine",
            "flaky 1 OSError True",
            "flaky 2 OSError True",
            "flaky 3 3",
            "in_a_thread 1 session of engine",
        ]
        assert own == ["in_a_thread", "in_a_thread"]
        seen.clear()
        with pytest.raises(JobFailed, match="ValueError"):
            memory.result(fails.submit())
        assert [line.rpartition(".")[2] for line in seen] == ["unreadable 1 ValueError False"]


def test_replays_run_no_middleware(capsys: pytest.CaptureFixture[str]) -> None:
    app = App()
    seen = tracing(app)

    @app.workflow
    async def order() -> str:
        first = await workflow.step(plain, 1)
        await workflow.sleep("1d")
        return first + await workflow.step(plain, 2)

    with in_memory(app) as memory:
        run = order.submit()
        memory.settle()
        memory.crash_worker()
        memory.advance("2d")
        assert memory.result(run) == "1 session of engine2 session of engine"
    assert [line.split()[2] for line in seen] == ["1", "2"]


def test_a_worker_for_some_of_the_tasks_has_all_that_is_around_them() -> None:
    app = App()
    tracing(app)
    app.on_worker_start(generator_free)
    app.task(plain)
    app.task(plain_value)
    some = app.registry.subset(["plain"])
    assert (some.middleware, some.hooks, some.replaced) == (
        app.registry.middleware,
        app.registry.hooks,
        app.registry.replaced,
    )
    assert some.middleware
    assert some.hooks


# ---- refusals ----


def test_middleware_for_workflows_is_refused_with_the_reason() -> None:
    app = App()
    with pytest.raises(UsageError, match="a workflow has no middleware: its code is replayed"):
        app.workflow(middleware=[tracing])  # type: ignore[call-overload]

    @app.workflow
    async def order() -> None: ...

    @app.task
    def task() -> None: ...

    async def coroutine(job: CurrentJob) -> None: ...

    def function(job: CurrentJob) -> None: ...

    def nothing() -> Iterator[None]:
        yield

    def two(job: CurrentJob, call: object) -> Iterator[None]:
        yield

    refusals: list[tuple[Any, str]] = [
        (order, "is a workflow, and no middleware"),
        (task, "is a task, and no middleware"),
        (coroutine, "is no generator function"),
        (function, "write `yield` where the job runs"),
        (nothing, "takes one argument"),
        (two, "takes one argument"),
        (5, "is no generator function"),
    ]
    for given, message in refusals:
        with pytest.raises(UsageError, match=message):
            app.middleware(given)
        with pytest.raises(UsageError, match=message):
            app.task(middleware=[given])


def test_hooks_are_functions_without_parameters() -> None:
    app = App()

    def generator() -> Iterator[None]:
        yield

    def needs(number: int) -> None: ...

    app.on_worker_start(partial(needs, 5))
    for given, message in [
        (needs, "has parameters"),
        (5, "a function without parameters"),
        (app.task(generator_free), "not a function"),
    ]:
        with pytest.raises(UsageError, match=message):
            app.on_worker_start(given)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="give it to on_worker_start"):
        app.on_worker_stop(generator)


def generator_free() -> None: ...


# ---- tests of users ----


def test_tests_replace_providers_of_tasks_and_of_other_providers() -> None:
    app = App()
    app.task(plain)
    task = app.task(later)
    closed = []

    async def fake() -> AsyncIterator[str]:
        yield "fake"
        closed.append("fake")

    with in_memory(app) as memory:
        assert memory.result(task.submit(1)) == "1 session of engine"
        with app.override(session, fake):
            assert memory.result(task.submit(2)) == "2 fake"
            with app.override(session, lambda: "inner"):
                assert memory.result(task.submit(3)) == "3 inner"
            assert memory.result(task.submit(4)) == "4 fake"
        with app.override(engine, lambda: "other"):
            assert memory.result(task.submit(5)) == "5 session of other"
        assert memory.result(task.submit(6)) == "6 session of engine"
    assert closed == ["fake", "fake"]


def test_a_replacement_may_not_need_what_it_replaces() -> None:
    app = App()

    def around_it(of: str = Provide(session)) -> str:
        return of

    def of_a_job(of: str = Provide(plain_value)) -> str:
        return of

    @app.task
    def task(of: str = Provide(engine, per="worker")) -> None: ...

    for provider, other, message in [
        (session, around_it, "need each other"),
        (engine, of_a_job, "per worker"),
        (engine, "x", "lambda"),
    ]:
        with pytest.raises(UsageError, match=message), app.override(provider, other):  # type: ignore[arg-type]
            pass
    assert not app.registry.replaced


def plain_value() -> str:
    return "value"


def test_a_mocked_task_gets_its_arguments_and_needs_no_values() -> None:
    app = App()
    seen = tracing(app)

    def unreachable() -> str:
        raise ConnectionError

    @app.task
    def charge(cents: int, db: str = Provide(unreachable)) -> int:
        return cents

    @app.workflow
    async def order() -> int:
        return await charge.step(1) + await charge.submit(2)

    with in_memory(app) as memory:
        with pytest.raises(JobFailed, match="ConnectionError"):
            memory.result(charge.submit(5))
        memory.mock(charge, lambda cents: 10 * cents)
        assert memory.result(charge.submit(5)) == 50
        assert memory.result(order.submit()) == 30
    assert [line.split()[2] for line in seen] == ["ConnectionError", "50", "10", "20"]


def test_hooks_and_values_per_worker_end_with_the_block() -> None:
    app, seen = App(), []

    @app.on_worker_start
    def start() -> Iterator[None]:
        seen.append("start")
        yield
        seen.append("end")

    def pool() -> Iterator[str]:
        seen.append("open")
        yield "pool"
        seen.append("close")

    @app.task
    async def task(of: str = Provide(pool, per="worker")) -> None:
        seen.append(of)

    with in_memory(app) as memory:
        memory.result(task.submit())
        memory.result(task.submit())
    assert seen == ["start", "open", "pool", "pool", "close", "end"]


def test_a_hook_that_fails_fails_the_test() -> None:
    app = App()

    @app.on_worker_start
    async def connect() -> None:
        raise ConnectionError("no database")

    app.task(plain)
    with pytest.raises(WorkerStartError, match="ConnectionError: no database"), in_memory(app):
        pass


def test_a_snooze_of_a_middleware_puts_the_job_off() -> None:
    app, closed = App(), [True]

    @app.middleware
    def opening_hours(job: CurrentJob) -> Iterator[None]:
        if closed:
            raise Snooze("1h")
        yield

    task = app.task(plain_value)
    with in_memory(app) as memory:
        job = task.submit()
        memory.settle()
        assert job.state == "scheduled"
        closed.clear()
        memory.advance("1h")
        assert job.result(timeout=5) == "value"
        assert job.info()["attempt"] == 1
