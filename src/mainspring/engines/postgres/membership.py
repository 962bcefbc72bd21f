"""Rows of nodes, and the ends of their terms: implements ``mainspring.nodes.store.MembershipPort``."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import asyncpg
import msgspec

from mainspring.engines.postgres.migrate import described
from mainspring.engines.postgres.statements import load
from mainspring.errors import StoreFencedError, StoreUnavailableError
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.control import Control

_SQL = load("engine.sql")
_decode = msgspec.json.Decoder(NodeRow).decode

BEAT_TIMEOUT: Final = 4.0
"""Seconds for a heartbeat; the lease leaves time for a second attempt."""
END_TIMEOUT: Final = 10.0
LOCK_ATTEMPTS: Final = 5
"""Attempts to lock a term, each for `LOCK_TIMEOUT`, before its end is postponed."""
LOCK_TIMEOUT: Final = "500ms"
"""The longest that a group of the term may continue once the term shall end; then its session is terminated."""


def encode_row(row: NodeRow) -> str:
    """Return a row as JSON."""
    return msgspec.json.encode(row).decode()


def keys(schema: str, term: int) -> tuple[int, int, int]:
    """Return the class of the marks of a term's sessions, and the lock of the version before, which has two numbers."""
    return zlib.crc32(f"{schema} term {term}".encode()), zlib.crc32(schema.encode()), term


def marks(schema: str, term: int, session: int) -> tuple[int, int, int, int]:
    """Return the locks that mark a session: two numbers each, by this version and by the one before."""
    own, *old = keys(schema, term)
    return own, session, old[0], old[1]


async def sessions(connection: Connection[Record], found_by: tuple[int, int, int]) -> str:
    """Describe the sessions with the marks of a term, for the log."""
    return described(await connection.fetch(_SQL["marked_sessions"], *found_by))


class Membership:
    """The nodes of the store."""

    def __init__(self, control: Control, schema: str) -> None:
        self._control = control
        self._schema = schema

    async def beat(self, row: NodeRow) -> list[NodeRow]:
        """Write a node's own row and return all; see ``MembershipPort``."""
        work = (_SQL["beat"], row.term, row.counter, encode_row(row))
        rows = await self._control.run(lambda connection: connection.fetch(*work), BEAT_TIMEOUT)
        if all(found["term"] != row.term for found in rows):
            raise StoreFencedError(f"term {row.term} was ended by another node")
        return _rows(rows)

    async def rows(self) -> list[NodeRow]:
        """Return the rows of all nodes."""
        return _rows(await self._control.run(lambda connection: connection.fetch(_SQL["nodes"]), BEAT_TIMEOUT))

    async def now(self) -> float:
        """Return the server's wall time, in seconds."""
        now: float = await self._control.run(lambda connection: connection.fetchval(_SQL["now"]), BEAT_TIMEOUT)
        return now

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term, and terminate the session of a group that does not end by itself; see ``MembershipPort``."""
        return await self._control.run(lambda connection: self._end(connection, term, counter), END_TIMEOUT)

    async def _end(self, connection: Connection[Record], term: int, counter: int | None) -> bool:
        for _ in range(LOCK_ATTEMPTS):
            try:
                return await end(connection, term, counter)
            except asyncpg.LockNotAvailableError:
                await connection.execute(_SQL["break_off"], *keys(self._schema, term))
        raise StoreUnavailableError(
            f"a group of term {term} does not end: {LOCK_ATTEMPTS} attempts to end its session failed; its sessions:"
            f" {await sessions(connection, keys(self._schema, term)) or 'none, so another one has locked its row'}"
        )

    async def abandoned(self) -> list[int]:
        """Return the ended terms that still have jobs or waiters."""
        rows = await self._control.run(lambda connection: connection.fetch(_SQL["abandoned"]), END_TIMEOUT)
        return [row[0] for row in rows]

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Set or clear a node's request to drain; see ``MembershipPort``."""
        work = (_SQL["ask_to_drain"], term, draining)
        return await self._control.run(lambda connection: connection.fetchval(*work), BEAT_TIMEOUT) is not None


async def end(connection: Connection[Record], term: int, counter: int | None, *, unless_holding: bool = False) -> bool:
    """End a term in a transaction, unless its row has another counter or it still holds jobs; return whether it has ended.

    Raises LockNotAvailableError if a group of the term is under way for too long.
    """
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        ended: bool | None = await connection.fetchval(_SQL["close_term"], term)
        if ended is not False:
            return ended is True
        seen = await connection.fetchval(_SQL["close_row"], term)
        if counter is not None and seen is not None and seen != counter:
            return False
        if unless_holding and await connection.fetchval(_SQL["holds"], term):
            return False
        await connection.execute(_SQL["end_row"], term)
        await connection.execute(_SQL["end_term"], term)
    return True


async def leave(connection: Connection[Record], term: int) -> None:
    """End a term unless it still holds jobs, and clear its node's request to drain. Raises as `end` does."""
    if await end(connection, term, None, unless_holding=True):
        await connection.execute(_SQL["end_drain"], term)


def _rows(rows: Iterable[Record]) -> list[NodeRow]:
    found = []
    for term, counter, text, draining in rows:
        row = _decode(text)
        found.append(msgspec.structs.replace(row, term=term, counter=counter, draining=row.draining or draining))
    return found
