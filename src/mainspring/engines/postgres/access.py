"""The access slice on PostgreSQL: credentials, the audit, and the kept answers of requests with a key.

Records about jobs on PostgreSQL: the lines that they log, and the series of their functions.
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
from mainspring.engines.postgres.transaction import LARGEST_ID, load_statements
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.service import AppendLogs, ReadLogs, SweepLogs
from mainspring.series.model import Row, decode_bucket, encode_bucket
from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from asyncpg import Record

    from mainspring.access.caller import Act
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.engine import Meter, Operation, Page, Query

SQL: Final = load_statements("access.sql")


class _Credentials:
    """`store.Tables` in an attempt to run a group; rows that it has read are locked."""

    def __init__(self, tx: Transaction) -> None:
        self._connection = tx.connection

    async def find(self, digest: bytes) -> store.Credential | None:
        """Return a credential."""
        return _credential(await self._connection.fetchrow(SQL["lock_credential"], digest))

    async def token(self, token: str) -> store.Credential | None:
        """Return a token by its id."""
        return _credential(await self._connection.fetchrow(SQL["lock_token"], token))

    async def insert(self, credential: store.Credential) -> None:
        """Store a new credential."""
        await self._connection.execute(SQL["insert_credential"], *store.row_of(credential))

    async def remove(self, digest: bytes) -> None:
        """Delete a credential."""
        await self._connection.execute(SQL["remove_credential"], digest)

    async def replace(self, digest: bytes, credential: store.Credential) -> None:
        """Replace a credential in its place."""
        await self._connection.execute(SQL["replace_credential"], digest, credential.digest, store.encode(credential))

    async def remove_sessions(self, token: str) -> None:
        """Delete the sessions of a token."""
        await self._connection.execute(SQL["remove_sessions"], token)

    async def touch(self, used: Mapping[str, int]) -> None:
        """Set the times at which tokens were last used; leave out tokens that another transaction changes."""
        await self._connection.execute(SQL["touch_tokens"], list(used), list(used.values()))

    async def revoked(self) -> None:
        """Increase the number of revocations."""
        await self._connection.execute(SQL["revoked"])

    async def sweep(self, expired_us: int, acts_us: int, rows: int) -> int:
        """Delete expired credentials and old acts, and number the objects of some acts."""
        number: int = await self._connection.fetchval(SQL["sweep_credentials"], expired_us, rows)
        number += await self._connection.fetchval(SQL["sweep_acts"], acts_us, rows)
        if acts := await self._connection.fetch(SQL["acts_without_number"], NUMBERED_ROWS):
            objects = [object_number(decode_act(act).object) for _, act in acts]
            await self._connection.execute(SQL["number_acts"], [place for place, _ in acts], objects)
        return number


def _credential(row: Record | None) -> store.Credential | None:
    return None if row is None else store.credential_of(*row)


async def _change(tx: Transaction, operations: Sequence[store.AccessOperation]) -> list[object]:
    return [await operation.run(_Credentials(tx)) for operation in operations]


async def record(tx: Transaction, acts: Sequence[Act]) -> None:
    """Write acts to the audit."""
    rows = [row_of(act) for act in acts]
    await tx.connection.execute(SQL["record_acts"], *([row[at] for row in rows] for at in range(4)))


async def _record_all(tx: Transaction, operations: Sequence[RecordActs]) -> list[None]:
    await record(tx, [act for operation in operations for act in operation.more])
    return [None] * len(operations)


# ---- reading ----


async def _find(tx: Transaction, query: store.FindCredential, _: Meter) -> store.Credential | None:
    return _credential(await tx.connection.fetchrow(SQL["credential"], query.digest))


async def _find_token(tx: Transaction, query: store.FindToken, _: Meter) -> store.Credential | None:
    return _credential(await tx.connection.fetchrow(SQL["token"], query.token))


async def _tokens(tx: Transaction, query: store.ListTokens, meter: Meter) -> Page[store.Credential]:
    async def behind(after: str | None, most: int) -> list[tuple[str, store.Credential]]:
        found = await tx.connection.fetch(SQL["tokens"], after or "", most)
        return [(token, store.shown_credential(token, data, used_us)) for token, data, used_us in found]

    return await in_parts(query, meter, behind)


async def _revocations(tx: Transaction, _: store.CountRevocations, __: Meter) -> int:
    number: int = await tx.connection.fetchval(SQL["revocations"])
    return number


async def _acts(tx: Transaction, query: ListActs, meter: Meter) -> Page[Recorded]:
    async def before(number: int | None, most: int) -> list[Recorded]:
        statement, key = query.index
        place = LARGEST_ID if number is None else number
        found = await tx.connection.fetch(SQL[statement], place, most, *key)
        return [Recorded(place, at_us, decode_act(act)) for place, at_us, act in found]

    return await list_acts(query, meter, before)


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    **dict.fromkeys(store.OPERATIONS, _change),
    RecordActs: _record_all,
}
READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
    store.FindCredential: _find,
    store.FindToken: _find_token,
    store.ListTokens: _tokens,
    store.CountRevocations: _revocations,
    ListActs: _acts,
}

REPLIES_SQL: Final = load_statements("replies.sql")


class ReplyRows:
    """`replies.Rows` in an attempt to run a group."""

    def __init__(self, tx: Transaction) -> None:
        self._connection = tx.connection

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, or return the existing one."""
        if await self._connection.fetchval(REPLIES_SQL["reserve_reply"], key, request, at_us, expired_us):
            return None
        earlier = await self.find(key, expired_us)
        assert earlier is not None, "the statement before has found it, and waited for its transaction"
        return earlier

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation."""
        found = await self._connection.fetchrow(REPLIES_SQL["reply"], key, expired_us)
        return None if found is None else reservation_of(*found)

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""
        await self._connection.execute(REPLIES_SQL["keep_reply"], key, reply)

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""
        await self._connection.execute(REPLIES_SQL["release_reply"], key)

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete old reservations."""
        number: int = await self._connection.fetchval(REPLIES_SQL["sweep_replies"], before_us, rows)
        return number


