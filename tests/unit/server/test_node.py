"""A node in its loop: opened, serving, drained, closed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from tests.engines import memory_engine, sqlite_engine
from tests.unit.jobs.a_node import Client, Side, side, unexpected

from mainspring.api.nodes import FunctionStatus, JobNumbers, ShowStatus, WaitingJobs
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.engines.memory.subscriptions import MemorySubscriptionSlice
from mainspring.errors import StoreBrokenError, StoreError, StoreFullError, StoreUnavailableError
from mainspring.ids import node_id
from mainspring.jobs import maintenance, rules
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.maintenance import TICK_INTERVAL
from mainspring.jobs.model import Job, Options, Retry, State, failure
from mainspring.jobs.store import Find
from mainspring.nodes.model import Pace
from mainspring.schedules import service as schedules
from mainspring.server import metrics, node
from mainspring.server.build import Built, open_node
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.settings import ProcessSettings, ServerSettings, parse_store
from mainspring.workflows.model import decision_function

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence
    from pathlib import Path

    from mainspring.engines.sqlite.engine import SqliteEngine
    from mainspring.server.node import Node
    from mainspring.storage.engine import Answer, Committed, Engine, Operation

SETTINGS = ServerSettings(
    name=node_id("n"), store=parse_store("memory://"), process=replace(ProcessSettings(), grace=0.2)
)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


class Failing(MemoryEngine):
    """A store that fails when the test sets an error."""

    error: StoreError | None = None

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        if self.error is not None:
            committed(self.error)
        else:
            super().commit(group, committed, answer)


async def build(engine: Engine, settings: ServerSettings = SETTINGS) -> Built:
    clock = SystemClock()
    return await open_node(settings, engine, clock, Shutdown(clock, settings.process.grace))


@asynccontextmanager
async def shown() -> AsyncIterator[Built]:
    """Yield a node with its API and metrics."""
    built = await build(memory_engine())
    try:
        yield built
    finally:
        await built.node.close()


@asynccontextmanager
async def opened(engine: Engine | None = None, settings: ServerSettings = SETTINGS) -> AsyncIterator[Node]:
    node = (await build(engine or memory_engine(), settings)).node
    try:
        yield node
    finally:
        await node.close()


def figures(built: Built) -> dict[str, Any]:
    return {measure.name: measure.samples for measure in built.metrics.figures()}


def worker(node: Node, *, places: int = 1) -> Worker:
    created = Worker(Side("w"))
    node.service.workers.register(created, b"f", Ability())
    node.service.workers.ready(created, places)
    return created


async def submit(node: Node, payload: bytes = b"") -> Job:
    job = Job(node.service.table.next_id(), b"f", payload, created_us=1)
    stored: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    node.service.intake.submit([job], lambda ids, _: stored.set_result(ids), stored.set_exception)
    await stored
    return job


async def find(node: Node, job: Job) -> Job:
    found: asyncio.Future[dict[int, Job]] = asyncio.get_running_loop().create_future()
    node.commits.put(Find([job.id], room=2**20), found.set_result, found.set_exception)
    return (await found)[job.id]


def test_a_job_passes_through_a_node() -> None:
    async def test() -> None:
        async with opened() as node:
            assert node.healthy()
            assert node.ready()
            who = worker(node)
            job = await submit(node, b"1")
            (held,) = side(who).given
            recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            node.service.settling.succeeded(held, b"done", recorded.set_result)
            assert await recorded
            assert (await find(node, job)).result == b"done"

    run(test())


def test_time_passes_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (node, maintenance):
        monkeypatch.setattr(module, "TICK_INTERVAL", 60.0)  # it must not wait for that: nor does this test

    async def test() -> None:
        async with opened() as node:
            called: list[str] = []
            done = asyncio.Event()
            now = node.clock.monotonic()
            node.service.timers.at(now + 0.05, lambda: called.append("second"))
            node.service.timers.at(now + 0.02, lambda: called.append("first"))
            node.service.timers.at(now + 0.06, done.set)
            await done.wait()
            assert called == ["first", "second"]

    run(test())


def test_a_timer_that_fails_does_not_stop_the_others() -> None:
    async def test() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with opened() as node:
            done = asyncio.Event()
            now = node.clock.monotonic()
            node.service.timers.at(now + 0.01, lambda: unexpected("a defect"))
            node.service.timers.at(now + 0.02, done.set)
            await done.wait()
        assert len(failures) == 1

    run(test())


def test_there_is_one_chain_of_ticks() -> None:
    async def test() -> None:
        async with opened() as node:
            ticks = 0
            tick = node.service.tick

            def count() -> float:
                nonlocal ticks
                ticks += 1
                return tick()

            node.service.tick = count  # type: ignore[method-assign]
            rung, began = 0, node.clock.monotonic()

            def ring() -> None:
                nonlocal rung
                rung += 1

            for _ in range(20):
                node.service.timers.at(node.clock.monotonic(), ring)
                await asyncio.sleep(0.001)
            before, seconds = ticks, node.clock.monotonic() - began
            assert rung >= 19
            assert before <= 2 + seconds / TICK_INTERVAL, "timers need no periodic work"
            await asyncio.sleep(0.6)
            assert 1 <= ticks - before <= 4

    run(test())


def test_an_idle_node_is_not_ready_while_its_file_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "PROBE_INTERVAL", 0.05)
    monkeypatch.setattr(schedules, "REPAIR_INTERVAL", 0.05)  # this one no option switches off
    path, elsewhere = tmp_path / "jobs.db", tmp_path / "elsewhere.db"
    idle = replace(SETTINGS, jobs=replace(SETTINGS.jobs, schedules=False))

    async def until(node: Node, *, ready: bool) -> None:
        while node.ready() is not ready:  # noqa: ASYNC110 - as /readyz is polled
            await asyncio.sleep(0.01)

    async def test() -> None:
        async with opened(sqlite_engine(path), idle) as node:
            assert node.ready()
            with capture_logs() as logs:
                path.rename(elsewhere)
                await until(node, ready=False)
                with pytest.raises(StoreUnavailableError, match="was moved or replaced while the node uses it"):
                    await submit(node)
                elsewhere.rename(path)
                await until(node, ready=True)
            await submit(node)
            (error,) = [line["error"] for line in logs if line["log_level"] == "error"]
            assert str(path) in error

    run(test())


# ---- draining ----


def test_running_jobs_may_end_while_the_node_drains() -> None:
    async def test() -> None:
        async with opened(settings=replace(SETTINGS, process=replace(SETTINGS.process, grace=10.0))) as node:
            who = worker(node, places=5)
            jobs = [await submit(node, b"%d" % number) for number in range(2)]
            node.shutdown.stop()
            draining = asyncio.create_task(node.drain())
            await asyncio.sleep(0.05)
            assert not node.ready()
            assert not draining.done()
            late = await submit(node, b"late")
            for held in list(side(who).given):
                node.service.settling.succeeded(held, b"")
            await draining
            assert [(await find(node, job)).state for job in (*jobs, late)] == [
                State.SUCCEEDED,
                State.SUCCEEDED,
                State.PENDING,
            ]
            assert len(side(who).given) == 2

    run(test())


@pytest.mark.parametrize("graceful_first", [False, True])
def test_a_job_that_runs_too_long_is_released_without_an_attempt(graceful_first: bool) -> None:
    async def test() -> None:
        engine = memory_engine()
        async with opened(engine) as node:
            who = worker(node)
            job = await submit(node)
            waiting = await submit(node)
            if graceful_first:
                node.shutdown.stop(graceful=True)
                draining = asyncio.create_task(node.drain())
                await asyncio.sleep(0.4)
                assert not draining.done(), "it waits without a limit"
                node.shutdown.stop()
                await draining
            else:
                node.shutdown.stop()
                await node.drain()
            for one in (job, waiting):
                stored = await find(node, one)
                assert (stored.state, stored.attempt, stored.suspects) == (State.PENDING, 0, 0)
            assert len(side(who).given) == 1

    run(test())


def test_an_interrupt_during_a_stop_ends_the_wait() -> None:
    async def test() -> None:
        patient = replace(SETTINGS, process=replace(SETTINGS.process, grace=600.0))
        async with opened(settings=patient) as node:
            worker(node)
            job = await submit(node)
            node.shutdown.interrupt()
            draining = asyncio.create_task(node.drain())
            for _ in range(3):
                node.shutdown.stop()
            await asyncio.sleep(0.1)
            assert not draining.done()
            node.shutdown.interrupt()
            await draining
            stored = await find(node, job)
            assert (stored.state, stored.attempt, stored.suspects) == (State.PENDING, 0, 0)

    run(test())


def test_the_first_interrupt_after_a_graceful_stop_sets_the_grace() -> None:
    async def test() -> None:
        patient = replace(SETTINGS, process=replace(SETTINGS.process, grace=600.0))
        async with opened(settings=patient) as node:
            worker(node)
            await submit(node)
            node.shutdown.stop(graceful=True)
            draining = asyncio.create_task(node.drain())
            node.shutdown.interrupt()
            await asyncio.sleep(0.1)
            assert not draining.done()
            node.shutdown.interrupt()
            await draining

    run(test())


def test_refused_writes_are_repeated_before_the_end() -> None:
    async def test() -> None:
        engine = Failing([MemoryScheduleSlice(), MemorySubscriptionSlice()])
        async with opened(engine) as node:
            who = worker(node)
            job = await submit(node)
            engine.error = StoreFullError("full")
            node.service.settling.failed(side(who).given[0], b"{}")
            await asyncio.sleep(0.05)
            assert not node.ready()
            assert node.healthy()
            node.shutdown.stop()
            draining = asyncio.create_task(node.drain())
            await asyncio.sleep(0.1)
            engine.error = None
            await draining
            assert (await find(node, job)).state == State.FAILED

    run(test())


def test_a_node_whose_store_refuses_is_not_ready_until_it_commits_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "PROBE_INTERVAL", 0.01)
    monkeypatch.setattr(node, "TICK_INTERVAL", 0.01)

    async def test() -> None:
        engine = Failing([MemoryScheduleSlice(), MemorySubscriptionSlice()])
        async with opened(engine) as node:
            engine.error = StoreFullError("full")
            with capture_logs() as logs:
                for _ in range(20):
                    with pytest.raises(StoreFullError):
                        await submit(node)
                assert not node.ready()
                assert node.healthy()
                engine.error = None
                while not node.ready():  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
            assert [line["event"] for line in logs] == ["the store refused a group", "the store commits again"]
            await submit(node)

    run(test())


def test_a_broken_store_ends_the_node_at_once() -> None:
    async def test() -> None:
        engine = Failing([MemoryScheduleSlice(), MemorySubscriptionSlice()])
        async with opened(engine) as node:
            worker(node)
            await submit(node)
            engine.error = StoreBrokenError("the disk")
            with pytest.raises(StoreBrokenError):
                await submit(node)
            assert node.shutdown.requested.is_set()
            assert node.shutdown.broken is engine.error
            assert not node.healthy()
            assert not node.ready()
            await asyncio.wait_for(node.drain(), 0.1)

    run(test())


def test_events_after_the_end_have_no_effect() -> None:
    async def test() -> None:
        async with opened() as node:
            who = worker(node)
            job = await submit(node)
            held = node.service.table.held[node.service.handles.of(job.id)]
            await node.close()
            node.service.workers.gone(who)
            node.service.timers.at(0.0, lambda: unexpected("after the end"))
            await asyncio.sleep(0.01)
            assert held.worker is None

    run(test())


def test_a_node_resumes_with_the_store_in_a_file(tmp_path: Path) -> None:
    async def test() -> None:
        settings = replace(SETTINGS, store=parse_store(f"sqlite:///{tmp_path / 'jobs.db'}"))

        def engine() -> SqliteEngine:
            return sqlite_engine(tmp_path / "jobs.db", synchronous="normal")

        async with opened(engine(), settings) as node:
            worker(node)
            job = await submit(node, b"1")
        async with opened(engine(), settings) as node:
            who = worker(node)
            idle = asyncio.Event()
            node.commits.when_idle(idle.set)
            await idle.wait()
            (held,) = side(who).given
            assert (held.job.id, held.job.payload, held.job.suspects) == (job.id, b"1", 1)
            assert node.service.handles.of(job.id).startswith(b"H:n:")

    run(test())


def test_a_store_that_cannot_be_read_stops_the_start() -> None:
    async def test() -> None:
        engine = Failing([MemoryScheduleSlice(), MemorySubscriptionSlice()])
        engine.error = StoreFullError("full")
        with pytest.raises(StoreFullError):
            await build(engine)

    run(test())


def test_a_node_can_be_stopped_at_any_moment_of_its_start() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        errors: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: errors.append(context))
        cancelled = True
        turns = 0
        while cancelled:
            turns += 1
            opening = loop.create_task(build(memory_engine()))
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled = opening.cancel()
            await asyncio.wait({opening})
            for _ in range(20):
                await asyncio.sleep(0)
            if not opening.cancelled():
                await opening.result().node.close()
        assert turns > 2, "there were moments before it had started"
        assert errors == []

    run(test())


# ---- status and metrics ----


def test_the_metrics_have_a_limit_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRIC_FUNCTIONS", 3)

    async def test() -> None:
        async with shown() as built:
            node = built.node
            for number in range(10):
                queue = node.service.dispatch.queue(b"f%d" % number)
                queue.away = number
            measures = figures(built)
            assert measures["mainspring_functions"] == [({}, 10.0)]
            names = {labels["function"] for labels, _ in measures["mainspring_jobs_live"]}
            assert names == {"f7", "f8", "f9"}
            assert len(measures["mainspring_jobs_waiting"]) == 9

    run(test())


def test_the_metrics_show_the_pace_of_the_worker_with_the_most_heartbeats() -> None:
    async def test() -> None:
        async with shown() as built:
            assert figures(built)["mainspring_heartbeat_load_ratio"] == [({}, 0.0)]
            most, latest = (
                Pace(9, 10, 100.0, 90.0, 0.1, 3, 0, 0, full=True),
                Pace(2, 9, 10.0, 1.0, 0.4, 0, 0, 0, full=False),
            )
            for pace in (None, most, latest):
                peer = Mock(worker_side=Mock(pace=pace), silence=Mock(since_us=0))
                built.node.face.peers.connected[peer] = None
            measures = figures(built)
            built.node.face.peers.connected.clear()
            assert measures["mainspring_full_workers"] == [({}, 1.0)]
            assert measures["mainspring_heartbeat_load_ratio"] == [({}, 0.9)]
            assert measures["mainspring_heartbeat_lag_seconds"] == [({}, 0.4)]

    run(test())


def test_different_names_have_different_labels_in_the_metrics() -> None:
    """Prometheus refuses the whole page if two samples have the same labels."""

    async def test() -> None:
        async with shown() as built:
            node = built.node
            decisions = decision_function("default", "o", "1")
            names = (b"\xff", b"\\xff", b"\\", b"\\\\", "é".encode(), b"\xe9", b"\\xe9", decisions, b"o@1 (decisions)")
            for name in names:
                node.service.dispatch.queue(name)
                node.service.attempts.ended([rules.succeeded(Job(1, name, b"", created_us=1), b"", 2, 2)])
            for measure in built.metrics.figures():
                samples = [tuple(labels.values()) for labels, *_ in measure.samples]
                assert len(set(samples)) == len(samples), measure.name
            measures = figures(built)
            assert [labels["function"] for labels, _ in measures["mainspring_jobs_live"]] == [
                "\\xff",
                "\\\\xff",
                "\\",
                "\\\\",
                "é",
                "\\xe9",
                "\\\\xe9",
                "o@1 (decisions)",
                "o@1\\ (decisions)",
            ]

    run(test())


def test_the_metrics_count_attempts() -> None:
    async def test() -> None:
        async with shown() as built:
            node = built.node
            who = worker(node, places=3)
            for _ in range(3):
                await submit(node)
            first, second, _ = side(who).given
            recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            node.service.settling.succeeded(first, b"", lambda _: None)
            node.service.settling.failed(second, failure("Error", "no"), acknowledge=recorded.set_result)
            assert await recorded
            node.service.workers.gone(who)  # and with it the third
            retried: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            other = worker(node)
            while not side(other).given:  # noqa: ASYNC110 - the commit of the loss hands it over
                await asyncio.sleep(0.001)
            (third,) = side(other).given
            third.job.options = Options(retry=Retry(max_attempts=5))
            node.service.settling.failed(third, failure("Error", "no"), acknowledge=retried.set_result)
            assert await retried
            measures = figures(built)
            ends = {labels["outcome"]: number for labels, number in measures["mainspring_attempts_total"][:8]}
            counted = {outcome: number for outcome, number in ends.items() if number}
            assert counted == {"succeeded": 1, "failed": 1, "lost": 1, "retried": 1}
            for name, number in (("mainspring_attempt_seconds", 4), ("mainspring_wait_seconds", 3)):
                own, others = measures[name]
                assert (own[0], sum(own[1])) == ({"function": "f"}, number)
                assert (others[0], sum(others[1])) == ({"function": "_other"}, 0)

    run(test())


def test_status_and_metrics_show_each_function() -> None:
    async def test() -> None:
        async with shown() as built:
            node = built.node
            node.service.workers.register(Worker(Side("w"), beside=worker(node, places=1)), b"\xff", Ability())
            for number in range(3):
                await submit(node, b"%d" % number)
            node.service.foreground.submit(
                Job(node.service.table.next_id(), b"\xff", b"", priority=0), Client(), lambda _: None, unexpected
            )
            status = await built.api.call(ShowStatus())
            assert status.jobs == JobNumbers(total=4, running=1, waiting=3)
            assert status.workers == 1
            assert status.functions[0] == FunctionStatus("f", 3, 1, 1, WaitingJobs(0, 2, 0))
            assert status.functions[1].function == "\\xff"
            measures = figures(built)
            assert measures["mainspring_jobs_running"][0] == ({"function": "f"}, 1)
            assert ({"function": "\\xff", "priority": "high"}, 1.0) in measures["mainspring_jobs_waiting"]
            assert measures["mainspring_window_jobs"] == [({}, 4.0)]
            assert status.commits is not None
            assert status.commits.jobs == 3, "claims, sweeps and reads add none"
            assert measures["mainspring_committed_jobs_total"] == [({}, 3.0)]
            assert node.running() == 1

    run(test())
