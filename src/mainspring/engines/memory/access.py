"""The access slice in memory: credentials, the audit, and the kept answers of requests with a key."""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.access import store
from mainspring.access.audit import ListActs, RecordActs, Recorded, list_acts
from mainspring.access.caller import Kind
from mainspring.access.idempotency import OPERATIONS, ReplyOperation, Reservation, reservation_of
from mainspring.storage.engine import in_parts, run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.engine import Meter, Operation, Page, Query


class _Credentials:
    """`store.Tables` in dictionaries."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows = tables.credentials

    async def find(self, digest: bytes) -> store.Credential | None:
        """Return a credential."""
        return self._rows.get(digest)

    async def token(self, token: str) -> store.Credential | None:
        """Return a token by its id."""
        return next((one for one in self._rows.values() if one.token == token and one.kind is Kind.TOKEN), None)

    async def insert(self, credential: store.Credential) -> None:
        """Store a new credential."""
        self._rows[credential.digest] = credential

    async def remove(self, digest: bytes) -> None:
        """Delete a credential."""
        self._rows.pop(digest, None)

    async def replace(self, digest: bytes, credential: store.Credential) -> None:
        """Replace a credential in its place."""
        del self._rows[digest]
        self._rows[credential.digest] = credential

    async def remove_sessions(self, token: str) -> None:
        """Delete the sessions of a token."""
        for one in [one for one in self._rows.values() if one.token == token and one.kind is Kind.SESSION]:
            del self._rows[one.digest]

    async def touch(self, used: Mapping[str, int]) -> None:
        """Set the times at which tokens were last used."""
        for token, used_us in used.items():
            found = await self.token(token)
            if found is not None and found.used_us < used_us:
                self._rows[found.digest] = msgspec.structs.replace(found, used_us=used_us)

    async def revoked(self) -> None:
        """Increase the number of revocations."""
        self._tables.revocations += 1

    async def sweep(self, expired_us: int, acts_us: int, rows: int) -> int:
        """Delete expired credentials and old acts."""
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


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    **dict.fromkeys(store.OPERATIONS, _change),
    RecordActs: _record_all,
}
READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    store.FindCredential: _find,
    store.FindToken: _find_token,
    store.ListTokens: _tokens,
    store.CountRevocations: _revocations,
    ListActs: _acts,
}


class ReplyRows:
    """`replies.Rows` in a dictionary."""

    def __init__(self, tables: Tables) -> None:
        self._rows = tables.replies

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, or return the existing one."""
        found = await self.find(key, expired_us)
        if found is None:
            self._rows[key] = (request, at_us, None)
        return found

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation."""
        found = self._rows.get(key)
        return reservation_of(*found) if found is not None and found[1] >= expired_us else None

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""
        found = self._rows.get(key)
        if found is not None:
            self._rows[key] = (*found[:2], reply)

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""
        if key in self._rows and self._rows[key][2] is None:
            del self._rows[key]

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete old reservations."""
        old = [key for key, row in self._rows.items() if row[1] < before_us][:rows]
        for key in old:
            del self._rows[key]
        return len(old)


def _change_replies(tables: Tables, operation: ReplyOperation) -> object:
    return run_synchronously(operation.run(ReplyRows(tables)))


REPLY_HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    **dict.fromkeys(OPERATIONS, _change_replies)
}
