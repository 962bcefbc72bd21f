"""The access slice: credentials, the audit, and the kept answers of requests with a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.access import store
from mainspring.access.audit import (
    ListActs,
    RecordActs,
    Recorded,
    decode_act,
    list_acts,
    row_of,
)
from mainspring.access.idempotency import OPERATIONS, ReplyOperation, Reservation, reservation_of
from mainspring.engines.sql.statements import LARGEST
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction
    from mainspring.storage.engine import Meter, Page


class Credentials:
    """`store.Tables` in a group; on a shared store, rows that it has read are locked."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    async def find(self, digest: bytes) -> store.Credential | None:
        """Return a credential."""
        return _credential(await self._sql.first("lock_credential", digest))

    async def token(self, token: str) -> store.Credential | None:
        """Return a token by its id."""
        return _credential(await self._sql.first("lock_token", token))

    async def insert(self, credential: store.Credential) -> None:
        """Store a new credential."""
        await self._sql.execute("insert_credential", *store.row_of(credential))

    async def remove(self, digest: bytes) -> None:
        """Delete a credential."""
        await self._sql.execute("remove_credential", digest)

    async def replace(self, digest: bytes, credential: store.Credential) -> None:
        """Replace a credential in its place."""
        await self._sql.execute("replace_credential", digest, credential.digest, store.encode(credential))

    async def remove_sessions(self, token: str) -> None:
        """Delete the sessions of a token."""
        await self._sql.execute("remove_sessions", token)

    async def touch(self, used: Mapping[str, int]) -> None:
        """Set the times at which tokens were last used; leave out tokens that another transaction changes."""
        await self._sql.many("touch_tokens", used.items())

    async def revoked(self) -> None:
        """Increase the number of revocations."""
        await self._sql.execute("revoked")

    async def sweep(self, expired_us: int, acts_us: int, rows: int) -> int:
        """Delete expired credentials and old acts."""
        number = await self._sql.execute("sweep_credentials", expired_us, rows)
        return number + await self._sql.execute("sweep_acts", acts_us, rows)


def _credential(row: tuple[bytes, int] | None) -> store.Credential | None:
    return None if row is None else store.credential_of(*row)


async def _change(tx: Transaction, operations: Sequence[store.AccessOperation]) -> list[object]:
    return [await operation.run(Credentials(tx.sql)) for operation in operations]


async def record(sql: Statements, acts: Iterable[Act]) -> None:
    """Write acts to the audit."""
    await sql.many("record_acts", map(row_of, acts))


async def _record_all(tx: Transaction, operations: Sequence[RecordActs]) -> list[None]:
    await record(tx.sql, [act for operation in operations for act in operation.more])
    return [None] * len(operations)


class ReplyRows:
    """`idempotency.Rows` in a group."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, or return the existing one."""
        if await self._sql.first("reserve_reply", key, request, at_us, expired_us) is not None:
            return None
        earlier = await self.find(key, expired_us)
        assert earlier is not None, "the statement before has found it, and waited for its transaction"
        return earlier

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation."""
        found = await self._sql.first("reply", key, expired_us)
        return None if found is None else reservation_of(*found)

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""
        await self._sql.execute("keep_reply", key, reply)

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""
        await self._sql.execute("release_reply", key)

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete old reservations."""
        return await self._sql.execute("sweep_replies", before_us, rows)


async def _change_replies(tx: Transaction, operations: Sequence[ReplyOperation]) -> list[object]:
    return [await operation.run(ReplyRows(tx.sql)) for operation in operations]


HANDLERS: Final[Handlers] = {
    **dict.fromkeys(store.OPERATIONS, _change),
    RecordActs: _record_all,
    **dict.fromkeys(OPERATIONS, _change_replies),
}


# ---- reading ----


async def _find(tx: Transaction, query: store.FindCredential, _: Meter) -> store.Credential | None:
    return _credential(await tx.sql.first("credential", query.digest))


async def _find_token(tx: Transaction, query: store.FindToken, _: Meter) -> store.Credential | None:
    return _credential(await tx.sql.first("token", query.token))


async def _tokens(tx: Transaction, query: store.ListTokens, meter: Meter) -> Page[store.Credential]:
    async def behind(after: str | None, most: int) -> list[tuple[str, store.Credential]]:
        found = await tx.sql.fetch("tokens", after or "", most)
        return [(token, store.shown_credential(token, data, used_us)) for token, data, used_us in found]

    return await in_parts(query, meter, behind)


async def _revocations(tx: Transaction, _: store.CountRevocations, __: Meter) -> int:
    (number,) = await tx.sql.first("revocations")
    return int(number)


async def _acts(tx: Transaction, query: ListActs, meter: Meter) -> Page[Recorded]:
    async def before(number: int | None, most: int) -> list[Recorded]:
        statement, key = query.index
        found = await tx.sql.fetch(statement, LARGEST if number is None else number, most, *key)
        return [Recorded(place, at_us, decode_act(act)) for place, at_us, act in found]

    return await list_acts(query, meter, before)


READERS: Final[Readers] = {
    store.FindCredential: _find,
    store.FindToken: _find_token,
    store.ListTokens: _tokens,
    store.CountRevocations: _revocations,
    ListActs: _acts,
}
