"""The port of subscriptions: the operations of their slice, with the outcomes, and the tables that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainspring.access.audit import Acting
from mainspring.jobs.slices import SliceTransaction
from mainspring.storage.engine import Operation, Phase, Query
from mainspring.subscriptions.model import Delivery, Subscribed, Subscription

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.event_log.store import StoredInterest
    from mainspring.jobs.model import Job


class SaveSubscription(Acting):
    """Add or change a subscription, with its interest. A new one gets the events from now on.

    Outcome: `Subscribed`, or None if ``version`` is given and is not the version in the store (0: there is none).
    """

    phase = Phase.SLICES
    subscription: Subscription
    now_us: int
    version: int | None = None


class RemoveSubscription(Acting):
    """Remove a subscription and its deliveries that wait; those that are jobs go on. Outcome: whether there was one."""

    phase = Phase.SLICES
    id: str
    now_us: int


class Portion(NamedTuple):
    """The part of one subscription in a stretch of the log."""

    id: str
    after: int
    """The number up to which it had its events before."""
    to: int
    """The number up to which it has them afterwards."""
    deliveries: Sequence[Delivery] = ()
    missed: int = 0
    """Events up to this number were deleted before they could be delivered; 0: none was."""


class Deliver(Operation):
    """Make jobs of events. A portion whose ``after`` is not that of the store is left out: another node was faster.

    Outcome: the ids of those portions.
    """

    phase = Phase.SLICES
    portions: Sequence[Portion]
    now_us: int

    def __post_init__(self) -> None:
        deliveries = [one for portion in self.portions for one in portion.deliveries]
        self.rows = len(self.portions) + len(deliveries)
        self.size = sum(len(one.payload) + 200 for one in deliveries)


class Redeliver(Acting):
    """Make jobs once more of events that a subscription had. Events that are still on their way are left out.

    Outcome: how many there are, those included that wait for others about the same job.
    """

    phase = Phase.SLICES
    id: str
    deliveries: Sequence[Delivery]
    now_us: int

    def __post_init__(self) -> None:
        self.rows = 1 + len(self.deliveries)
        self.size = sum(len(one.payload) + 200 for one in self.deliveries)


class RepairDeliveries(Operation):
    """End deliveries whose jobs have ended without a notice, at a node of an earlier version.

    It looks at those with jobs behind ``after``, the lowest jobs first and up to the limit. Outcome: `Repaired`.
    """

    phase = Phase.SLICES
    now_us: int
    after: int = 0
    limit: int = 500

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class Repaired(NamedTuple):
    """The outcome of `RepairDeliveries`."""

    number: int
    """How many deliveries were ended."""
    next: int | None
    """The job behind which to go on; None: all deliveries had their turn."""


class ListSubscriptions(Query[list[Subscribed]], frozen=True):
    """Read all subscriptions that this version can read."""

    is_small = True


class SubscriptionTables(SliceTransaction, Protocol):
    """The tables inside a transaction of an engine."""

    async def load(self, ids: Collection[str]) -> Mapping[str, Subscribed]:
        """Return subscriptions by their ids, locked until the transaction ends."""

    async def last_number(self) -> int:
        """Return the highest number of an event."""

    async def save(self, subscribed: Iterable[Subscribed]) -> None:
        """Write subscriptions."""

    async def remove(self, id: str) -> None:  # noqa: A002 - as in the operation
        """Delete a subscription and its deliveries."""

    async def change_interests(self, saved: Sequence[StoredInterest], removed: Collection[str], now_us: int) -> None:
        """Save and remove interests."""

    async def under_way(self, keys: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return those subscriptions and subjects that have a delivery."""

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        """Write deliveries, but for those that there are."""

    async def end(self, keys: Collection[tuple[str, int, int]]) -> set[tuple[str, int, int]]:
        """Delete deliveries, given by subscription, subject and number; return those that there were."""

    async def next(self, keys: Collection[tuple[str, int]]) -> Sequence[Delivery]:
        """Return the first deliveries of subscriptions about subjects, as far as there are any."""

    async def become_job(self, delivery: Delivery) -> None:
        """Write the job of a delivery that has waited."""

    async def with_jobs(self, after: int, limit: int) -> Sequence[Delivery]:
        """Return deliveries that are jobs behind a number, those of the lowest jobs first."""

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        """Return jobs by their ids."""
