"""Shared resources, as programs define and use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from mainspring.client.options import check_text, check_whole, refusal
from mainspring.errors import UsageError
from mainspring.resources.holds import ResourceSpec, check_name, resource_of
from mainspring.resources.rules import UseSpec


class LabelledResource(NamedTuple):
    """Items of a resource that have all these labels."""

    resource: Resource
    labels: tuple[str, ...]


class Resource:
    """A resource that tasks share: ``App.resource`` makes it, and ``uses`` of a task names it.

    ``printers["colour"]`` stands for its items that have a label, ``printers["colour", "large"]`` for those that have both.
    """

    def __init__(self, name: str, total: int | None, items: Mapping[str, Iterable[str]] | None) -> None:
        self.name = name
        self.spec: Final = ResourceSpec(total, None if items is None else {key: [*items[key]] for key in items})

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

    __iter__ = None  # __getitem__ would make it iterable

    def __repr__(self) -> str:
        return f"<Resource {self.name!r}>"


class HeldSlots(NamedTuple):
    """The slots of a resource that a job has while it runs."""

    items: dict[str, int]
    """The number of slots by item. A counted resource has one item, with an empty name."""
    number: int
    """A number that is higher than those of all earlier holders: systems that compare it can refuse a late one."""

    @property
    def item(self) -> str:
        """The name of its only item. Raises UsageError if there are several."""
        if len(self.items) != 1:
            raise UsageError(f"the job has {len(self.items)} items: use .items")
        return next(iter(self.items))


def build_resource(name: object, total: object, items: object) -> Resource:
    """Return a resource. Raises UsageError if it is invalid."""
    check_text(name, "name")
    if total is not None:
        check_whole(total, "total", 0)
    if items is not None and not isinstance(items, Mapping):
        raise refusal("items", 'a dict such as {"p1": {"colour"}}', items)
    for labels in (items or {}).values():
        if isinstance(labels, str) or not isinstance(labels, Iterable):
            raise refusal("the labels of an item", 'a set such as {"colour"}', labels)
    resource = Resource(str(name), total, items)  # type: ignore[arg-type] # checked above
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
