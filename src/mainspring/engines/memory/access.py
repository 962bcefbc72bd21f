"""The access slice in memory: credentials, the audit, and the kept answers of requests with a key.

Records about jobs in memory: the lines that they log, and the series of their functions.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.access import store
from mainspring.access.audit import ListActs, RecordActs, Recorded, list_acts
from mainspring.access.caller import Kind
from mainspring.access.idempotency import OPERATIONS, ReplyOperation, Reservation, reservation_of
from mainspring.job_logs.service import AppendLogs, ReadLogs, SweepLogs
from mainspring.series import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.engine import in_parts, run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.engines.memory.tables import Tables
    from mainspring.job_logs.model import Chunk
    from mainspring.series import Row
    from mainspring.storage.engine import Meter, Operation, Page, Query


class _Credentials:
    """`store.Tables` in dictionaries."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows = tables.credentials

    async def find(self, digest: bytes) -> store.Credential | None:
        return self._rows.get(digest)

    async def token(self, token: str) -> store.Credential | None:
        return next((one for one in self._rows.values() if one.token == token and one.kind is Kind.TOKEN), None)

    async def insert(self, credential: store.Credential) -> None:
        self._rows[credential.digest] = credential

    async def remove(self, digest: bytes) -> None:
        self._rows.pop(digest, None)

    async def replace(self, digest: bytes, credential: store.Credential) -> None:
        del self._rows[digest]
        self._rows[credential.digest] = credential

    async def remove_sessions(self, token: str) -> None:
        for one in [one for one in self._rows.values() if one.token == token and one.kind is Kind.SESSION]:
            del self._rows[one.digest]

    async def touch(self, used: Mapping[str, int]) -> None:
        for token, used_us in used.items():
            found = await self.token(token)
            if found is not None and found.used_us < used_us:
                self._rows[found.digest] = msgspec.structs.replace(found, used_us=used_us)

    async def revoked(self) -> None:
        self._tables.revocations += 1

    async def sweep(self, expired_us: int, acts_us: int, rows: int) -> int:
        expired = [
            digest
            for digest, one in self._rows.items()
            if one.kind is not Kind.TOKEN and 0 < one.expires_us < expired_us
        ][:rows]
        for digest in expired:
            del self._rows[digest]
        acts = self._tables.acts
        old = min(bisect_left(acts, acts_us, key=lambda recorded: recorded.at_us), rows)
        del acts[:old]
        return len(expired) + old


def _change(tables: Tables, operation: store.AccessOperation) -> object:
    return run_synchronously(operation.run(_Credentials(tables)))


