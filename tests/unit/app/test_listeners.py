"""Listeners of an App: their definitions, and their deliveries in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from mainspring import App, CurrentJob, Event, EventData, JobFailed, Provide, Retry, UsageError, ZooKeeper, current_job
from mainspring.client.inside import current_depth, waiter
from mainspring.jobs.model import MOST_DEPTH
from mainspring.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def shop() -> App:
    app = App("127.0.0.1:1", name="shop")

    @app.task(name="pay")
    def pay(order: int) -> None:
        if order < 0:
            raise ValueError(f"no order {order}")

    return app


# ---- definitions ----


def define(app: App, *types: str, **options: Any) -> Any:
    def tell(event: Event) -> None:
        """Do nothing."""

    return app.on(*types or ("job.failed",), **options)(tell)


def test_a_listener_is_a_task() -> None:
    app = shop()
    seen: list[Event] = []

    @app.on("job.failed", name="told", priority="high", tags=["x"], run_timeout=5)
    def tell(event: Event) -> None:
        seen.append(event)

    assert tell.name == "told"
    assert app.registry.get("told") is not None
    event = Event(id="1", type="job.failed", data=EventData(error="m"))
    tell(event)
    assert seen == [event]
    assert app.listeners.params("shop") == {
        "app": "shop",
        "listeners": [
            {
                "name": "told",
                "types": ["job.failed"],
                "priority": "high",
                "timeout": 5,
                "retry": Retry().wire(),
                "job_tags": ("x",),
            }
        ],
    }


@pytest.mark.parametrize(
    ("types", "options", "why"),
    [
        ((), {}, "needs the types"),
        (("job.lost",), {}, r"'job.lost' names no type of event: there are .*job\.failed"),
        (("jobs.*",), {}, "names no type"),
        (("node.*",), {}, "everywhere=True"),
        (("job.failed",), {"function": "tell"}, "its own function"),
        (("job.failed",), {"function": ["pay", "tell"]}, "its own function"),
        (("job.failed",), {"function": ""}, "function must be"),
        (("job.failed",), {"function": 5}, "function must be"),
        (("job.failed",), {"tag": 5}, "tag must be"),
        (("job.failed",), {"tag": ""}, "is not a tag"),
        (("job.failed",), {"everywhere": 1}, "everywhere must be"),
        ((5,), {}, "a type of events must be"),
        (("job.failed",), {"name": "pay"}, "two tasks are named 'pay'"),
        (("job.failed",), {"retry": 5}, "retry must be"),
    ],
)
def test_wrong_listeners_are_refused(types: tuple[Any, ...], options: dict[str, Any], why: str) -> None:
    app = shop()

    def tell(event: Event) -> None:
        """Do nothing."""

    with pytest.raises(UsageError, match=why):
        app.on(*types, **options)(tell)
    assert not app.listeners


def no_argument() -> None:
    """Take nothing."""


def two(event: Event, other: int) -> None:
    """Take too much."""


def by_name(*, event: Event) -> None:
    """Take it by name."""


def wrong(event: int) -> None:
    """Take something else."""


def bare(event) -> None:  # type: ignore[no-untyped-def]
    """Say nothing."""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_argument, "takes one argument"),
        (two, "takes one argument"),
        (by_name, "takes one argument"),
        (wrong, "is a mainspring.Event"),
        (bare, "is a mainspring.Event"),
    ],
)
def test_a_listener_takes_an_event(function: Callable[..., None], why: str) -> None:
    app = shop()
    with pytest.raises(UsageError, match=why):
        app.on("job.failed")(function)
    assert function.__name__ not in app.registry.names()


def test_a_task_is_no_listener() -> None:
    app = shop()
    with pytest.raises(UsageError, match="already"):
        app.on("job.failed")(define(app))


def test_zookeeper_keeps_no_events() -> None:
    app = App(store=ZooKeeper("zookeeper://localhost/x"))
    with pytest.raises(UsageError, match="keeps no events"):
        define(app)


# ---- deliveries ----


def test_a_listener_gets_the_events_of_its_filter() -> None:
    app = shop()
    seen: list[Event] = []

    @app.task
    def other() -> None:
        raise ValueError("no")

    @app.on("job.failed", function=["pay*"])
    async def tell(event: Event) -> None:
        seen.append(event)

    with in_memory(app) as node:
        pay = app.function("pay")
        jobs = [pay.options(tags=["a"]).submit(-1), app.function("other").submit(), pay.submit(1)]
        node.settle()
        assert [event.job for event in seen] == [jobs[0].handle]
        (event,) = seen
        assert (event.type, event.function, event.namespace, event.subject) == ("job.failed", "pay", "default", None)
        assert event.data == EventData(
            attempt=1, tags=("a",), error_type="ValueError", error="no order -1", duration=event.data.duration
        )


def test_a_listener_has_middleware_and_provided_values() -> None:
    app = shop()
    seen: list[str] = []

    def session() -> Iterator[str]:
        yield "session"

    @app.middleware
    def trace(job: CurrentJob) -> Iterator[None]:
        seen.append(f"{job.function} {job.depth}")
        yield

    @app.on("job.failed")
    def tell(event: Event, db: str = Provide(session)) -> None:
        seen.append(f"{event.function} {db}")

    with in_memory(app) as node:
        app.function("pay").submit(-1)
        node.settle()
    assert seen == ["pay 0", "tell 1", "pay session"]


def test_a_delivery_that_fails_is_tried_again_and_becomes_a_dead_letter() -> None:
    app = shop()
    attempts: list[int] = []

    @app.on("job.failed", retry=Retry(max_attempts=3, initial=10, jitter=0))
    def tell(event: Event) -> None:
        attempts.append(current_job().attempt)
        raise ConnectionError("the chat is down")

    with in_memory(app) as node:
        app.function("pay").submit(-1)
        node.advance("5m")
        assert attempts == [1, 2, 3]
        assert len([*app.jobs.list(state="failed", function="tell")]) == 1


def test_events_of_one_job_are_delivered_in_their_order() -> None:
    app = shop()
    seen: list[tuple[str | None, str]] = []

    @app.task(retry=Retry(max_attempts=3, initial=1, jitter=0))
    def flaky() -> None:
        raise ValueError("no")

    @app.on("job.attempt_failed", "job.failed", retry=Retry(max_attempts=5, initial=100, jitter=0))
    def tell(event: Event) -> None:
        if current_job().attempt == 1 and event.data.attempt == 1:
            raise ConnectionError("the first event waits, and the others wait for it")
        seen.append((event.job, f"{event.type} {event.data.attempt}"))

    with in_memory(app) as node:
        jobs = [flaky.submit().handle for _ in range(3)]
        node.advance("10m")
    for handle in jobs:
        assert [what for job, what in seen if job == handle] == [
            "job.attempt_failed 1",
            "job.attempt_failed 2",
            "job.failed 3",
        ]


def test_a_listener_gets_no_events_about_its_own_function() -> None:
    app = shop()
    seen: list[str | None] = []

    @app.on("job.failed", retry=Retry(max_attempts=1))
    def tell(event: Event) -> None:
        seen.append(event.function)
        raise ValueError("no")

    with in_memory(app) as node:
        app.function("pay").submit(-1)
        node.settle()
    assert seen == ["pay"]


def test_a_listener_that_submits_what_it_listens_to_stops() -> None:
    app = shop()
    depths: list[int] = []

    @app.on("job.failed", function="pay")
    def tell(event: Event) -> None:
        depths.append(current_job().depth)
        app.function("pay").submit(-1)

    with capture_logs() as logs, in_memory(app) as node:
        app.function("pay").submit(-1)
        node.settle()
    assert depths == list(range(1, MOST_DEPTH + 1))
    assert [line["function"] for line in logs if "in a circle" in line["event"]] == ["pay"]


def test_a_coroutine_passes_its_depth_on() -> None:
    app = shop()
    depths: list[int] = []

    @app.on("job.failed", function="pay")
    async def tell(event: Event) -> None:
        depths.append(current_job().depth)
        await app.function("pay").options(concurrency_key="k").asubmit_many([-1])

    with in_memory(app) as node:
        app.function("pay").submit(-1)
        node.settle()
    assert depths == list(range(1, MOST_DEPTH + 1))


class Delivered:
    """A task of a depth."""

    loop = None
    depth = 3

    def waits(self, awaited: object) -> None:
        """Do nothing."""

    def continues(self, awaited: object) -> None:
        """Do nothing."""


def test_requests_of_code_have_the_depth_of_its_job() -> None:
    assert current_depth() == 0
    token = waiter.set(Delivered())
    try:
        assert current_depth() == 3
    finally:
        waiter.reset(token)


def test_two_listeners_of_each_other_stop() -> None:
    app = shop()
    seen: list[str] = []

    @app.on("job.succeeded", function="second", name="first")
    def first(event: Event) -> None:
        seen.append(f"first {current_job().depth}")

    @app.on("job.succeeded", function="first", name="second")
    def second(event: Event) -> None:
        seen.append(f"second {current_job().depth}")

    with in_memory(app) as node:
        second.submit(Event(id="0", type="job.failed"))
        node.settle()
    assert len(seen) == 1 + MOST_DEPTH


def test_listeners_of_runs_and_schedules() -> None:
    app = shop()
    seen: list[tuple[str, str | None, str | None]] = []

    @app.workflow
    async def order(number: int) -> int:
        return number

    @app.scheduled(every="1m")
    def tick() -> None:
        """Do nothing."""

    @app.on("run.completed", "schedule.fired")
    def tell(event: Event) -> None:
        seen.append((event.type, event.function, event.subject))

    with in_memory(app) as node:
        run = order.options(id="o-1").submit(3)
        assert node.result(run) == 3
        node.settle()
        assert seen == [("run.completed", "order", "o-1")]
        node.advance("1m")
        assert seen[1:] == [("schedule.fired", "tick", "tick")]


def test_a_failed_listener_can_be_awaited_like_a_task() -> None:
    app = shop()

    @app.on("job.failed")
    def tell(event: Event) -> None:
        raise ValueError(event.id)

    with in_memory(app) as node:
        job = tell.options(retry=Retry(max_attempts=1)).submit(Event(id="7", type="job.failed"))
        with pytest.raises(JobFailed, match="7"):
            node.result(job)