async def _change_replies(tx: Transaction, operations: Sequence[ReplyOperation]) -> list[object]:
    return [await operation.run(ReplyRows(tx)) for operation in operations]


REPLY_HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    **dict.fromkeys(OPERATIONS, _change_replies)
}


LOGS_SQL: Final = load_statements("logs.sql")


async def append_logs(tx: Transaction, operations: Sequence[AppendLogs]) -> list[None]:
    """Write and delete chunks."""
    chunks = [chunk for operation in operations for chunk in operation.chunks]
    dropped = [pair for operation in operations for pair in operation.dropped]
    if chunks:
        await tx.connection.execute(LOGS_SQL["append_logs"], *zip(*chunks, strict=True))
    if dropped:
        await tx.connection.execute(LOGS_SQL["drop_logs"], *zip(*dropped, strict=True))
    return [None] * len(operations)


async def sweep_logs(tx: Transaction, operations: Sequence[SweepLogs]) -> list[int]:
    """Delete old chunks."""
    return [await tx.connection.fetchval(LOGS_SQL["sweep_logs"], one.before, one.rows) for one in operations]


async def read_logs(tx: Transaction, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    statement = LOGS_SQL["read_logs_backward" if query.backward else "read_logs"]
    outside = LARGEST_ID if query.backward else -1

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        place = outside if after is None else after
        found = await tx.connection.fetch(
            statement, query.job, query.namespace, place, query.attempt, query.levels, most
        )
        return [(row[0], Chunk._make(row)) for row in found]

    return await in_parts(query, meter, behind)


LOG_HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    AppendLogs: append_logs,
    SweepLogs: sweep_logs,
}
LOG_READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {ReadLogs: read_logs}

SERIES_SQL: Final = load_statements("series.sql")


async def save_series(tx: Transaction, operations: Sequence[SaveSeries]) -> list[None]:
    """Write buckets, and delete old ones. A group may write the same bucket twice: the later one counts."""
    rows = {row[:-1]: row for operation in operations for row in operation.series}
    if rows:
        columns = zip(*((*key, encode_bucket(row.bucket)) for key, row in rows.items()), strict=True)
        await tx.connection.execute(SERIES_SQL["save_series"], *columns)
    oldest = {step: at for operation in operations for step, at in operation.oldest.items()}
    for step, at in oldest.items():
        await tx.connection.execute(SERIES_SQL["sweep_series"], step, at, SWEEP_ROWS)
    return [None] * len(operations)


async def read_series(tx: Transaction, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets. The nodes of the jobs in them are loaded: handles need both."""

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        place = after or (query.since, -1)
        found = await tx.connection.fetch(
            SERIES_SQL["read_series"], query.namespace, query.function, query.step, *place, most
        )
        return [
            ((at, term), Row(query.namespace, query.function, query.step, at, term, decode_bucket(bucket)))
            for at, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def read_namespace_series(tx: Transaction, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace, as `read` does."""

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        place = after or (query.since, b"", -1)
        found = await tx.connection.fetch(
            SERIES_SQL["read_namespace_series"], query.namespace, query.step, *place, most
        )
        return [
            ((at, function, term), Row(query.namespace, function, query.step, at, term, decode_bucket(bucket)))
            for at, function, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def _with_nodes(tx: Transaction, page: Page[Row]) -> Page[Row]:
    await tx.nodes.load(group.job for row in page.items for group in row.bucket.errors.values())
    return page


SERIES_HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    SaveSeries: save_series
}
SERIES_READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
    ReadSeries: read_series,
    ReadNamespaceSeries: read_namespace_series,
}
