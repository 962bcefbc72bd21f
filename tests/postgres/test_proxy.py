"""The faults of the proxy, shown with a server that echoes, and with PostgreSQL for a lost COMMIT."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.closed_servers import close_with_connections

from .proxy import Direction, Proxy
from .traps import LoseAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT
TIMEOUT = 20.0
SILENCE = 0.2
"""Seconds without data after which a test assumes that none will come."""


class Echo:
    """A server that echoes and records the received bytes."""

    def __init__(self) -> None:
        self.port = 0
        self.got = bytearray()
        self.ended = asyncio.Event()
        self.more = asyncio.Event()
        self.transports: list[asyncio.Transport] = []

    async def has(self, expected: bytes) -> None:
        """Wait until that has come, and see that it is all."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.got) < len(expected):
                self.more.clear()
                await self.more.wait()
        assert self.got == expected


class Echoing(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._echo.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        self._echo.got += data
        self._echo.more.set()
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._echo.ended.set()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, expected: bytes) -> None:
        assert await asyncio.wait_for(self.reader.readexactly(len(expected)), TIMEOUT) == expected

    async def hears_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.reader.read(1), SILENCE)

    async def hears_the_end(self) -> None:
        try:
            assert await asyncio.wait_for(self.reader.read(1), TIMEOUT) == b""
        except ConnectionError:
            return  # a reset is an end, too


