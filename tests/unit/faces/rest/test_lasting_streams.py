"""Streams last for as long as their clients stay: nothing in front of them or behind them has a timer that cuts them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.unit.faces.web.ports import accepting, connecting

from mainspring.api.submitting import Submit
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.http import HttpPort
from mainspring.server.node import Shutdown
from mainspring.server.settings import ListenSettings, ServerSettings, TcpAddress, parse_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

SECONDS = 1200.0
STEP = 10.0
GET = "GET {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n"
LIVE = "/api/v1/namespaces/default/live?"


class AheadLoop(asyncio.SelectorEventLoop):
    """An event loop that can be set forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class AheadClock:
    """The time of such a loop."""

    def __init__(self, loop: AheadLoop) -> None:
        self._loop = loop
        self.monotonic = loop.time

    def wall(self) -> float:
        return time.time() + self._loop.ahead


def run(test: Callable[[AheadLoop], Coroutine[Any, Any, None]]) -> None:
    loop = AheadLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


def test_streams_last_longer_than_any_timer() -> None:
    """One with an event each second, and one with nothing but the comments for proxies."""

    async def test(loop: AheadLoop) -> None:
        clock = AheadClock(loop)
        listen = ListenSettings(gearman=(), http=TcpAddress("127.0.0.1", 0))
        settings = ServerSettings(store=parse_store("memory://"), listen=listen)
        built = await open_node(settings, build_engine(settings.store), clock, Shutdown(clock, 1.0))
        port = HttpPort(built, places=8)
        await port.start()
        job = (await built.api.call(Submit(b"nobody-runs-it", b""))).handle
        token = await port.token_of_start()
        async with accepting(port.protocol, 8, 8) as address, connecting(address) as connect:

            async def until(stream: asyncio.StreamReader, piece: bytes) -> bytes:
                return await asyncio.wait_for(stream.readuntil(piece), 20)

            numbers = await connect(GET.format(LIVE + "overview=true", token).encode())
            silent = await connect(GET.format(LIVE + f"job={job}", token).encode())
            assert b" 200 " in await until(numbers, b"event: numbers")
            assert b" 200 " in await until(silent, b"event: job")
            for step in range(round(SECONDS / STEP)):
                loop.ahead += STEP
                await until(numbers, b"event: numbers")
                if step % 2:
                    await until(silent, b":\n\n")
            port.end_streams()
            for stream in (numbers, silent):
                assert (await until(stream, b"\r\n0\r\n\r\n")).endswith(b"\r\n0\r\n\r\n"), "it ends with the node"
        await port.stop()
        await built.node.close()

    run(test)
