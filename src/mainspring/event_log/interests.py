"""Interests in events: a store writes an event only if one of them includes it, so events that nobody wants cost nothing.

The events of a group of operations follow from the operations and their outcomes (`caused_events`), once for all engines. Slices,
and handlers that know more than their outcomes, add theirs to the transaction (`NewEvents`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from mainspring.event_log.types import DEAD_LETTERS
from mainspring.namespaces import ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mainspring.event_log.types import Fields
    from mainspring.storage.engine import Plan


class DeadLetter(NamedTuple):
    """A job that has failed for good and stays in the store."""

    function: bytes
    """The key of its function."""
    failed_us: int
    """In microseconds of wall time."""


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
    dead_letter: DeadLetter | None = None
    """That of the job which it is about, if there is one."""


class Interest(msgspec.Struct, frozen=True):
    """The events that one listener, webhook or reader gets."""

    types: frozenset[str]
    namespace: str = ANY
    """A namespace; empty: all of them."""
    functions: tuple[str, ...] = ()
    """Names or patterns such as ``pay*``; none: all functions, and events that are about none."""
    tags: tuple[str, ...] = ()
    """The job or run has all of them."""

    def matches(self, event: NewEvent) -> bool:
        """Return whether it includes an event of one of its types."""
        return self.covers(event.namespace, event.function, event.tags)

    def includes(self, other: Interest) -> bool:
        """Return whether it certainly includes all events of another one, of the types that both have."""
        return (
            self.namespace in {ANY, other.namespace}
            and (not self.functions or (bool(other.functions) and {*other.functions} <= {*self.functions}))
            and {*self.tags} <= {*other.tags}
        )

    def covers(self, namespace: str, function: str, tags: Collection[str]) -> bool:
        """Return whether it includes events of a namespace about a function and an object with tags."""
        return (
            self.namespace in (ANY, namespace)
            and (not self.functions or any(fnmatchcase(function, one) for one in self.functions))
            and (not self.tags or all(tag in tags for tag in self.tags))
        )


class InterestSet:
    """All interests of a store, by the types of events. It never changes: a store gets another one."""

    def __init__(self, interests: Iterable[Interest] = (), version: int = 0) -> None:
        """``version`` counts the changes of interests in the store."""
        self.version = version
        self._of: dict[str, list[Interest]] = {}
        for one in interests:
            for name in one.types:
                self._of.setdefault(name, []).append(one)
        self.types = frozenset(self._of)
        """The types of all of them."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._of)

    def wants(self, event: NewEvent | None) -> TypeGuard[NewEvent]:
        """Return whether there is an event that one of them includes."""
        if event is None:
            return False
        for one in self._of.get(event.type, ()):  # noqa: SIM110 - without a generator: a reader of all has each event tried
            if one.matches(event):
                return True
        return False


NOTHING: Final = InterestSet()


def _nothing() -> None:
    """Do nothing."""


class CurrentInterests:
    """The interests by which the transactions of a node's store record events; the node changes them between transactions."""

    def __init__(self) -> None:
        self.now = NOTHING
        self._on_written: Callable[[bool], object] = lambda _: None
        self._on_changed: Callable[[], object] = _nothing

    def subscribe(self, on_written: Callable[[bool], object], on_changed: Callable[[], object]) -> None:
        """Call functions on the node's thread: after each commit of events, and when another node has changed interests.

        ``on_written`` gets whether the events have their numbers.
        """
        self._on_written = on_written
        self._on_changed = on_changed

    def written(self, *, numbered: bool) -> None:
        """Report that events were committed, and whether they have their numbers."""
        self._on_written(numbered)

    def changed(self) -> None:
        """Report that another node has changed interests."""
        self._on_changed()

    def use(self, interests: InterestSet) -> None:
        """Use interests from now on, unless they are older than the present ones."""
        if interests.version >= self.now.version:
            self.now = interests


class NewEvents:
    """The events of one transaction that slices and handlers have added."""

    def __init__(self, current: CurrentInterests) -> None:
        self._current = current
        self._new: list[NewEvent] = []
        self._dead: dict[bytes, list[int]] = {}

    @property
    def interests(self) -> InterestSet:
        """The interests: look at their ``types`` before making an event that costs something."""
        return self._current.now

    def add(self, event: NewEvent | None) -> None:
        """Add an event, if there is one and somebody wants it. Dead letters are counted while somebody wants their series."""
        if event is None:
            return
        if event.dead_letter is not None and DEAD_LETTERS in self.interests.types:
            function, failed_us = event.dead_letter
            self._dead.setdefault(function, []).append(failed_us)
        if self.interests.wants(event):
            self._new.append(event)

    def clear(self) -> None:
        """Forget all: the transaction is rolled back."""
        self._new.clear()
        self._dead.clear()

    def take(self, plan: Plan, outcomes: Sequence[Any], more: Iterable[NewEvent] = ()) -> list[NewEvent]:
        """Return the events that were added, those of ``more`` and those that the operations have caused; begin with none."""
        interests = self.interests
        if interests:
            for event in chain(caused_events(plan, outcomes, interests), more):
                self.add(event)
        new, self._new = self._new, []
        return new

    @property
    def has_dead_letters(self) -> bool:
        """Return whether there are new dead letters in whose series somebody may be interested."""
        return bool(self._dead)

    def take_dead_letters(self) -> dict[bytes, list[int]]:
        """Return when the new dead letters of each function failed, after `take`; begin with none."""
        dead, self._dead = self._dead, {}
        return dead


def caused_events(plan: Plan, outcomes: Sequence[Any], interests: InterestSet) -> Iterable[NewEvent | None]:
    """Return the events that a group's operations have caused, in the order of its phases, without those of unwanted types."""
    for kind, placed in plan.items():
        if not interests.types.isdisjoint(kind.causes):
            for place, operation in placed:
                yield from _caused_by(operation, outcomes[place], interests)


def caused_by(operations: Sequence[Any], outcomes: Sequence[Any], interests: InterestSet) -> Iterable[NewEvent | None]:
    """Return the events that operations inside another one have caused, without those of unwanted types."""
    for operation, outcome in zip(operations, outcomes, strict=True):
        if not interests.types.isdisjoint(operation.causes):
            yield from _caused_by(operation, outcome, interests)


def _caused_by(operation: Any, outcome: Any, interests: InterestSet) -> Iterable[NewEvent | None]:
    found: Iterable[NewEvent | None] = (
        operation.caused(outcome, interests.types) if operation.sifts else operation.caused(outcome)
    )
    act = getattr(operation, "act", None)
    return found if act is None or not act.depth else [event and deepened(event, act.depth) for event in found]


def deepened(event: NewEvent, depth: int) -> NewEvent:
    """Return an event that code has caused which follows from so many deliveries of events."""
    fields = event.fields
    return event._replace(fields=replace(fields, depth=max(fields.depth, depth))) if depth else event
