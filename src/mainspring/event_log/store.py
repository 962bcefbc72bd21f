"""The port of the event log: its operations on a store, with their outcomes, and its queries.

An event is written in the transaction of its cause, and gets its number there or, on a store whose transactions commit side by
side, perhaps a moment later (`NumberEvents`): a reader that goes on behind a number must not miss a slower transaction's event.
The events of one job are numbered in the order of their causes.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from mainspring.event_log.interests import Interest, InterestSet
from mainspring.event_log.types import RUN_STRANDED, WORKER_LOST
from mainspring.namespaces import ANY
from mainspring.sizes import CANNOT_READ
from mainspring.storage.engine import Operation, Page, PageQuery, Phase, Query, matching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mainspring.event_log.interests import CurrentInterests, NewEvent
    from mainspring.storage.engine import Meter


class Event(msgspec.Struct, frozen=True):
    """An event in the log."""

    number: int
    """Its place: later events have higher numbers. Some numbers have no event."""
    at_us: int
    """When its cause happened, in microseconds of wall time, by the store's clock."""
    namespace: str
    type: str
    function: str
    """The text of the function or of the workflow that it is about; empty if it is about none."""
    subject: str
    """The object that it is about; empty for a job."""
    job: int
    """The number of the job that it is about; 0 if it is about none."""
    fields: Mapping[str, Any]
    """By their names; `event_log.types` has those of each type. A field that is left out has its default."""


def includes(interest: Interest, event: Event) -> bool:
    """Return whether an interest includes a stored event."""
    return event.type in interest.types and interest.covers(
        event.namespace, event.function, event.fields.get("tags", ())
    )


RUNS: Final = ("run", "parent")
"""The fields with the numbers of runs."""


def numbers_in(event: Event) -> Iterator[int]:
    """Yield the numbers of the job and of the runs in an event."""
    if event.job:
        yield event.job
    yield from (event.fields[name] for name in RUNS if event.fields.get(name))


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode


def row_of(event: NewEvent) -> tuple[str, str, str, str, int, bytes]:
    """Return the columns of a new event: namespace, type, function, subject, job, fields."""
    return *about_of(event), _encode(event.fields)


def about_of(event: NewEvent) -> tuple[str, str, str, str, int]:
    """Return the namespace, type, function, subject and job of a new event, as the log has them.

    Names may have any character, and PostgreSQL keeps no NUL in texts.
    """
    return event.namespace, event.type, _without_nul(event.function), _without_nul(event.subject), event.job


def _without_nul(text: str) -> str:
    return text.replace("\0", "\ufffd") if "\0" in text else text


def event_of(row: Sequence[Any]) -> Event:
    """Return a stored event; one without fields if they cannot be read: one row must not break the log."""
    try:
        fields = _decode(row[7])
    except CANNOT_READ:
        fields = {}
    return Event(row[0], row[1], row[2], row[3], row[4], row[5], row[6], fields)


class StoredInterest(NamedTuple):
    """An interest in a store."""

    id: str
    interest: Interest
    until_us: int = 0
    """When it ends, in microseconds of wall time; 0: when it is removed."""
    since: int = 0
    """All events of it behind this number were recorded: a reader whose place is lower has missed some. The store sets it."""
    place: int = 0
    """Of a cursor: its place. It begins with ``since``, and `MoveCursor` moves it."""

    @property
    def is_read(self) -> bool:
        """Whether it is a reader's, who has a place in the log: the others have their places elsewhere."""
        return self.until_us > 0 or self.id.startswith(CURSOR)


READER_SECONDS: Final = 600.0
"""Seconds for which the interest of a reader lasts at least: it may be away for that time and miss nothing."""
CURSOR: Final = "cursor:"
"""The ids of the interests of cursors begin so."""


def begun(saved: Sequence[StoredInterest], present: Iterable[StoredInterest], last: int) -> list[StoredInterest]:
    """Return interests as they are stored: those that are new, or have changed, begin behind ``last``.

    A reader begins at a number that no event has. So its place differs from that of an earlier reader, who has missed the events
    that nobody wanted in between.
    """
    stored = {one.id: one for one in present}
    found = []
    for one in saved:
        old = stored.get(one.id)
        goes_on = old is not None and old.interest == one.interest
        since = old.since if old is not None and goes_on else last + 1
        found.append(one._replace(since=since, place=since if old is None else old.place))
    return found


def encode_interest(interest: Interest) -> bytes:
    """Return the stored form of an interest."""
    return _encode(interest)


_decode_interest: Final = msgspec.msgpack.Decoder(Interest).decode


def interest_of(stored: bytes) -> Interest | None:
    """Return a stored interest; None if this version cannot read it: the others stay."""
    try:
        return _decode_interest(stored)
    except CANNOT_READ:
        return None


class AllInterests(NamedTuple):
    """All interests in a store."""

    version: int
    """The number of changes so far."""
    interests: list[StoredInterest]
    unread: int = 0
    """CurrentInterests that this version cannot read."""

    def at(self, now_us: int) -> InterestSet:
        """Return the interests that have not ended at a time."""
        live = [one.interest for one in self.interests if not 0 < one.until_us <= now_us]
        return InterestSet(live, self.version)

    def complete_from(self, wanted: Interest, now_us: int) -> int:
        """Return the number behind which all events of an interest were recorded; a larger one than all if they are not."""
        live = [one for one in self.interests if not 0 < one.until_us <= now_us and one.interest.includes(wanted)]
        found = 0
        for name in wanted.types:
            found = max(found, min((one.since for one in live if name in one.interest.types), default=NEVER))
        return found


