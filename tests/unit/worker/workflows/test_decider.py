"""The decider in a worker, by its packets: steps and their records, answers, evictions, histories."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.worker.workflows.host import RUN, Host

from mainspring import App, workflow
from mainspring.wire.gearman_protocol import Type
from mainspring.worker.workflows import turns
from mainspring.workflows.history import MarkerRecorded


class Steps:
    """An App whose workflow makes steps, one after the other; each ends when the test lets it."""

    def __init__(self, number: int, *, record: Any = "each", size: int = 1) -> None:
        self.app = app = App()
        self.begun: list[int] = []
        self.stopped: list[int] = []
        self.cleaned = False
        self.go = [asyncio.Event() for _ in range(number)]

        @app.task
        async def step(place: int) -> str:
            self.begun.append(place)
            try:
                await self.go[place].wait()
            except asyncio.CancelledError:
                self.stopped.append(place)
                raise
            return "x" * size

        @app.workflow
        async def order() -> int:
            try:
                return sum([len(await workflow.step(step, place, record=record)) for place in range(number)])
            finally:
                self.cleaned = True


def markers(host: Host) -> int:
    return sum(isinstance(event, MarkerRecorded) for event in host.node.events)


# ---- steps and their records ----


def test_a_step_is_on_disk_before_the_next_one_starts() -> None:
    steps = Steps(2)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        assert steps.begun == [0]
        steps.go[0].set()
        report = await host.report()
        assert (len(report.only.steps), report.only.more) == (1, True)
        assert steps.begun == [0]
        host.answer(report)
        await host.settle()
        assert steps.begun == [0, 1]
        steps.go[1].set()
        report = await host.report()
        assert (len(report.only.steps), report.only.more, len(report.only.decisions)) == (1, False, 1)
        host.answer(report)
        assert host.node.closed.result == b"2"

    Host(steps.app).run(test)


def test_a_run_whose_steps_end_at_once_lets_others_run() -> None:
    steps = Steps(5, record="together")
    for event in steps.go:
        event.set()

    async def test(host: Host) -> None:
        begun_in_turns: list[int] = []
        host.seconds_of_code = turns.SLICE
        host.assign()
        for _ in range(10):
            begun_in_turns.append(len(steps.begun))
            await asyncio.sleep(0)
        assert len(set(begun_in_turns)) > 2
        assert begun_in_turns[-1] == 5
        assert len((await host.report()).only.steps) == 5

    Host(steps.app).run(test)


@pytest.mark.parametrize("record", ["each", "together"])
def test_many_results_of_steps_are_reported_in_batches(record: Any) -> None:
    """The server refuses a report with more than 10,000 results, which would park the run."""
    app = App()

    async def nothing(number: int) -> None: ...

    @app.workflow
    async def order() -> None:
        for _ in range(3):
            await asyncio.gather(
                *(workflow.step(nothing, one, name="nothing", record=record) for one in range(turns.BATCH_STEPS + 1))
            )

    async def test(host: Host) -> None:
        host.assign()
        recorded: list[int] = []
        while sum(recorded) < 3 * (turns.BATCH_STEPS + 1):
            report = await host.report()
            recorded.append(len(report.only.steps))
            host.answer(report)
        assert max(recorded) <= 2 * turns.BATCH_STEPS

    Host(app).run(test)


@pytest.mark.parametrize(("long", "reports"), [(False, [2]), (True, [1, 1])])
def test_the_reports_of_a_long_turn_are_sent_before_its_end(long: bool, reports: list[int]) -> None:
    app = App()

    @app.workflow
    async def order() -> int:
        return 1

    async def test(host: Host) -> None:
        host.seconds_of_code = 2 * turns.HEAD_START if long else 0.0
        host.assign_two()
        assert [len(report.messages) for report in await host.reports()] == reports

    Host(app).run(test)


def test_steps_recorded_together_go_with_the_decision() -> None:
    steps = Steps(3, record="together")
    for event in steps.go:
        event.set()

    async def test(host: Host) -> None:
        host.assign()
        report = await host.report()
        assert (len(report.only.steps), len(report.only.decisions), report.only.more) == (3, 1, False)
        host.answer(report)
        assert host.node.closed.result == b"3"

    Host(steps.app).run(test)


def test_steps_recorded_together_wait_50_ms_for_the_decision() -> None:
    steps = Steps(3, record="together")
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(0.02)
        steps.go[1].set()
        await host.settle()
        host.advance(0.029)
        assert not await host.reports()
        host.advance(0.002)
        report = await host.report()
        assert (len(report.only.steps), report.only.more, report.only.decisions) == (2, True, ())
        host.answer(report)
        steps.go[2].set()
        assert len((await host.report()).only.steps) == 1

    Host(steps.app).run(test)


def test_steps_recorded_together_wait_up_to_64_kib() -> None:
    steps = Steps(3, record="together", size=33_000)
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        assert not await host.reports()
        steps.go[1].set()
        report = await host.report()
        assert (len(report.only.steps), report.only.more) == (2, True)

    Host(steps.app).run(test)


def test_a_report_ends_the_wait_of_the_results_that_it_carries() -> None:
    steps = Steps(4, record="together", size=33_000)
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(0.02)
        steps.go[1].set()
        host.answer(await host.report())
        steps.go[2].set()
        await host.settle()
        host.advance(0.04)
        assert not await host.reports()
        host.advance(0.02)
        assert len((await host.report()).only.steps) == 1

    Host(steps.app).run(test)


@pytest.mark.parametrize(("batch", "limits"), [(1_000, {}), (turns.BATCH_SIZE, {"largest": 2_000})])
def test_large_results_that_arrive_together_are_reported_in_batches(
    monkeypatch: pytest.MonkeyPatch, batch: int, limits: dict[str, int]
) -> None:
    monkeypatch.setattr(turns, "BATCH_SIZE", batch)
    app = App()

    @app.workflow
    async def order() -> list[int]:
        steps = [workflow.step(wait, size, name="wait") for size in (400, 400, 400, 1200, 10)]
        return [len(result) for result in await asyncio.gather(*steps)]

    released = asyncio.Event()

    async def wait(size: int) -> str:
        await released.wait()
        return "x" * size

    async def test(host: Host) -> None:
        host.limits = limits
        host.assign()
        await host.settle()
        released.set()
        sizes = []
        for _ in range(4):
            report = await host.report()
            sizes.append([len(step.result) - 2 for step in report.only.steps])
            host.answer(report)
        assert sizes == [[400, 400], [400], [1200], [10]]
        assert host.node.closed.result == b"[400,400,400,1200,10]"

    Host(app).run(test)


def test_outcomes_of_steps_wait_for_the_answer_to_a_report() -> None:
    """The answer brings an event that the next decision gives to the code first, as each replay does."""
    app = App()
    ping = app.signal("ping", int)
    go = asyncio.Event()
    order_of: list[str] = []

    @app.task
    async def step() -> None:
        await go.wait()

    @app.task
    async def charge() -> None: ...

    @app.workflow
    async def order() -> None:
        async def receive() -> None:
            await ping.receive()
            order_of.append("ping")

        async def compute() -> None:
            await step.step()
            order_of.append("step")

        charged = charge.submit()
        await asyncio.gather(compute(), receive())
        await charged

    async def test(host: Host) -> None:
        host.assign()
        report = await host.report()
        assert report.only.more
        host.answer(report)
        await host.settle()
        host.node.signal("ping", 1)
        go.set()
        host.stop(host.lease, b"events")
        report = await host.report()
        go.set()
        assert not await host.reports()
        host.answer(report)
        await host.settle()
        assert order_of == ["ping", "step"]

    Host(app).run(test)


def test_newer_events_are_fetched_by_a_report_while_a_step_runs() -> None:
    app = App()
    ping = app.signal("ping", int)

    @app.task
    async def step() -> None:
        await asyncio.Event().wait()

    @app.workflow
    async def order() -> int:
        running = asyncio.ensure_future(step.step())
        try:
            return await ping.receive()
        finally:
            running.cancel()

    async def test(host: Host) -> None:
        host.assign()
        assert not await host.reports()
        host.node.signal("ping", 3)
        host.stop(host.lease, b"events")
        report = await host.report()
        assert report.only.more
        host.answer(report)
        report = await host.report()
        assert not report.only.more
        host.answer(report)
        assert host.node.closed.result == b"3"

    Host(app).run(test)


# ---- answers ----


@pytest.mark.parametrize("verdict", ["stale", "refused"])
def test_a_run_whose_report_is_not_taken_leaves_the_memory(verdict: str) -> None:
    steps = Steps(2)
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        report = await host.report()
        lease = host.lease
        with capture_logs() as lines:
            host.answer(report, verdict=verdict)
            await host.settle()
        assert [line["event"] for line in lines] == ["a decision was refused"] * (verdict == "refused")
        # A refused one counts as lost: its replay is refused as well, and the fifth one parks the run.
        assert host.settled == [(lease[0], b"released" if verdict == "stale" else b"failed")]
        assert await host.forgotten() == [RUN]
        assert steps.cleaned
        host.has = 0
        host.assign()
        await host.report()
        assert steps.begun == [0, 0]

    Host(steps.app).run(test)


def test_a_closed_run_leaves_the_memory() -> None:
    steps = Steps(1)
    steps.go[0].set()

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        assert host.node.closed is not None
        assert await host.forgotten() == [RUN]

    Host(steps.app).run(test)


def test_a_close_is_issued_a_second_time_after_newer_events() -> None:
    app = App()

    @app.workflow
    async def order() -> str:
        return "done"

    async def test(host: Host) -> None:
        host.assign()
        report = await host.report()
        host.node.signal("ping")
        assert host.answer(report).refused_close
        host.answer(await host.report())
        assert host.node.closed.result == b'"done"'

    Host(app).run(test)


@pytest.mark.parametrize("reason", [b"cancelled", b"lost"])
def test_a_decision_that_is_stopped_ends_its_steps(reason: bytes) -> None:
    steps = Steps(1)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.stop(host.lease, reason)
        assert await host.forgotten() == [RUN]
        assert steps.stopped == [0]
        assert steps.cleaned
        assert host.settled == [(host.lease[0], b"cancelled")] * (reason == b"cancelled")

    Host(steps.app).run(test)


def test_a_stop_of_another_delivery_changes_nothing() -> None:
    steps = Steps(1)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.stop((host.lease[0], b"1.1.77"), b"cancelled")
        assert not await host.forgotten()
        assert not steps.stopped

    Host(steps.app).run(test)


# ---- the cache ----


def sleeper() -> tuple[App, list[str]]:
    app = App()
    seen: list[str] = []

    @app.workflow
    async def order() -> str:
        try:
            seen.append("begun")
            await workflow.sleep(10)
            return "woken"
        finally:
            seen.append("ended")

    return app, seen


def test_a_run_that_sleeps_is_evicted_in_place() -> None:
    app, seen = sleeper()

    async def test(host: Host) -> None:
        host.assign()
        report = await host.report()
        assert seen == ["begun"]
        host.answer(report)
        assert await host.forgotten() == [RUN]
        assert seen == ["begun", "ended"]
        assert not await host.reports()  # the code that ended made no decision

    Host(app, workflow_cache=0).run(test)


def test_a_cached_run_gets_new_events_only() -> None:
    app, seen = sleeper()

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        host.advance(10)
        host.node.fire()
        host.assign()
        host.answer(await host.report())
        assert host.node.closed.result == b'"woken"'
        assert seen == ["begun", "ended"]
        assert not await host.taken(Type.HISTORY)

    Host(app).run(test)


# ---- histories ----


def test_a_worker_reads_the_events_that_it_lacks_page_by_page() -> None:
    app, seen = sleeper()

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        host.advance(10)
        host.node.fire()
        assert host.node.state.last == 7
        host.assign(events=False)
        assert await host.taken(Type.HISTORY) == [[b"1", b"1"]]
        host.events(1, 3)
        assert await host.taken(Type.HISTORY) == [[b"1", b"4"]]
        host.events(1, 3)  # the answer to an earlier request
        host.events(4, 5)
        assert await host.taken(Type.HISTORY) == [[b"1", b"6"]]
        assert not await host.reports()
        host.events(6, 7)
        host.answer(await host.report())
        assert host.node.closed.result == b'"woken"'
        assert seen == ["begun", "ended"] * 2

    Host(app, workflow_cache=0).run(test)


def test_a_cached_run_whose_events_are_too_large_for_an_assign_reads_the_rest() -> None:
    app, seen = sleeper()

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        host.advance(10)
        host.node.fire()
        host.assign(events=False)
        assert await host.taken(Type.HISTORY) == [[b"1", b"6"]]
        host.events(6, 7)
        host.answer(await host.report())
        assert host.node.closed.result == b'"woken"'
        assert seen == ["begun", "ended"]

    Host(app).run(test)


def test_events_that_a_lost_decision_requested_are_ignored() -> None:
    app, seen = sleeper()

    async def test(host: Host) -> None:
        host.assign(events=False)
        assert await host.taken(Type.HISTORY)
        host.stop(host.lease, b"lost")
        host.events(1, 2)
        assert not await host.reports()
        assert not seen
        host.has = 0
        host.assign()
        host.events(1, 2)
        assert len((await host.report()).only.decisions) == 1
        assert seen == ["begun"]

    Host(app).run(test)


def test_a_decision_with_its_events_replaces_one_whose_events_are_being_read() -> None:
    app, _ = sleeper()

    async def test(host: Host) -> None:
        host.assign(events=False)
        assert await host.taken(Type.HISTORY)
        host.has = 0
        host.assign()
        assert len((await host.report()).only.decisions) == 1

    Host(app).run(test)


def test_newer_events_do_not_end_a_decision_whose_events_are_being_read() -> None:
    app, _ = sleeper()

    async def test(host: Host) -> None:
        host.assign(events=False)
        assert await host.taken(Type.HISTORY)
        host.stop(host.lease, b"events")
        assert not await host.reports()
        host.events(1, 2)
        assert len((await host.report()).only.decisions) == 1

    Host(app).run(test)


# ---- parking ----


def test_a_run_of_an_unknown_workflow_is_parked() -> None:
    app, _ = sleeper()

    async def test(host: Host) -> None:
        host.version = "7"
        host.assign()
        report = await host.report()
        assert report.only.parked is not None
        assert report.only.parked.kind == "missing"
        assert "no workflow order@7" in report.only.parked.message
        assert host.node.record(report.only).verdict == "parked"

    Host(app).run(test)


def test_a_run_whose_code_differs_is_parked_without_anything_else() -> None:
    app = App()
    different: list[bool] = []

    @app.task
    async def charge() -> None: ...

    @app.workflow
    async def order() -> None:
        await (charge.submit() if different else workflow.sleep(10))

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        different.append(True)
        host.advance(10)
        host.node.fire()
        host.assign(events=False)
        await host.taken(Type.HISTORY)
        host.events(1, 7)
        report = await host.report()
        assert report.only.parked is not None
        assert (report.only.parked.kind, report.only.decisions, report.only.steps) == ("mismatch", (), ())
        assert host.answer(report).verdict == "parked"
        assert await host.forgotten() == [RUN, RUN]

    Host(app, workflow_cache=0).run(test)
