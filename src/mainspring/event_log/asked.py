"""Who asks for events: a store writes an event only if somebody asks for it, so events that nobody wants cost nothing.

What a group of operations has caused is told by its operations and their outcomes (`caused_events`), once for all engines;
slices, and handlers that know more than their outcomes, add theirs to the transaction (`NewEvents`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.namespaces import ANY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.event_log.types import Fields
    from mainspring.storage.engine import Plan


class NewEvent(NamedTuple):
    """An event that a transaction causes; the store gives it a number and a time."""

    type: str
    namespace: str
    function: str
    """The text of the function that it is about, or of the workflow; empty if it is about none."""
    subject: str
    """The object that it is about; empty for a job, which has its number."""
    job: int
    """The number of the job that it is about; 0 if it is about none."""
    fields: Fields
    tags: Sequence[str] = ()


class Interest(msgspec.Struct, frozen=True):
    """What somebody asks for."""

    types: frozenset[str]
    namespace: str = ANY
    """A namespace; empty: all of them."""
    functions: tuple[str, ...] = ()
    """Names or patterns such as ``pay*``; none: all functions, and events that are about none."""
    tags: tuple[str, ...] = ()
    """The job or run has all of them."""

    def matches(self, event: NewEvent) -> bool:
        """Return whether an event of one of the types is asked for."""
        return (
            self.namespace in {ANY, event.namespace}
            and (not self.functions or any(fnmatchcase(event.function, one) for one in self.functions))
            and all(tag in event.tags for tag in self.tags)
        )


class Asked:
    """All that is asked for. It never changes: a store gets another one."""

    def __init__(self, interests: Iterable[Interest] = (), version: int = 0) -> None:
        """``version`` counts the changes of interests in the store."""
        self.version = version
        self._of: dict[str, list[Interest]] = {}
        for one in interests:
            for name in one.types:
                self._of.setdefault(name, []).append(one)
        self.types = frozenset(self._of)
        """The types that anybody asks for."""

    def __bool__(self) -> bool:
        """Return whether anybody asks for anything."""
        return bool(self._of)

    def wants(self, event: NewEvent) -> bool:
        """Return whether anybody asks for an event."""
        return any(one.matches(event) for one in self._of.get(event.type, ()))


NOTHING: Final = Asked()
"""What a store writes that nobody has asked."""


class Interests:
    """What a node's store records now: the engine's transactions look at it, and the node changes it between them."""

    def __init__(self) -> None:
        self.asked = NOTHING

    def use(self, asked: Asked) -> None:
        """Record from now on what is asked for, unless that is older than what is recorded."""
        if asked.version >= self.asked.version:
            self.asked = asked


class NewEvents:
    """The events of one transaction that slices and handlers have added."""

    def __init__(self, interests: Interests) -> None:
        self._interests = interests
        self._new: list[NewEvent] = []

    @property
    def asked(self) -> Asked:
        """What is asked for: look at its ``types`` before making an event that costs something."""
        return self._interests.asked

    def add(self, event: NewEvent | None) -> None:
        """Add an event, if there is one and it is asked for."""
        if event is not None and self.asked.wants(event):
            self._new.append(event)

    def clear(self) -> None:
        """Forget what was added: the transaction is rolled back."""
        self._new.clear()

    def take(self, plan: Plan, outcomes: Sequence[Any], more: Iterable[NewEvent] = ()) -> list[NewEvent]:
        """Return what was added, ``more``, and what the operations of the group have caused; begin with none."""
        new, self._new = self._new, []
        asked = self.asked
        if asked:
            new += filter(asked.wants, chain(caused_events(plan, outcomes, asked), more))
        return new


def caused_events(plan: Plan, outcomes: Sequence[Any], asked: Asked) -> Iterable[NewEvent]:
    """Return the events of the types asked for that a group's operations have caused, in the order of its phases."""
    for kind, placed in plan.items():
        if not asked.types.isdisjoint(kind.causes):
            for place, operation in placed:
                yield from operation.caused(outcomes[place])


def caused_by(operations: Sequence[Any], outcomes: Sequence[Any], asked: Asked) -> Iterable[NewEvent]:
    """Return the events of the types asked for that operations inside another one have caused."""
    for operation, outcome in zip(operations, outcomes, strict=True):
        if not asked.types.isdisjoint(operation.causes):
            yield from operation.caused(outcome)
