"""Delivers events on one node: it reads the log behind what each subscription has had, and makes jobs of what it wants.

The node that has recorded events delivers them at once. The first node in line looks once a second, so events of a node that has
ended are delivered as well. Two nodes that deliver the same events do so once: the store compares what the subscription has had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.callbacks import shielded
from mainspring.clock import to_us
from mainspring.errors import NotFoundError
from mainspring.event_log.store import ListEvents, ReadLog
from mainspring.jobs.model import MOST_DEPTH
from mainspring.subscriptions.model import Delivery
from mainspring.subscriptions.store import (
    Deliver,
    ListSubscriptions,
    Portion,
    Redeliver,
    RemoveSubscription,
    RepairDeliveries,
    SaveSubscription,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.event_log.service import EventLog
    from mainspring.event_log.store import Event, LogEnds, LogPart
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Page
    from mainspring.storage.reads import Reads
    from mainspring.subscriptions.model import Subscribed, Subscription
    from mainspring.subscriptions.store import Repaired

log = structlog.get_logger("mainspring.subscriptions")

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at events that other nodes have recorded."""
RELOAD_INTERVAL: Final = 10.0
"""Seconds between two reads of all subscriptions."""
ADVANCE_INTERVAL: Final = 60.0
"""Seconds after which it is stored that a subscription has wanted none of the events since."""
REPAIR_INTERVAL: Final = 60.0
PAUSE: Final = 0.01
"""Seconds from the begin of a look to that of the next one, for each event that it has found: each group of a busy node may have
some, and a look takes a read in another thread. A quiet node has no pause to wait for."""
MOST_PAUSE: Final = 0.1
PORTION: Final = 500
"""Events that are read at a time."""
MOST_REDELIVERED: Final = 10_000
"""Events that one request delivers once more."""
DELIVERIES_KEY: Final = "deliveries"
"""The name by which one node is the first that looks at all events."""


class Timer(NamedTuple):
    """The time of the node's loop."""

    now: Callable[[], float]
    later: Callable[[float, Callable[[], None]], object]
    """Calls a function after some seconds."""


class Redelivered(NamedTuple):
    """The outcome for a stretch of events."""

    number: int
    """The events that are delivered once more."""
    next: int | None
    """The number of the event with which to go on; None: all had their turn."""


