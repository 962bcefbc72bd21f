"""Decisions of cached runs that are made by a replay of the whole history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.worker.workflows.host import RUN, Host

from mainspring import App, workflow
from mainspring.wire.gearman_protocol import Type
from mainspring.worker.workflows.replay_checks import CHECKED_EVENTS, ONE_IN

SETTINGS: list[tuple[dict[str, Any], float]] = [({"check_replay": True}, 1.0), ({}, 0.5 / ONE_IN)]
"""Each decision, and the chance of one in a thousand."""


class Signals:
    """An App whose workflow submits an activity for each signal. Its argument comes from outside of the history."""

    def __init__(self) -> None:
        self.app = app = App()
        self.value = 1
        self.executions = 0
        go = app.signal("go", int)

        @app.task
        async def act(number: int) -> None: ...

        @app.workflow
        async def order() -> None:
            self.executions += 1
            async for _ in go:
                job = act.submit(self.value)
                del job


async def decide(host: Host) -> None:
    """Let the worker make a decision about a signal, and record it."""
    host.node.signal("go", 1)
    host.assign()
    host.answer(await host.report())
    await host.settle()


@pytest.mark.parametrize(("settings", "chance"), SETTINGS)
def test_a_checked_decision_replays_the_history_and_goes_on(settings: dict[str, Any], chance: float) -> None:
    signals = Signals()

    async def test(host: Host) -> None:
        await decide(host)
        host.chance = chance
        host.node.signal("go", 1)
        host.assign()
        assert await host.taken(Type.HISTORY) == [[b"%d" % RUN, b"1"]]
        host.events(1, host.node.state.last)
        report = await host.report()
        assert report.only.parked is None
        assert len(report.only.decisions) == 1
        host.answer(report)
        assert len(host.node.activities) == 2
        assert signals.executions == 2
        assert await host.forgotten() == []

    Host(signals.app, **settings).run(test)


@pytest.mark.parametrize(("settings", "chance"), SETTINGS)
def test_a_difference_parks_the_run_with_both_sides(settings: dict[str, Any], chance: float) -> None:
    signals = Signals()

    async def test(host: Host) -> None:
        await decide(host)
        host.chance = chance
        signals.value = 2
        host.node.signal("go", 1)
        host.assign()
        await host.settle()
        host.events(1, host.node.state.last)
        parked = (await host.report()).only.parked
        assert parked is not None
        assert (parked.kind, parked.recorded, parked.code[:1]) == (
            "mismatch",
            ("activity #1 act [1]",),
            ("activity #1 act [2]",),
        )

    Host(signals.app, **settings).run(test)


def test_other_decisions_are_not_checked() -> None:
    signals = Signals()

    async def test(host: Host) -> None:
        await decide(host)
        host.chance = 1.5 / ONE_IN
        signals.value = 2
        await decide(host)
        assert host.packets[Type.HISTORY] == []
        assert signals.executions == 1

    Host(signals.app).run(test)


def test_long_histories_are_not_checked() -> None:
    signals = Signals()

    async def test(host: Host) -> None:
        await decide(host)
        for _ in range(CHECKED_EVENTS):
            host.node.signal("other", 1)
        await decide(host)
        assert host.packets[Type.HISTORY] == []

    Host(signals.app, check_replay=True).run(test)


def test_a_run_whose_steps_run_is_not_checked() -> None:
    app = App()
    go = app.signal("go", int)
    executions = []

    async def never() -> None:
        await asyncio.Event().wait()

    @app.workflow
    async def order() -> None:
        executions.append(1)
        job = workflow.step(never)
        await go.receive()
        await job

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.node.signal("go", 1)
        host.stop(host.lease, b"events")
        host.answer(await host.report())
        await host.settle()
        assert executions == [1]
        assert host.packets[Type.HISTORY] == []

    Host(app, check_replay=True).run(test)


@pytest.mark.parametrize(("settings", "chance"), SETTINGS)
def test_a_checked_decision_is_not_fused(settings: dict[str, Any], chance: float) -> None:
    app = App()

    @app.task
    async def act(number: int) -> int:
        return number

    @app.workflow
    async def order() -> int:
        return await act.submit(1) + await act.submit(2)

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        host.chance = chance
        (scheduled,) = host.node.activities.values()
        host.assign_activities()
        await host.settle()
        host.chance = 1.0  # the choice holds until the decision
        assert await host.reports() == []
        assert host.settled == [(b"H:test:%d" % scheduled.job, b"succeeded")]
        host.node.end(scheduled.job, b"1")
        host.assign()
        assert await host.taken(Type.HISTORY) == [[b"%d" % RUN, b"1"]]

    Host(app, **settings).run(test)
