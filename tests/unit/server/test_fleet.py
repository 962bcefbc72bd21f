"""Several nodes of one process on one store in memory: shared jobs, messages, and recovery."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.shared_memory import SharedMemoryEngine, SharedTables

from mainspring.callbacks import awaited
from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.events import ProgressText, StopRequested
from mainspring.ids import node_id
from mainspring.jobs import function_index as registered_module
from mainspring.jobs import sharing
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.model import Job, Options, State
from mainspring.jobs.requests import RemoteAttempt
from mainspring.jobs.rules import KEPT_EVENTS
from mainspring.jobs.service import JobService
from mainspring.jobs.sharing import MOST_TEXTS
from mainspring.jobs.store import Find
from mainspring.nodes.model import NodeRow
from mainspring.nodes.strategies import IdHash
from mainspring.server.build import open_node
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.settings import FleetSettings, ProcessSettings, ServerSettings, parse_store
from mainspring.workflows.model import decision_function

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from typing import Any

    from mainspring.server.node import Node
    from mainspring.storage.engine import Answer, Committed, Operation

QUICK = FleetSettings(lease=0.5, beat=0.1)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


class LocalFleet:
    """Several nodes on one store."""

    def __init__(self, stack: AsyncExitStack, carry: Callable[[Callable[[], None]], object]) -> None:
        self._stack = stack
        self.content = SharedTables(time.time, carry)
        self.nodes: list[Node] = []

    async def node(self, name: str, fleet: FleetSettings = QUICK, engine: SharedMemoryEngine | None = None) -> Node:
        settings = ServerSettings(
            name=node_id(name),
            store=parse_store("memory://"),
            fleet=fleet,
            process=replace(ProcessSettings(), grace=0.1),
        )
        clock = SystemClock()
        end = Shutdown(clock, settings.process.grace)
        node = (await open_node(settings, engine or SharedMemoryEngine(self.content), clock, end)).node
        self._stack.push_async_callback(node.close)
        self.nodes.append(node)
        return node

    def job(self, job_id: int) -> Job:
        return self.content.tables.jobs[job_id]


@asynccontextmanager
async def local_fleet(carry: Callable[[Callable[[], None]], object] | None = None) -> AsyncIterator[LocalFleet]:
    async with AsyncExitStack() as stack:
        yield LocalFleet(stack, carry or (lambda deliver: asyncio.get_running_loop().call_soon(deliver)))


class Away(SharedMemoryEngine):
    """A store that fails the first ``beats`` heartbeats and ``groups`` groups of a node, after its term has begun."""

    def __init__(self, tables: SharedTables, beats: int, groups: int, error: StoreError) -> None:
        super().__init__(tables)
        self.beats, self.groups = beats, groups
        self._error = error

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        self.beats -= 1
        if self.beats >= 0:
            raise self._error
        return await super().beat(row)

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        self.groups -= 1
        if self.groups >= 0:
            committed(self._error)
        else:
            super().commit(group, committed, answer)


def stop_renewal(node: Node) -> None:
    """Stop a node's lease renewal without its noticing, as in a process that gets no processor time."""
    assert node._renewing is not None  # noqa: SLF001 - nothing else ends it while the node goes on
    node._renewing.cancel()  # noqa: SLF001 - as above


class Hand:
    """A streaming worker of the function ``f`` that puts its jobs into a queue."""

    def __init__(self, node: Node, places: int = 1, function: bytes = b"f") -> None:
        self.node = node
        self.jobs: asyncio.Queue[Held] = asyncio.Queue()
        self.stopped: asyncio.Queue[tuple[Held, bytes]] = asyncio.Queue()
        self.worker = Worker(self)
        node.service.workers.register(self.worker, function, Ability())
        node.service.workers.ready(self.worker, places)

    def wake(self) -> None: ...

    def no_job(self) -> None: ...

    def name(self) -> str:
        return "hand"

    def assign(self, held: Held) -> None:
        self.jobs.put_nowait(held)

    def stop(self, held: Held, reason: bytes) -> None:
        self.stopped.put_nowait((held, reason))

    async def done(self, held: Held, result: bytes) -> bool:
        recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.node.service.settling.succeeded(held, result, recorded.set_result)
        return await recorded


