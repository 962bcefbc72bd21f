"""Shared resources, as programs define and use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from mainspring.client.inside import workflow_calls
from mainspring.client.options import Duration, check_text, check_whole, refusal, seconds
from mainspring.errors import UsageError, WorkflowUsageError
from mainspring.resources.holds import Line, ResourceSpec, check_lines, check_name, resource_of
from mainspring.resources.managed import field_labels
from mainspring.resources.rules import UseSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from mainspring.client.managed import Kind
    from mainspring.resources.managed import ManagedSpec

T = TypeVar("T")


class LabelledResource(NamedTuple):
    """Items of a resource that have all these labels."""

    resource: Resource
    labels: tuple[str, ...]

    def hold(self, slots: int = 1, *, timeout: Duration | None = None) -> AbstractAsyncContextManager[HeldSlots]:
        """Hold slots of these items in a block of a workflow; see `Resource.hold`."""
        return hold({self: slots}, timeout, lambda held: held[self.resource.name])


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

    def hold(
        self,
        slots: int = 1,
        *,
        where: Iterable[str] | Mapping[str, object] = (),
        timeout: Duration | None = None,
    ) -> AbstractAsyncContextManager[HeldSlots]:
        """Hold slots in a block of a workflow: ``async with printers.hold(where={"colour"}, timeout="1h") as held``.

        ``where`` has labels that each item must have, or values of the fields of a managed resource. The block begins when the
        run has all slots, and gives them back at its end. The run keeps them over restarts of workers and nodes, and loses them
        with its own end, whatever that is.

        Raises HoldTimedOut if there are none within ``timeout``, and WorkflowUsageError outside of workflows.
        """
        if isinstance(where, str) or not isinstance(where, Iterable):
            raise refusal("where", 'a set of labels such as {"colour"}', where)
        labels = (*field_labels(where),) if isinstance(where, Mapping) else (*where,)
        return hold({self[labels] if labels else self: slots}, timeout, lambda held: held[self.name])

    def __repr__(self) -> str:
        return f"<Resource {self.name!r}>"


@dataclass(frozen=True)
class HeldSlots:
    """The slots of a resource that a job has while it runs, or a workflow in a block. It can be an argument of other tasks."""

    items: dict[str, int]
    """The number of slots by item. A counted resource has one item, with an empty name."""
    number: int
    """A number that is higher than those of all earlier holders: systems that compare it can refuse a late one."""
    resource: str
    """The name of the resource."""
    metas: Mapping[str, Any] = field(default_factory=dict)
    """The values that ``create`` has returned, by the instance of a managed resource."""

    @property
    def item(self) -> str:
        """The name of its only item. Raises UsageError if there are several."""
        if len(self.items) != 1:
            raise UsageError(f"{len(self.items)} items are held: use .items")
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


def hold(
    given: Mapping[Any, int], timeout: Duration | None, pick: Callable[[dict[str, HeldSlots]], T]
) -> AbstractAsyncContextManager[T]:
    """Return a block of a workflow that has slots of resources; ``pick`` returns its value, given what was granted by name.

    Raises UsageError for values that are none, and WorkflowUsageError outside of workflows.
    """
    calls = workflow_calls()
    if calls is None:
        raise WorkflowUsageError(
            "only workflows hold resources in a block: write `async with … .hold(…)` in an @app.workflow function, or "
            "uses={…} where a task is defined"
        )
    uses, resources = uses_of(given)
    check_lines([Line(use.resource, use.units, tuple(use.labels)) for use in uses])
    limit = None if timeout is None else seconds(timeout, "timeout")
    kinds = {one.name: one.kind for one in resources}

    def picked(held: dict[str, HeldSlots]) -> T:
        return pick({name: _typed(slots, kinds[name]) for name, slots in held.items()})

    return cast("AbstractAsyncContextManager[T]", calls.hold_slots(uses, limit, picked))


def _typed(held: HeldSlots, kind: Kind | None) -> HeldSlots:
    """Return slots with their metas as the class of the instances has them."""
    if kind is None:
        return held
    return replace(held, metas={item: kind.meta(meta) for item, meta in held.metas.items()})
