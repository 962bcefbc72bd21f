from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring import App, ConnectionLostError, Data, JobFailed, JobLost, Missed, Progress, UsageError, Warned
from mainspring.client.outcomes import EventBuffer, JobEvent, Notice
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring import Job


def notice_of_data(size: int) -> Notice:
    return Notice("data", 0, 0, b"x" * size)


def taken(buffer: EventBuffer) -> list[JobEvent]:
    events = []
    while (event := buffer.pop()) is not None:
        events.append(event)
    return events


def test_events_keep_their_order_and_consecutive_progress_is_the_newest() -> None:
    events = EventBuffer()
    assert not events
    for done in (1, 2):
        events.add(Notice("progress", done, 9, b""))
    events.add(Notice("data", 0, 0, b"a"))
    events.add(Notice("warning", 0, 0, b"b"))
    events.add(Notice("progress", 3, 9, b""))
    assert events
    assert taken(events) == [Progress(2, 9), Data(b"a"), Warned(b"b"), Progress(3, 9)]
    assert not events


def test_events_beyond_the_limit_are_dropped_and_counted() -> None:
    events = EventBuffer(limit=1_000)
    events.add(notice_of_data(5_000))  # an empty buffer accepts it
    for _ in range(3):
        events.add(notice_of_data(1))
    assert taken(events) == [Data(b"x" * 5_000), Missed(3)]
    for _ in range(100_000):
        events.add(notice_of_data(200))
    assert events.pop() == Data(b"x" * 200)
    events.add(notice_of_data(100))
    assert taken(events) == [Data(b"x" * 200), Data(b"x" * 200), Missed(99_997), Data(b"x" * 100)]


@pytest.fixture
def server() -> Iterator[ExtensionServer]:
    with ExtensionServer() as server:
        yield server


@pytest.fixture
def app(server: ExtensionServer) -> Iterator[App]:
    app = App(str(server.address))
    yield app
    app.close()


def report(server: ExtensionServer, handle: str, kind: Type, *args: bytes) -> None:
    def act() -> None:
        server.report(kind, [handle.encode(), *args])
        server.dispatch()  # flushes the connections

    server.do(act)


def talk(server: ExtensionServer, handle: str, state: str = "succeeded") -> None:
    """Send one event of each kind to the client that waits for a job, and end the job."""
    server.wait_for(lambda: server.waiting.get(handle.encode()))
    report(server, handle, Type.WORK_STATUS, b"1", b"2")
    report(server, handle, Type.WORK_DATA, b"part\0")
    report(server, handle, Type.WORK_WARNING, b"careful")

    def end() -> None:
        job = server.jobs[handle.encode()]
        job.data, job.attempt = b"7", 1
        job.error = b'{"type":"ValueError","message":"no"}' if state == "failed" else b""
        server.end(job, state)
        server.dispatch()

    server.do(end)


def streamed(job: Job[bytes]) -> list[JobEvent]:
    return list(job.stream(timeout=10))


async def astreamed(job: Job[bytes], limit: str = "10s") -> list[JobEvent]:
    return [event async for event in job.astream(limit)]


TALK = [Progress(1, 2), Data(b"part\0"), Warned(b"careful")]


def test_a_stream_ends_with_its_job(server: ExtensionServer, app: App) -> None:
    done, failed = app.function("f").submit_many([b"1", b"2"])
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(streamed, job) for job in (done, failed)]
        talk(server, done.handle)
        talk(server, failed.handle, "failed")
        assert [stream.result() for stream in streams] == [TALK, TALK]
    asked = len(server.seen_of(Type.WAIT))
    assert done.result(0) == b"7"
    with pytest.raises(JobFailed, match="ValueError: no"):
        failed.result(0)
    assert streamed(done) == []
    assert len(server.seen_of(Type.WAIT)) == asked
    lost = app.job("H:no:1")
    assert streamed(lost) == []
    with pytest.raises(JobLost):
        lost.result()


def test_a_stream_on_an_event_loop(server: ExtensionServer, app: App) -> None:
    async def main() -> None:
        done, failed = await app.function("f").asubmit_many([b"1", b"2"])
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(astreamed(job)) for job in (done, failed)]
            await asyncio.to_thread(talk, server, done.handle)
            await asyncio.to_thread(talk, server, failed.handle, "failed")
        assert [stream.result() for stream in streams] == [TALK, TALK]
        assert await done.aresult(0) == b"7"
        with pytest.raises(JobFailed):
            await failed.aresult(0)
        assert await astreamed(done) == []
        await app.aclose()

    asyncio.run(main())


def test_a_stream_times_out_while_events_arrive(server: ExtensionServer, app: App) -> None:
    job = app.function("f").submit(b"")
    with pytest.raises(TimeoutError, match=f"job {job.handle} has not ended within 10ms"):
        list(job.stream("10ms"))
    with ThreadPoolExecutor(1) as pool:
        short = pool.submit(list, job.stream("300ms"))
        while not short.done():
            report(server, job.handle, Type.WORK_DATA, b"a")
        with pytest.raises(TimeoutError):
            short.result()
    with pytest.raises(UsageError, match="timeout must be a duration"):
        job.stream([])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout must be a duration"):
        job.astream([])  # type: ignore[arg-type]

    async def main() -> None:
        with pytest.raises(TimeoutError, match=f"job {job.handle} has not ended within 10ms"):
            await anext(job.astream("10ms"))
        short = asyncio.create_task(astreamed(job, "300ms"))
        while not short.done():
            await asyncio.to_thread(report, server, job.handle, Type.WORK_DATA, b"b")
        with pytest.raises(TimeoutError):
            await short
        await app.aclose()

    asyncio.run(main())


def test_a_stream_continues_after_a_lost_connection(server: ExtensionServer, app: App) -> None:
    job = app.function("f").submit(b"")
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(streamed, job)
        server.wait_for(lambda: server.waiting.get(job.handle.encode()))
        server.drop_connections()
        server.wait_for(lambda: len(server.seen_of(Type.WAIT)) == 2)
        talk(server, job.handle)
        assert stream.result() == TALK


def test_a_stream_that_is_closed_early_is_forgotten(server: ExtensionServer, app: App) -> None:
    job = app.function("f").submit(b"")
    events = job.stream()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, events)
        server.wait_for(lambda: server.waiting.get(job.handle.encode()))
        report(server, job.handle, Type.WORK_WARNING, b"a")
        assert first.result() == Warned(b"a")
    events.close()
    server.drop_connections()
    app.function("f").submit(b"")
    assert len(server.seen_of(Type.WAIT)) == 1, "on the new connection it waits for nothing"


def test_a_client_that_is_closed_ends_its_streams(server: ExtensionServer, app: App) -> None:
    job = app.function("f").submit(b"")
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(streamed, job)
        server.wait_for(lambda: server.waiting.get(job.handle.encode()))
        app.close()
        with pytest.raises(ConnectionLostError):
            stream.result()
