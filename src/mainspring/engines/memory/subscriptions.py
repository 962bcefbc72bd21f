"""The slice of subscriptions in memory."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.memory import events
from mainspring.engines.memory.engine import MemoryGround, Transaction
from mainspring.event_log.store import SaveInterests
from mainspring.subscriptions import unit
from mainspring.subscriptions.model import KIND, Delivery, Subscribed
from mainspring.subscriptions.store import ListSubscriptions
from mainspring.subscriptions.unit import SubscriptionUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.event_log.store import StoredInterest
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Meter, Operation, Query


class MemorySubscriptions(MemoryGround):
    """``subscriptions.store.SubscriptionTables`` in dictionaries."""

    async def load(self, ids: Collection[str]) -> Mapping[str, Subscribed]:
        stored = self._tables.subscriptions
        return {name: stored[name] for name in ids if name in stored}

    async def last_number(self) -> int:
        return self._tables.last_event

    async def save(self, subscribed: Iterable[Subscribed]) -> None:
        self._tables.subscriptions.update((one.subscription.id, one) for one in subscribed)

    async def remove(self, id: str) -> None:  # noqa: A002 - as in the port
        self._tables.subscriptions.pop(id, None)
        for key in [key for key in self._tables.deliveries if key[0] == id]:
            del self._tables.deliveries[key]

    async def change_interests(self, saved: Sequence[StoredInterest], removed: Collection[str], now_us: int) -> None:
        events.save(self._tables, SaveInterests(now_us, saved, removed))

    async def under_way(self, keys: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        return {key for key in keys if key in self._tables.deliveries}

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            of_subject = self._tables.deliveries.setdefault((one.subscription, one.subject), [])
            if all(other.number != one.number for other in of_subject):
                of_subject.append(one)

    async def end(self, keys: Collection[tuple[str, int, int]]) -> set[tuple[str, int, int]]:
        deliveries, gone = self._tables.deliveries, set()
        for name, subject, number in keys:
            before = deliveries.pop((name, subject), [])
            after = [one for one in before if one.number != number]
            if after:
                deliveries[name, subject] = after
            if len(after) < len(before):
                gone.add((name, subject, number))
        return gone

    async def next(self, keys: Collection[tuple[str, int]]) -> Sequence[Delivery]:
        return [self._tables.deliveries[key][0] for key in keys if key in self._tables.deliveries]

    async def become_job(self, delivery: Delivery) -> None:
        self._tables.deliveries[delivery.subscription, delivery.subject][0] = delivery

    async def with_jobs(self, after: int, limit: int) -> Sequence[Delivery]:
        found = [one for some in self._tables.deliveries.values() for one in some if one.job > after]
        return sorted(found, key=lambda one: one.job)[:limit]

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        jobs = self._tables.jobs
        return {job_id: copy(jobs[job_id]) for job_id in ids if job_id in jobs}


async def _list(tables: Tables, _: ListSubscriptions, __: Meter) -> list[Subscribed]:
    return [one for _, one in sorted(tables.subscriptions.items())]


class MemorySubscriptionSlice:
    """The slice on this engine: ``jobs.slices.Slice``."""

    kind = KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Tables, Any], object]]] = {}
    readers: Final[Mapping[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
        ListSubscriptions: _list
    }

    def unit(self, tx: Transaction) -> SubscriptionUnit:
        return SubscriptionUnit(MemorySubscriptions(tx))