class Client:
    """A client that waits at a node."""

    gone = False

    def __init__(self, node: Node) -> None:
        self.node = node
        self.outcomes: asyncio.Queue[Job] = asyncio.Queue()
        self.progress: asyncio.Queue[tuple[str, bytes, bytes]] = asyncio.Queue()

    def data(self, handle: bytes, data: bytes) -> None:
        del handle
        self.progress.put_nowait(("data", data, b""))

    def warning(self, handle: bytes, data: bytes) -> None:
        del handle
        self.progress.put_nowait(("warning", data, b""))

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        del handle
        self.progress.put_nowait(("status", numerator, denominator))

    def unknown(self, handle: bytes) -> None: ...

    def has_room(self) -> bool:
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        del handle, exception
        self.outcomes.put_nowait(job)

    async def submit(self, payload: bytes = b"", unique: bytes = b"", **values: Any) -> int:
        """Submit a foreground job."""
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        job = Job(self.node.service.table.next_id(), b"f", payload, unique, **values)
        self.node.service.foreground.submit(job, self, accepted.set_result, accepted.set_exception)
        return await accepted

    async def submit_background(self, payload: bytes = b"", unique: bytes = b"", **values: Any) -> int:
        job = Job(self.node.service.table.next_id(), b"f", payload, unique, **values)
        stored: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.node.service.intake.submit([job], lambda ids, _: stored.set_result(ids), stored.set_exception)
        return (await stored)[0]

    def wait(self, job_id: int) -> None:
        def unknown() -> None:
            raise AssertionError(f"{job_id} is unknown")

        self.node.service.waits.wait(job_id, self, unknown)


def test_a_job_runs_at_one_node_and_its_client_gets_the_result_at_another() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            hand, client = Hand(second), Client(first)
            job_id = await client.submit_background(b"in")
            client.wait(job_id)
            held = await hand.jobs.get()
            assert (held.job.id, held.job.payload, held.job.term) == (job_id, b"in", second.term)
            assert await hand.done(held, b"out")
            outcome = await client.outcomes.get()
            assert (outcome.id, outcome.state, outcome.result) == (job_id, State.SUCCEEDED, b"out")

    run(test())


@pytest.mark.parametrize("unique", [b"", b"u"])
def test_a_foreground_job_runs_at_another_node(unique: bytes) -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            client, hand = Client(first), Hand(second)
            job_id = await client.submit(unique=unique)
            held = await hand.jobs.get()
            assert held.job.id == job_id
            hand.node.service.reports.data(held, b"part")
            hand.node.service.reports.status(held, b"1", b"2")
            hand.node.service.reports.warning(held, b"careful")
            assert [await client.progress.get() for _ in range(3)] == [
                ("data", b"part", b""),
                ("status", b"1", b"2"),
                ("warning", b"careful", b""),
            ]
            await hand.done(held, b"out")
            assert (await client.outcomes.get()).result == b"out"

    run(test())


def test_the_text_of_progress_reaches_the_nodes_whose_clients_wait_or_ask() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second, third = [await fleet.node(f"n{number}") for number in (1, 2, 3)]
            client, hand = Client(first), Hand(second)
            job_id = await client.submit_background()
            client.wait(job_id)
            held = await hand.jobs.get()
            for text in (b"half", b""):  # a report without a text removes the last one
                second.service.reports.text(held, text)
                second.service.reports.status(held, b"1", b"2")
                await client.progress.get()
                assert first.service.reports.text_of(job_id) == text
            second.service.reports.text(held, b"nearly")
            await awaited(third.service.clients.show(job_id))
            assert third.service.reports.text_of(job_id) == b"nearly"
            assert third.service.sharing is not None
            third.service.sharing.receive(ProgressText(7, "first"))
            for number in range(MOST_TEXTS):
                third.service.sharing.receive(ProgressText(1000 + number, "x"))
            assert third.service.reports.text_of(7) == b"", "a node keeps the newest texts"

    run(test())


def test_the_progress_of_a_run_reaches_the_nodes_whose_clients_wait() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = [await fleet.node(f"n{number}") for number in (1, 2)]
            client = Client(first)
            job_id = await client.submit_background()
            client.wait(job_id)
            await awaited(first.service.commits.committed(Find([])))  # behind the node's subscription
            reports = second.service.reports
            for done, text in ((b"1", "half"), (b"2", "")):
                reports.report_root(job_id, done, b"2", text)
                await client.progress.get()
                assert first.service.reports.text_of(job_id) == text.encode()
            for number in range(MOST_TEXTS + 1):
                reports.report_root(1000 + number, b"1", b"2", "x")
            assert len(reports._roots) == MOST_TEXTS  # noqa: SLF001 - a node's memory is bounded

    run(test())