NEVER: Final = 2**63 - 1
"""A number that no event has."""


class SaveInterests(Operation):
    """Save interests, and remove others by their ids. CurrentInterests that have ended at ``now_us`` are removed as well.

    This node records the events of each cause that begins after the outcome. Outcome: `AllInterests`, as it is afterwards.
    """

    phase = Phase.EVENTS
    now_us: int
    saved: Sequence[StoredInterest] = ()
    removed: Collection[str] = ()

    def __post_init__(self) -> None:
        self.rows = len(self.saved) + len(self.removed)


class RecordEvents(Operation):
    """Record events that no other operation causes, in the group of what has caused them if there is one. Outcome: None."""

    phase = Phase.EVENTS
    causes = frozenset({WORKER_LOST})
    events: Sequence[NewEvent]

    def __post_init__(self) -> None:
        self.rows = len(self.events)

    def caused(self, outcome: None) -> Sequence[NewEvent]:
        """Return the events."""
        del outcome
        return self.events


class RecordSeries(Operation):
    """Note that a state goes on, and record an event if it has just begun. Outcome: whether it has.

    It has if no node has noted it for ``pause_us``. Some node notes it more often than that.
    """

    phase = Phase.EVENTS
    causes = frozenset({RUN_STRANDED})
    key: bytes
    """The same for all nodes."""
    event: NewEvent
    now_us: int
    pause_us: int

    def __post_init__(self) -> None:
        self.urgent = False

    def caused(self, outcome: bool) -> Iterator[NewEvent]:
        """Yield the event, if the state has begun."""
        if outcome:
            yield self.event


class EndSeries(Operation):
    """Note that a state has ended: the next `RecordSeries` of the key begins another one. Outcome: None."""

    phase = Phase.EVENTS
    key: bytes

    def __post_init__(self) -> None:
        self.urgent = False


class MoveCursor(Operation):
    """Move a cursor forward to a number. Outcome: its place; None if there is no such cursor."""

    phase = Phase.EVENTS
    id: str
    number: int

    def __post_init__(self) -> None:
        self.rows = 1


class NumberEvents(Operation):
    """Number events that have none, in the order of their causes, up to a limit. Outcome: `Numbered`."""

    phase = Phase.EVENTS
    limit: int = 1000

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class Numbered(NamedTuple):
    """The outcome of `NumberEvents`."""

    number: int
    """How many events got a number."""
    more: bool
    """Whether there may be more without one."""


class SweepEvents(Operation):
    """Delete events of before a time, and the oldest ones of more than ``most``; at most ``limit``. Outcome: how many."""

    phase = Phase.EVENTS
    before_us: int
    most: int
    limit: int = 1000

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class ShowInterests(Query[AllInterests], frozen=True):
    """Read all interests."""

    is_small = True


class LogEnds(NamedTuple):
    """The ends of the log."""

    last: int
    """The highest number so far; 0 if there was no event yet."""
    swept: int
    """The highest number that was deleted: a reader that goes on behind a lower one has missed events."""
    changes: int
    """`AllInterests.version`."""


class ShowLogEnds(Query[LogEnds], frozen=True):
    """Read the ends of the log."""

    is_small = True


class ListEvents(PageQuery[Event], frozen=True, kw_only=True):
    """List events behind a number, the oldest first; or with ``backward`` those before one, the newest first."""

    namespace: str = ANY
    """A namespace; empty: all of them."""
    types: frozenset[str] | None = None
    function: str | None = None
    """A name, or a pattern such as ``pay*``."""
    tag: str | None = None
    job: int | None = None
    subject: str | None = None
    backward: bool = False

    def matches(self, event: Event) -> bool:
        """Return whether an event matches the query."""
        return (
            self.namespace in {ANY, event.namespace}
            and (self.types is None or event.type in self.types)
            and (self.function is None or fnmatchcase(event.function, self.function))
            and (self.subject is None or event.subject == self.subject)
            and (self.job is None or event.job == self.job)
            and (self.tag is None or self.tag in event.fields.get("tags", ()))
        )


class LogPart(NamedTuple):
    """The answer to `ReadLog`."""

    ends: LogEnds
    page: Page[Event]
    """Without items if there is no event behind the number."""


class ReadLog(Query[LogPart], frozen=True):
    """Read the events behind a number, and the ends of the log at the same moment: they tell whether events were missed."""

    events: ListEvents
    """Its ``after`` is a number."""


PART: Final = 500
"""Rows that are read at a time."""


async def list_events(
    query: ListEvents, meter: Meter, read: Callable[[int | None, int], Awaitable[Sequence[Event]]]
) -> Page[Event]:
    """Answer a query. ``read`` returns at most a number of events behind a place (None: from the end), in the query's order."""
    return await matching(query, meter, query.matches, read, PART)


async def read_log(query: ReadLog, ends: LogEnds, read: Callable[[ListEvents], Awaitable[Page[Event]]]) -> LogPart:
    """Answer a query; ``read`` answers the one for events, if there are any."""
    return LogPart(ends, await read(query.events) if query.events.after < ends.last else Page([]))


class EventEngine(Protocol):
    """An engine that keeps events."""

    interests: CurrentInterests
    """The interests by which its transactions record events. A `SaveInterests` changes them after its commit."""
