"""Resources that jobs share, and the rules by which requests for them become holds: pure, over rows.

A resource has *items*, and an item has *slots*. A counted resource is one item with as many slots as its total; a named item,
such as a printer, has one slot. A *request* asks for slots of one or more resources, all at once or none; a *hold* is the slots
of one item that a request has got.

Requests have an order, and `decide` goes through them in it. One that cannot be granted reserves what is free of the slots that
it needs: later ones may take only what is left. So a request for many slots is not starved by requests for few, and one for
several resources not by requests for one of them. Nothing is held while it waits, so no two requests wait for each other.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.errors import UsageError
from mainspring.resources.managed import Managed, ManagedSpec, managed_of, spec_of_managed
from mainspring.sizes import Text, Whole, about

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


MAX_SLOTS: Final = 1_000_000_000
MAX_ITEMS: Final = 1000
MAX_LABELS: Final = 20
MAX_LINES: Final = 10
MAX_NAME: Final = 128


class Item(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An item of a resource."""

    name: str
    """Empty for the only item of a counted resource."""
    slots: int = 1
    labels: tuple[str, ...] = ()
    """Sorted."""
    draining: bool = False
    """Whether it gets no new holds."""


class Resource(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The items of a resource, in the order of their names."""

    items: tuple[Item, ...] = ()
    counted: bool = False
    managed: Managed | None = None
    """Its items are instances: rows of their own, and none of the definition."""


def counted(total: int) -> Resource:
    """Return a counted resource."""
    return Resource((Item("", total),), counted=True)


def named(items: Mapping[str, Iterable[str]]) -> Resource:
    """Return a resource with named items; each has labels."""
    return Resource(tuple(Item(name, 1, tuple(sorted(set(items[name])))) for name in sorted(items)))


class Line(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a request: a number of slots of one resource, each of an item that has all these labels."""

    resource: str
    """The key of its name in its namespace."""
    units: int = 1
    labels: tuple[str, ...] = ()
    """Sorted."""


class HolderKind(IntEnum):
    """The kind of the owner of a request or a hold, which decides when it ends."""

    LEASE = 1
    """A stored job under a term: as long as it is held under the term."""
    PERSON = 2
    """An operator: until it is given back, or its time is over."""
    RUN = 3
    """A run of a workflow: as long as it is open."""


class Holder(NamedTuple):
    """The owner of a request and of the holds that it becomes."""

    kind: int
    """A `HolderKind`."""
    id: int
    """Of a job or a run, or a number of its own."""
    term: int
    """0 for a person; for a run, the number of the hold among its commands: it may have several."""


class Request(NamedTuple):
    """A wait for all slots of some lines."""

    holder: Holder
    turn: int
    """Tells this request of its holder from earlier ones, also under the same term: a repeated one gets the same answer."""
    lines: tuple[Line, ...]
    priority: int
    """0 is the highest, as of jobs."""
    since_us: int
    """When the job was due first; for others, when the request was made."""
    function: bytes = b""
    """The function of the job, whose nodes are notified when slots are free; empty for a person."""
    until_us: int = 0
    """When a person's hold ends by itself; 0 for others."""
    limit_us: int = 0
    """When its wait is over; 0: never. Afterwards it reserves nothing, and gets what is free when it asks, or nothing."""

    def is_over(self, now_us: int) -> bool:
        """Return whether its wait is over."""
        return 0 < self.limit_us <= now_us


class Hold(NamedTuple):
    """The slots of one item that a holder has."""

    resource: str
    item: str
    holder: Holder
    turn: int
    units: int
    number: int
    """The fencing number: each grant of a resource has a higher one than all grants before."""
    since_us: int
    until_us: int = 0


# ---- order ----

AGEING_US: Final = 60_000_000
"""Microseconds by which a request must be older to go before one of the next higher priority."""


def rank(request: Request) -> tuple[int, Holder]:
    """Return the place of a request in the order of all, the first one lowest. It does not change while the request waits."""
    return request.since_us + request.priority * AGEING_US, request.holder


# ---- which items ----


class Allotment(NamedTuple):
    """Slots for the lines of a request."""

    units: dict[tuple[str, str], int]
    """By resource and item."""
    lacking: tuple[str, ...]
    """The resources whose slots are missing."""


def allot(resources: Mapping[str, Resource], free: Mapping[str, Mapping[str, int]], lines: Sequence[Line]) -> Allotment:
    """Return as many of the slots that lines ask for as are free.

    ``free`` has the slots by resource and item. Items with the fewest labels go first, so that the others stay for those that
    need their labels; but if any choice of items serves all lines, one that does is returned.
    """
    units: dict[tuple[str, str], int] = {}
    lacking: list[str] = []
    of_resource: dict[str, list[Line]] = {}
    for line in lines:
        of_resource.setdefault(line.resource, []).append(line)
    for name, wanted in of_resource.items():
        resource = resources.get(name)
        items = () if resource is None else resource.items
        if len(items) == 1 and len(wanted) == 1 and not wanted[0].labels:  # most requests: no choice
            item, need = items[0].name, wanted[0].units
            number = min(need, max(free.get(name, {}).get(item, 0), 0))
            if number:
                units[name, item] = number
            if number < need:
                lacking.append(name)
            continue
        found = _Matching(items, free.get(name, {}), wanted)
        if found.missing:
            lacking.append(name)
        for item, number in found.total().items():
            units[name, item] = number
    return Allotment(units, (*lacking,))


class _Matching:
    """Slots of one resource for lines: a maximum flow from lines to items, by augmenting paths."""

    def __init__(self, items: Iterable[Item], free: Mapping[str, int], lines: Sequence[Line]) -> None:
        by_labels = sorted(items, key=lambda item: (len(item.labels), item.name))
        self._left = {item.name: max(free.get(item.name, 0), 0) for item in by_labels}
        self._fitting = [[item.name for item in by_labels if {*line.labels} <= {*item.labels}] for line in lines]
        self._used: list[dict[str, int]] = [{} for _ in lines]
        self.missing = 0
        for line, wanted in enumerate(lines):
            need = wanted.units
            while need and (moved := self._push(line, need, set())):
                need -= moved
            self.missing += need

    def total(self) -> dict[str, int]:
        """Return the slots of all lines by item."""
        total: dict[str, int] = {}
        for used in self._used:
            for item, number in used.items():
                if number:
                    total[item] = total.get(item, 0) + number
        return total

    def _push(self, line: int, most: int, seen: set[str]) -> int:
        """Give a line some more slots, at most ``most``; another line may change to other items for that. Return how many."""
        used = self._used[line]
        for item in self._fitting[line]:
            if item not in seen and self._left[item]:
                number = min(most, self._left[item])
                self._left[item] -= number
                used[item] = used.get(item, 0) + number
                return number
        for item in self._fitting[line]:
            if item in seen:
                continue
            seen.add(item)
            for other, taken in enumerate(self._used):
                if other != line and taken.get(item) and (number := self._push(other, min(most, taken[item]), seen)):
                    taken[item] -= number
                    used[item] = used.get(item, 0) + number
                    return number
        return 0


# ---- decisions ----


class Waits(NamedTuple):
    """The verdict on a request that has to wait."""

    lacking: tuple[str, ...]
    """The resources whose slots are missing."""
    behind: tuple[Holder, ...]
    """The holders of requests before it for one of these, in their order; at most `SHOWN`."""
    impossible: bool = False
    """Whether the resources could not serve it even if nobody held anything: it waits for a change of theirs, and reserves
    nothing."""
    over: bool = False
    """Whether its wait is over: it is no request any more."""


SHOWN: Final = 10
Granted = dict[tuple[str, str], int]
"""The verdict on a request that is granted: the slots by resource and item."""


def free_slots(resources: Mapping[str, Resource], holds: Iterable[Hold]) -> dict[str, dict[str, int]]:
    """Return the free slots by resource and item. Below 0: the resource has become smaller than what is held."""
    free = {
        name: {item.name: item.slots for item in resource.items if not item.draining}
        for name, resource in resources.items()
    }
    for hold in holds:
        if hold.item in free.get(hold.resource, ()):
            free[hold.resource][hold.item] -= hold.units
    return free


def _largest(resource: Resource) -> Resource:
    """Return a resource with all instances that it may have at a time, as one item."""
    managed = resource.managed
    if managed is None:
        return resource
    number = max(managed.most, sum(not item.draining for item in resource.items))
    return replace(resource, items=(Item("", managed.slots * number, managed.labels),) if number else ())


def decide(
    resources: Mapping[str, Resource], holds: Iterable[Hold], requests: Iterable[Request], now_us: int = 0
) -> dict[Holder, Granted | Waits]:
    """Return the verdict on each request.

    ``resources`` are those that this decision may give away; a request that needs another one, too, waits, and reserves its
    slots of these.
    """
    free = free_slots(resources, holds)
    largest = {name: _largest(resource) for name, resource in resources.items()}
    most = free_slots(largest, ())
    before: dict[str, list[Holder]] = {}
    """By resource: the holders of the first `SHOWN` requests for it."""
    never: dict[tuple[Line, ...], tuple[str, ...]] = {}
    """By lines: the resources that lack slots for them even if nobody holds anything."""
    verdicts: dict[Holder, Granted | Waits] = {}
    for request in sorted(requests, key=rank):
        holder, lines = request.holder, request.lines
        found = allot(resources, free, lines)
        if found.lacking:
            if lines not in never:
                decides_all = all(line.resource in resources for line in lines)
                never[lines] = allot(largest, most, lines).lacking if decides_all else ()
            if never[lines]:
                verdicts[holder] = Waits(never[lines], (), impossible=True, over=request.is_over(now_us))
                continue
            behind = {other: None for name in found.lacking for other in before.get(name, ())}
            verdicts[holder] = Waits(found.lacking, (*behind,)[:SHOWN], over=request.is_over(now_us))
            if request.is_over(now_us):
                continue
        else:
            verdicts[holder] = found.units
        for (name, item), number in found.units.items():
            free[name][item] -= number
        for line in lines:
            first = before.setdefault(line.resource, [])
            if len(first) < SHOWN and holder not in first[-1:]:
                first.append(holder)
    return verdicts


def missing_slots(resource: Resource, holds: Iterable[Hold], requests: Iterable[Request], name: str) -> int:
    """Return how many more slots the requests for a resource need, beside those that are free."""
    free = free_slots({name: resource}, holds)[name]
    missing = 0
    for request in sorted(requests, key=rank):
        lines = [line for line in request.lines if line.resource == name]
        matching = _Matching(resource.items, free, lines)
        missing += matching.missing
        for item, number in matching.total().items():
            free[item] -= number
    return missing


# ---- answers to runs ----


class HeldItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The slots of one item that a run has got."""

    resource: str
    """Its name in the namespace of the run."""
    item: str
    units: int
    number: int
    """The fencing number."""
    meta: Any = None
    """The meta of the instance of a managed resource; None for other items."""


class HoldAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request of a run: slots, or why it has got none."""

    items: tuple[HeldItem, ...] = ()
    lacks: tuple[str, ...] = ()
    """The names of the resources whose slots are missing."""
    before: int = 0
    """How many requests are before it for one of these; no more than `SHOWN` are counted."""
    impossible: bool = False
    """As of `Waits`."""


# ---- definitions as programs and users write them ----


Labels = Annotated[list[Text], msgspec.Meta(max_length=MAX_LABELS)]
Items = Annotated[dict[Text, Labels], msgspec.Meta(max_length=MAX_ITEMS)]


class ResourceSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A resource: a total, or named items with their labels."""

    total: Annotated[Whole | None, about("The number of slots, of a counted resource.")] = None
    items: Annotated[Items | None, about("The labels of each item, by name.")] = None
    managed: Annotated[ManagedSpec | None, about("How its instances are made and released.")] = None


def resource_of(name: str, spec: ResourceSpec) -> Resource:
    """Return the internal form of a resource. Raises UsageError if it, or its name, is invalid."""
    check_name("the name of a resource", name)
    if (spec.total is not None) + (spec.items is not None) + (spec.managed is not None) != 1:
        raise UsageError(f"the resource {name!r} must have a total, or items, or a class that makes them")
    if spec.managed is not None:
        resource = Resource(managed=managed_of(spec.managed))
    else:
        resource = named(spec.items or {}) if spec.total is None else counted(spec.total)
    check_resource(resource)
    return resource


def spec_of_resource(resource: Resource) -> ResourceSpec:
    """Return the external form of a resource."""
    if resource.managed is not None:
        return ResourceSpec(managed=spec_of_managed(resource.managed))
    if resource.counted:
        return ResourceSpec(total=resource.items[0].slots)
    return ResourceSpec(items={item.name: [*item.labels] for item in resource.items})


# ---- limits of values ----


def check_resource(resource: Resource) -> None:
    """Raise UsageError if a resource is invalid."""
    if resource.managed is not None:
        _check_labels(resource.managed.labels)
        return
    if not 1 <= len(resource.items) <= MAX_ITEMS:
        raise UsageError(f"a resource has from 1 to {MAX_ITEMS:,} items, not {len(resource.items)}")
    if resource.counted and (len(resource.items) != 1 or resource.items[0].name):
        raise UsageError("a counted resource has a total and no named items")
    for item in resource.items:
        if not 0 <= item.slots <= MAX_SLOTS:
            raise UsageError(f"the total of a resource must be from 0 to {MAX_SLOTS:,}; it is {item.slots}")
        if not resource.counted:
            check_name("the name of an item", item.name)
        _check_labels(item.labels)
    if len({item.name for item in resource.items}) < len(resource.items):
        raise UsageError("the items of a resource have different names")


def check_lines(lines: Sequence[Line]) -> None:
    """Raise UsageError if what a request asks for is invalid."""
    if not 1 <= len(lines) <= MAX_LINES:
        raise UsageError(f"a request asks for 1 to {MAX_LINES} kinds of slots, not {len(lines)}")
    for line in lines:
        if not 1 <= line.units <= MAX_SLOTS:
            raise UsageError(f"a request must ask for 1 to {MAX_SLOTS:,} slots; it asks for {line.units}")
        _check_labels(line.labels)


def _check_labels(labels: Sequence[str]) -> None:
    if len(labels) > MAX_LABELS:
        raise UsageError(f"at most {MAX_LABELS} labels are possible, not {len(labels)}")
    for label in labels:
        check_name("a label", label)


def check_name(what: str, name: str) -> None:
    """Raise UsageError if a text cannot be a name; ``what`` says of what."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise UsageError(f"{what} must have from 1 to {MAX_NAME} printable characters")