def test_clients_of_two_nodes_join_one_computation() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second, third = [await fleet.node(f"n{number}") for number in (1, 2, 3)]
            one, other = Client(first), Client(second)
            ids = {await one.submit(unique=b"u"), await other.submit(unique=b"u")}
            assert len(ids) == 1
            hand = Hand(third)
            held = await hand.jobs.get()
            await hand.done(held, b"out")
            assert [(await client.outcomes.get()).result for client in (one, other)] == [b"out", b"out"]

    run(test())


def test_a_foreground_job_ends_with_its_last_client_on_any_node() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            one, other = Client(first), Client(second)
            job_id = await one.submit(unique=b"u")
            await other.submit(unique=b"u")
            first.service.waits.gone(one)
            await committed(first)
            assert fleet.job(job_id).state == State.PENDING
            second.service.waits.gone(other)
            await committed(second)
            assert job_id not in fleet.content.tables.jobs

    run(test())


def test_a_background_submit_keeps_a_foreground_job_alive() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            one, other = Client(first), Client(second)
            job_id = await one.submit(unique=b"u")
            assert await other.submit_background(unique=b"u") == job_id
            first.service.waits.gone(one)
            await committed(first)
            assert fleet.job(job_id).state == State.PENDING

    run(test())


def test_foreground_jobs_in_memory_move_when_their_last_worker_leaves() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            busy, client = Hand(first, places=0), Client(first)
            job_id = await client.submit(b"in")
            assert job_id not in fleet.content.tables.jobs, "it is only in memory"
            first.service.workers.gone(busy.worker)
            hand = Hand(second)
            held = await hand.jobs.get()
            assert (held.job.id, held.job.payload) == (job_id, b"in")
            await hand.done(held, b"out")
            assert (await client.outcomes.get()).result == b"out"

    run(test())


def test_lost_messages_are_replaced_by_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "BACKLOG_INTERVAL", 0.05)
    monkeypatch.setattr(sharing, "REFRESH_INTERVAL", 0.05)

    async def test() -> None:
        async with local_fleet(lambda deliver: None) as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            hand, client = Hand(second), Client(first)
            await client.submit()
            await hand.done(await hand.jobs.get(), b"out")
            assert (await client.outcomes.get()).result == b"out"

    run(test())


def test_each_node_reads_the_backlog_at_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    places: dict[JobService, tuple[int, int]] = {}

    async def test() -> None:
        done = asyncio.Event()

        def set_place(service: JobService, *place: int) -> None:
            places[service] = (place[0], place[1])
            if sorted(places.values()) == [(0, 3), (1, 3), (2, 3)]:
                done.set()

        monkeypatch.setattr(JobService, "set_place", set_place)
        async with local_fleet() as fleet:
            for number in range(3):
                await fleet.node(f"n{number}")
            await done.wait()

    run(test())


def test_a_job_that_runs_at_another_node_is_cancelled_there() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            hand, client = Hand(second), Client(first)
            job_id = await client.submit_background()
            held = await hand.jobs.get()
            assert await awaited(first.service.clients.cancel(job_id, "enough")) == "running"
            assert await hand.stopped.get() == (held, b"cancelled")

    run(test())


def test_every_node_shows_when_a_worker_was_asked_to_stop() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            hand, client = Hand(second, places=2), Client(first)
            jobs = [await client.submit_background() for _ in range(2)]
            held = [await hand.jobs.get() for _ in jobs]
            second.service.clients.cancel_held(held[0], "enough", lambda _: None)
            assert held[0].stop_us
            assert first.service.sharing is not None
            # A message that nobody has asked for is of no later answer.
            first.service.sharing.receive(StopRequested(held[1].job.id, 7))
            for one in held:
                _, attempt = await awaited(first.service.clients.show(one.job.id))
                assert attempt == RemoteAttempt(one.started_us, 1, "hand", b"0", b"0", one.stop_us)

    run(test())


def test_the_next_node_recovers_the_jobs_of_a_dead_one() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            hand, client = Hand(first, places=2), Client(first)
            ids = {await client.submit_background(b"%d" % number) for number in range(2)}
            kept = [await hand.jobs.get() for _ in range(2)]
            before = first.term
            stop_renewal(first)
            other = Hand(second, places=2)
            recovered = [await other.jobs.get() for _ in range(2)]
            assert {held.job.id for held in recovered} == ids
            assert {held.job.suspects for held in recovered} == {1}
            assert before in fleet.content.ended
            assert not await hand.done(kept[0], b"late"), "a stale term settles nothing"
            for held in recovered:
                assert await other.done(held, b"out")
            assert {fleet.job(job_id).result for job_id in ids} == {b"out"}
            while not fleet.content.rows[second.term].recoveries:  # noqa: ASYNC110 - its next heartbeat has it
                await asyncio.sleep(0.01)
            (shown,) = fleet.content.rows[second.term].recoveries
            assert (shown.terms, shown.names, shown.jobs) == ((before,), ("n1",), 2)
            assert abs(shown.at_us / 1_000_000 - time.time()) < 30

    run(test())


