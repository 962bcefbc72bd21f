"""Subscriptions to events: what a listener or a webhook gets, and the job that each event becomes.

A delivery is a job of the subscription's function, so it has attempts, pauses, limits, pages and dead letters like any other. Two
deliveries of one subscription about the same job run one after the other, in the order of their events; others run side by side.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring.event_log.interests import Interest  # noqa: TC001 - msgspec reads the annotation
from mainspring.event_log.store import StoredInterest, includes
from mainspring.jobs.model import Job, Options, State
from mainspring.namespaces import key
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from mainspring.event_log.store import Event
    from mainspring.jobs.owners import Owner

KIND: Final = "subscriptions"
"""The owner of deliveries."""


class Target(StrEnum):
    """The kinds of subscriptions."""

    LISTENER = "listener"
    WEBHOOK = "webhook"


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A listener or a webhook."""

    target: Target
    namespace: str
    name: str
    """Its name among those of its kind and namespace."""
    interest: Interest
    function: str
    """The text of the function of its deliveries."""
    options: Options = Options()
    """The options of the deliveries, without owner and depth."""
    priority: int = 1
    app: str = ""
    """The App that has declared it; empty if nobody has."""
    paused: str = ""
    """Why nothing is delivered; empty: something is."""
    pause_after: int = 0
    """So many deliveries that fail for good, without a success between them, pause it; 0: none does."""
    missed: int = 0
    """Events up to this number were deleted before they could be delivered; 0: none was."""
    details: bytes = b""
    """Further data of its kind, encoded by it."""
    created_us: int = 0
    begun: int = 0
    """The highest number of an event when it was added: that event and earlier ones are not for it."""

    @property
    def id(self) -> str:
        """The name by which the store knows it."""
        return id_of(self.target, self.namespace, self.name)

    def includes(self, event: Event) -> bool:
        """Return whether it gets an event. One about its own function, whose jobs its deliveries are, would never end."""
        is_own = event.function == self.function and event.namespace == self.namespace
        return not is_own and includes(self.interest, event)


def id_of(target: Target, namespace: str, name: str) -> str:
    """Return the id of a subscription."""
    return f"{target.value}:{namespace}/{name}"


class Subscribed(NamedTuple):
    """A subscription in a store."""

    subscription: Subscription
    number: int
    """The events up to this number are deliveries, or were not wanted."""
    version: int
    """It counts the changes of the subscription, and not the deliveries."""
    failures: int = 0
    """Deliveries that have failed for good since the last success."""

    @property
    def interest(self) -> StoredInterest:
        """Its interest, as the event log has it."""
        return StoredInterest(self.subscription.id, self.subscription.interest)


class Delivery(NamedTuple):
    """An event on its way to a subscription."""

    subscription: str
    """Its id."""
    subject: int
    """The job that the event is about; 0 for another object."""
    number: int
    """The number of the event."""
    payload: bytes
    depth: int = 0
    """How many deliveries have led to the event."""
    job: int = 0
    """The job that delivers it; 0 while it waits for an earlier one about the same job."""


def owner_key(delivery: Delivery) -> str:
    """Return the key of the job of a delivery, for its owner."""
    return f"{delivery.number}:{delivery.subject}:{delivery.subscription}"


def of_owner(owner: Owner) -> tuple[str, int, int]:
    """Return the subscription, the subject and the number of a delivery from its owner's key."""
    number, subject, subscription = owner.key.split(":", 2)
    return subscription, int(subject), int(number)


def job_of(delivery: Delivery, subscription: Subscription, job_id: int, now_us: int) -> Job:
    """Return the job of a delivery."""
    options = msgspec.structs.replace(subscription.options, owner=(KIND, owner_key(delivery)), depth=delivery.depth + 1)
    return Job(
        job_id,
        key(subscription.namespace, subscription.function.encode()),
        delivery.payload,
        priority=subscription.priority,
        state=int(State.PENDING),
        created_us=now_us,
        options=options,
        input_size=len(delivery.payload),
    )


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Subscription).decode


def encode_subscription(subscription: Subscription) -> bytes:
    """Return the stored form of a subscription."""
    return _encode(subscription)


def decode_subscription(stored: bytes) -> Subscription | None:
    """Return a stored subscription; None if this version cannot read it: the others go on."""
    try:
        return _decode(stored)
    except CANNOT_READ:
        return None
