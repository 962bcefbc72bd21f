"""Subscriptions and their deliveries: the tables, and the slice with its query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sql import events
from mainspring.event_log.store import SaveInterests
from mainspring.subscriptions import unit
from mainspring.subscriptions.model import KIND, Delivery, Subscribed, decode_subscription, encode_subscription
from mainspring.subscriptions.store import ListSubscriptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction
    from mainspring.event_log.store import StoredInterest
    from mainspring.storage.engine import Meter


class SubscriptionRows:
    """``subscriptions.store.SubscriptionTables`` but for jobs: a class of each engine adds these."""

    _tx: Any

    @property
    def _sql(self) -> Statements:
        sql: Statements = self._tx.sql
        return sql

    async def load(self, ids: Collection[str]) -> Mapping[str, Subscribed]:
        """Return subscriptions by their ids, locked until the transaction ends."""
        if not ids:
            return {}
        found = _decoded(await self._sql.fetch("lock_subscriptions", self._sql.among(ids)))
        return {one.subscription.id: one for one in found}

    async def last_number(self) -> int:
        return (await events.ends(self._sql)).last

    async def save(self, subscribed: Iterable[Subscribed]) -> None:
        rows = [
            (one.subscription.id, one.number, one.version, one.failures, encode_subscription(one.subscription))
            for one in subscribed
        ]
        if rows:
            await self._sql.many("save_subscriptions", sorted(rows))

    async def remove(self, id: str) -> None:  # noqa: A002 - as in the port
        await self._sql.execute("remove_deliveries", id)
        await self._sql.execute("remove_subscription", id)

    async def change_interests(self, saved: Sequence[StoredInterest], removed: Collection[str], now_us: int) -> None:
        await events.save(self._tx, [SaveInterests(now_us, saved, removed)])

    async def under_way(self, keys: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        return {(name, subject) for name, subject in await self._sql.each("under_way", keys)}

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        rows = [
            (one.subscription, one.subject, one.number, one.job, one.depth, b"" if one.job else one.payload)
            for one in deliveries
        ]
        if rows:
            await self._sql.many("add_deliveries", rows)

    async def end(self, keys: Collection[tuple[str, int, int]]) -> set[tuple[str, int, int]]:
        return {(name, subject, number) for name, subject, number in await self._sql.each("end_deliveries", keys)}

    async def next(self, keys: Collection[tuple[str, int]]) -> Sequence[Delivery]:
        return [Delivery(*row) for row in await self._sql.each("next_deliveries", keys)]

    async def become_job(self, delivery: Delivery) -> None:
        await self._sql.execute(
            "become_job", delivery.subscription, delivery.subject, delivery.number, delivery.job, b""
        )

    async def with_jobs(self, after: int, limit: int) -> Sequence[Delivery]:
        return [Delivery(*row) for row in await self._sql.fetch("deliveries_with_jobs", after, limit)]


def _decoded(rows: Iterable[Sequence[Any]]) -> list[Subscribed]:
    found = ((decode_subscription(row[4]), row) for row in rows)
    return [Subscribed(one, row[1], row[2], row[3]) for one, row in found if one is not None]


async def _list(tx: Transaction, _: ListSubscriptions, __: Meter) -> list[Subscribed]:
    return _decoded(await tx.sql.fetch("subscriptions"))


class SubscriptionSlice:
    """The slice: ``jobs.slices.Slice``."""

    kind = KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Handlers] = {}
    readers: Final[Readers] = {ListSubscriptions: _list}
