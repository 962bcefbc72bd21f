from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.unit.client.extension_server import ExtensionServer, Peer

from mainspring.client.aio import AsyncClient
from mainspring.client.blocking import Client
from mainspring.client.environment import Address, parse_address
from mainspring.client.outcomes import Notice, Submitted
from mainspring.client.session import Request
from mainspring.errors import ConnectionLostError, NotFoundError, RefusedError, ServerError
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server() -> Iterator[ExtensionServer]:
    with ExtensionServer() as server:
        yield server


@pytest.fixture
def client(server: ExtensionServer) -> Iterator[Client]:
    client = Client([server.address])
    yield client
    client.close()


def request(payload: bytes = b"", unique: bytes = b"", function: bytes = b"f") -> Request:
    return Request(function, unique, b"", payload)


def end(server: ExtensionServer, handle: str, data: bytes = b"") -> None:
    def act() -> None:
        job = server.jobs[handle.encode()]
        job.data = data
        server.end(job, "succeeded")
        server.dispatch()

    server.do(act)


def test_submit_wait_show(server: ExtensionServer, client: Client) -> None:
    first = client.submit(request(unique=b"u"))
    assert client.submit(request(unique=b"u")) == Submitted(first.handle, joined=True)
    with pytest.raises(TimeoutError, match=first.handle):
        client.outcome(first.handle, 0.01)
    end(server, first.handle, b"\0result")
    assert client.outcome(first.handle, 5).data == b"\0result"
    assert client.call("jobs.show", {"handle": first.handle})["state"] == "succeeded"
    with pytest.raises(NotFoundError):
        client.call("jobs.show", {"handle": "H:no:1"})
    assert client.outcome("H:no:1").state == "unknown"


def test_a_refusal_names_its_code(server: ExtensionServer, client: Client) -> None:
    server.refuse.add(b"full")
    with pytest.raises(RefusedError, match="the queue is full") as error:
        client.submit(request(function=b"full"))
    assert error.value.code == "QUEUE_FULL"
    assert client.submit(request()).handle


def test_answers_of_many_submits_include_refusals_in_order(server: ExtensionServer, client: Client) -> None:
    server.refuse.add(b"full")
    requests = (request(b"%d" % n, function=b"full" if n == 4321 else b"f") for n in range(10_000))
    answers = [answer for window in client.submit_many(requests) for answer in window]
    assert len(answers) == 10_000
    assert isinstance(answers[4321], RefusedError)
    accepted = [answer.handle for answer in answers if isinstance(answer, Submitted)]
    assert [server.jobs[handle.encode()].payload for handle in accepted] == [
        b"%d" % n for n in range(10_000) if n != 4321
    ]


def test_large_payloads_are_sent_while_answers_arrive(server: ExtensionServer, client: Client) -> None:
    answers = [a for window in client.submit_many(request(b"x" * 700_000) for _ in range(20)) for a in window]
    assert len(answers) == len(server.jobs) == 20
    for handle in list(server.jobs):
        end(server, handle.decode(), b"y" * 700_000)
    outcomes = client.outcomes([handle.decode() for handle in server.jobs], 20)
    assert [len(outcome.data) for outcome in outcomes] == [700_000] * 20


def test_threads_share_a_connection(server: ExtensionServer, client: Client) -> None:
    def one(number: int) -> bytes:
        handle = client.submit(request(b"%d" % number)).handle
        threading.Timer(0.01, end, (server, handle, b"%d" % number)).start()
        return client.outcome(handle, 10).data

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(100))) == [b"%d" % number for number in range(100)]
    assert len(server.peers) == 1


def test_a_forked_child_has_its_own_connection(server: ExtensionServer, client: Client) -> None:
    client.submit(request())
    child = os.fork()
    if not child:
        try:
            client.submit(request(b"of the child"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    client.submit(request())
    assert [job.payload for job in server.jobs.values()] == [b"", b"of the child", b""]


def test_waits_for_jobs_outlive_connections(server: ExtensionServer, client: Client) -> None:
    handle = client.submit(request()).handle
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.outcome, handle, 20) for _ in range(2)]
        for _ in range(2):
            server.wait_for(lambda: server.waiting.get(handle.encode()))
            server.do(server.waiting.clear)
            server.drop_connections()
        server.wait_for(lambda: server.waiting.get(handle.encode()))
        end(server, handle, b"after all")
        assert [wait.result().data for wait in waiting] == [b"after all"] * 2


def test_a_closed_idle_connection_is_replaced_before_a_submit(server: ExtensionServer, client: Client) -> None:
    client.submit(request())
    server.drop_connections()
    server.wait_for(lambda: not server.peers)
    assert client.submit(request()).handle


