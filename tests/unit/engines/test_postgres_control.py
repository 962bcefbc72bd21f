"""The control connection, with fakes of connections."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from mainspring.engines.postgres import connections as connections_module
from mainspring.engines.postgres import control
from mainspring.engines.postgres.control import Control
from mainspring.errors import StoreUnavailableError


class Connection:
    """A connection that can be lost."""

    def __init__(self) -> None:
        self.ended = False
        self.lost: list[Any] = []

    def is_closed(self) -> bool:
        return self.ended

    def is_in_transaction(self) -> bool:
        return False

    def terminate(self) -> None:
        self.ended = True
        for listener in self.lost:
            listener(self)

    def add_termination_listener(self, listener: Any) -> None:
        self.lost.append(listener)

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - as asyncpg has it
        del timeout
        self.ended = True


def test_a_connection_that_is_being_greeted_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[Connection] = []

    async def connect(*_: object, **__: object) -> Connection:
        connections.append(Connection())
        return connections[-1]

    monkeypatch.setattr(control, "connect_repeatedly", connect)

    async def test() -> None:
        greeting, answer = asyncio.Event(), asyncio.Event()

        async def greet(connection: Any) -> None:
            if connection is not connections[0]:
                greeting.set()
                await answer.wait()

        one = Control(connections_module.parse_address("postgresql://u@h/d"), "test", greet)
        await one.open(None)
        await one.start()
        await asyncio.sleep(0)
        connections[0].terminate()
        await greeting.wait()
        await one.close()
        assert [connection.ended for connection in connections] == [True, True]

    asyncio.run(asyncio.wait_for(test(), 20))


def test_a_defect_while_it_connects_again_does_not_end_the_connection_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DEFECT_DELAY", 0.0)
    connections: list[Connection] = []

    async def connect(*_: object, **__: object) -> Connection:
        connections.append(Connection())
        return connections[-1]

    monkeypatch.setattr(control, "connect_repeatedly", connect)

    async def test() -> None:
        async def greet(connection: Any) -> None:
            if connection in connections[1:2]:
                raise ValueError("a defect")

        one = Control(connections_module.parse_address("postgresql://u@h/d"), "test", greet)
        await one.open(None)
        await one.start()
        await asyncio.sleep(0)
        connections[0].terminate()

        async def work(connection: Any) -> Any:
            return connection

        assert await one.run(work, 10.0) is connections[2]
        await one.close()

    asyncio.run(asyncio.wait_for(test(), 20))


def test_work_ends_although_its_rollback_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ROLLBACK_TIMEOUT", 0.01)
    connections: list[Connection] = []

    async def connect(*_: object, **__: object) -> Connection:
        connections.append(Connection())
        return connections[-1]

    monkeypatch.setattr(control, "connect_repeatedly", connect)

    async def test() -> None:
        async def greet(_: Any) -> None:
            return

        one = Control(connections_module.parse_address("postgresql://u@h/d"), "test", greet)
        await one.open(None)
        await one.start()
        began = asyncio.Event()

        async def work(connection: Any) -> None:
            dropped = asyncio.Event()
            connection.add_termination_listener(lambda _: dropped.set())
            began.set()
            try:
                await asyncio.Event().wait()  # a silent server
            finally:
                await dropped.wait()

        with pytest.raises(StoreUnavailableError, match="no answer in time"):
            await one.run(work, 0.01)
        began.clear()
        running = asyncio.ensure_future(one.run(work, 60.0))
        await began.wait()
        running.cancel()  # the engine closes
        await asyncio.wait([running])
        assert running.cancelled()

        async def answered(connection: Any) -> Any:
            return connection

        assert await one.run(answered, 10.0) is connections[2]
        await one.close()

    asyncio.run(asyncio.wait_for(test(), 20))


def test_work_that_fails_as_it_is_cancelled_is_no_error_of_the_node() -> None:
    async def test() -> None:
        reported: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        fails = loop.create_future()

        async def work(_: Any) -> None:
            await fails

        finishing = asyncio.ensure_future(control._finish(cast("Any", None), work))  # noqa: SLF001 - no server fails at this moment
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        fails.set_exception(ConnectionError())
        await asyncio.sleep(0)  # the work has failed, and nobody has noticed yet
        finishing.cancel()
        await asyncio.wait([finishing])
        assert finishing.cancelled()
        del finishing
        gc.collect()
        await asyncio.sleep(0)
        assert reported == []

    asyncio.run(asyncio.wait_for(test(), 20))
