"""Shared resources, as programs define and use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.client.options import check_text, check_whole, refusal
from mainspring.errors import UsageError
from mainspring.resources.holds import ResourceSpec, check_name, resource_of
from mainspring.resources.managed import field_labels
from mainspring.resources.rules import UseSpec

if TYPE_CHECKING:
    from mainspring.client.managed import Kind
    from mainspring.resources.managed import ManagedSpec


class LabelledResource(NamedTuple):
    """Items of a resource that have all these labels."""

    resource: Resource
    labels: tuple[str, ...]


class Resource:
    """A resource that tasks share: ``App.resource`` makes it, and ``uses`` of a task names it.

    ``printers["colour"]`` stands for its items that have a label, ``printers["colour", "large"]`` for those that have both.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        items: Mapping[str, Iterable[str]] | None,
        managed: ManagedSpec | None = None,
        kind: Kind | None = None,
    ) -> None:
        self.name = name
        self.spec: Final = ResourceSpec(
            total, None if items is None else {key: [*items[key]] for key in items}, managed
        )
        self.kind = kind
        """The class of its instances, if it is a managed resource."""

    def __getitem__(self, labels: str | tuple[str, ...]) -> LabelledResource:
        """Return its items that have labels."""
        chosen = (labels,) if isinstance(labels, str) else labels
        if not isinstance(chosen, tuple):
            raise refusal("a label", "text", labels)
        for label in chosen:
            if not isinstance(label, str):
                raise refusal("a label", "text", label)
            check_name("a label", label)
        return LabelledResource(self, tuple(sorted({*chosen})))

    def where(self, **fields: object) -> LabelledResource:
        """Return the instances of a managed resource whose class has these values of its fields."""
        return LabelledResource(self, tuple(sorted(field_labels(fields))))

    __iter__ = None  # __getitem__ would make it iterable

    def __repr__(self) -> str:
        return f"<Resource {self.name!r}>"


class HeldSlots(NamedTuple):
    """The slots of a resource that a job has while it runs."""

    items: dict[str, int]
    """The number of slots by item. A counted resource has one item, with an empty name."""
    number: int
    """A number that is higher than those of all earlier holders: systems that compare it can refuse a late one."""
    metas: Mapping[str, Any] = MappingProxyType({})
    """The values that ``create`` has returned, by the instance of a managed resource."""

    @property
    def item(self) -> str:
        """The name of its only item. Raises UsageError if there are several."""
        if len(self.items) != 1:
            raise UsageError(f"the job has {len(self.items)} items: use .items")
        return next(iter(self.items))

    @property
    def meta(self) -> Any:
        """The value that ``create`` has returned for its only instance. Raises UsageError for other items, and for several."""
        if self.item not in self.metas:
            raise UsageError("the items of the resource have no meta: it is not one whose instances Mainspring makes")
        return self.metas[self.item]


def build_resource(
    name: object, total: object, items: object, managed: tuple[Kind, ManagedSpec] | None = None
) -> Resource:
    """Return a resource. Raises UsageError if it is invalid."""
    check_text(name, "name")
    if total is not None:
        check_whole(total, "total", 0)
    if items is not None and not isinstance(items, Mapping):
        raise refusal("items", 'a dict such as {"p1": {"colour"}}', items)
    for labels in (items or {}).values():
        if isinstance(labels, str) or not isinstance(labels, Iterable):
            raise refusal("the labels of an item", 'a set such as {"colour"}', labels)
    kind, spec = (None, None) if managed is None else managed
    resource = Resource(str(name), total, items, spec, kind)  # type: ignore[arg-type] # checked above
    resource_of(resource.name, resource.spec)
    return resource


def uses_of(given: object) -> tuple[list[UseSpec], tuple[Resource, ...]]:
    """Return what a task uses, and the resources. Raises UsageError for values that are none."""
    if not isinstance(given, Mapping):
        raise refusal("uses", "a dict such as {licences: 2}", given)
    specs: list[UseSpec] = []
    resources: dict[str, Resource] = {}
    for key, units in given.items():
        resource, labels = key if isinstance(key, LabelledResource) else (key, ())
        if not isinstance(resource, Resource):
            raise refusal("uses", "resources of app.resource(…)", key)
        check_whole(units, f"uses of {resource.name}", 1)
        if resources.setdefault(resource.name, resource) is not resource:
            raise UsageError(f"two resources have the name {resource.name!r}")
        specs.append(UseSpec(resource.name, units, [*labels]))
    return specs, tuple(resources.values())