class Stage:
    """An echo server, the proxy in front of it, and clients."""

    def __init__(self, echo: Echo, proxy: Proxy) -> None:
        self.echo = echo
        self.proxy = proxy
        self._clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.proxy.port), TIMEOUT))
        self._clients.append(client)
        return client

    async def greeted(self) -> Client:
        """Connect, and check that the path is open."""
        client = await self.client()
        client.send(b"hello")
        await client.hears(b"hello")
        return client

    def close(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.get_running_loop().create_server(lambda: Echoing(echo), "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    try:
        yield echo
    finally:
        await close_with_connections(server, lambda: echo.transports)


def play(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with echoing() as echo:
            with Proxy(echo.port) as proxy:
                stage = Stage(echo, proxy)
                try:
                    await test(stage)
                finally:
                    stage.close()

    asyncio.run(whole())


def test_it_carries_everything_both_ways() -> None:
    async def test(stage: Stage) -> None:
        data = bytes(range(256)) * 20_000
        client = await stage.client()
        client.send(data)
        await client.hears(data)
        await stage.echo.has(data)
        assert stage.proxy.carried(TO_SERVER) == stage.proxy.carried(TO_CLIENT) == len(data)

    play(test)


def test_an_end_is_passed_on() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        assert stage.proxy.connections == 1
        client.writer.write_eof()
        await asyncio.wait_for(stage.echo.ended.wait(), TIMEOUT)
        await client.hears_the_end()

    play(test)


def test_cut_ends_all_connections_and_lets_new_ones_through() -> None:
    async def test(stage: Stage) -> None:
        clients = [await stage.greeted() for _ in range(3)]
        assert stage.proxy.cut() == 3
        assert stage.proxy.connections == 0
        for client in clients:
            await client.hears_the_end()
        await asyncio.wait_for(stage.echo.ended.wait(), TIMEOUT)
        await stage.greeted()

    play(test)


def test_refused_are_connections_until_it_heals() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        assert stage.proxy.refuse() == 1
        await client.hears_the_end()
        with pytest.raises(ConnectionRefusedError):
            await stage.client()
        stage.proxy.heal()
        await stage.greeted()

    play(test)


def test_what_is_frozen_comes_when_it_heals() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        stage.proxy.freeze()
        client.send(b"one")
        await client.hears_nothing()
        client.send(b"two")
        later = await stage.client()
        later.send(b"")
        await client.hears_nothing()
        assert stage.echo.got == b"hello"
        stage.proxy.heal()
        await client.hears(b"onetwo")

    play(test)


def test_one_direction_can_be_frozen_alone() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        stage.proxy.freeze(TO_CLIENT)
        client.send(b" there")
        await stage.echo.has(b"hello there")
        await client.hears_nothing()
        stage.proxy.heal()
        await client.hears(b" there")

    play(test)


def test_who_connects_to_a_frozen_proxy_is_served_when_it_heals() -> None:
    async def test(stage: Stage) -> None:
        stage.proxy.freeze()
        client = await stage.client()
        client.send(b"early")
        await client.hears_nothing()
        assert not stage.echo.got
        stage.proxy.heal()
        await client.hears(b"early")

    play(test)


def test_who_connects_to_a_frozen_proxy_can_be_cut() -> None:
    async def test(stage: Stage) -> None:
        stage.proxy.freeze()
        client = await stage.client()
        await client.hears_nothing()
        assert stage.proxy.cut() == 1
        await client.hears_the_end()

    play(test)


def test_an_end_is_held_with_the_bytes_before_it() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        stage.proxy.freeze()
        client.send(b"!")
        client.writer.close()
        await asyncio.sleep(SILENCE)
        assert not stage.echo.ended.is_set()
        stage.proxy.heal()
        await asyncio.wait_for(stage.echo.ended.wait(), TIMEOUT)
        assert stage.echo.got == b"hello!"

    play(test)


def test_a_forgotten_connection_is_silent_for_ever() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        assert stage.proxy.forget() == 1
        stage.proxy.heal()
        client.send(b"anybody?")
        await client.hears_nothing()
        client.writer.close()
        await asyncio.sleep(SILENCE)
        assert not stage.echo.ended.is_set()
        assert stage.echo.got == b"hello"
        await stage.greeted()

    play(test)


def test_a_delay_is_latency_and_not_a_lack_of_bandwidth() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        stage.proxy.delay(0.1)
        started_at = time.monotonic()
        for _ in range(30):
            client.send(b"x" * 1000)
            await asyncio.sleep(0.002)
        await client.hears(b"x" * 30_000)
        assert 0.2 <= time.monotonic() - started_at < 2
        stage.proxy.delay(5.0)
        stage.proxy.heal()
        started_at = time.monotonic()
        client.send(b"y")
        await client.hears(b"y")
        assert time.monotonic() - started_at < 5

    play(test)


@pytest.mark.parametrize("count", [0, 3, 70_000])
def test_so_many_bytes_reach_the_server_and_no_more(count: int) -> None:
    async def test(stage: Stage) -> None:
        client = await stage.client()
        cut = stage.proxy.cut_after(count, TO_SERVER)
        data = bytes(100_000)
        client.send(data)
        await asyncio.to_thread(cut.wait, TIMEOUT)
        await asyncio.wait_for(stage.echo.ended.wait(), TIMEOUT)
        assert stage.echo.got == data[:count]
        await stage.client()

    play(test)


def test_so_many_bytes_reach_the_client_and_no_more() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.client()
        cut = stage.proxy.cut_after(4, TO_CLIENT)
        client.send(b"abcdef")
        await client.hears(b"abcd")
        await client.hears_the_end()
        await asyncio.to_thread(cut.wait, TIMEOUT)
        assert stage.echo.got == b"abcdef"

    play(test)


def test_a_request_is_done_and_its_answer_lost() -> None:
    async def test(stage: Stage) -> None:
        client, other = await stage.greeted(), await stage.greeted()
        lost = stage.proxy.lose_answer(to=b"COMMIT", until=b"done;")
        other.send(b"something else, done;")
        await other.hears(b"something else, done;")
        asked = bytes(stage.echo.got)
        for part in (b"COM", b"MIT, please, do", b"ne;"):  # markers may come in pieces
            assert not lost.has_sprung
            asked += part
            client.send(part)
            await stage.echo.has(asked)
        await client.hears(b"COM")  # was not yet the request
        await client.hears_the_end()
        await asyncio.to_thread(lost.wait, TIMEOUT)
        other.send(b"COMMIT done;")  # one trap, one answer
        await other.hears(b"COMMIT done;")

    play(test)


def test_a_request_is_lost() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        lost = stage.proxy.lose_request(of=b"COMMIT")
        client.send(b"COMMIT")
        await client.hears_the_end()
        await asyncio.to_thread(lost.wait, TIMEOUT)
        assert stage.echo.got == b"hello"

    play(test)


def test_healing_removes_traps() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        lost = stage.proxy.lose_request(of=b"COMMIT")
        stage.proxy.heal()
        client.send(b"COMMIT")
        await client.hears(b"COMMIT")
        assert not lost.has_sprung
        with pytest.raises(AssertionError, match="has not sprung"):
            lost.wait(0)

    play(test)


def test_new_connections_go_to_another_target() -> None:
    async def test(stage: Stage) -> None:
        client = await stage.greeted()
        async with echoing() as second:
            stage.proxy.retarget(second.port)
            await stage.greeted()
            await second.has(b"hello")
            client.send(b" again")
            await client.hears(b" again")
            await stage.echo.has(b"hello again")

    play(test)


def test_where_the_server_is_away_a_connection_ends_at_once(free_port: int) -> None:
    async def test(stage: Stage) -> None:
        stage.proxy.retarget(free_port)
        await (await stage.client()).hears_the_end()

    play(test)


def test_an_empty_marker_is_in_every_request() -> None:
    trap = LoseAnswer(b"", b"")
    assert trap.judge("c", TO_CLIENT, b"before") == (b"before", False)
    assert trap.judge("c", TO_SERVER, b"x") == (b"x", False)
    assert trap.judge("d", TO_CLIENT, b"y") == (b"y", False)
    assert trap.judge("c", TO_CLIENT, b"y") == (b"", True)


def test_a_dsn_leads_through_it() -> None:
    with Proxy(1) as proxy:
        assert proxy.through("postgresql://postgres@127.0.0.1:5432/d?schema=s") == (
            f"postgresql://postgres@127.0.0.1:{proxy.port}/d?schema=s"
        )
        assert proxy.through("postgresql://localhost/d") == f"postgresql://127.0.0.1:{proxy.port}/d"


@pytest.mark.parametrize("is_lost", ["answer", "request"])
def test_a_commit_whose_end_is_unknown(is_lost: str, database: str) -> None:
    """The client observes the same in both cases; only the database differs."""
    port = int(database.rpartition(":")[2].partition("/")[0])

    async def test(proxy: Proxy) -> None:
        direct = await asyncpg.connect(database)
        connection = await asyncpg.connect(proxy.through(database))
        try:
            await direct.execute("CREATE TABLE t (i int)")
            lost = proxy.lose_answer() if is_lost == "answer" else proxy.lose_request()
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("INSERT INTO t VALUES (1)")
            with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
                await transaction.commit()
            await asyncio.to_thread(lost.wait, TIMEOUT)
            assert await direct.fetchval("SELECT count(*) FROM t") == (1 if is_lost == "answer" else 0)
        finally:
            connection.terminate()
            direct.terminate()

    with Proxy(port) as proxy:
        asyncio.run(test(proxy))