def test_a_fenced_node_drops_its_jobs_and_begins_a_new_term() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            hand, client = Hand(first), Client(first)
            job_id = await client.submit()  # in memory: it is not the store's
            await hand.jobs.get()
            stored = await client.submit_background()
            first.service.workers.ready(hand.worker, 1)
            held = await hand.jobs.get()
            assert held.job.id == stored
            before = first.term
            await second.engine.end(before)  # type: ignore[attr-defined]
            other = Hand(second)
            assert (await hand.stopped.get()) == (held, b"lost")
            recovered = await other.jobs.get()
            assert recovered.job.id == stored
            assert await other.done(recovered, b"out")
            while first.term == before or first.service.dispatch.paused:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
            assert first.service.handles.of(first.service.table.next_id()).startswith(b"H:n1:%d" % first.term)
            running = first.service.table.held[first.service.handles.of(job_id)]
            assert await hand.done(running, b"foreground")
            assert (await client.outcomes.get()).result == b"foreground"
            new = Client(first)
            await new.submit_background()

    run(test())


def test_a_draining_node_drains_in_its_next_term_too() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            assert first.fleet is not None
            hand, other, client = Hand(first), Hand(second), Client(first)
            await second.engine.ask_to_drain(first.term)  # type: ignore[attr-defined]
            while not first.fleet.draining:  # noqa: ASYNC110 - awaits the next observation
                await asyncio.sleep(0.01)
            before = first.term
            await second.engine.end(before)  # type: ignore[attr-defined]
            rows = await second.engine.rows()  # type: ignore[attr-defined]
            while not any(row.term > before and row.name == "n1" and row.counter > 2 for row in rows):
                await asyncio.sleep(0.01)
                rows = await second.engine.rows()  # type: ignore[attr-defined]
            assert first.fleet.draining
            assert [row.name for row in await second.engine.rows() if row.draining] == ["n1"]  # type: ignore[attr-defined]
            await client.submit_background()
            await other.jobs.get()
            assert hand.jobs.empty()

    run(test())


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), StoreFencedError("ended")])
@pytest.mark.parametrize(("beats", "groups"), [(1, 0), (0, 1), (2, 2)])
def test_a_node_starts_although_its_store_fails_meanwhile(error: StoreError, beats: int, groups: int) -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            engine = Away(fleet.content, beats, groups, error)
            node = await fleet.node("n1", engine=engine)
            other = await fleet.node("n2")
            hand = Hand(node)
            job_id = await Client(other).submit_background()
            held = await hand.jobs.get()
            assert held.job.id == job_id
            assert max(engine.beats, engine.groups) <= 0
            assert await hand.done(held, b"")

    run(test())


def test_a_node_whose_lease_is_not_watched_any_more_ends() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first = await fleet.node("n1")
            assert first.fleet is not None

            def defect() -> float:
                raise ValueError("a defect")

            first.fleet.lease_manager.check = defect  # type: ignore[method-assign]
            async with asyncio.timeout(20):
                while first.shutdown.broken is None:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
            assert not first.healthy()

    run(test())


def test_a_node_that_cannot_renew_its_lease_stops_before_others_recover_its_jobs() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first = await fleet.node("n1")
            hand, client = Hand(first), Client(first)
            await client.submit_background()
            held = await hand.jobs.get()
            blocked = asyncio.Event()

            async def silent(*_: object) -> list[object]:
                await blocked.wait()
                return []

            assert first.ready()
            first.engine.beat = first.engine.rows = silent  # type: ignore[attr-defined]
            assert await hand.stopped.get() == (held, b"lost")
            assert not first.ready(), "clients should use other nodes"
            assert first.term not in fleet.content.ended, "no node had declared it dead yet"

    run(test())


