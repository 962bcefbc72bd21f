from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from tests.unit.client.extension_server import ExtensionServer, Peer

from mainspring import App, Snooze, current_job
from mainspring.errors import ServerError, SettingsError, UsageError
from mainspring.wire.gearman_protocol import Type
from mainspring.worker import runtime
from mainspring.worker.link import connector
from mainspring.worker.runtime import Ending, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.worker.conftest import Running

    from mainspring.worker.session import Assigned, Extended

    Run = Callable[..., Running]


def test_threads_and_coroutines_run_jobs(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.task
    async def later(a: int) -> int:
        await asyncio.sleep(0)
        return a

    run(app, name="w7")
    jobs = [server.add("add", b"[%d]" % n) for n in range(50)] + [server.add("later", b'{"a":5}')]
    server.wait_for(lambda: all(job.state == "succeeded" for job in jobs))
    assert [job.data for job in jobs] == [b"%d" % (n + 1) for n in range(50)] + [b"5"]
    assert [peer.name for peer in server.peers] == ["w7"]


def test_registrations_carry_the_tasks_options(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task(timeout=5, heartbeat=2)
    def slow() -> None: ...

    run(app)
    server.wait_for(lambda: server.seen_of(Type.REGISTER))
    assert server.seen_of(Type.REGISTER) == [[b"slow", b'{"timeout":5,"heartbeat":2}']]


def test_workers_declare_the_arguments_that_their_tasks_keep(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task(keep_arguments=0)
    def sign_in() -> None: ...

    @app.task
    def other() -> None: ...

    run(app)
    server.wait_for(lambda: any(args[1] == b"worker.keeps" for args in server.seen_of(Type.CALL)))
    assert [b"keeps", b"worker.keeps", b'{"arguments":{"sign_in":0}}'] in server.seen_of(Type.CALL)


def test_workers_declare_by_when_their_jobs_and_runs_should_begin_and_end(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task(deadline="1h")
    def slow() -> None: ...

    @app.workflow(start_within="5s")
    async def order() -> None: ...

    @app.task
    def other() -> None: ...

    run(app)
    server.wait_for(lambda: any(args[1] == b"worker.times" for args in server.seen_of(Type.CALL)))
    text = b'{"times":{"slow":{"deadline":3600.0},"order":{"start_within":5.0}}}'
    assert [b"times", b"worker.times", text] in server.seen_of(Type.CALL)


@pytest.mark.parametrize("size", [-1, 2**20 + 1, "1K", True])
def test_a_task_keeps_arguments_of_a_valid_size(size: Any) -> None:
    with pytest.raises(UsageError, match="keep_arguments"):
        App().task(keep_arguments=size)


def test_functions_that_are_left_out_are_registered_later(server: ExtensionServer) -> None:
    app = App()

    @app.task
    def good() -> None: ...

    @app.task
    def bad() -> None: ...

    async def main() -> None:
        servers = {"server": connector(server.address)}
        worker = Worker(app.registry, servers, left_out={"bad": time.monotonic() + 0.2})
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(server.wait_for, lambda: len(server.seen_of(Type.REGISTER)) == 2, 20)
        worker.stop()
        await running

    asyncio.run(main())
    assert [function for function, _ in server.seen_of(Type.REGISTER)] == [b"good", b"bad"]
    kinds = [Type.REGISTER, Type.READY]
    assert [kind for kind, _ in server.seen if kind in kinds][:3] == [Type.REGISTER, Type.READY, Type.REGISTER]


def refuse_function(server: ExtensionServer, name: bytes, message: bytes) -> None:
    """Let a server refuse a function, as one whose store cannot serve it."""

    def refused(peer: Peer, args: list[bytes]) -> bool:
        if args[0] == name:
            peer.send(Type.ERROR, b"UNSUPPORTED", name + message)
        return args[0] == name

    server.before[Type.REGISTER] = refused


def test_a_function_that_a_server_cannot_serve_runs_for_the_others(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task
    def plain() -> str:
        return "plain"

    @app.task(concurrency=2)
    def limited() -> str:
        return "limited"

    @app.workflow
    async def order() -> None: ...

    with ExtensionServer() as without, capture_logs() as logs:
        refuse_function(without, b"limited", b" has concurrency, and this store keeps no limits")
        running = run(app, servers=[server, without])
        jobs = [without.add("plain"), server.add("plain"), server.add("limited")]
        for one in (without, server):
            one.wait_for(lambda: all(job.ended for job in jobs if job.handle in one.jobs))  # noqa: B023 - awaited here
        assert [job.state for job in jobs] == ["succeeded"] * 3
        without.drop_connections()  # it is refused again, and the log does not repeat it
        without.wait_for(lambda: [args[0] for args in without.seen_of(Type.REGISTER)].count(b"limited") == 2, 20)
        served = running.worker.unserved
        assert [running.ask(served(str(one.address))) for one in (server, without)] == [[], ["limited"]]
        warnings = [entry for entry in logs if entry.get("function") == "limited"]
        (warning,) = warnings
        assert (warning["log_level"], warning["server"]) == ("warning", str(without.address))
        assert (
            warning["event"]
            == "the server cannot serve limited, which runs for the other servers only, as do its schedules"
        )
        # They exchange their stores: the worker goes on, and ends when none has limits.
        without.before.clear()
        without.drop_connections()
        without.wait_for(lambda: [args[0] for args in without.seen_of(Type.REGISTER)].count(b"limited") == 3, 20)
        refuse_function(server, b"limited", b" has concurrency, and this store keeps no limits")
        server.drop_connections()
        server.wait_for(lambda: [args[0] for args in server.seen_of(Type.REGISTER)].count(b"limited") == 2, 20)
        job = without.add("limited")
        without.wait_for(lambda: job.state == "succeeded")
        refuse_function(without, b"limited", b" has concurrency, and this store keeps no limits")
        without.drop_connections()
        ended = running.ended()
    assert isinstance(ended, SettingsError)
    assert "each of the servers cannot serve this worker: limited has concurrency" in str(ended)
    assert "--no-workflows" in str(ended)


def test_a_workflow_that_the_only_server_cannot_serve_ends_the_worker(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.workflow
    async def order() -> None: ...

    refuse_function(server, b"order", b" is a workflow, and this store keeps none")
    with pytest.raises(SettingsError, match="the server cannot serve this worker: order is a workflow"):
        raise run(app).ended()


class FakeDecider:
    """Sends a DECIDE for each decision, and ends it with the answer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.deciding: dict[bytes, Any] = {}
        self.stopped = asyncio.Event()

    def attach(self) -> None: ...

    def accepted(self, delivery: Any) -> None: ...

    def ended(self, delivery: Any, settlement: Any) -> bool:
        return False

    def flush(self) -> None: ...

    def activation(self) -> None:
        return None

    def tick(self) -> None: ...

    @property
    def busy(self) -> bool:
        return bool(self.deciding)

    def agreed(self, link: Any) -> None:
        self.calls.append(("agreed", link.name))

    def assigned(self, link: Any, decision: Assigned) -> None:
        self.calls.append(("assigned", decision.payload))
        self.deciding[decision.handle] = decision.handle, decision.token
        link.session.send(Type.DECIDE, decision.handle, b"decisions")

    def stop(self, link: Any, key: Any, reason: str) -> None:
        self.calls.append(("stop", key, reason))
        self.stopped.set()

    def received(self, link: Any, packet: Extended) -> None:
        self.calls.append(("received", packet.kind))
        link.session.drop(self.deciding.pop(packet.args[0]))

    def drain(self) -> None:
        self.calls.append(("drain",))

    def lost(self, link: Any) -> None:
        self.calls.append(("lost", link.name))

    def release_all(self) -> None:
        self.calls.append(("release_all",))

    async def close(self) -> None:
        self.calls.append(("close",))


def test_a_decider_gets_decisions_and_the_answers(server: ExtensionServer) -> None:
    app = App()

    @app.task
    def step() -> None: ...

    decision = b"\x1fd\x1fdefault\x1forder@1"
    peers: list[Any] = []

    def decide(peer: Any, args: list[bytes]) -> bool:
        peers.append(peer)
        return True

    server.before[Type.DECIDE] = decide

    def assign(handle: bytes) -> Callable[[], None]:
        def act() -> None:
            (peer,) = server.peers
            peer.send(Type.ASSIGN, handle, b"t", decision, b"", b"{}", b"events")
            peer.flush()

        return act

    def answer(handle: bytes) -> Callable[[], None]:
        def act() -> None:
            peers[-1].send(Type.DECIDED, handle, b"")
            peers[-1].flush()

        return act

    async def main() -> list[tuple[Any, ...]]:
        decider = FakeDecider()
        worker = Worker(app.registry, {"server": connector(server.address)}, decider=decider)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(server.wait_for, lambda: server.seen_of(Type.READY))
        await asyncio.to_thread(server.do, assign(b"H:1"))
        await asyncio.to_thread(server.wait_for, lambda: len(peers) == 1)
        await asyncio.to_thread(server.do, answer(b"H:1"))
        await asyncio.to_thread(server.do, assign(b"H:2"))
        await asyncio.to_thread(server.wait_for, lambda: len(peers) == 2)
        worker.stop()
        await asyncio.to_thread(server.wait_for, lambda: server.seen_of(Type.PAUSE))
        assert not running.done(), "the drain did not wait for the decision"
        await asyncio.to_thread(server.do, answer(b"H:2"))
        await running
        return decider.calls

    assert asyncio.run(main()) == [
        ("agreed", "server"),
        ("assigned", b"events"),
        ("received", Type.DECIDED),
        ("assigned", b"events"),
        ("drain",),
        ("received", Type.DECIDED),
        ("release_all",),
        ("close",),
        ("lost", "server"),
    ]
    assert server.seen_of(Type.DECIDE) == [[b"H:1", b"decisions"], [b"H:2", b"decisions"]]
    assert not server.seen_of(Type.SETTLE)


def test_decisions_of_a_lost_connection_are_stopped(server: ExtensionServer) -> None:
    app = App()

    @app.task
    def step() -> None: ...

    def assign(peer: Any, args: list[bytes]) -> bool:
        peer.send(Type.ASSIGN, b"H:1", b"t", b"\x1fd\x1fdefault\x1forder@1", b"", b"{}", b"")
        return False

    server.before[Type.REGISTER] = assign

    def end(peer: Any, args: list[bytes]) -> bool:
        peer.transport.abort()
        return True

    server.before[Type.DECIDE] = end

    async def main() -> list[tuple[Any, ...]]:
        decider = FakeDecider()
        worker = Worker(app.registry, {"server": connector(server.address)}, decider=decider)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(10):
            await decider.stopped.wait()
        worker.stop(now=True)
        await running
        return decider.calls

    calls = asyncio.run(main())
    stopped = calls.index(("stop", (b"H:1", b"t"), "lost"))
    assert calls[stopped + 1] == ("lost", "server")


def test_no_more_jobs_run_at_a_time_than_there_are_places(server: ExtensionServer, run: Run) -> None:
    app = App()
    lock = threading.Lock()
    now = most = 0

    @app.task
    def busy() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with lock:
            now -= 1

    @app.task
    async def waits() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        await asyncio.sleep(0.001)
        with lock:
            now -= 1

    run(app, concurrency=4)
    jobs = [server.add("busy" if n % 2 else "waits") for n in range(200)]
    server.wait_for(lambda: all(job.ended for job in jobs))
    assert most == 4


def test_a_job_does_not_inherit_context_variables(server: ExtensionServer, run: Run) -> None:
    app = App()
    note = contextvars.ContextVar("note", default="clean")

    @app.task
    def look() -> str:
        seen = note.get()
        note.set(current_job().handle)
        return seen

    run(app, concurrency=1)
    jobs = [server.add("look") for _ in range(5)]
    server.wait_for(lambda: all(job.ended for job in jobs))
    assert {job.data for job in jobs} == {b'"clean"'}


def test_reports_arrive_before_the_settlement(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task
    def telling() -> None:
        job = current_job()
        for done in range(1000):
            job.progress(done, 1000)
        job.data(b"d\0")
        job.warning(b"w")
        job.progress(1000, 1000)

    @app.task
    async def atelling() -> None:
        current_job().progress(1, 2)

    run(app)
    job, other = server.add("telling"), server.add("atelling")
    server.wait_for(lambda: job.ended and other.ended)
    assert (Type.WORK_DATA, [b"d\0"]) in job.reports
    assert (Type.WORK_WARNING, [b"w"]) in job.reports
    assert [args for kind, args in job.reports if kind == Type.WORK_STATUS][-1] == [b"1000", b"1000"]
    assert other.reports == [(Type.WORK_STATUS, [b"1", b"2"])]


def test_failures_and_snoozes_are_settled(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task
    def fails() -> None:
        raise ValueError("no")

    @app.task
    async def sleepy() -> None:
        raise Snooze(5)

    run(app)
    failed, snoozed = server.add("fails"), server.add("sleepy")
    server.wait_for(lambda: failed.ended and snoozed.outcomes)
    assert failed.state == "failed"
    assert b'"ValueError"' in failed.error
    assert snoozed.outcomes == [b"snoozed"]


def test_coroutines_are_cancelled_and_threads_are_requested_to_stop(server: ExtensionServer, run: Run) -> None:
    app = App()
    begun = threading.Event()

    @app.task
    async def forever() -> None:
        await asyncio.Event().wait()

    @app.task
    def looping() -> None:
        while True:
            current_job().heartbeat()
            time.sleep(0.001)

    @app.task
    def polite() -> str:
        begun.set()
        while not current_job().cancel_requested:
            time.sleep(0.001)
        return "finished anyway"

    run(app)
    jobs = [server.add("forever"), server.add("looping"), server.add("polite")]
    assert begun.wait(10)
    for job in jobs:
        server.stop(job, "cancelled")
    server.wait_for(lambda: all(job.ended for job in jobs))
    assert [job.state for job in jobs] == ["cancelled", "cancelled", "succeeded"]


def test_a_job_that_times_out_is_stopped_and_not_settled(server: ExtensionServer, run: Run) -> None:
    app = App()
    begun, stopped = threading.Event(), threading.Event()

    @app.task
    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @app.task
    def next_one() -> None: ...

    run(app, concurrency=1)
    job = server.add("forever")
    assert begun.wait(10)
    server.stop(job, "timeout")
    assert stopped.wait(10)
    after = server.add("next_one")
    server.wait_for(lambda: after.ended)
    assert job.outcomes == []


def test_a_server_can_ask_a_worker_to_stop_and_its_job_ends_before(server: ExtensionServer, run: Run) -> None:
    app = App()
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        assert go_on.wait(10)

    running = run(app)
    job = server.add("slow")
    assert begun.wait(10)

    def ask() -> None:
        for peer in server.peers:
            peer.send(Type.STOP, b"", b"", b"stop")
            peer.flush()

    server.do(ask)
    server.wait_for(lambda: server.seen_of(Type.PAUSE))
    go_on.set()
    assert running.ended() is Ending.STOPPED
    assert job.state == "succeeded"


def test_a_lost_connection_stops_running_jobs_and_is_reopened(server: ExtensionServer, run: Run) -> None:
    app = App()
    begun = threading.Event()

    @app.task
    async def once_slow() -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()

    run(app)
    job = server.add("once_slow")
    assert begun.wait(10)
    server.drop_connections()
    server.wait_for(lambda: job.ended)
    assert job.state == "succeeded"
    assert job.attempt == 2


def test_an_unacknowledged_settlement_is_sent_again(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task
    def quick() -> str:
        return "r"

    dropped = threading.Event()

    def drop_once(peer: Any, args: list[bytes]) -> bool:
        del server.before[Type.SETTLE]
        dropped.set()
        peer.transport.abort()
        return True

    server.before[Type.SETTLE] = drop_once
    run(app)
    server.add("quick")
    server.wait_for(lambda: len(server.seen_of(Type.SETTLE)) >= 2)
    first, second, *_ = server.seen_of(Type.SETTLE)
    assert first == second


def test_heartbeats_follow_the_shortest_limit(server: ExtensionServer, run: Run) -> None:
    app = App()
    go = threading.Event()

    @app.task
    def holds() -> None:
        go.wait(10)

    run(app)
    job = server.add("holds", heartbeat=0.2)
    server.wait_for(lambda: len(server.seen_of(Type.HEARTBEAT)) >= 3)
    assert job.handle in server.seen_of(Type.HEARTBEAT)[0][0]
    go.set()
    server.wait_for(lambda: job.ended)


def test_a_drain_lets_running_jobs_end_and_releases_the_others(server: ExtensionServer, run: Run) -> None:
    app = App()
    begun, go = threading.Semaphore(0), threading.Event()

    @app.task
    def quick() -> None: ...

    @app.task
    def holds() -> None:
        begun.release()
        go.wait(60)

    worker = run(app, concurrency=2)
    prefetch = worker.worker._prefetch  # noqa: SLF001 - the worker decides when it begins to prefetch
    while not prefetch.brief:  # it prefetches when jobs are brief; on a busy machine that takes a few more jobs
        server.wait_for(server.add("quick").outcomes.__len__)
    jobs = [server.add("holds") for _ in range(6)]
    server.wait_for(lambda: sum(job.state == "running" for job in jobs) > 2)
    for _ in range(2):  # assigned jobs may not have arrived yet
        assert begun.acquire(timeout=10)
    worker.stop()
    server.wait_for(lambda: server.peers[0].paused and sum(job.state == "running" for job in jobs) == 2, timeout=30)
    go.set()
    assert worker.ended() is Ending.STOPPED
    assert sorted(job.state for job in jobs) == ["pending"] * 4 + ["succeeded"] * 2


def test_a_job_that_arrives_after_the_begin_of_a_drain_goes_back_at_once(
    server: ExtensionServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has assigned it before the pause. It does not wait for the end of the running job."""
    monkeypatch.setattr(runtime, "RELEASE_AFTER", 600.0)
    app = App()
    begun, go = threading.Event(), threading.Event()

    @app.task
    def quick() -> None: ...

    @app.task
    def holds() -> None:
        begun.set()
        go.wait(60)

    worker = run(app, concurrency=2)
    running = server.add("holds")
    assert begun.wait(10)
    server.swallow.add(Type.PAUSE)
    worker.stop()
    server.wait_for(lambda: server.seen_of(Type.PAUSE))
    late = server.add("quick")
    assert late.state == "running"
    server.wait_for(lambda: late.outcomes == [b"released"])
    assert running.outcomes == []
    server.do(lambda: server.peers[0].send(Type.PAUSED))
    server.do(server.dispatch)
    go.set()
    assert worker.ended() is Ending.STOPPED
    assert running.outcomes == [b"succeeded"]
    assert late.outcomes == [b"released"]


def test_a_drain_without_grace_releases_all_jobs(server: ExtensionServer, run: Run) -> None:
    app = App()
    begun, go = threading.Barrier(3), threading.Event()

    @app.task
    async def forever() -> None:
        await asyncio.to_thread(begun.wait, 10)
        await asyncio.Event().wait()

    @app.task
    def deaf() -> None:
        begun.wait(10)
        go.wait(20)

    worker = run(app, grace=0.05)
    jobs = [server.add("forever"), server.add("deaf")]
    begun.wait(10)
    worker.stop()
    assert worker.ended() is Ending.STOPPED
    go.set()
    assert [job.outcomes for job in jobs] == [[b"released"]] * 2


def test_only_an_interrupt_during_a_stop_ends_the_wait(server: ExtensionServer, run: Run) -> None:
    app = App()
    begun = threading.Event()

    @app.task
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = run(app, grace=600.0)
    job = server.add("forever")
    begun.wait(10)
    for stop in (worker.worker.interrupt, worker.worker.stop, worker.worker.stop):
        worker.loop.call_soon_threadsafe(stop)
    server.wait_for(lambda: server.peers[0].paused)
    worker.thread.join(1.5)  # longer than the time-out of a forced stop
    assert job.outcomes == []
    assert worker.worker.running == 1
    worker.loop.call_soon_threadsafe(worker.worker.interrupt)
    assert worker.ended() is Ending.STOPPED
    assert job.outcomes == [b"released"]


def test_jobs_that_cannot_start_are_released(server: ExtensionServer, run: Run) -> None:
    app = App()
    go = threading.Event()

    @app.task
    def quick() -> None: ...

    @app.task
    def holds() -> None:
        go.wait(10)

    run(app, concurrency=1)
    for _ in range(30):
        server.wait_for(server.add("quick").outcomes.__len__)
    first = server.add("holds")
    server.wait_for(lambda: first.state == "running")
    held = server.add("quick")
    server.wait_for(lambda: held.outcomes == [b"released"])
    go.set()
    server.wait_for(lambda: held.ended)


def test_recycling_after_max_jobs(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.task
    def quick() -> None: ...

    worker = run(app, max_jobs=5, concurrency=1)
    for _ in range(20):
        server.add("quick")
    assert worker.ended() is Ending.RECYCLED
    done = sum(job.state == "succeeded" for job in server.jobs.values())
    assert done == worker.worker.jobs_done >= 5


def test_recycling_when_memory_grows(run: Run) -> None:
    app = App()

    @app.task
    def quick() -> None: ...

    assert run(app, max_rss=1).ended() is Ending.RECYCLED


def test_several_servers_share_the_places(server: ExtensionServer, run: Run) -> None:
    app = App()
    lock = threading.Lock()
    now = most = 0

    @app.task
    def busy() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    with ExtensionServer() as other:
        worker = run(app, servers=[server, other], concurrency=3)
        for each in (server, other) * 60:
            each.add("busy")
        for each in (server, other):
            each.wait_for(lambda: all(job.ended for job in each.jobs.values()))  # noqa: B023 - awaited here
        worker.stop()
        worker.ended()
    assert most == 3


def test_a_server_that_starts_later_is_found(run: Run, free_port: int) -> None:
    app = App()

    @app.task
    def quick() -> None: ...

    late = ExtensionServer(port=free_port)
    worker = run(app, servers=[late])
    with late:
        job = late.add("quick")
        late.wait_for(lambda: job.ended)
        worker.stop()
        worker.ended()


def test_a_plain_server_and_an_app_without_tasks_are_refused(run: Run) -> None:
    app = App()
    assert isinstance(run(app).ended(), SettingsError)

    @app.task
    def quick() -> None: ...

    with ExtensionServer(plain=True) as plain:
        assert isinstance(run(app, servers=[plain]).ended(), ServerError)
