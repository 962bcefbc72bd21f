"""The access slice on SQLite: credentials, the audit, and the kept answers of requests with a key.

Records about jobs on SQLite: the lines that they log, and the series of their functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access import store
from mainspring.access.audit import (
    NUMBERED_ROWS,
    ListActs,
    RecordActs,
    Recorded,
    decode_act,
    list_acts,
    object_number,
    row_of,
)
from mainspring.access.idempotency import OPERATIONS, ReplyOperation, Reservation, reservation_of
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import LARGEST_ID
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.service import AppendLogs, ReadLogs, SweepLogs
from mainspring.series.model import Row, decode_bucket, encode_bucket
from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.engine import in_parts, run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.engine import Meter, Operation, Page, Query


class _Credentials:
    """`store.Tables` inside the open transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._cursor = tx.cursor

    async def find(self, digest: bytes) -> store.Credential | None:
        """Return a credential."""
        return _first(self._cursor.execute(SQL["credential"], (digest,)))

    async def token(self, token: str) -> store.Credential | None:
        """Return a token by its id."""
        return _first(self._cursor.execute(SQL["token"], (token,)))

    async def insert(self, credential: store.Credential) -> None:
        """Store a new credential."""
        self._cursor.execute(SQL["insert_credential"], store.row_of(credential))

    async def remove(self, digest: bytes) -> None:
        """Delete a credential."""
        self._cursor.execute(SQL["remove_credential"], (digest,))

    async def replace(self, digest: bytes, credential: store.Credential) -> None:
        """Replace a credential in its place."""
        self._cursor.execute(SQL["replace_credential"], (credential.digest, store.encode(credential), digest))

    async def remove_sessions(self, token: str) -> None:
        """Delete the sessions of a token."""
        self._cursor.execute(SQL["remove_sessions"], (token,))

    async def touch(self, used: Mapping[str, int]) -> None:
        """Set the times at which tokens were last used."""
        self._cursor.executemany(SQL["touch_token"], used.items())

    async def revoked(self) -> None:
        """Increase the number of revocations."""
        self._cursor.execute(SQL["revoked"])

    async def sweep(self, expired_us: int, acts_us: int, rows: int) -> int:
        """Delete expired credentials and old acts, and number the objects of some acts."""
        number = 0
        for name, before_us in (("sweep_credentials", expired_us), ("sweep_acts", acts_us)):
            self._cursor.execute(SQL[name], (before_us, rows))
            number += self._cursor.connection.changes()
        acts = list(self._cursor.execute(SQL["acts_without_number"], (NUMBERED_ROWS,)))
        numbers = [(object_number(decode_act(act).object), place) for place, act in acts]
        self._cursor.executemany(SQL["number_act"], numbers)
        return number


def _first(rows: Iterable[tuple[bytes, int]]) -> store.Credential | None:
    return next((store.credential_of(*row) for row in rows), None)


def _change(tx: Transaction, operations: Sequence[store.AccessOperation]) -> list[object]:
    return [run_synchronously(operation.run(_Credentials(tx))) for operation in operations]


def record(tx: Transaction, acts: Iterable[Act]) -> None:
    """Write acts to the audit."""
    tx.cursor.executemany(SQL["record_act"], [row_of(act) for act in acts])


def _record_all(tx: Transaction, operations: Sequence[RecordActs]) -> list[None]:
    record(tx, [act for operation in operations for act in operation.more])
    return [None] * len(operations)


# ---- reading ----


async def _find(tx: Transaction, query: store.FindCredential, _: Meter) -> store.Credential | None:
    return await _Credentials(tx).find(query.digest)


async def _find_token(tx: Transaction, query: store.FindToken, _: Meter) -> store.Credential | None:
    return await _Credentials(tx).token(query.token)


async def _tokens(tx: Transaction, query: store.ListTokens, meter: Meter) -> Page[store.Credential]:
    async def behind(after: str | None, most: int) -> list[tuple[str, store.Credential]]:
        found = tx.cursor.execute(SQL["tokens"], (after or "", most))
        return [(token, store.shown_credential(token, data, used_us)) for token, data, used_us in found]

    return await in_parts(query, meter, behind)


async def _revocations(tx: Transaction, _: store.CountRevocations, __: Meter) -> int:
    ((number,),) = tx.cursor.execute(SQL["revocations"])
    return int(number)


