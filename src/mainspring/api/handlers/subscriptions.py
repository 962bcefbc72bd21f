"""Listeners and webhooks as their calls find and describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.api.request import ApiError
from mainspring.event_log.store import ListEvents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.api.handlers.registry import Call
    from mainspring.api.request import Code
    from mainspring.storage.reads import Reads
    from mainspring.subscriptions.model import Subscribed, Target
    from mainspring.subscriptions.service import Deliverer

COUNTED: Final = 1000
"""Events up to which ``behind`` is counted."""
ATTEMPTS: Final = 5
"""Number of times that a change is repeated if another request changes the subscription meanwhile."""


class Progress(NamedTuple):
    """How far a subscription is."""

    subscribed: Subscribed
    delivered: int
    """It has had its events up to this number."""
    behind: int
    """The events for it that follow, up to `COUNTED`."""


class SubscriptionLookup:
    """The subscriptions of one kind. There is no ``deliverer`` if the store keeps no events: `Api` refuses their calls then."""

    def __init__(self, deliverer: Deliverer | None, reads: Reads, target: Target, not_found: Code) -> None:
        self._deliverer = deliverer
        self._reads = reads
        self._target = target
        self._not_found = not_found

    @property
    def deliverer(self) -> Deliverer:
        """The deliveries of the node."""
        assert self._deliverer is not None
        return self._deliverer

    async def all(self, namespace: str) -> dict[str, Subscribed]:
        """Return those of a namespace by name, in the order of their names."""
        found = {
            one.subscription.name: one
            for one in await self.deliverer.all()
            if one.subscription.target is self._target and one.subscription.namespace == namespace
        }
        return dict(sorted(found.items()))

    async def find(self, request: Any) -> Subscribed:
        """Return the one that a request names. Raises ApiError."""
        found = (await self.all(request.namespace)).get(request.name)
        if found is None:
            kind = self._target.value
            raise ApiError(
                self._not_found,
                f"there is no {kind} {request.name!r}; mainspring {kind}s list shows those there are",
            )
        return found

    async def page(self, request: Any, call: Call) -> tuple[list[Subscribed], str | None]:
        """Return those of a page that the caller may see, and the cursor of the next page."""
        found = call.shown(
            [one for name, one in (await self.all(request.namespace)).items() if name > (request.cursor or "")],
            lambda one: one.subscription.function,
        )
        page = found[: request.limit]
        return page, page[-1].subscription.name if len(found) > len(page) else None

    async def progress(self, subscribed: Sequence[Subscribed]) -> list[Progress]:
        """Return how far they are. One read of the log counts for all, from the one that is furthest behind."""
        if not subscribed:
            return []
        seen = {one.subscription.id: max(one.number, self.deliverer.seen(one.subscription.id)) for one in subscribed}
        types = frozenset[str]().union(*(one.subscription.interest.types for one in subscribed))
        page = await self._reads.read(ListEvents(after=min(seen.values()), limit=COUNTED, types=types))
        found = []
        for one in subscribed:
            delivered = seen[one.subscription.id]
            behind = sum(event.number > delivered and one.subscription.includes(event) for event in page.items)
            found.append(Progress(one, delivered, behind))
        return found