def record(tables: Tables, acts: Iterable[Act]) -> None:
    """Write acts to the audit."""
    for act in acts:
        tables.last_act += 1
        tables.acts.append(Recorded(tables.last_act, time.time_ns() // 1000, act))


def _record_all(tables: Tables, operation: RecordActs) -> None:
    record(tables, operation.more)


# ---- reading ----


async def _find(tables: Tables, query: store.FindCredential, _: Meter) -> store.Credential | None:
    return await _Credentials(tables).find(query.digest)


async def _find_token(tables: Tables, query: store.FindToken, _: Meter) -> store.Credential | None:
    return await _Credentials(tables).token(query.token)


async def _tokens(tables: Tables, query: store.ListTokens, meter: Meter) -> Page[store.Credential]:
    tokens = sorted((one.token, one) for one in tables.credentials.values() if one.kind is Kind.TOKEN)

    async def behind(after: str | None, most: int) -> Sequence[tuple[str, store.Credential]]:
        return list(islice((one for one in tokens if one[0] > (after or "")), most))

    return await in_parts(query, meter, behind)


async def _revocations(tables: Tables, _: store.CountRevocations, __: Meter) -> int:
    return tables.revocations


async def _acts(tables: Tables, query: ListActs, meter: Meter) -> Page[Recorded]:
    acts = tables.acts
    if query.object is not None:
        acts = [recorded for recorded in acts if recorded.act.object == query.object]

    async def before(number: int | None, most: int) -> list[Recorded]:
        end = len(acts) if number is None else bisect_left(acts, number, key=lambda recorded: recorded.number)
        return acts[max(end - most, 0) : end][::-1]

    return await list_acts(query, meter, before)


class ReplyRows:
    """`replies.Rows` in a dictionary."""

    def __init__(self, tables: Tables) -> None:
        self._rows = tables.replies

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        found = await self.find(key, expired_us)
        if found is None:
            self._rows[key] = (request, at_us, None)
        return found

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        found = self._rows.get(key)
        return reservation_of(*found) if found is not None and found[1] >= expired_us else None

    async def keep(self, key: bytes, reply: bytes) -> None:
        found = self._rows.get(key)
        if found is not None:
            self._rows[key] = (*found[:2], reply)

    async def release(self, key: bytes) -> None:
        if key in self._rows and self._rows[key][2] is None:
            del self._rows[key]

    async def sweep(self, before_us: int, rows: int) -> int:
        old = [key for key, row in self._rows.items() if row[1] < before_us][:rows]
        for key in old:
            del self._rows[key]
        return len(old)


def _change_replies(tables: Tables, operation: ReplyOperation) -> object:
    return run_synchronously(operation.run(ReplyRows(tables)))


def append_logs(tables: Tables, operation: AppendLogs) -> None:
    """Write and delete chunks."""
    for chunk in operation.chunks:
        tables.logs.setdefault(chunk.job, {})[chunk.id] = chunk
    for job_id, chunk_id in operation.dropped:
        _delete_logs(tables, job_id, chunk_id)


def _delete_logs(tables: Tables, job_id: int, chunk_id: int) -> None:
    chunks = tables.logs.get(job_id, {})
    chunks.pop(chunk_id, None)
    if not chunks:
        tables.logs.pop(job_id, None)


def sweep_logs(tables: Tables, operation: SweepLogs) -> int:
    """Delete old chunks."""
    old = sorted(
        (chunk_id, job) for job, chunks in tables.logs.items() for chunk_id in chunks if chunk_id < operation.before
    )
    for chunk_id, job_id in old[: operation.rows]:
        _delete_logs(tables, job_id, chunk_id)
    return len(old[: operation.rows])


async def read_logs(tables: Tables, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    kept = tables.logs.get(query.job, {})

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        found = [
            (chunk_id, chunk)
            for chunk_id, chunk in sorted(kept.items(), reverse=query.backward)
            if (after is None or (chunk_id < after if query.backward else chunk_id > after))
            and chunk.namespace == query.namespace
            and query.attempt in {None, chunk.attempt}
            and chunk.levels & query.levels
        ]
        return found[:most]

    return await in_parts(query, meter, behind)


def save_series(tables: Tables, operation: SaveSeries) -> None:
    """Write buckets, and delete old ones."""
    for row in operation.series:
        key = (row.namespace, row.function, row.step)
        tables.series.setdefault(key, {})[row.at, row.term] = deepcopy(row)
    old = [
        (key, place)
        for key, rows in tables.series.items()
        if (oldest := operation.oldest.get(key[2])) is not None
        for place in rows
        if place[0] < oldest
    ]
    for key, place in old[:SWEEP_ROWS]:
        del tables.series[key][place]


async def read_series(tables: Tables, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets."""
    rows = tables.series.get((query.namespace, query.function, query.step), {})

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        places = sorted(place for place in rows if place > (after or (query.since, -1)))
        return [(place, deepcopy(rows[place])) for place in places[:most]]

    return await in_parts(query, meter, behind)


async def read_namespace_series(tables: Tables, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace."""
    rows = {
        (row.at, row.function, row.term): row
        for (namespace, _, step), buckets in tables.series.items()
        if (namespace, step) == (query.namespace, query.step)
        for row in buckets.values()
        if row.at >= query.since
    }

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        places = sorted(place for place in rows if after is None or place > after)
        return [(place, deepcopy(rows[place])) for place in places[:most]]

    return await in_parts(query, meter, behind)


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    **dict.fromkeys(store.OPERATIONS, _change),
    RecordActs: _record_all,
    **dict.fromkeys(OPERATIONS, _change_replies),
    AppendLogs: append_logs,
    SweepLogs: sweep_logs,
    SaveSeries: save_series,
}
READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    store.FindCredential: _find,
    store.FindToken: _find_token,
    store.ListTokens: _tokens,
    store.CountRevocations: _revocations,
    ListActs: _acts,
    ReadLogs: read_logs,
    ReadSeries: read_series,
    ReadNamespaceSeries: read_namespace_series,
}
