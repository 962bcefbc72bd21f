"""Activities of runs that their worker executes itself: fused with the next decision, or settled alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.worker.workflows.host import RUN, Host

from mainspring import App, workflow
from mainspring.wire.gearman_protocol import Type


class Charges:
    """An App whose workflow schedules activities; each ends when the test lets it."""

    def __init__(self, number: int = 1, *, then_step: bool = False) -> None:
        self.app = app = App()
        self.did: list[str] = []
        self.go = [asyncio.Event() for _ in range(number)]

        @app.task
        async def charge(place: int) -> int:
            self.did.append(f"charge {place}")
            await self.go[place].wait()
            return place

        @app.task
        async def price() -> int:
            self.did.append("price")
            return 3

        @app.workflow
        async def order() -> list[int]:
            paid = await asyncio.gather(*(charge.submit(place) for place in range(number)))
            if then_step:
                return [*paid, await price.step()]
            return list(paid)


async def scheduled(host: Host, **info: Any) -> None:
    """Let the run schedule its activities, and assign them to its worker."""
    host.assign()
    host.answer(await host.report())
    host.assign_activities(**info)
    await host.settle()


def test_the_end_of_an_activity_goes_with_the_next_decision() -> None:
    charges = Charges()

    async def test(host: Host) -> None:
        await scheduled(host)
        charges.go[0].set()
        report = await host.report()
        assert len(report.only.settlements) == 1
        assert len(report.only.decisions) == 1
        assert report.only.handle == b""
        host.answer(report)
        assert host.node.closed.result == b"[0]"
        assert not host.settled

    Host(charges.app).run(test)


def test_ends_of_one_turn_go_with_one_decision() -> None:
    charges = Charges(2)

    async def test(host: Host) -> None:
        await scheduled(host)
        charges.go[0].set()
        charges.go[1].set()
        report = await host.report()
        assert len(report.only.settlements) == 2
        host.answer(report)
        assert host.node.closed.result == b"[0,1]"

    Host(charges.app).run(test)


def test_an_activity_is_settled_alone_while_another_one_is_open_elsewhere() -> None:
    charges = Charges(2)

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        mine, _ = host.node.activities.values()
        host.server.send(host.activity(mine))
        await host.settle()
        charges.go[0].set()
        assert not await host.reports()
        assert [outcome for _, outcome in host.settled] == [b"succeeded"]

    Host(charges.app).run(test)


def test_an_activity_of_a_run_in_another_workers_memory_is_settled_alone() -> None:
    charges = Charges()

    async def test(host: Host) -> None:
        await scheduled(host)
        assert await host.forgotten() == [RUN]
        charges.go[0].set()
        assert not await host.reports()
        assert [outcome for _, outcome in host.settled] == [b"succeeded"]

    Host(charges.app, workflow_cache=0).run(test)


def test_a_failed_activity_is_settled_alone() -> None:
    app = App()

    @app.task
    async def charge() -> None:
        raise ValueError

    @app.workflow
    async def order() -> None:
        await charge.submit()

    async def test(host: Host) -> None:
        await scheduled(host)
        assert not await host.reports()
        assert [outcome for _, outcome in host.settled] == [b"failed"]

    Host(app).run(test)


def test_a_run_with_long_activations_settles_its_activities_alone() -> None:
    charges = Charges()

    async def test(host: Host) -> None:
        host.seconds_of_code = 0.03
        await scheduled(host)
        charges.go[0].set()
        assert not await host.reports()
        assert [outcome for _, outcome in host.settled] == [b"succeeded"]

    Host(charges.app).run(test)


def test_an_end_waits_for_the_answer_to_a_report() -> None:
    charges = Charges(2)

    async def test(host: Host) -> None:
        await scheduled(host)
        charges.go[0].set()
        first = await host.report()
        charges.go[1].set()
        assert not await host.reports()
        assert not host.settled
        host.answer(first)
        second = await host.report()
        assert len(second.only.settlements) == 1
        host.answer(second)
        assert host.node.closed.result == b"[0,1]"

    Host(charges.app).run(test)


def test_a_decision_that_a_signal_has_overtaken_is_stale_but_its_settlement_stands() -> None:
    charges = Charges()

    async def test(host: Host) -> None:
        await scheduled(host)
        charges.go[0].set()
        report = await host.report()
        host.node.signal("ping")
        assert host.answer(report).verdict == "stale"
        assert await host.forgotten() == [RUN]
        assert not host.node.activities
        host.has = 0
        host.assign()
        host.answer(await host.report())
        assert host.node.closed.result == b"[0]"
        assert charges.did == ["charge 0"]

    Host(charges.app).run(test)


def test_a_run_whose_decisions_are_overtaken_is_not_fused_for_a_time_that_grows() -> None:
    """Each one that is overtaken costs a replay."""
    app = App()

    @app.task
    async def charge() -> None: ...

    @app.workflow
    async def order() -> None:
        while True:
            await charge.submit()

    async def decide(host: Host) -> None:
        host.has = 0
        host.assign()
        report = await host.report()
        assert report.only.handle
        host.answer(report)

    async def is_fused(host: Host, *, overtaken: bool) -> bool:
        """Let the worker execute the activity, and return whether it reports a decision with its end."""
        before = len(host.settled)
        host.assign_activities()
        reports = await host.reports()
        if not reports:
            handle, outcome = host.settled[before]
            assert outcome == b"succeeded"
            host.node.end(host.node.job_of(handle), b"")
            await decide(host)
            return False
        if overtaken:
            host.node.signal("ping")
            assert host.answer(reports[0]).verdict == "stale"
            await host.settle()
            await decide(host)
        else:
            host.answer(reports[0])
        return True

    async def test(host: Host) -> None:
        await decide(host)
        for delay in (1.0, 2.0, 4.0):
            assert await is_fused(host, overtaken=True)
            host.advance(delay - 0.1)
            assert not await is_fused(host, overtaken=False)
            host.advance(0.2)
        assert await is_fused(host, overtaken=False)
        host.advance(10)
        assert await is_fused(host, overtaken=True)
        host.advance(1.1)
        assert await is_fused(host, overtaken=False), "the time begins anew"

    Host(app).run(test)


def test_a_run_whose_activity_was_recorded_otherwise_than_predicted_leaves_the_memory() -> None:
    app = App()

    @app.task
    async def charge() -> None: ...

    @app.workflow
    async def order() -> None:
        await charge.submit()
        await workflow.sleep(10)

    async def test(host: Host) -> None:
        await scheduled(host)
        host.answer(await host.report(), skip=1)
        assert await host.forgotten() == [RUN]

    Host(app).run(test)


def test_an_activity_that_was_assigned_before_its_run_is_fused() -> None:
    charges = Charges()

    async def test(host: Host) -> None:
        await scheduled(host)
        assert await host.forgotten() == [RUN]
        host.node.signal("ping")
        host.has = 0
        host.assign()
        report = await host.report()
        charges.go[0].set()
        await host.settle()
        host.answer(report)
        report = await host.report()
        assert len(report.only.settlements) == 1
        host.answer(report)
        assert host.node.closed.result == b"[0]"

    Host(charges.app, workflow_cache=0).run(test)


def test_an_activity_of_a_run_that_is_deciding_is_settled_alone() -> None:
    """The decision has not seen the end: it comes with the next one."""
    app = App()
    go = asyncio.Event()

    @app.task
    async def charge() -> None: ...

    @app.task
    async def price() -> None:
        await go.wait()

    @app.workflow
    async def order() -> None:
        await asyncio.gather(charge.submit(), price.step())

    async def test(host: Host) -> None:
        await scheduled(host)
        assert not await host.reports()
        assert [outcome for _, outcome in host.settled] == [b"succeeded"]

    Host(app).run(test)


def test_a_draining_worker_settles_its_activities_alone() -> None:
    charges = Charges()

    async def test(host: Host) -> None:
        await scheduled(host)
        host.worker.stop()
        charges.go[0].set()
        assert not await host.reports()
        assert [outcome for _, outcome in host.settled] == [b"succeeded"]
        assert host.ended

    Host(charges.app).run(test)


# ---- an activity must not time out because its end waits ----


def test_a_step_after_an_activity_starts_once_the_end_of_the_activity_is_recorded() -> None:
    charges = Charges(then_step=True)

    async def test(host: Host) -> None:
        await scheduled(host)
        charges.go[0].set()
        report = await host.report()
        assert (len(report.only.settlements), report.only.more, report.only.decisions) == (1, True, ())
        assert charges.did == ["charge 0"]
        host.answer(report)
        report = await host.report()
        assert charges.did == ["charge 0", "price"]
        assert (len(report.only.settlements), len(report.only.steps)) == (0, 1)
        host.answer(report)
        assert host.node.closed.result == b"[0,3]"

    Host(charges.app).run(test)


@pytest.mark.parametrize(
    ("info", "seconds", "fused"),
    [
        ({"timeout": 5.0}, 3.9, True),
        ({"timeout": 5.0}, 4.1, False),
        ({"timeout": 0.5}, 0.0, False),
        ({"heartbeat": 3.2}, 60.0, True),
        ({"heartbeat": 2.8}, 0.0, False),
        ({"heartbeat": 60.0, "timeout": 5.0}, 4.1, False),
    ],
)
def test_an_activity_that_is_about_to_time_out_is_settled_alone(
    info: dict[str, float], seconds: float, fused: bool
) -> None:
    charges = Charges()

    async def test(host: Host) -> None:
        await scheduled(host, **info)
        for _ in range(round(seconds * 10)):
            host.advance(0.1)
            await host.settle()
        charges.go[0].set()
        assert len(await host.reports()) == fused
        assert len(host.settled) == (not fused)

    Host(charges.app).run(test)


@pytest.mark.parametrize(("seconds", "fused"), [(3.9, True), (4.1, False)])
def test_an_activity_that_must_end_soon_is_settled_alone(seconds: float, fused: bool) -> None:
    app = App()
    go = asyncio.Event()

    @app.task
    async def charge() -> None:
        await go.wait()

    @app.workflow
    async def order() -> None:
        await charge.options(schedule_to_close=5).submit()

    async def test(host: Host) -> None:
        await scheduled(host)
        host.advance(seconds)
        go.set()
        assert len(await host.reports()) == fused
        assert len(host.settled) == (not fused)

    Host(app).run(test)


@pytest.mark.parametrize(("info", "seconds"), [({}, 1.0), ({"timeout": 60.0}, 1.0), ({"timeout": 1.7}, 0.7)])
def test_an_end_waits_for_an_answer_up_to_a_second_and_not_until_its_time_out(
    info: dict[str, float], seconds: float
) -> None:
    charges = Charges(2)

    async def test(host: Host) -> None:
        await scheduled(host, **info)
        charges.go[0].set()
        first = await host.report()
        charges.go[1].set()
        await host.settle()
        host.advance(seconds - 0.01)
        await host.settle()
        assert not host.settled
        host.advance(0.02)
        await host.settle()
        assert [outcome for _, outcome in host.settled] == [b"succeeded"]
        host.answer(first)
        assert not await host.reports()

    Host(charges.app).run(test)


def test_the_end_that_may_wait_least_settles_all_that_wait() -> None:
    charges = Charges(3)

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        first, second, third = host.node.activities.values()
        host.server.send(host.activity(first), host.activity(second), host.activity(third, timeout=1.5))
        await host.settle()
        charges.go[0].set()
        await host.report()
        charges.go[1].set()
        await host.settle()
        charges.go[2].set()
        await host.settle()
        host.advance(0.51)
        await host.settle()
        assert len(host.settled) == 2

    Host(charges.app).run(test)


def test_an_answer_ends_the_wait_of_the_ends_before_it() -> None:
    charges = Charges(3)

    async def test(host: Host) -> None:
        await scheduled(host)
        charges.go[0].set()
        first = await host.report()
        charges.go[1].set()
        await host.settle()
        host.advance(0.5)
        host.answer(first)
        second = await host.report()
        assert len(second.only.settlements) == 1
        charges.go[2].set()
        await host.settle()
        host.advance(0.6)
        await host.settle()
        assert not host.settled

    Host(charges.app).run(test)


# ---- lost connections ----


async def reconnect(host: Host) -> None:
    host.cut()
    await host.settle()
    host.advance(5.0)
    assert await host.taken(Type.REGISTER)
    host.has = 0


def test_a_report_whose_answer_was_lost_is_not_sent_again() -> None:
    """The history has it: the recorded step is not executed again."""
    charges = Charges(then_step=True)

    async def test(host: Host) -> None:
        await scheduled(host)
        charges.go[0].set()
        host.answer(await host.report())
        host.node.record((await host.report()).only)
        await reconnect(host)
        assert not await host.reports()
        assert not host.settled
        assert host.node.closed.result == b"[0,3]"
        assert charges.did == ["charge 0", "price"]

    Host(charges.app).run(test)


def test_a_recorded_step_whose_answer_was_lost_is_not_executed_again() -> None:
    app = App()
    did: list[int] = []

    @app.task
    async def step(place: int) -> int:
        did.append(place)
        return place

    @app.workflow
    async def order() -> list[int]:
        return [await step.step(place) for place in range(3)]

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        host.node.record((await host.report()).only)
        await reconnect(host)
        assert not await host.reports()
        host.assign()
        host.answer(await host.report())
        assert did == [0, 1, 2]
        assert host.node.closed.result == b"[0,1,2]"

    Host(app).run(test)


def test_a_step_whose_report_was_lost_is_executed_again() -> None:
    app = App()
    did: list[int] = []

    @app.task
    async def step(place: int) -> int:
        did.append(place)
        return place

    @app.workflow
    async def order() -> list[int]:
        return [await step.step(place) for place in range(2)]

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        await host.report()
        await reconnect(host)
        assert not await host.reports()
        host.assign()
        host.answer(await host.report())
        assert did == [0, 1, 1]
        assert host.node.closed.result == b"[0,1]"

    Host(app).run(test)


def test_a_fused_end_whose_answer_was_lost_is_known_after_the_replay() -> None:
    app = App()
    did: list[int] = []

    @app.task
    async def charge() -> None:
        did.append(1)

    @app.workflow
    async def order() -> None:
        await charge.submit()
        await workflow.sleep(10)

    async def test(host: Host) -> None:
        await scheduled(host)
        host.node.record((await host.report()).only)
        await reconnect(host)
        assert not await host.reports()
        assert not host.settled
        host.advance(10)
        host.node.fire()
        host.assign()
        host.answer(await host.report())
        assert host.node.closed is not None
        assert did == [1]

    Host(app).run(test)
