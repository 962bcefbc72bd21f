"""The event log in memory."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.event_log.store import (
    AskedFor,
    AskEvents,
    Event,
    ListEvents,
    LogEnds,
    Numbered,
    NumberEvents,
    ShowAsked,
    ShowLogEnds,
    SweepEvents,
    list_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.event_log.asked import NewEvent
    from mainspring.storage.engine import Meter, Operation, Page, Query


def append(tables: Tables, events: Sequence[NewEvent]) -> None:
    """Add new events to the log."""
    for one in events:
        tables.last_event += 1
        about = (one.namespace, one.type, one.function, one.subject, one.job)
        tables.events.append(Event(tables.last_event, time.time_ns() // 1000, *about, msgspec.to_builtins(one.fields)))


def _ask(tables: Tables, operation: AskEvents) -> AskedFor:
    tables.asked_version += 1
    ended = [one.id for one in tables.asked_for.values() if 0 < one.until_us <= operation.now_us]
    for name in (*ended, *operation.removed):
        tables.asked_for.pop(name, None)
    for one in operation.saved:
        tables.asked_for[one.id] = one
    asked_for = _asked_for(tables)
    tables.recorded.use(asked_for.at(operation.now_us))
    return asked_for


def _asked_for(tables: Tables) -> AskedFor:
    return AskedFor(tables.asked_version, [one for _, one in sorted(tables.asked_for.items())])


def _number(_: Tables, __: NumberEvents) -> Numbered:
    """Do nothing: events get their numbers as they are written."""
    return Numbered(0, more=False)


def _sweep(tables: Tables, operation: SweepEvents) -> int:
    events, old = tables.events, 0
    for one in events[: operation.limit]:
        if one.at_us >= operation.before_us and one.number > tables.last_event - operation.most:
            break
        old, tables.swept_events = old + 1, one.number
    del events[:old]
    return old


async def _show_asked(tables: Tables, _: ShowAsked, __: Meter) -> AskedFor:
    return _asked_for(tables)


async def _show_ends(tables: Tables, _: ShowLogEnds, __: Meter) -> LogEnds:
    return LogEnds(tables.last_event, tables.swept_events, tables.asked_version)


async def _list(tables: Tables, query: ListEvents, meter: Meter) -> Page[Event]:
    events = tables.events

    async def read(after: int | None, most: int) -> Sequence[Event]:
        if query.backward:
            place = len(events) if after is None else bisect_left(events, after, key=_number_of)
            return events[max(place - most, 0) : place][::-1]
        place = 0 if after is None else bisect_left(events, after + 1, key=_number_of)
        return events[place : place + most]

    return await list_events(query, meter, read)


def _number_of(event: Event) -> int:
    return event.number


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    AskEvents: _ask,
    NumberEvents: _number,
    SweepEvents: _sweep,
}
READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    ShowAsked: _show_asked,
    ShowLogEnds: _show_ends,
    ListEvents: _list,
}