def test_unanswered_submits_are_unknown_or_repeated_with_a_unique(server: ExtensionServer, client: Client) -> None:
    def drop_once(peer: object, args: list[bytes]) -> bool:
        del server.before[Type.SUBMIT]
        for peer_ in server.peers:
            peer_.transport.abort()
        return True

    server.before[Type.SUBMIT] = drop_once
    with pytest.raises(ConnectionLostError):
        client.submit(request())
    server.before[Type.SUBMIT] = drop_once
    assert client.submit(request(unique=b"u")).handle
    assert len(server.jobs) == 1


def test_servers_are_tried_in_order(server: ExtensionServer, free_port: int) -> None:
    client = Client([Address("127.0.0.1", free_port), server.address])
    assert client.submit(request()).handle
    client.close()


def test_an_unreachable_server_is_reported_at_once(free_port: int) -> None:
    client = Client([Address("127.0.0.1", free_port)])
    with pytest.raises(ConnectionLostError, match=rf"127\.0\.0\.1:{free_port}: Connection refused"):
        client.submit(request())
    with pytest.raises(ConnectionLostError):
        client.outcome("H:n:1")


def test_a_silent_server_is_reported() -> None:
    with ExtensionServer() as server:
        server.mute = True
        client = Client([server.address], connect_timeout=0.1)
        with pytest.raises(ConnectionLostError, match="did not answer"):
            client.submit(request())
        client.close()


def test_a_plain_gearman_server_is_refused() -> None:
    with ExtensionServer(plain=True) as server:
        client = Client([server.address])
        with pytest.raises(ServerError, match="does not support"):
            client.submit(request())
        client.close()


def test_events_arrive_until_the_connection_ends(server: ExtensionServer, client: Client) -> None:
    handle = client.submit(request()).handle
    events = client.events("jobs.watch", {})
    watching = threading.Thread(target=lambda: seen.append(next(events)))
    seen: list[object] = []
    watching.start()
    server.wait_for(lambda: server.watchers)
    end(server, handle)
    watching.join(10)
    assert seen == [{"handle": handle, "state": "succeeded"}]
    server.drop_connections()
    with pytest.raises(ConnectionLostError):
        next(events)


def test_progress_is_received(server: ExtensionServer, client: Client) -> None:
    handle = client.submit(request()).handle
    notices: list[Notice] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.outcome, handle, 10, on_notice=notices.append)
        server.wait_for(lambda: server.waiting.get(handle.encode()))
        server.do(lambda: server.report(Type.WORK_STATUS, [handle.encode(), b"1", b"2"]))
        end(server, handle)
        waiting.result()
    assert notices == [Notice("progress", 1, 2, b"")]


def test_closing_fails_pending_requests(server: ExtensionServer, client: Client) -> None:
    handle = client.submit(request()).handle
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.outcome, handle, 10)
        server.wait_for(lambda: server.waiting.get(handle.encode()))
        client.close()
        with pytest.raises(ConnectionLostError, match="closed"):
            waiting.result()


def test_a_port_that_drops_connections_is_reported_as_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drop() -> None:
            for _ in range(4):  # each of the two submits tries both servers
                listener.accept()[0].close()

        dropping = threading.Thread(target=drop)
        dropping.start()
        client = Client([Address(*listener.getsockname()), Address(*listener.getsockname())])
        with pytest.raises(ConnectionLostError):
            client.submit(request())
        with pytest.raises(ConnectionLostError):
            client.submit(request())
        dropping.join(5)


@pytest.mark.parametrize("unique", [b"", b"u"])
def test_a_server_that_drops_connections_is_skipped(server: ExtensionServer, unique: bytes) -> None:
    """A node that is about to end accepts connections and closes them before a request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drop() -> None:
            listener.accept()[0].close()

        dropping = threading.Thread(target=drop)
        dropping.start()
        client = Client([Address(*listener.getsockname()), server.address])
        for _ in range(2):  # the second time on the open connection
            assert client.submit(request(unique=unique)).handle
        client.close()
        dropping.join(5)


@pytest.mark.parametrize("depth", [0, 200], ids=["short", "longer than the system accepts"])
def test_a_unix_socket(server: ExtensionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    directory = tmp_path / ("d" * depth)
    directory.mkdir(exist_ok=True)
    path = directory / "s"
    monkeypatch.chdir(directory)
    listening = server.call(server.loop.create_unix_server(lambda: Peer(server), "s"))
    monkeypatch.chdir("/")
    client = Client([parse_address(f"unix:{path}")])
    assert client.submit(request()).handle
    client.close()

    async def submit() -> Submitted:
        aio = AsyncClient([parse_address(f"unix:{path}")])
        try:
            return await aio.submit(request())
        finally:
            await aio.close()

    assert asyncio.run(submit()).handle
    server.do(listening.close)
    with pytest.raises(ConnectionLostError, match="unix:"):
        Client([parse_address(f"unix:{tmp_path}/none")]).submit(request())
