from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring.client.aio import AsyncClient
from mainspring.client.environment import Address
from mainspring.client.outcomes import Submitted
from mainspring.client.session import Request, Session
from mainspring.errors import ConnectionLostError, NotFoundError, RefusedError, ServerError
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


@pytest.fixture
def server() -> Iterator[ExtensionServer]:
    with ExtensionServer() as server:
        yield server


def request(payload: bytes = b"", unique: bytes = b"", function: bytes = b"f") -> Request:
    return Request(function, unique, b"", payload)


def run(server: ExtensionServer, body: Callable[[AsyncClient], Awaitable[Any]]) -> None:
    async def main() -> None:
        client = AsyncClient([server.address])
        try:
            async with asyncio.timeout(20):
                await body(client)
        finally:
            await client.close()

    asyncio.run(main())


async def end(server: ExtensionServer, handle: str, data: bytes = b"") -> None:
    def act() -> None:
        job = server.jobs[handle.encode()]
        job.data = data
        server.end(job, "succeeded")
        server.dispatch()

    await asyncio.to_thread(server.do, act)


async def waited_for(server: ExtensionServer, condition: Callable[[], Any]) -> None:
    await asyncio.to_thread(server.wait_for, condition)


def test_submit_wait_show(server: ExtensionServer) -> None:
    async def body(client: AsyncClient) -> None:
        first = await client.submit(request(unique=b"u"))
        assert await client.submit(request(unique=b"u")) == Submitted(first.handle, joined=True)
        with pytest.raises(TimeoutError, match=first.handle):
            await client.outcome(first.handle, 0.01)
        await end(server, first.handle, b"\0result")
        assert (await client.outcome(first.handle, 5)).data == b"\0result"
        assert (await client.call("jobs.show", {"handle": first.handle}))["state"] == "succeeded"
        with pytest.raises(NotFoundError):
            await client.call("jobs.show", {"handle": "H:no:1"})
        server.refuse.add(b"full")
        with pytest.raises(RefusedError):
            await client.submit(request(function=b"full"))

    run(server, body)


def test_many_tasks_share_a_connection(server: ExtensionServer) -> None:
    async def body(client: AsyncClient) -> None:
        submitted = await asyncio.gather(*(client.submit(request(b"%d" % n)) for n in range(500)))
        assert [server.jobs[s.handle.encode()].payload for s in submitted] == [b"%d" % n for n in range(500)]
        assert len(server.peers) == 1

    run(server, body)


def test_many_jobs_are_submitted_and_awaited(server: ExtensionServer) -> None:
    async def body(client: AsyncClient) -> None:
        answers = []
        async for window in client.submit_many(request(b"%d" % n) for n in range(9_000)):
            answers += window
        handles = [answer.handle for answer in answers if isinstance(answer, Submitted)]
        assert len(handles) == 9_000

        def end_all() -> None:
            for handle in handles[:3000]:
                server.jobs[handle.encode()].data = handle.encode()
                server.end(server.jobs[handle.encode()], "succeeded")

        await asyncio.to_thread(server.do, end_all)
        assert [o.data.decode() async for o in client.outcomes(handles[:3000])] == handles[:3000]

    run(server, body)


def test_waits_for_jobs_outlive_connections(server: ExtensionServer) -> None:
    async def body(client: AsyncClient) -> None:
        handle = (await client.submit(request())).handle
        waiting = asyncio.create_task(client.outcome(handle))
        for _ in range(2):
            await waited_for(server, lambda: server.waiting.get(handle.encode()))
            server.do(server.waiting.clear)
            await asyncio.to_thread(server.drop_connections)
        await waited_for(server, lambda: server.waiting.get(handle.encode()))
        await end(server, handle, b"after all")
        assert (await waiting).data == b"after all"

    run(server, body)


def test_unanswered_submits_are_unknown_or_repeated_with_a_unique(server: ExtensionServer) -> None:
    def drop_once(peer: object, args: list[bytes]) -> bool:
        del server.before[Type.SUBMIT]
        for peer_ in server.peers:
            peer_.transport.abort()
        return True

    async def body(client: AsyncClient) -> None:
        server.before[Type.SUBMIT] = drop_once
        with pytest.raises(ConnectionLostError):
            await client.submit(request())
        server.before[Type.SUBMIT] = drop_once
        assert (await client.submit(request(unique=b"u"))).handle
        assert len(server.jobs) == 1

    run(server, body)


def test_events(server: ExtensionServer) -> None:
    async def body(client: AsyncClient) -> None:
        handle = (await client.submit(request())).handle
        events = client.events("jobs.watch")
        first = asyncio.ensure_future(anext(events))
        await waited_for(server, lambda: server.watchers)
        await end(server, handle)
        assert await first == {"handle": handle, "state": "succeeded"}
        await asyncio.to_thread(server.drop_connections)
        with pytest.raises(ConnectionLostError):
            await anext(events)

    run(server, body)


def test_missing_silent_and_plain_servers_are_reported(free_port: int) -> None:
    async def attempt(address: Address) -> None:
        client = AsyncClient([address], connect_timeout=0.2)
        try:
            await client.submit(request())
        finally:
            await client.close()

    with pytest.raises(ConnectionLostError, match=f"127.0.0.1:{free_port}"):
        asyncio.run(attempt(Address("127.0.0.1", free_port)))
    with ExtensionServer(plain=True) as server, pytest.raises(ServerError, match="does not support"):
        asyncio.run(attempt(server.address))
    with ExtensionServer() as server:
        server.mute = True
        with pytest.raises(ConnectionLostError, match="timed out"):
            asyncio.run(attempt(server.address))


def test_closing_fails_pending_requests(server: ExtensionServer) -> None:
    async def body(client: AsyncClient) -> None:
        handle = (await client.submit(request())).handle
        waiting = asyncio.create_task(client.outcome(handle))
        await waited_for(server, lambda: server.waiting.get(handle.encode()))
        await client.close()
        with pytest.raises(ConnectionLostError, match="closed"):
            await waiting

    run(server, body)


def test_a_cancelled_request_is_given_up(server: ExtensionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is not sent later, and the server drops what it has not begun."""
    given_up, give_up = [], Session.give_up

    def noted(self: Session, reply: Any) -> bool:
        given_up.append(reply)
        return give_up(self, reply)

    monkeypatch.setattr(Session, "give_up", noted)

    async def body(client: AsyncClient) -> None:
        asking = asyncio.ensure_future(client.submit(request()))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (reply,) = given_up
        assert reply.given_up
        await client.submit(request(b"later"))
        assert len(given_up) == 1
        assert [job.payload for job in server.jobs.values()] == [b"later"]

    run(server, body)
