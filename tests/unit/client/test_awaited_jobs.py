"""Notifications of both clients to the worker of a waiting task, and refusals of waits."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring import App, UsageError, WorkerFullError
from mainspring.client.inside import Awaited, waiter
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class RecordingWaiter:
    """A task that records the notifications of its waits."""

    depth = 0

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.now: list[Awaited] = []
        self.calls: list[str] = []
        self.begun = threading.Semaphore(0)

    def waits(self, awaited: Awaited) -> None:
        self.now.append(awaited)
        self.calls.append(f"waits {awaited.handle}")
        self.begun.release()

    def continues(self, awaited: Awaited) -> None:
        self.now.remove(awaited)
        self.calls.append(f"continues {awaited.handle}")


@pytest.fixture
def server() -> Iterator[ExtensionServer]:
    with ExtensionServer() as server:
        yield server


@pytest.fixture
def app(server: ExtensionServer) -> Iterator[App]:
    app = App(str(server.address))
    yield app
    app.close()


@pytest.fixture
def task() -> Iterator[RecordingWaiter]:
    task = RecordingWaiter()
    token = waiter.set(task)
    yield task
    waiter.reset(token)


def ends_soon(server: ExtensionServer, task: RecordingWaiter, handles: list[bytes]) -> threading.Thread:
    """End each job as soon as a task waits for it."""

    def end() -> None:
        for handle in handles:
            assert task.begun.acquire(timeout=10)
            server.do(partial(server.end, server.jobs[handle], "succeeded"))
            server.do(server.dispatch)

    thread = threading.Thread(target=end)
    thread.start()
    return thread


def test_the_blocking_client_reports_each_wait(server: ExtensionServer, app: App, task: RecordingWaiter) -> None:
    jobs = app.function("f").submit_many([b"1", b"2"])
    thread = ends_soon(server, task, [job.handle.encode() for job in jobs])
    assert list(app.results(jobs)) == [b"", b""]
    thread.join()
    first, second = jobs
    expected = [f"{word} {job.handle}" for job in (first, second) for word in ("waits", "continues")]
    assert task.calls == expected


def test_the_asyncio_client_reports_each_wait(server: ExtensionServer, app: App, task: RecordingWaiter) -> None:
    async def main() -> list[bytes]:
        jobs = await app.function("f").asubmit_many([b"1", b"2"])
        thread = ends_soon(server, task, [job.handle.encode() for job in jobs])
        results = [await jobs[0].aresult()] + [result async for result in app.aresults(jobs[1:])]
        await asyncio.to_thread(thread.join)
        await app.aclose()
        return results

    assert asyncio.run(main()) == [b"", b""]
    assert [word.split()[0] for word in task.calls] == ["waits", "continues"] * 2


def test_an_ended_job_causes_no_wait(server: ExtensionServer, app: App, task: RecordingWaiter) -> None:
    job = app.function("f").submit(b"")
    server.do(lambda: server.end(server.jobs[job.handle.encode()], "succeeded"))
    job.result()
    before = list(task.calls)
    job.result()
    assert task.calls == before


def test_the_end_of_a_wait_by_its_timeout_is_reported(server: ExtensionServer, app: App, task: RecordingWaiter) -> None:
    with pytest.raises(TimeoutError):
        app.function("f").submit(b"").result(0.01)
    assert task.now == []
    assert len(task.calls) == 2


@pytest.mark.parametrize("others", [0, 2])
def test_a_blocking_wait_is_refused(server: ExtensionServer, app: App, task: RecordingWaiter, others: int) -> None:
    """A refusal ends the wait if its thread polls the socket, and if another thread does."""
    reader = app.function("f").submit(b"")
    threads = [threading.Thread(target=reader.result, args=(20,)) for _ in range(others)]
    for thread in threads:
        thread.start()
    server.wait_for(lambda: not others or server.seen_of(Type.WAIT))
    job = app.function("f").submit(b"")

    def refuse() -> None:
        assert task.begun.acquire(timeout=10)
        server.wait_for(lambda: [job.handle.encode()] in server.seen_of(Type.WAIT))
        task.now[0].refuse(WorkerFullError("no place"))

    refusing = threading.Thread(target=refuse)
    refusing.start()
    with pytest.raises(WorkerFullError, match="no place"):
        job.result(20)
    refusing.join()
    assert task.now == []
    server.do(lambda: server.end(server.jobs[reader.handle.encode()], "succeeded"))
    server.do(server.dispatch)
    for thread in threads:
        thread.join()
    with pytest.raises(TimeoutError):
        job.result(0.01)  # a second wait is possible


def test_a_wait_of_a_coroutine_is_refused_from_another_thread(app: App, task: RecordingWaiter) -> None:
    async def main() -> None:
        job = await app.function("f").asubmit(b"")
        waiting = asyncio.create_task(job.aresult())
        await asyncio.to_thread(task.begun.acquire)
        await asyncio.to_thread(task.now[0].refuse, WorkerFullError("no place"))
        with pytest.raises(WorkerFullError, match="no place"):
            await waiting
        await app.aclose()

    asyncio.run(main())
    assert task.now == []


def test_a_late_refusal_does_nothing(server: ExtensionServer, app: App, task: RecordingWaiter) -> None:
    kept: list[Callable[[BaseException], None]] = []
    job = app.function("f").submit(b"")
    waits = task.waits

    def keep(awaited: Awaited) -> None:
        kept.append(awaited.refuse)
        waits(awaited)

    task.waits = keep  # type: ignore[method-assign]
    thread = ends_soon(server, task, [job.handle.encode()])
    assert job.result() == b""
    thread.join()
    kept[0](WorkerFullError("no place"))
    assert job.result() == b""


def test_a_stream_waits_for_its_job(server: ExtensionServer, app: App, task: RecordingWaiter) -> None:
    job = app.function("f").submit(b"")
    thread = ends_soon(server, task, [job.handle.encode()])
    list(job.stream())
    thread.join()
    assert task.calls == [f"waits {job.handle}", f"continues {job.handle}"]


def test_a_blocking_call_is_refused_in_the_coroutine_of_a_task_alone(app: App, task: RecordingWaiter) -> None:
    """A plain function may block, also if it runs a loop of its own."""
    blocking: list[Callable[[], object]] = [
        lambda: app.function("f").submit(b""),
        lambda: app.function("f").submit_many([b""]),
        lambda: app.job("H:n:1").result(1),
        lambda: app.job("H:n:1").state,
        lambda: app.job("H:n:1").cancel(),
        lambda: next(app.job("H:n:1").stream()),
        lambda: next(app.results([app.job("H:n:1")])),
    ]

    async def of_a_task() -> None:
        task.loop = asyncio.get_running_loop()
        for call in blocking:
            with pytest.raises(UsageError, match=r"inside of an `async def` task.*await f\.asubmit"):
                call()
            with pytest.raises(UsageError, match="async def"):
                await asyncio.create_task(calling(call))
        assert await asyncio.to_thread(app.connections.blocking) is not None

    async def calling(call: Callable[[], object]) -> None:
        call()

    async def of_a_loop_of_its_own() -> None:
        assert app.connections.blocking() is not None

    asyncio.run(of_a_task())
    task.loop = None
    asyncio.run(of_a_loop_of_its_own())
    waiter.set(None)
    asyncio.run(of_a_loop_of_its_own())
