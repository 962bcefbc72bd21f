"""Runs whose steps run or wait for their next attempts: they take no place of others, and nobody waits for them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.worker.workflows.host import RUN, Host
from tests.unit.worker.workflows.test_decider import Steps

from mainspring import App, Retry, Snooze, current_job
from mainspring.wire.gearman_protocol import Type
from mainspring.worker.workflows import decider, runs
from mainspring.worker.workflows.decider import FULL_AFTER, LINE_TICKS
from mainspring.workflows.history import TimerStarted
from mainspring.workflows.requests import StepRetry

HOUR = 3600.0


class Failing:
    """An App whose workflow makes a step that fails twice, and receives signals meanwhile."""

    def __init__(self, *, initial: float = HOUR, error: type[Exception] = OSError) -> None:
        self.app = app = App()
        self.attempts: list[int] = []
        self.received: list[str] = []

        @app.task(retry=Retry(max_attempts=3, initial=initial, factor=1, jitter=0))
        async def price() -> int:
            self.attempts.append(current_job().attempt)
            if len(self.attempts) < 3:
                raise Snooze(initial) if error is Snooze else error("busy")
            return 7

        @app.workflow
        async def order() -> int:
            async def receive() -> None:
                async for one in app.signal("news", str):
                    self.received.append(one)

            reader = asyncio.create_task(receive())
            try:
                return await price.step()
            finally:
                reader.cancel()

    def host(self, *, retries: bool = True, **settings: Any) -> Host:
        host = Host(self.app, **settings)
        host.limits = {"retries": retries}
        return host


async def wake(host: Host) -> None:
    """Let the time of the next attempt come."""
    host.advance(HOUR + 1)
    host.node.wait(0)
    assign(host)
    await host.settle()


def assign(host: Host) -> None:
    """Assign the run's decision with all events."""
    host.has = 0
    host.assign()


@pytest.mark.parametrize("cache", [2**28, 0])
def test_a_long_wait_for_the_next_attempt_keeps_no_decision(cache: int) -> None:
    """Also where another worker goes on, which only has the history."""
    failing = Failing()

    async def test(host: Host) -> None:
        host.assign()
        for attempt in (1, 2):
            report = await host.report()
            assert report.only.retries == (StepRetry(1, attempt, int(HOUR * 1_000_000)),)
            assert (report.only.more, report.only.steps, report.only.decisions) == (False, (), ())
            host.answer(report)
            await host.settle()
            assert failing.attempts == list(range(1, attempt + 1))
            assert not host.node.decision_waits
            await wake(host)
        report = await host.report()
        assert [(one.result, one.attempt) for one in report.only.steps] == [(b"7", 3)]
        host.answer(report)
        assert host.node.closed.result == b"7"
        assert failing.attempts == [1, 2, 3]

    failing.host(workflow_cache=cache).run(test)


@pytest.mark.parametrize("cache", [2**28, 0])
def test_events_during_the_wait_leave_its_time(cache: int) -> None:
    failing = Failing()

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        await host.settle()
        host.advance(HOUR / 2)
        host.node.signal("news", "a")
        assign(host)
        report = await host.report()
        assert failing.received == ["a"]
        assert (report.only.more, report.only.retries) == (False, ())
        host.answer(report)
        await host.settle()
        assert failing.attempts == [1]
        host.advance(HOUR / 2 + 1)
        host.node.wait(0)
        assign(host)
        await host.settle()
        assert failing.attempts == [1, 2]
        assert (await host.report()).only.retries[0].attempt == 2

    failing.host(workflow_cache=cache).run(test)


def test_a_snooze_of_a_step_counts_no_attempt() -> None:
    failing = Failing(error=Snooze)

    async def test(host: Host) -> None:
        host.assign()
        for _ in range(2):
            report = await host.report()
            assert report.only.retries[0].attempt == 0
            host.answer(report)
            await host.settle()
            await wake(host)
        assert failing.attempts == [1, 1, 1]

    failing.host(workflow_cache=0).run(test)


@pytest.mark.parametrize("why", ["short", "old node", "long history"])
def test_other_waits_keep_their_decision(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(initial=9.0 if why == "short" else HOUR)
    if why == "long history":
        monkeypatch.setattr(runs, "REST_EVENTS", 1)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        for _ in range(2):
            host.advance(HOUR + 1)
            await host.settle()
        assert failing.attempts == [1, 2, 3]
        report = await host.report()
        assert [one.attempt for one in report.only.steps] == [3]
        host.answer(report)
        assert not any(isinstance(one, TimerStarted) for one in host.node.events)

    failing.host(retries=why != "old node").run(test)


@pytest.mark.parametrize("retries", [True, False])
def test_a_worker_that_ends_does_not_wait_for_the_next_attempt(retries: bool) -> None:
    failing = Failing(initial=5.0)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        assert not await host.reports()
        host.worker.stop()
        await host.settle()
        if retries:
            report = await host.report()
            assert [one.attempt for one in report.only.retries] == [1]
            host.answer(report)
            await host.settle()
        else:
            assert host.settled == [(host.lease[0], b"released")]
        assert host.ended

    failing.host(retries=retries).run(test)


def test_a_step_that_fails_while_its_worker_ends_is_not_waited_for() -> None:
    app = App()
    go = asyncio.Event()

    @app.task(retry=Retry(max_attempts=3, initial=HOUR))
    async def price() -> None:
        await go.wait()
        raise OSError

    @app.workflow
    async def order() -> None:
        await price.step()

    async def test(host: Host) -> None:
        host.limits = {"retries": True}
        host.assign()
        await host.settle()
        host.worker.stop()
        await host.settle()
        assert not await host.reports()
        go.set()
        report = await host.report()
        assert [one.attempt for one in report.only.retries] == [1]
        host.answer(report)
        await host.settle()
        assert host.ended

    Host(app).run(test)


# ---- places ----


async def kept(host: Host) -> list[int]:
    """Let time pass, and return the worker's reports of decisions that only keep a step."""
    host.advance(0.51)
    return [json.loads(args[2])["decisions"] for args in await host.taken(Type.CALL) if args[1] == b"worker.steps"]


def test_decisions_that_keep_a_step_are_reported_before_the_places_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider, "DECISIONS", 4)
    steps = Steps(1)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        assert [await kept(host) for _ in range(3)] == [[], [], []], "there are places"
        host.has = 0
        host.server.send(host.decision(run=RUN + 1))
        await host.settle()
        assert await kept(host) == [], "a step that has just begun may end soon"
        assert await kept(host) == [2]
        assert await kept(host) == []
        steps.go[0].set()
        await host.settle()
        assert await kept(host) == [0]

    Host(steps.app).run(test)


def test_a_worker_without_places_logs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider, "DECISIONS", 2)
    monkeypatch.setattr(decider, "MOST_KEPT", 1)
    steps = Steps(1)

    async def test(host: Host) -> None:
        for run in range(RUN, RUN + 3):
            host.has = 0
            host.server.send(host.decision(run=run))
        for _ in range(2 + FULL_AFTER + LINE_TICKS + 1):
            await kept(host)

    with capture_logs() as logs:
        Host(steps.app).run(test)
    lines = [one for one in logs if one["event"].startswith("the worker takes no more decisions")]
    assert [(one["places"], one["steps"]) for one in lines] == [(2, 3), (2, 3)]