def test_status_counts_the_fleet_if_it_is_configured() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first = await fleet.node("n1", replace(QUICK, status=True))
            second = await fleet.node("n2")
            hand, client = Hand(second, places=2), Client(first)
            await client.submit_background()
            await hand.jobs.get()
            assert first.face.remote_load is not None
            while first.face.remote_load(b"f") != (1, 1, 0):  # noqa: ASYNC110 - awaits the next heartbeat
                await asyncio.sleep(0.01)
            assert first.face.remote_load(b"g") == (0, 0, 0)
            assert second.face.remote_load is None

    run(test())


def test_a_node_has_the_functions_that_workers_of_others_have_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered_module, "STARTUP_GRACE", 0.0)

    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            registered = first.service.registered
            assert registered.has(b"g") is False
            hand = Hand(second, function=b"g")
            while not registered.has(b"g"):  # noqa: ASYNC110 - awaits the next heartbeat
                await asyncio.sleep(0.01)
            assert (registered.has(b"h"), set(registered.names())) == (False, {b"g"})
            Hand(first, function=b"h")
            assert (registered.has(b"h"), set(registered.names())) == (True, {b"g", b"h"})
            second.service.workers.gone(hand.worker)
            while registered.has(b"g"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            stop_renewal(first)
            assert first.fleet is not None
            while first.fleet.lease_manager.lease_valid():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (registered.has(b"g"), registered.has(b"h")) == (None, True), "it gets no rows any more"

    run(test())


def test_a_nodes_capacity_is_the_sum_of_its_workers_places() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            node = await fleet.node("n1")
            assert node.fleet is not None
            hand, plain, client = Hand(node, places=5), Worker(Hand(node, places=0)), Client(node)
            node.service.workers.register(plain, b"f", Ability())
            assert node.fleet.row(0).capacity == 6  # a plain worker has one job at a time
            await client.submit_background()
            await hand.jobs.get()
            assert (node.fleet.row(0).capacity, node.fleet.row(0).running) == (6, 1)
            assert node.fleet.row(0).slots == 6
            hand.worker.slots = 2  # the others are taken in advance
            assert (node.fleet.row(0).capacity, node.fleet.row(0).slots) == (6, 3)
            decider = Worker(hand, beside=hand.worker)
            decider.credit = 100
            node.service.workers.register(decider, b"\x1fd\x1ff", Ability())
            assert (node.fleet.row(0).capacity, node.fleet.row(0).slots) == (106, 3)  # decisions are no jobs

    run(test())


def test_the_metrics_count_the_nodes() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")

            def nodes() -> dict[str, float]:
                assert first.fleet is not None
                measures = {measure.name: measure.samples for measure in first.fleet.metrics()}
                ((_, left),) = measures["mainspring_lease_seconds"]
                assert 0 < left < QUICK.lease
                return {labels["state"]: number for labels, number in measures["mainspring_nodes"]}

            while nodes() != {"live": 2, "draining": 0, "dead": 0}:  # noqa: ASYNC110 - awaits the next observation
                await asyncio.sleep(0.01)
            stop_renewal(second)
            while nodes()["live"] != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    run(test())


async def committed(node: Node) -> None:
    """Wait until nothing is on its way to the store."""
    idle = asyncio.Event()
    node.commits.when_idle(idle.set)
    await idle.wait()


@pytest.mark.parametrize(("event", "stays"), [(KEPT_EVENTS - 1, False), (KEPT_EVENTS, True)])
def test_a_run_with_many_events_stays_with_the_node_of_its_slot(event: int, stays: bool) -> None:
    """The events that cause its decisions are stored by any node; a worker of that one may have the run in memory."""
    function = decision_function("default", "order", "1")

    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await fleet.node("n1"), await fleet.node("n2")
            hands = [Hand(one, function=function) for one in (first, second)]
            for one in (first, second):
                while function not in (one.service.registered.of_others() or ()):  # noqa: ASYNC110 - awaits the next heartbeat
                    await asyncio.sleep(0.01)
            share = IdHash().share(function, row_of(second, function), (row_of(first, function),))
            assert share.slots is not None
            options = Options(run=(17, min(share.slots)), ref=event)
            now_us = (
                round(time.time() * 1_000_000) + 10_000_000
            )  # so that it is not overdue before the node has claimed it
            job = Job(first.service.table.next_id(), function, b"", created_us=now_us, options=options)
            stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            first.service.intake.submit([job], lambda ids, _: stored.set_result(ids), stored.set_exception)
            held = await hands[stays].jobs.get()
            assert held.job.term == (second if stays else first).term

    run(test())


def row_of(node: Node, function: bytes) -> NodeRow:
    return NodeRow(term=node.term, name=node.settings.name, counter=1, functions=(function,))
