"""The definitions of resources as stored: those by workers and by command, and the one that applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from mainspring.access.audit import Acting
from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import ResourceFields
from mainspring.namespaces import name_text, split, split_text
from mainspring.resources.holds import Resource, check_resource
from mainspring.resources.instances import with_instances
from mainspring.resources.rules import Declared, is_declaration_stale, newest_or_last, with_newest
from mainspring.storage.engine import PageQuery, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mainspring.access.caller import Act
    from mainspring.resources.holds import Request
    from mainspring.resources.instances import Instance


class DeclaredResource(Declared, frozen=True):
    """A definition of a resource."""

    resource: Resource


class StoredResource(msgspec.Struct, frozen=True, omit_defaults=True):
    """All definitions of a resource, as stored. Those by command have priority, as with limits."""

    name: str
    """The key of its name in its namespace."""
    declared: tuple[DeclaredResource, ...] = ()
    commanded: Resource | None = None
    draining: tuple[str, ...] = ()
    """The items that an operator drains, sorted; the empty name drains a counted resource."""
    version: int = 0
    """The number of writes; 0: not stored yet."""
    most: int | None = None
    """The most instances, by command; None: as workers declare."""
    least: int | None = None
    """The fewest."""

    @property
    def is_commanded(self) -> bool:
        """Whether a command overrides what workers declare."""
        return (self.commanded, self.most, self.least) != (None, None, None)


class UnreadableResource(StoredResource, frozen=True):
    """Stands for a definition that this version cannot read: nothing of it is given away. Never stored."""


encode_resource: Final = msgspec.msgpack.Encoder().encode
_decode_resource: Final = msgspec.msgpack.Decoder(StoredResource).decode


def decode_resource(data: bytes, name: str, version: int) -> StoredResource:
    """Return a stored definition, or `UnreadableResource`."""
    try:
        return _decode_resource(data)
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return UnreadableResource(name, version=version)


NO_ITEMS: Final = Resource()


def _latest(stored: StoredResource) -> Resource:
    """Return the definition that was made last, those by command first."""
    if stored.commanded is not None:
        return stored.commanded
    return _within_bounds(stored, stored.declared[-1].resource) if stored.declared else NO_ITEMS


def _within_bounds(stored: StoredResource, resource: Resource) -> Resource:
    """Return a definition with the numbers of instances that a command has set."""
    managed = resource.managed
    if managed is None:
        return resource
    most = managed.most if stored.most is None else stored.most
    least = min(managed.least if stored.least is None else stored.least, most)
    return replace(resource, managed=replace(managed, most=most, least=least))


def _slots(resource: Resource) -> int:
    managed = resource.managed
    return sum(one.slots for one in resource.items) if managed is None else managed.slots * managed.most


def effective(stored: StoredResource, now_us: int, instances: Iterable[Instance] = ()) -> Resource:
    """Return the definition that applies, of a managed resource with its instances as items.

    A declaration without workers still applies: others may hold what it defines.
    """
    resource = stored.commanded
    if resource is None:
        latest = newest_or_last(stored.declared, now_us)
        resource = NO_ITEMS if latest is None else latest.resource
    if resource.managed is not None:
        return with_instances(_within_bounds(stored, resource), stored.draining, instances)
    if not stored.draining:
        return resource
    items = (replace(item, draining=True) if item.name in stored.draining else item for item in resource.items)
    return replace(resource, items=tuple(items))


def declared(stored: StoredResource, resource: Resource, now_us: int) -> StoredResource:
    """Return a resource after a worker has declared it, or repeated its declaration. Raises UsageError if it is invalid."""
    check_resource(resource)

    def declaration(first_us: int) -> DeclaredResource:
        return DeclaredResource(resource, first_us=first_us, last_us=now_us)

    others = with_newest(stored.declared, lambda one: one.resource == resource, declaration, now_us)
    return replace(stored, declared=others)


def is_stale(stored: StoredResource, resource: Resource, now_us: int) -> bool:
    """Return whether a declaration has to be written, because it is new or will expire soon."""
    return is_declaration_stale((one for one in stored.declared if one.resource == resource), now_us)


class ListResources(PageQuery[StoredResource], frozen=True):
    """Read the stored definitions of all resources, in the order of their keys; ``after`` is a key."""


class FindResources(Query["list[StoredResource]"], frozen=True):
    """Read the stored definitions of those resources that have some; ``names`` are keys."""

    names: tuple[str, ...]


class SaveResource(Acting):
    """Write the definitions of a resource, with the next version. Guard: the stored version is ``resource.version``, 0 for none.

    Outcome: the stored `StoredResource`. This operation wrote it if its version is ``resource.version + 1``; otherwise another
    node did.
    """

    phase = Phase.HOLDS
    causes = frozenset({types.RESOURCE_CHANGED, types.RESOURCE_DRAINED, types.RESOURCE_OPENED})
    resource: StoredResource
    before: StoredResource | None = None
    """The stored one; None: none is stored."""

    def caused(self, outcome: StoredResource) -> Iterator[NewEvent]:
        """Yield the events of a resource that was written: of other slots, and of items that were drained or opened."""
        if not self.wrote(outcome):
            return
        before = StoredResource(outcome.name) if self.before is None else self.before
        resource = _latest(outcome)
        if resource != _latest(before):
            yield self._event(types.RESOURCE_CHANGED, [one.name for one in resource.items], _slots(resource))
        drained, opened = {*outcome.draining} - {*before.draining}, {*before.draining} - {*outcome.draining}
        if drained:
            yield self._event(types.RESOURCE_DRAINED, drained)
        if opened:
            yield self._event(types.RESOURCE_OPENED, opened)

    def _event(self, kind: str, items: Iterable[str], slots: int = 0) -> NewEvent:
        shown = (*sorted({*items} - {""})[:MOST_ITEMS_IN_EVENT],)
        return event_of(kind, self.resource.name, self.act, items=shown, slots=slots)

    def recorded(self, outcome: StoredResource) -> Act | None:
        """Return the act, if this operation wrote the resource."""
        return self.act if self.wrote(outcome) else None

    def wrote(self, outcome: StoredResource) -> bool:
        """Return whether this operation wrote the resource."""
        return outcome == replace(self.resource, version=self.resource.version + 1)


# ---- events ----

MOST_ITEMS_IN_EVENT: Final = 20


def event_of(kind: str, name: str, act: Act | None, of: Request | None = None, **fields: Any) -> NewEvent:
    """Return an event about a resource, given by its key; ``of`` is the request of the job that it is about, too."""
    namespace, text = split_text(name)
    if act is not None:
        fields |= {"by": act.who, "reason": act.reason}
    function = "" if of is None else name_text(split(of.function)[1])
    job = 0 if of is None else of.holder.id
    return NewEvent(kind, namespace, function, text, job, ResourceFields(**fields))
