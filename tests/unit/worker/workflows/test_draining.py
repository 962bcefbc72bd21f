"""A worker of workflows that ends: it records what it has, gives its decisions back, and waits for nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.unit.worker.workflows.host import Host
from tests.unit.worker.workflows.test_decider import Steps, markers, sleeper

from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from mainspring import App


async def drain(host: Host) -> None:
    host.worker.stop()
    await host.settle()


def released(host: Host) -> bool:
    return host.settled == [(host.lease[0], b"released")]


def slow_job(app: App) -> asyncio.Event:
    """Define a task that keeps the worker from ending; return the event that ends it."""
    event = asyncio.Event()

    @app.task
    async def slow() -> None:
        await event.wait()

    return event


def test_a_running_step_is_recorded_and_then_its_decision_is_given_back() -> None:
    steps = Steps(2)
    slow = slow_job(steps.app)

    async def test(host: Host) -> None:
        host.assign_job(b"slow")
        host.assign()
        await host.settle()
        await drain(host)
        steps.go[0].set()
        report = await host.report()
        assert (len(report.only.steps), report.only.more) == (1, True)
        assert not host.settled
        host.answer(report)
        await host.settle()
        assert markers(host) == 1
        assert released(host)
        assert steps.begun == [0]
        assert not host.ended
        slow.set()
        await host.settle()
        assert host.ended

    Host(steps.app).run(test)


def test_a_decision_is_given_back_after_the_answer_to_its_report() -> None:
    steps = Steps(2)
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        report = await host.report()
        await drain(host)
        assert not host.settled
        assert not host.ended
        host.answer(report)
        await host.settle()
        assert released(host)
        assert host.ended

    Host(steps.app).run(test)


def test_results_that_wait_for_their_decision_are_recorded_at_once() -> None:
    steps = Steps(2, record="together")
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        assert not await host.reports()
        await drain(host)
        report = await host.report()
        assert len(report.only.steps) == 1
        host.answer(report)
        steps.go[1].set()
        host.answer(await host.report())
        await host.settle()
        assert host.node.closed is not None
        assert host.ended

    Host(steps.app).run(test)


def test_a_decision_whose_events_are_being_read_is_given_back() -> None:
    app, seen = sleeper()
    slow_job(app)

    async def test(host: Host) -> None:
        host.assign_job(b"slow")
        host.assign(events=False)
        assert await host.taken(Type.HISTORY)
        await drain(host)
        assert released(host)
        assert not await host.reports()
        assert not seen
        assert not host.ended

    Host(app).run(test)


def test_a_decision_that_still_arrives_is_given_back() -> None:
    app, seen = sleeper()
    slow_job(app)

    async def test(host: Host) -> None:
        host.assign_job(b"slow")
        await host.settle()
        await drain(host)
        host.assign()
        await host.settle()
        assert released(host)
        assert not seen
        assert not await host.reports()

    Host(app).run(test)


def test_a_decision_that_still_arrives_records_steps_that_have_run() -> None:
    steps = Steps(2)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.node.signal("news")
        host.stop(host.lease, b"events")
        host.answer(await host.report(), assign=False)  # the next decision is on its way
        await host.settle()
        await drain(host)
        steps.go[0].set()
        await host.settle()
        assert not await host.reports()
        assert not host.ended
        host.assign()
        report = await host.report()
        assert (len(report.only.steps), report.only.more) == (1, True)
        host.answer(report)
        await host.settle()
        assert released(host)
        assert steps.begun == [0]
        assert host.ended

    Host(steps.app).run(test)


def test_steps_whose_decision_comes_no_more_do_not_keep_a_worker_from_ending() -> None:
    steps = Steps(1)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.node.signal("news")
        host.stop(host.lease, b"events")
        host.answer(await host.report(), assign=False)
        await host.settle()
        await drain(host)
        assert not host.ended
        host.cut()
        await host.settle()
        assert steps.stopped == [0]
        assert host.ended

    Host(steps.app, grace=30.0).run(test)


def test_the_end_of_the_grace_gives_decisions_back() -> None:
    steps = Steps(1)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        await drain(host)
        host.advance(29.9)
        await host.settle()
        assert not host.ended
        host.advance(0.2)
        await host.settle()
        assert released(host)
        assert steps.stopped == [0]
        assert host.ended

    Host(steps.app, grace=30.0).run(test)


def test_a_report_without_an_answer_ends_with_its_connection() -> None:
    """Nothing answers it any more, so that a drain does not wait for it."""
    app, seen = sleeper()

    async def test(host: Host) -> None:
        host.assign()
        await host.report()
        await drain(host)
        assert not host.ended
        host.cut()
        await host.settle()
        assert seen == ["begun", "ended"]
        assert host.ended

    Host(app).run(test)


def test_a_report_of_an_evicted_run_ends_with_its_connection() -> None:
    """The node has cancelled the decision while the report about it was under way."""
    steps = Steps(2)
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        await host.report()
        host.stop(host.lease, b"cancelled")
        await host.settle()
        host.cut()
        await host.settle()
        await drain(host)
        assert host.ended

    Host(steps.app).run(test)
