"""Calls about resources that jobs share: their slots, who holds and awaits them, and what operators change."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import delete, get, post, put
from mainspring.api.functions import Reason  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.request import PAGE_LIMIT, Code, Cursor, Limit, Page, Request, Touches
from mainspring.features import Feature
from mainspring.resources.holds import MAX_LABELS, Items
from mainspring.resources.managed import ManagedSpec  # noqa: TC001 - msgspec reads the annotation
from mainspring.sizes import Seconds, Text, Whole, about, described

ResourceName = Annotated[Text, about("The name of a resource.")]
LabelTuple = Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_LABELS)]


class ItemInfo(msgspec.Struct):
    """An item of a resource."""

    name: str
    """Empty for the only item of a counted resource."""
    labels: list[str]
    slots: int
    held: int
    state: str
    """``idle``, ``busy`` or ``draining``; ``gone`` for one that is no longer defined, and still held. Instances have more."""


class InstanceInfo(msgspec.Struct):
    """An instance of a managed resource."""

    name: str
    state: str
    """``starting``, ``ready``, ``busy``, ``idle``, ``draining``, ``releasing``, ``broken`` or ``gone``."""
    since: str | None
    """When the state began; for ``busy`` and ``idle``, when it was ready."""
    why: str
    """Why it is in its state, or what the last step has reported."""
    held: int
    created: str | None
    last_used: str | None
    fields: dict[str, Any]
    key: str
    """The key that ``create`` gets."""
    meta: Any = msgspec.UNSET
    """The value that ``create`` has returned. Only for callers with the right to see payloads."""
    step: str = ""
    """The step under way: ``create``, ``check`` or ``release``."""
    job: str = ""
    """The handle of its job."""
    failures: int = 0
    """The jobs of the step, or the checks in a row, that have failed."""
    next: str | None = None
    """When the next job of the step begins."""


class ResourceInfo(msgspec.Struct):
    """A resource."""

    name: str
    total: int | None
    """The slots of a counted resource; None: it has named items."""
    slots: int
    """The slots of all items that are not draining."""
    held: int
    waiting: int
    """The requests for some of its slots."""
    source: str
    """``command``, or ``workers`` that declare it."""
    items: list[ItemInfo]


class HoldInfo(msgspec.Struct):
    """Slots of an item that a job, a run or a person has."""

    holder: str
    """The handle of a job or of a run; of a person the number of the hold."""
    kind: str
    """``job``, ``run`` or ``person``."""
    item: str
    units: int
    number: str
    """The fencing number: later holds of the resource have higher ones."""
    since: str | None
    until: str | None


class WaitInfo(msgspec.Struct):
    """A request that waits, in the order of all."""

    holder: str
    kind: str
    """As of a hold."""
    function: str
    """Empty for a person."""
    priority: str
    units: int
    """Of this resource."""
    labels: list[str]
    since: str | None
    until: str | None
    """When the wait is over; None: it has no limit."""
    lacks: list[str]
    """The resources whose slots it lacks; none: its node is about to take them."""
    behind: list[str]
    """The holders of requests before it."""
    impossible: bool
    """Whether the resources could not serve it even if nobody held anything."""


class ResourceDetails(ResourceInfo):
    """A resource with its holders, and those that wait: the first 200 of each. ``held`` and ``waiting`` count all."""

    holds: list[HoldInfo] = []
    waits: list[WaitInfo] = []
    managed: ManagedSpec | None = None
    """How instances are made and released, if it is a managed resource."""
    instances: list[InstanceInfo] = []


class FreedHold(msgspec.Struct):
    """A hold that was given back."""

    name: str
    holder: str
    state: str = "free"


class ListResources(Request[Page[ResourceInfo]]):
    """List resources, by name."""

    permission = Permission.READ
    requires = Feature.LIMITS
    touches = Touches.ALL
    call = "resources.list"
    http = get("resources")
    only_reads = True
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class ShowResource(Request[ResourceDetails]):
    """Show a resource: the holders of its slots, and the requests for some, each with those before it."""

    permission = Permission.READ
    requires = Feature.LIMITS
    touches = Touches.ALL
    call = "resources.show"
    http = get("resources/{name}", problems=(Code.RESOURCE_NOT_FOUND,))
    only_reads = True
    name: ResourceName


class SetResource(Request[ResourceInfo]):
    """Set the slots of a resource. They replace those that workers declare."""

    permission = Permission.DEVELOP
    requires = Feature.LIMITS
    touches = Touches.ALL
    call = "resources.set"
    http = put("resources/{name}", problems=(Code.RESOURCE_NOT_FOUND,), example={"total": 5})
    name: ResourceName
    total: Annotated[Whole | None, described("The number of slots, of a counted resource.")] = None
    items: Annotated[Items | None, about("The labels of each item, by name, of a resource with named items.")] = None
    max: Annotated[Whole | None, described("The most instances, of a managed resource.")] = None
    min: Annotated[Whole | None, described("The fewest instances, of a managed resource.")] = None
    declared: Annotated[bool, described("Use what its workers declare: undo this command.")] = False


class DrainResource(Request[ResourceInfo]):
    """Grant no more slots of a resource, or of one of its items. Those that have some keep them until they end."""

    permission = Permission.OPERATE
    requires = Feature.LIMITS
    touches = Touches.ALL
    call = "resources.drain"
    http = post("resources/{name}/drain", problems=(Code.RESOURCE_NOT_FOUND,), example={"item": "p1"})
    name: ResourceName
    item: Annotated[Text | None, described("The name of an item or instance; without it, all of them.")] = None
    undo: Annotated[bool, described("Grant its slots again.")] = False
    reason: Annotated[Reason, described("Why, for the audit.")] = ""


class HoldResource(Request[HoldInfo]):
    """Hold slots of a resource for a time, if they are free and no job waits for them; or once they are."""

    permission = Permission.OPERATE
    requires = Feature.LIMITS
    touches = Touches.ALL
    call = "resources.hold"
    http = post(
        "resources/{name}/hold",
        problems=(Code.RESOURCE_NOT_FOUND, Code.CONFLICT, Code.TOO_MANY_WAITS),
        example={"units": 1, "labels": ["colour"], "duration": 3600.0},
    )
    name: ResourceName
    duration: Annotated[Seconds, described("For how long, at most 30 days.", "--for")]
    units: Annotated[Whole, described("The number of slots.")] = 1
    labels: Annotated[LabelTuple, about("The labels that each item must have.")] = ()
    wait: Annotated[
        Seconds,
        described("For how long to wait for them, at most an hour; like a job of high priority that is due now."),
    ] = 0.0
    reason: Annotated[Reason, described("Why, for the audit.")] = ""


class FreeResource(Request[FreedHold]):
    """Give back slots that a person holds. For those of a job there is `resources.take`."""

    permission = Permission.OPERATE
    requires = Feature.LIMITS
    touches = Touches.ALL
    call = "resources.free"
    http = delete("resources/{name}/holds/{holder}", problems=(Code.RESOURCE_NOT_FOUND, Code.CONFLICT))
    name: ResourceName
    holder: Annotated[Text, about("The number of the hold.")]


class TakeResource(Request[FreedHold]):
    """Take the slots of a job away. Its attempt is stopped, and is not counted; the job waits for its slots again.

    They are free when the request is answered, with all others that the job has. Its function may still run for a moment: what it
    does with them is refused by the number of its hold.
    """

    permission = Permission.OPERATE
    requires = Feature.LIMITS
    touches = Touches.ALL
    call = "resources.take"
    http = post(
        "resources/{name}/take",
        problems=(Code.RESOURCE_NOT_FOUND, Code.CONFLICT),
        example={"job": "H:node1:12", "reason": "the printer is needed"},
    )
    name: ResourceName
    job: Annotated[Text, described("The handle of the job whose slots are taken away.")]
    cancel: Annotated[bool, described("Cancel the job, too.")] = False
    reason: Annotated[Reason, described("Why, for the audit.")] = ""
