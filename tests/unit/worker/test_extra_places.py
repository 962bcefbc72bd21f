"""Tests tasks that wait for jobs of their own worker."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring import App, JobFailed, WorkerFullError, current_job
from mainspring.wire.gearman_protocol import Type
from mainspring.worker import places
from mainspring.worker.runtime import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.worker.conftest import Running

    Run = Callable[..., Running]


@pytest.fixture
def bare(server: ExtensionServer) -> Iterator[App]:
    """An App without tasks."""
    app = App(str(server.address))
    yield app
    app.close()


@pytest.fixture
def app(bare: App) -> App:
    app = bare

    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    def total(n: int) -> int:
        return sum(app.results(double.submit_many(range(n))))

    @app.task
    async def atotal(n: int) -> int:
        return sum([result async for result in app.aresults(await double.asubmit_many(range(n)))])

    @app.task
    def depth(n: int) -> int:
        return n and 1 + depth.submit(n - 1).result()

    return app


def test_parents_in_all_places_end(server: ExtensionServer, run: Run, app: App) -> None:
    run(app, concurrency=4)
    jobs = [server.add("total", b"[3]") for _ in range(4)]
    server.wait_for(lambda: all(job.ended for job in jobs))
    assert {job.data for job in jobs} == {b"6"}


def test_a_coroutine_in_the_only_place_ends(server: ExtensionServer, run: Run, app: App) -> None:
    run(app, concurrency=1)
    job = server.add("atotal", b"[20]")
    server.wait_for(lambda: job.ended)
    assert job.data == b"380"


def test_extra_places_run_awaited_jobs_and_not_more_parents(server: ExtensionServer, run: Run, app: App) -> None:
    """If extra places ran every job, the parents, which are queued before the children, would occupy all of them."""
    run(app, concurrency=2, waiting_places=1)
    jobs = [server.add("total", b"[2]") for _ in range(20)]
    server.wait_for(lambda: all(job.ended for job in jobs))
    assert [job.data for job in jobs] == [b"2"] * 20
    assert [args[0] for args in server.seen_of(Type.REGISTER)].count(b"total") == 1


def test_children_that_wait_for_children_get_further_places(server: ExtensionServer, run: Run, app: App) -> None:
    run(app, concurrency=1, waiting_places=5)
    job = server.add("depth", b"[5]")
    server.wait_for(lambda: job.ended)
    assert job.data == b"5"


@pytest.mark.parametrize("places", [0, 2])
def test_at_the_limit_the_newest_wait_is_refused(server: ExtensionServer, run: Run, app: App, places: int) -> None:
    run(app, concurrency=1, waiting_places=places)
    job = server.add("depth", b"[%d]" % (places + 1))
    server.wait_for(lambda: job.ended, 20)
    assert job.state == "failed"
    with pytest.raises(JobFailed, match=r"WorkerFullError: job .* --waiting-places") as failed:
        app.job(job.handle.decode()).result()
    assert f"1 place and {places} extra ones" in str(failed.value)


@pytest.mark.parametrize(("function", "state"), [("elsewhere", "pending"), ("parent", "running")])
def test_a_wait_for_jobs_of_other_workers_is_never_refused(
    server: ExtensionServer, run: Run, bare: App, monkeypatch: pytest.MonkeyPatch, function: str, state: str
) -> None:
    monkeypatch.setattr(places, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(places, "REFUSE_AFTER", 0.0)
    app = bare
    elsewhere = app.function(function).submit(b"")
    fake = server.jobs[elsewhere.handle.encode()]
    if state == "running":
        server.pending.clear()
        fake.state = state

    @app.task
    def parent() -> str:
        return app.job(elsewhere.handle).result().decode()

    run(app, concurrency=1, waiting_places=0)
    job = server.add("parent")
    server.wait_for(lambda: len([1 for args in server.seen_of(Type.CALL) if args[1] == b"jobs.show"]) > 10)
    fake.data = b"done"
    server.do(lambda: server.end(fake, "succeeded"))
    server.do(server.dispatch)
    server.wait_for(lambda: job.ended)
    assert job.data == b'"done"'


def test_no_more_tasks_work_at_a_time_than_there_are_places(server: ExtensionServer, run: Run, bare: App) -> None:
    app = bare
    lock = threading.Lock()
    now = most = 0

    @app.task
    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    @app.task
    def parent() -> None:
        for job in [work.submit() for _ in range(5)]:
            job.result()

    run(app, concurrency=3)
    jobs = [server.add("parent") for _ in range(6)]
    server.wait_for(lambda: all(job.ended for job in jobs))
    assert most <= 3


def test_a_parent_that_times_out_frees_its_place(server: ExtensionServer, run: Run, bare: App) -> None:
    app = bare
    never = app.function("elsewhere").submit(b"")
    begun = threading.Event()

    @app.task
    def parent() -> None:
        begun.set()
        app.job(never.handle).result()

    @app.task
    def next_one() -> None: ...

    run(app, concurrency=1, waiting_places=0)
    job = server.add("parent")
    assert begun.wait(10)
    server.wait_for(lambda: server.seen_of(Type.WAIT))
    server.stop(job, "timeout")
    after = server.add("next_one")
    server.wait_for(lambda: after.ended)
    assert job.outcomes == []


def test_a_parent_that_is_cancelled_while_it_waits_stops(server: ExtensionServer, run: Run, bare: App) -> None:
    app = bare
    never = app.function("elsewhere").submit(b"")

    @app.task
    def parent() -> None:
        app.job(never.handle).result()

    run(app)
    job = server.add("parent")
    server.wait_for(lambda: server.seen_of(Type.WAIT))
    server.stop(job, "cancelled")
    server.wait_for(lambda: job.ended)
    assert job.state == "cancelled"


def test_a_stopping_worker_runs_no_awaited_jobs(server: ExtensionServer, run: Run, app: App) -> None:
    running = run(app, concurrency=1, grace=0.3)

    def stop(_peer: Any, _args: list[bytes]) -> bool:
        running.stop()  # after the first child has ended
        return False

    server.before[Type.SETTLE] = stop
    server.add("total", b"[50]")
    assert running.ended() is Ending.STOPPED
    assert any(job.state == "pending" for job in server.jobs.values() if job.function == b"double")
    parent = next(job for job in server.jobs.values() if job.function == b"total")
    assert parent.outcomes == [b"released"]


def test_prefetched_jobs_are_released(server: ExtensionServer, run: Run, app: App) -> None:
    run(app, concurrency=1)
    brief = [server.add("double", b"[1]") for _ in range(100)]
    server.wait_for(lambda: all(job.ended for job in brief))  # from now on, some jobs are prefetched
    jobs = [server.add("total", b"[2]"), *(server.add("double", b"[1]") for _ in range(50))]
    server.wait_for(lambda: all(job.ended for job in jobs))
    assert jobs[0].data == b"2"


def test_connections_and_threads_of_extra_places_end(
    server: ExtensionServer, run: Run, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "IDLE_TIMEOUT", 0.05)

    def threads() -> int:
        return sum(thread.name.startswith("mainspring-task-") for thread in threading.enumerate())

    before = threads()
    running = run(app, concurrency=1)
    for _ in range(2):  # they open a second time
        job = server.add("depth", b"[6]")
        ended = partial(getattr, job, "ended")
        server.wait_for(ended)
        while len(running.worker.links) > 1 or threads() > before + 1:
            time.sleep(0.01)
    assert running.worker.jobs_done == 14


def test_a_coroutine_that_waits_for_many_at_once(server: ExtensionServer, run: Run, bare: App) -> None:
    app = bare

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def chord() -> int:
        jobs = await child.asubmit_many(range(20))
        return sum(await asyncio.gather(*(job.aresult() for job in jobs)))

    run(app, concurrency=1)
    job = server.add("chord")
    server.wait_for(lambda: job.ended)
    assert job.data == b"190"


def test_a_task_may_continue_after_a_refusal(server: ExtensionServer, run: Run, bare: App) -> None:

    app = bare

    @app.task
    def child() -> None: ...

    @app.task
    def parent() -> str:
        job = child.submit()
        try:
            job.result()
        except WorkerFullError:
            return f"attempt {current_job().attempt} does not wait"
        return "waited"

    run(app, concurrency=1, waiting_places=0)
    job = server.add("parent")
    server.wait_for(lambda: job.ended, 20)
    assert job.data == b'"attempt 1 does not wait"'


def test_awaited_jobs_are_requested_from_the_server_that_has_them(server: ExtensionServer, run: Run, app: App) -> None:
    """If several servers have a job for the same extra place, it runs one at a time."""
    with ExtensionServer() as other:
        run(app, servers=[server, other], concurrency=1, waiting_places=1)
        jobs = [other.add("total", b"[4]"), server.add("total", b"[4]")]
        jobs += [other.add("double", b"[1]") for _ in range(10)]
        server.wait_for(lambda: jobs[1].ended)
        other.wait_for(lambda: all(job.ended for job in jobs))
        assert [job.data for job in jobs[:2]] == [b"12", b"12"]
        assert not any(job.attempt > 1 for job in [*server.jobs.values(), *other.jobs.values()])


def test_a_worker_continues_after_lost_connections(server: ExtensionServer, run: Run, app: App) -> None:
    dropped = threading.Event()

    def drop_once(_peer: Any, _args: list[bytes]) -> bool:
        del server.before[Type.SETTLE]
        for peer in server.peers:
            peer.transport.abort()
        dropped.set()
        return True

    run(app, concurrency=1)
    server.before[Type.SETTLE] = drop_once  # of the first child; its parent is lost, too, and runs a second time
    job = server.add("total", b"[4]")
    server.wait_for(lambda: job.ended, 20)
    assert dropped.is_set()
    assert (job.data, job.attempt) == (b"12", 2)


def test_an_awaited_job_is_found_among_many(server: ExtensionServer, run: Run, bare: App) -> None:
    """A poll queries only a few jobs, and the newest waits are for jobs that this worker cannot run."""
    app = bare
    elsewhere = app.function("elsewhere").submit_many([b""] * 30)

    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent() -> int:
        job = await child.asubmit()
        waiting = asyncio.create_task(job.aresult())
        others = [asyncio.create_task(other.aresult()) for other in elsewhere]
        result = await waiting
        for other in others:
            other.cancel()
        return result

    run(app, concurrency=1)
    job = server.add("parent")
    server.wait_for(lambda: job.ended, 20)
    assert job.data == b"1"


def test_servers_are_queried_less_while_nothing_changes(
    server: ExtensionServer, run: Run, bare: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(places, "MAX_POLL_INTERVAL", 60)
    app = bare
    elsewhere = app.function("elsewhere").submit(b"")
    fake = server.jobs[elsewhere.handle.encode()]

    @app.task
    def child() -> str:
        return "done"

    @app.task
    def parent() -> str:
        app.job(elsewhere.handle).result()
        return child.submit().result()

    def questions() -> int:
        return len([1 for args in server.seen_of(Type.CALL) if args[1] == b"jobs.show"])

    run(app, concurrency=1)
    job = server.add("parent")
    server.wait_for(lambda: questions() > places.QUICK_POLLS)
    time.sleep(0.5)  # at the first interval there would be hundreds
    assert questions() < 25
    server.do(lambda: server.end(fake, "succeeded"))
    server.do(server.dispatch)
    server.wait_for(lambda: job.ended)  # a new wait is polled soon
    assert job.data == b'"done"'