class Deliverer:
    """The deliveries of a node, which calls ``tick`` several times a second.

    ``payload_of`` returns the payload of a delivery. On a shared store ``first`` returns whether this node is the first in line
    for a name. ``paused`` returns whether nothing may be written. Without a ``timer``, looks have no pauses in between.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        events: EventLog,
        payload_of: Callable[[Event, Subscription], bytes],
        *,
        first: Callable[[str], bool] | None,
        paused: Callable[[], bool],
        timer: Timer | None = None,
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._events = events
        self._payload_of = payload_of
        self._first = first or (lambda _: True)
        self._paused = paused
        self._timer = timer
        self._pauses_until = 0.0
        self._is_pausing = False
        self._stored: dict[str, Subscribed] = {}
        self._seen: dict[str, int] = {}
        """The number up to which each subscription's events were read here; it may be above the stored one."""
        self._is_busy = self._is_due = self._is_loading = self._is_loaded = False
        now = clock.monotonic()
        self._look_at = self._reload_at = now
        self._repair_at = self._advance_at = now + ADVANCE_INTERVAL
        self.delivered = 0
        """Events that became jobs, or wait for others about the same job, by this node."""
        self.too_deep = 0
        """Events that were not delivered, because deliveries had led to them in a circle."""
        self._missed: dict[str, int] = {}
        """By subscription, the number up to which events had been deleted before they were delivered, until that is stored."""

    # ---- changes ----

    async def save(
        self, subscription: Subscription, version: int | None = None, act: Act | None = None
    ) -> Subscribed | None:
        """Add or change a subscription; None if ``version`` is given and is not the stored one (0: none)."""
        operation = SaveSubscription(subscription, self._now_us(), version)
        operation.act = act
        saved: Subscribed | None = await self._commits.committed(operation)
        if saved is not None:
            self._stored[subscription.id] = saved
            self._seen[subscription.id] = saved.number
            self._events.changed_here()
            self.look()
        return saved

    async def remove(self, id: str, act: Act | None = None) -> bool:  # noqa: A002 - as in the operation
        """Remove a subscription; return whether there was one."""
        operation = RemoveSubscription(id, self._now_us())
        operation.act = act
        existed: bool = await self._commits.committed(operation)
        self._stored.pop(id, None)
        self._events.changed_here()
        return existed

    async def all(self) -> Sequence[Subscribed]:
        """Return all subscriptions as they are stored now."""
        found = await self._reads.read(ListSubscriptions())
        self._use(found)
        return found

    @shielded
    async def redeliver(self, id: str, first: int, last: int, act: Act | None = None) -> Redelivered:  # noqa: A002
        """Make jobs again of the events from ``first`` to ``last`` that a subscription had, `MOST_REDELIVERED` at a time.

        Each keeps its number. Raises NotFoundError for an unknown subscription, and StoreError.
        """
        stored = {one.subscription.id: one for one in await self.all()}.get(id)
        if stored is None:
            raise NotFoundError(f"there is no {id}")
        subscription = stored.subscription
        last = min(last, max(stored.number, self.seen(id)))
        place, number = max(first - 1, subscription.begun), 0
        while place < last and number < MOST_REDELIVERED:
            query = ListEvents(after=place, limit=PORTION, types=subscription.interest.types)
            page: Page[Event] = await self._reads.read(query)
            found = [event for event in page.items if event.number <= last]
            deliveries = [
                delivery
                for event in found
                if subscription.includes(event) and (delivery := self._delivery(event, subscription)) is not None
            ]
            if deliveries:
                operation = Redeliver(id, deliveries, self._now_us())
                operation.act, act = act, None
                number += await self._commits.committed(operation)
            is_end = page.next is None or len(found) < len(page.items)
            place = last if is_end else int(page.next or 0)
        return Redelivered(number, place + 1 if place < last else None)

    def find(self, id: str) -> Subscribed | None:  # noqa: A002 - as in the operation
        """Return a subscription as this node knows it; None if it knows none."""
        return self._stored.get(id)

    def stored(self) -> Sequence[Subscribed]:
        """Return all subscriptions as this node has last read them."""
        return [*self._stored.values()]

    def seen(self, id: str) -> int:  # noqa: A002 - as in the operation
        """Return the number up to which this node has read a subscription's events; 0 if it has read none."""
        return self._seen.get(id, 0)

    def _use(self, found: Iterable[Subscribed]) -> None:
        self._stored = {one.subscription.id: one for one in found}
        self._seen = {name: max(self._seen.get(name, 0), one.number) for name, one in self._stored.items()}

    # ---- the node ----

    @property
    def is_busy(self) -> bool:
        """Whether events of this node are read, or become deliveries, or will be in a moment."""
        return self._is_busy or self._is_pausing

    def tick(self) -> None:
        """Do the work that is due."""
        now = self._clock.monotonic()
        if self._paused():
            return
        if now >= self._reload_at and (self._stored or not self._is_loaded):
            self._reload()  # the first one is reported as a change of interests
        if now < self._look_at or not self._stored:
            return
        self._look_at = now + LOOK_INTERVAL
        if self._first(DELIVERIES_KEY):
            self.look()
            if now >= self._repair_at:
                self._repair_at = now + REPAIR_INTERVAL
                self._repair(0)

    def _repair(self, after: int) -> None:
        def repaired(outcome: Repaired) -> None:
            if outcome.next is not None:
                self._repair(outcome.next)

        self._commits.put(RepairDeliveries(self._now_us(), after), repaired, lambda _: None)

    def changed(self) -> None:
        """Read the subscriptions again: a node has changed one."""
        self._reload()

    def _reload(self) -> None:
        if self._is_loading:
            return
        self._is_loading = True
        self._reload_at = self._clock.monotonic() + RELOAD_INTERVAL
        self._reads.ask(ListSubscriptions(), self._loaded, self._not_loaded)

    def _loaded(self, found: Sequence[Subscribed]) -> None:
        self._is_loading, self._is_loaded = False, True
        self._use(found)

    def _not_loaded(self, error: StoreError) -> None:
        del error  # the next look repeats it
        self._is_loading = False

    # ---- deliveries ----

    def look(self) -> None:
        """Deliver the events that are new."""
        if self._is_busy:
            self._is_due = True
        elif self._is_pausing:
            pass
        elif self._timer is not None and (now := self._timer.now()) < self._pauses_until:
            self._is_pausing = True
            self._timer.later(self._pauses_until - now, self._resume)
        else:
            self._begin()

    def _resume(self) -> None:
        self._is_pausing = False
        self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._pauses_until = self._timer.now()
        active = self._active()
        if active and not self._paused():
            self._is_busy, self._is_due = True, False
            types = frozenset[str]().union(*(one.subscription.interest.types for one in active))
            start = min(self._seen[one.subscription.id] for one in active)
            query = ListEvents(after=start, limit=PORTION, types=types)
            self._reads.ask(ReadLog(query), lambda part: self._read(query, part), self._failed)

    def _active(self) -> list[Subscribed]:
        return [one for one in self._stored.values() if not one.subscription.paused]

    def _note_missed(self, ends: LogEnds) -> None:
        for one in self._active():
            name = one.subscription.id
            if self._seen[name] < ends.swept:
                self._missed[name] = ends.swept
                log.warning(
                    "a subscription may have missed events: some were deleted before they could be delivered",
                    subscription=name,
                    after=self._seen[name],
                    up_to=ends.swept,
                    remedy="keep events for longer, with --event-retention and --event-limit",
                )
                self._seen[name] = ends.swept

    def _read(self, query: ListEvents, part: LogPart) -> None:
        start, last, page = query.after, part.ends.last, part.page
        self._note_missed(part.ends)
        if page.next is None:  # otherwise there are more already
            self._pauses_until += min(PAUSE * len(page.items), MOST_PAUSE)
        to = max(last, start) if page.next is None else int(page.next)
        deliveries: dict[str, list[Delivery]] = {}
        for one in self._active():
            name = one.subscription.id
            seen = self._seen.get(name, 0)
            if seen < start or not one.subscription.interest.types <= (query.types or frozenset()):
                # It was resumed, added or changed after the page was asked for, which may lack events of it.
                self._is_due = True
            elif seen < to:
                deliveries[name] = [
                    delivery
                    for event in page.items
                    if event.number > seen and one.subscription.includes(event)
                    if (delivery := self._delivery(event, one.subscription)) is not None
                ]
                self._seen[name] = to
        self._deliver(deliveries, more=to < last)

    def _deliver(self, deliveries: Mapping[str, Sequence[Delivery]], *, more: bool) -> None:
        """Store deliveries, and now and then how far subscriptions without any are."""
        now = self._clock.monotonic()
        advances = now >= self._advance_at
        if advances:
            self._advance_at = now + ADVANCE_INTERVAL
        portions = []
        for one in self._active():
            name = one.subscription.id
            to, missed, new = self._seen.get(name, 0), self._missed.get(name, 0), deliveries.get(name, ())
            if new or missed or (advances and to > one.number):
                portions.append(Portion(name, one.number, to, new, missed))
        if not portions:
            self._go_on(more=more)
            return
        operation = Deliver(portions, self._now_us())
        self._commits.put(operation, lambda late: self._delivered(portions, late, more=more), self._failed)

    def _delivery(self, event: Event, subscription: Subscription) -> Delivery | None:
        depth = _depth(event.fields)
        if depth >= MOST_DEPTH:
            self.too_deep += 1
            log.warning(
                "an event was not delivered: deliveries have led to it in a circle",
                subscription=subscription.id,
                number=event.number,
                type=event.type,
                function=event.function,
                remedy="let the listener leave out events about its own function",
            )
            return None
        payload = self._payload_of(event, subscription)
        return Delivery(subscription.id, event.job, event.number, payload, depth)

    def _delivered(self, portions: Sequence[Portion], late: Sequence[str], *, more: bool) -> None:
        for portion in portions:
            stored = self._stored.get(portion.id)
            if stored is not None and portion.id not in late:
                self._stored[portion.id] = stored._replace(number=portion.to)
                self._missed.pop(portion.id, None)
                self.delivered += len(portion.deliveries)
        if late:  # another node was faster, or has changed them: go on from what is stored
            for name in late:
                self._seen.pop(name, None)
            self._reads.ask(ListSubscriptions(), lambda found: self._caught_up(found, more=more), self._failed)
        else:
            self._go_on(more=more)

    def _caught_up(self, found: Sequence[Subscribed], *, more: bool) -> None:
        self._use(found)
        self._go_on(more=more)

    def _go_on(self, *, more: bool) -> None:
        self._is_due = self._is_due or more
        self._done()

    def _done(self) -> None:
        self._is_busy = False
        if self._is_due:
            self.look()

    def _failed(self, error: StoreError) -> None:
        del error  # the next look repeats it, from what is stored
        self._seen = {name: one.number for name, one in self._stored.items()}
        self._is_busy = False

    def _now_us(self) -> int:
        return to_us(self._clock.wall())


def _depth(fields: Mapping[str, object]) -> int:
    depth = fields.get("depth", 0)
    return depth if isinstance(depth, int) else 0
