"""The sessions of nodes, as the server lists them: which ends of sessions a node finds, and which it does not trust."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import asyncpg
import pytest
from structlog.testing import capture_logs

from mainspring.engines.postgres import control
from mainspring.engines.postgres.control import Sessions

from .a_fleet import Node, eventually, node, session

if TYPE_CHECKING:
    from asyncpg import Connection, Record

LOOK = 0.6


async def announce(one: Node, counter: int) -> str:
    """Beat with the node's session, and return its id."""
    own = await eventually(lambda: _session(one), "it has a session")
    await one.engine.beat(one.row(counter, session=own, look=LOOK))
    return own


async def _session(one: Node) -> str:
    return one.engine.sessions.session()


async def unlisted(one: Node) -> list[str]:
    """Look, and return the names of the nodes whose sessions the server does not list any more."""
    return [row.name for row in await one.engine.rows() if row.unlisted]


async def terminate(database: str, process: str) -> None:
    async with session(database) as other:
        assert await other.fetchval("SELECT pg_terminate_backend($1)", int(process))
        await eventually(lambda: _is_gone(other, process), "the session has ended")


async def _is_gone(other: Connection[Record], process: str) -> bool:
    return await other.fetchval("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", int(process))  # type: ignore[no-any-return]


def test_the_end_of_a_session_is_seen_until_the_node_announces_another(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            first = await announce(one, 1)
            assert first.count(".") == 1
            for _ in range(3):
                assert await unlisted(two) == []
            await terminate(database, first.partition(".")[0])
            assert await unlisted(two) == ["a"]
            await eventually(lambda: _other_session(one, first), "it has another session")
            assert await unlisted(two) == ["a"], "it has not announced it"
            second = await announce(one, 2)
            assert second != first
            for _ in range(3):
                assert await unlisted(two) == []

    asyncio.run(test())


def test_the_own_session_is_new_after_a_cut(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one:
            first = await announce(one, 1)
            clock = asyncio.get_running_loop().time
            began = clock() - one.engine.sessions.unbroken()
            await terminate(database, first.partition(".")[0])
            await eventually(lambda: _other_session(one, first), "it has another session")
            assert clock() - one.engine.sessions.unbroken() > began

    asyncio.run(test())


async def _other_session(one: Node, first: str) -> bool:
    return one.engine.sessions.session() not in {"", first}


def test_only_sessions_that_this_one_has_seen_listed_are_missed(database: str) -> None:
    """After a restart or a failover, the rows have sessions that no server lists."""

    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            await one.engine.beat(one.row(1, session="1.1", look=LOOK))
            for _ in range(3):
                assert await unlisted(two) == []
            first = await announce(one, 2)
            own = await announce(two, 1)
            assert await unlisted(two) == []
            await terminate(
                database, own.partition(".")[0]
            )  # the server restarts: both sessions end, and this node is first
            await eventually(lambda: _other_session(two, own), "it has another session")
            await terminate(database, first.partition(".")[0])
            for _ in range(3):
                assert await unlisted(two) == []

    asyncio.run(test())


@pytest.mark.parametrize("other", ["", "x", "-1.5", "99999999999999999999.1", "1", ".", "0.0"])
def test_odd_ids_of_sessions_in_rows_do_no_harm(database: str, other: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            await one.engine.beat(one.row(1, session=other, look=LOOK))
            for _ in range(2):
                assert await unlisted(two) == []

    asyncio.run(test())


def test_another_process_with_the_same_number_is_another_session(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two, session(database) as stranger:
            own = await announce(one, 1)
            assert await unlisted(two) == await unlisted(two) == []
            sessions = two.engine.sessions
            reused = f"{own.partition('.')[0]}.1"
            sessions._seen.add(reused)  # noqa: SLF001 - the server does not do this on request
            await one.engine.beat(one.row(2, session=reused, look=LOOK))
            assert await unlisted(two) == ["a"]
            del stranger

    asyncio.run(test())


def test_a_session_whose_begin_is_hidden_counts_as_open(database: str) -> None:
    """A role without the rights of the node's own sees the process alone."""

    async def test() -> None:
        async with node(database, "a") as one, session(database) as owner:
            own = await announce(one, 1)
            process = int(own.partition(".")[0])
            role = f"stranger_{process}"
            await owner.execute(f"CREATE ROLE {role}")
            try:
                await owner.execute(f"SET ROLE {role}")
                answering, listed = await owner.fetchrow(control._SQL["listed"], [process])  # type: ignore[misc] # noqa: SLF001 - the server does not do this on request
                assert listed == [f"{process}."]
            finally:
                await owner.execute(f"RESET ROLE; DROP ROLE {role}")
            sessions = Sessions()
            sessions._connection = cast("Connection[Record]", _Connection(answering))  # noqa: SLF001 - the server does not do this on request
            sessions._seen.add(own)  # noqa: SLF001 - the server does not do this on request
            row = one.row(1, session=own, look=LOOK)
            assert sessions.mark([row], answering, listed) == [row]
            sessions._seen.add(own)  # noqa: SLF001 - the server does not do this on request
            assert [found.unlisted for found in sessions.mark([row], answering, [])] == [True]

    asyncio.run(test())


class _Connection:
    """A connection whose server process has a number."""

    def __init__(self, process: int, answering: int | None = None, listed: tuple[str, ...] = ()) -> None:
        self.process = process
        self.answering = process if answering is None else answering
        self.listed = listed

    def get_server_pid(self) -> int:
        return self.process

    async def fetchrow(self, *_: Any) -> tuple[int, list[str]]:
        return self.answering, list(self.listed)


class _Control:
    connection: Any = None


def test_behind_a_pooler_no_session_counts(database: str) -> None:
    """Another process answers than the one of the connection, at once or later. PgBouncer makes up the number of the one."""

    async def test() -> None:
        async with node(database, "a") as one:
            row = one.row(1)
            for first, later, listed in ((8, 8, ()), (8, 8, ("7.1",)), (7, 8, ("7.1",))):
                held = _Control()
                sessions = Sessions()
                sessions.watch(cast("control.Control", held))
                held.connection = _Connection(7, first, listed)
                with capture_logs() as logs:
                    await sessions.greet(held.connection)
                    assert sessions.session() == ("7.1" if first == 7 else "")
                    sessions.mark([row], later, [])
                    sessions.mark([row], 7, [])
                assert sessions.session() == ""
                assert [line["event"][:22] for line in logs] == ["a pooler is between th"]
                assert sessions.unbroken() > 0

    asyncio.run(test())


def test_a_role_without_rights_can_neither_end_nor_imitate_a_session(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two, session(database) as stranger:
            own = await announce(one, 1)
            process = int(own.partition(".")[0])
            role = f"stranger_{process}"
            await stranger.execute(f"CREATE ROLE {role}; SET ROLE {role}")
            try:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await stranger.fetchval("SELECT pg_terminate_backend($1)", process)
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await stranger.execute("UPDATE mainspring.nodes SET counter = counter + 1")
            finally:
                await stranger.execute(f"RESET ROLE; DROP ROLE {role}")
            assert await unlisted(two) == await unlisted(two) == []

    asyncio.run(test())
