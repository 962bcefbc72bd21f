"""Limits of the open runs of workflows, with a node and a worker in memory."""

from __future__ import annotations

import asyncio
import json

import pytest

from mainspring import App, Rate, UsageError, workflow
from mainspring.client.run import Run  # noqa: TC001 - annotations are resolved at run time
from mainspring.definitions import Workflow  # noqa: TC001
from mainspring.testing import in_memory

app = App("127.0.0.1:1")
go = app.signal("go", int)


@app.workflow(concurrency=2)
async def narrow(number: int) -> int:
    return number + await go.receive()


@app.workflow(concurrency_per_key=1, concurrency_key=lambda region, number: region)
async def regional(region: str, number: int) -> int:
    return number + await go.receive()


@app.workflow
async def parent(number: int) -> int:
    first, second = regional.submit("eu", number), regional.options(concurrency_key="us").submit("eu", number)
    return sum(await asyncio.gather(first, second))


@app.task
def double(number: int) -> int:
    return 2 * number


@app.workflow(concurrency=1)
async def mapping(numbers: list[int]) -> int:
    return sum(await workflow.map(double, numbers))


@app.workflow(rate=Rate(1, per=3600, burst=2))
async def seldom(number: int) -> int:
    return number


def options(started: Workflow[..., int], *args: object) -> object:
    """Return the options that a start sends on the wire."""
    text = started._request(args, {}).options  # noqa: SLF001 - the request as sent, without a server
    return json.loads(text) if text else {}


def signal(run: Run[int]) -> None:
    run.signal(go, 1)


def test_starts_behind_the_limit_wait_with_their_signals() -> None:
    with in_memory(app) as fleet:
        runs = [narrow.submit(number) for number in range(6)]
        fleet.settle()
        assert [run.state for run in runs] == ["running"] * 2 + ["pending"] * 4
        for run in reversed(runs):
            signal(run)
        assert [run.result(timeout=20) for run in runs] == [1, 2, 3, 4, 5, 6]


def test_each_key_has_its_places() -> None:
    with in_memory(app):
        runs = [regional.submit("eu" if number % 2 else "us", number) for number in range(6)]
        for run in runs:
            signal(run)
        assert [run.result(timeout=20) for run in runs] == [1, 2, 3, 4, 5, 6]


def test_children_wait_for_places() -> None:
    with in_memory(app) as fleet:
        blocking = regional.submit("eu", 10)
        run = parent.submit(1)
        fleet.settle()
        assert sorted(job.state for job in app.jobs.list(function="regional", key="eu")) == ["pending", "running"]
        assert [job.state for job in app.jobs.list(function="regional", key="us")] == ["running"]
        signal(blocking)
        assert blocking.result(timeout=20) == 11
        fleet.settle()
        for one in app.jobs.list(function="regional", state="running"):
            regional.get(one.handle).signal(go, 1)
        assert run.result(timeout=20) == 4


def test_the_parts_of_a_map_need_no_places() -> None:
    with in_memory(app):
        runs = [mapping.submit(list(range(1_500))) for _ in range(2)]
        assert [run.result(timeout=60) for run in runs] == [2 * sum(range(1_500))] * 2


def test_a_rate_lets_some_begin() -> None:
    with in_memory(app) as fleet:
        runs = [seldom.submit(number) for number in range(3)]
        assert [run.result(timeout=20) for run in runs[:2]] == [0, 1]
        assert runs[2].state == "pending"
        fleet.advance("30m")
        assert runs[2].state == "pending"
        fleet.advance("31m")
        assert runs[2].state == "succeeded"


def test_a_limit_is_declared_when_the_worker_registers() -> None:
    assert options(narrow, 1) == {"version": ""}
    assert options(regional, "eu", 1) == {"version": "", "concurrency_key": "eu"}
    assert options(regional.options(concurrency_key="us"), "eu", 1) == {"version": "", "concurrency_key": "us"}
    assert options(regional.options(concurrency_key=""), "eu", 1) == {"version": ""}
    assert narrow.version("2")(other).function.limits.concurrency == 2


async def other(number: int) -> int:
    return number


def test_wrong_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="concurrency"):
        App().workflow(concurrency=0)(other)
    with pytest.raises(UsageError, match="rate"):
        App().workflow(rate="100/m")(other)  # type: ignore[call-overload]