async def _acts(tx: Transaction, query: ListActs, meter: Meter) -> Page[Recorded]:
    async def before(number: int | None, most: int) -> list[Recorded]:
        statement, key = query.index
        found = tx.cursor.execute(SQL[statement], (LARGEST_ID if number is None else number, most, *key))
        return [Recorded(place, at_us, decode_act(act)) for place, at_us, act in found]

    return await list_acts(query, meter, before)


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Any], Sequence[Any]]]] = {
    **dict.fromkeys(store.OPERATIONS, _change),
    RecordActs: _record_all,
}
READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    store.FindCredential: _find,
    store.FindToken: _find_token,
    store.ListTokens: _tokens,
    store.CountRevocations: _revocations,
    ListActs: _acts,
}


class ReplyRows:
    """`replies.Rows` inside the open transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._cursor = tx.cursor

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, or return the existing one."""
        found = await self.find(key, expired_us)
        if found is None:
            self._cursor.execute(SQL["reserve_reply"], (key, request, at_us))
        return found

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation."""
        found = next(iter(self._cursor.execute(SQL["reply"], (key, expired_us))), None)
        return None if found is None else reservation_of(*found)

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""
        self._cursor.execute(SQL["keep_reply"], (reply, key))

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""
        self._cursor.execute(SQL["release_reply"], (key,))

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete old reservations."""
        self._cursor.execute(SQL["sweep_replies"], (before_us, rows))
        return self._cursor.connection.changes()


def _change_replies(tx: Transaction, operations: Sequence[ReplyOperation]) -> list[object]:
    return [run_synchronously(operation.run(ReplyRows(tx))) for operation in operations]


REPLY_HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]]] = {
    **dict.fromkeys(OPERATIONS, _change_replies)
}


def append_logs(tx: Transaction, operations: Sequence[AppendLogs]) -> list[None]:
    """Write and delete chunks."""
    for operation in operations:
        tx.cursor.executemany(SQL["append_log"], operation.chunks)
        tx.cursor.executemany(SQL["drop_log"], operation.dropped)
    return [None] * len(operations)


def sweep_logs(tx: Transaction, operations: Sequence[SweepLogs]) -> list[int]:
    """Delete old chunks."""
    deleted = []
    for operation in operations:
        tx.cursor.execute(SQL["sweep_logs"], (operation.before, operation.rows))
        deleted.append(tx.cursor.connection.changes())
    return deleted


async def read_logs(tx: Transaction, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    statement = SQL["read_logs_backward" if query.backward else "read_logs"]
    outside = LARGEST_ID if query.backward else -1

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        values = (query.job, query.namespace, outside if after is None else after, query.attempt, query.levels, most)
        return [(row[0], Chunk._make(row)) for row in tx.cursor.execute(statement, values)]

    return await in_parts(query, meter, behind)


LOG_HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]] = {
    AppendLogs: append_logs,
    SweepLogs: sweep_logs,
}
LOG_READERS: dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]] = {
    ReadLogs: read_logs
}


def save_series(tx: Transaction, operations: Sequence[SaveSeries]) -> list[None]:
    """Write buckets, and delete old ones."""
    for operation in operations:
        tx.cursor.executemany(SQL["save_series"], ((*row[:-1], encode_bucket(row.bucket)) for row in operation.series))
        for step, oldest in operation.oldest.items():
            tx.cursor.execute(SQL["sweep_series"], (step, oldest, SWEEP_ROWS))
    return [None] * len(operations)


async def read_series(tx: Transaction, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets."""

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        place = after or (query.since, -1)
        found = tx.cursor.execute(SQL["read_series"], (query.namespace, query.function, query.step, *place, most))
        return [
            ((at, term), Row(query.namespace, query.function, query.step, at, term, decode_bucket(bucket)))
            for at, term, bucket in found
        ]

    return await in_parts(query, meter, behind)


async def read_namespace_series(tx: Transaction, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace."""

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        place = after or (query.since, b"", -1)
        found = tx.cursor.execute(SQL["read_namespace_series"], (query.namespace, query.step, *place, most))
        return [
            ((at, function, term), Row(query.namespace, function, query.step, at, term, decode_bucket(bucket)))
            for at, function, term, bucket in found
        ]

    return await in_parts(query, meter, behind)


SERIES_HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]] = {
    SaveSeries: save_series
}
SERIES_READERS: dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]] = {
    ReadSeries: read_series,
    ReadNamespaceSeries: read_namespace_series,
}
