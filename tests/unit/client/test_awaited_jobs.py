"""What both clients tell the worker of a task that waits, and how a wait is refused."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring import App, WorkerFullError
from mainspring.client.awaited_jobs import Awaited, waiter
from mainspring.wire.gearman.packets import Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Ear:
    """A worker's side of a task."""

    def __init__(self) -> None:
        self.now: list[Awaited] = []
        self.told: list[str] = []
        self.begun = threading.Semaphore(0)

    def waits(self, awaited: Awaited) -> None:
        self.now.append(awaited)
        self.told.append(f"waits {awaited.handle}")
        self.begun.release()

    def continues(self, awaited: Awaited) -> None:
        self.now.remove(awaited)
        self.told.append(f"continues {awaited.handle}")


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
def ear() -> Iterator[Ear]:
    ear = Ear()
    token = waiter.set(ear)
    yield ear
    waiter.reset(token)


def ends_soon(server: ExtensionServer, ear: Ear, handles: list[bytes]) -> threading.Thread:
    """End jobs, each once somebody waits for it."""

    def end() -> None:
        for handle in handles:
            assert ear.begun.acquire(timeout=10)
            server.do(partial(server.end, server.jobs[handle], "succeeded"))
            server.do(server.dispatch)

    thread = threading.Thread(target=end)
    thread.start()
    return thread


def test_the_blocking_client_tells_of_each_wait(server: ExtensionServer, app: App, ear: Ear) -> None:
    jobs = app.function("f").submit_many([b"1", b"2"])
    thread = ends_soon(server, ear, [job.handle.encode() for job in jobs])
    assert list(app.results(jobs)) == [b"", b""]
    thread.join()
    first, second = jobs
    expected = [f"{word} {job.handle}" for job in (first, second) for word in ("waits", "continues")]
    assert ear.told == expected


def test_the_client_for_asyncio_tells_of_each_wait(server: ExtensionServer, app: App, ear: Ear) -> None:
    async def main() -> list[bytes]:
        jobs = await app.function("f").asubmit_many([b"1", b"2"])
        thread = ends_soon(server, ear, [job.handle.encode() for job in jobs])
        results = [await jobs[0].aresult()] + [result async for result in app.aresults(jobs[1:])]
        await asyncio.to_thread(thread.join)
        await app.aclose()
        return results

    assert asyncio.run(main()) == [b"", b""]
    assert [word.split()[0] for word in ear.told] == ["waits", "continues"] * 2


def test_what_has_ended_is_not_waited_for(server: ExtensionServer, app: App, ear: Ear) -> None:
    job = app.function("f").submit(b"")
    server.do(lambda: server.end(server.jobs[job.handle.encode()], "succeeded"))
    job.result()
    told = list(ear.told)
    job.result()
    assert ear.told == told


def test_a_wait_that_is_over_by_its_timeout_is_told(server: ExtensionServer, app: App, ear: Ear) -> None:
    with pytest.raises(TimeoutError):
        app.function("f").submit(b"").result(0.01)
    assert ear.now == []
    assert len(ear.told) == 2


@pytest.mark.parametrize("others", [0, 2])
def test_a_blocking_wait_is_refused(server: ExtensionServer, app: App, ear: Ear, others: int) -> None:
    """Whether its thread polls the socket, or another one does."""
    reader = app.function("f").submit(b"")
    threads = [threading.Thread(target=reader.result, args=(20,)) for _ in range(others)]
    for thread in threads:
        thread.start()
    server.wait_for(lambda: not others or server.seen_of(Type.WAIT))
    job = app.function("f").submit(b"")

    def refuse() -> None:
        assert ear.begun.acquire(timeout=10)
        server.wait_for(lambda: [job.handle.encode()] in server.seen_of(Type.WAIT))
        ear.now[0].refuse(WorkerFullError("no place"))

    refusing = threading.Thread(target=refuse)
    refusing.start()
    with pytest.raises(WorkerFullError, match="no place"):
        job.result(20)
    refusing.join()
    assert ear.now == []
    server.do(lambda: server.end(server.jobs[reader.handle.encode()], "succeeded"))
    server.do(server.dispatch)
    for thread in threads:
        thread.join()
    with pytest.raises(TimeoutError):
        job.result(0.01)  # it can be waited for again


def test_a_wait_of_a_coroutine_is_refused_from_another_thread(app: App, ear: Ear) -> None:
    async def main() -> None:
        job = await app.function("f").asubmit(b"")
        waiting = asyncio.create_task(job.aresult())
        await asyncio.to_thread(ear.begun.acquire)
        await asyncio.to_thread(ear.now[0].refuse, WorkerFullError("no place"))
        with pytest.raises(WorkerFullError, match="no place"):
            await waiting
        await app.aclose()

    asyncio.run(main())
    assert ear.now == []


def test_a_refusal_that_comes_late_does_nothing(server: ExtensionServer, app: App, ear: Ear) -> None:
    kept: list[Callable[[BaseException], None]] = []
    job = app.function("f").submit(b"")
    waits = ear.waits

    def keep(awaited: Awaited) -> None:
        kept.append(awaited.refuse)
        waits(awaited)

    ear.waits = keep  # type: ignore[method-assign]
    thread = ends_soon(server, ear, [job.handle.encode()])
    assert job.result() == b""
    thread.join()
    kept[0](WorkerFullError("no place"))
    assert job.result() == b""


def test_who_follows_a_job_waits_for_it(server: ExtensionServer, app: App, ear: Ear) -> None:
    job = app.function("f").submit(b"")
    thread = ends_soon(server, ear, [job.handle.encode()])
    list(job.stream())
    thread.join()
    assert ear.told == [f"waits {job.handle}", f"continues {job.handle}"]
