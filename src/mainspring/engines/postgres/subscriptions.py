"""The slice of subscriptions on PostgreSQL: each transaction locks the rows of the subscriptions that it changes first.

A delivery that waits becomes a job at the end of the one before it. Without the lock, a transaction that adds it and one that
ends the other could each miss the row of the other, and it would wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.lists import look_up
from mainspring.engines.postgres.run_transaction import PostgresGround
from mainspring.engines.sql.subscriptions import SubscriptionRows, SubscriptionSlice
from mainspring.jobs.owners import Owner
from mainspring.jobs.slices import of_kind, settled_keys
from mainspring.subscriptions.model import KIND, of_owner
from mainspring.subscriptions.store import Deliver, Redeliver, RemoveSubscription, SaveSubscription
from mainspring.subscriptions.unit import SubscriptionUnit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Plan
    from mainspring.subscriptions.model import Subscribed


class PostgresSubscriptions(PostgresGround, SubscriptionRows):
    """The tables of subscriptions in one attempt to run a group."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self._locked: dict[str, Subscribed] = {}
        """Rows that this transaction has locked, as they are now."""

    async def load(self, ids: Collection[str]) -> Mapping[str, Subscribed]:
        self._locked |= await super().load([name for name in ids if name not in self._locked])
        return {name: self._locked[name] for name in ids if name in self._locked}

    async def save(self, subscribed: Iterable[Subscribed]) -> None:
        saved = [*subscribed]
        await super().save(saved)
        self._locked |= {one.subscription.id: one for one in saved}

    async def remove(self, id: str) -> None:  # noqa: A002 - as in the port
        await super().remove(id)
        self._locked.pop(id, None)

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        return await look_up(self._tx, ids)


class PostgresSubscriptionUnit(SubscriptionUnit):
    """The part of subscriptions in one attempt to run a group."""

    def __init__(self, tx: Transaction) -> None:
        self._rows = PostgresSubscriptions(tx)
        super().__init__(self._rows)

    async def lock(self, plan: Plan) -> None:
        """Lock the subscriptions that the group names, and those whose deliveries it settles."""
        names = {of_owner(Owner(KIND, key))[0] for key in settled_keys(plan, KIND)}
        names.update(one.subscription.id for one in of_kind(plan, SaveSubscription))
        names.update(one.id for one in of_kind(plan, RemoveSubscription))
        names.update(one.id for one in of_kind(plan, Redeliver))
        names.update(portion.id for one in of_kind(plan, Deliver) for portion in one.portions)
        if names:
            await self._rows.load(sorted(names))


class PostgresSubscriptionSlice(SubscriptionSlice):
    """The slice of subscriptions."""

    def unit(self, tx: Transaction) -> PostgresSubscriptionUnit:
        return PostgresSubscriptionUnit(tx)
