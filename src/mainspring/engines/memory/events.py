"""The event log in memory."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.engines.memory.jobs import counts_of
from mainspring.event_log import series
from mainspring.event_log.store import (
    AllInterests,
    EndSeries,
    Event,
    ListEvents,
    LogEnds,
    LogPart,
    MoveCursor,
    Numbered,
    NumberEvents,
    ReadLog,
    RecordEvents,
    RecordSeries,
    SaveInterests,
    ShowInterests,
    ShowLogEnds,
    SweepEvents,
    about_of,
    begun,
    list_events,
    read_log,
)
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.event_log.interests import NewEvent
    from mainspring.storage.engine import Meter, Operation, Page, Query


def append(tables: Tables, events: Sequence[NewEvent]) -> None:
    """Add new events to the log."""
    for one in events:
        tables.last_event += 1
        tables.events.append(
            Event(tables.last_event, time.time_ns() // 1000, *about_of(one), msgspec.to_builtins(one.fields))
        )


def count_dead_letters(tables: Tables) -> list[NewEvent]:
    """Count the new dead letters of a group, and return the events of their series."""
    recorded = []
    for function, failed in tables.new_events.take_dead_letters().items():
        if not tables.current_interests.now.wants(series.dead_letters(function)):
            continue
        new, last_us = len(failed), max(failed)
        key = series.dead_letters_key(function)
        found = _count_series(tables, key, new, last_us, series.PAUSE_US)
        number = found.number
        if found.may_have_ended(last_us) and _left(tables, function) <= new:
            number = new
            tables.event_series[key] = new, last_us
        if series.has_event(number, new):
            recorded.append(series.dead_letters(function, number))
    return recorded


def _count_series(tables: Tables, key: bytes, new: int, at_us: int, pause_us: int) -> series.Series:
    number, before_us = tables.event_series.get(key, (0, 0))
    if before_us < at_us - pause_us:
        number = before_us = 0
    tables.event_series[key] = number + new, max(before_us, at_us)
    return series.Series(number + new, before_us)


def _record(_: Tables, __: RecordEvents) -> None:
    """Do nothing: `NewEvents.take` has the events."""


def _record_series(tables: Tables, operation: RecordSeries) -> bool:
    return _count_series(tables, operation.key, 1, operation.now_us, operation.pause_us).number == 1


def _end_series(tables: Tables, operation: EndSeries) -> None:
    tables.event_series.pop(operation.key, None)


def _left(tables: Tables, function: bytes) -> int:
    counts = counts_of(tables, [function], (State.FAILED, State.FAILED))
    return sum(counts.values())


def save(tables: Tables, operation: SaveInterests) -> AllInterests:
    """Save and remove interests; see `SaveInterests`."""
    tables.interest_changes += 1
    ended = [one.id for one in tables.interests.values() if 0 < one.until_us <= operation.now_us]
    for name in (*ended, *operation.removed):
        tables.interests.pop(name, None)
    last = tables.last_event
    saved = begun(operation.saved, tables.interests.values(), last)
    tables.interests |= {one.id: one for one in saved}
    if any(one.is_read and one.since > last for one in saved):
        tables.last_event += 1
    interests = _all_interests(tables)
    tables.current_interests.use(interests.at(operation.now_us))
    return interests


def _move(tables: Tables, operation: MoveCursor) -> int | None:
    stored = tables.interests.get(operation.id)
    if stored is None:
        return None
    moved = stored._replace(place=max(stored.place, operation.number))
    tables.interests[operation.id] = moved
    return moved.place


def _all_interests(tables: Tables) -> AllInterests:
    return AllInterests(tables.interest_changes, [one for _, one in sorted(tables.interests.items())])


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


async def _show_interests(tables: Tables, _: ShowInterests, __: Meter) -> AllInterests:
    return _all_interests(tables)


async def _show_ends(tables: Tables, _: ShowLogEnds, __: Meter) -> LogEnds:
    return LogEnds(tables.last_event, tables.swept_events, tables.interest_changes)


async def _list(tables: Tables, query: ListEvents, meter: Meter) -> Page[Event]:
    events = tables.events

    async def read(after: int | None, most: int) -> Sequence[Event]:
        if query.backward:
            place = len(events) if after is None else bisect_left(events, after, key=_number_of)
            return events[max(place - most, 0) : place][::-1]
        place = 0 if after is None else bisect_left(events, after + 1, key=_number_of)
        return events[place : place + most]

    return await list_events(query, meter, read)


async def _read_log(tables: Tables, query: ReadLog, meter: Meter) -> LogPart:
    ends = await _show_ends(tables, ShowLogEnds(), meter)
    return await read_log(query, ends, lambda events: _list(tables, events, meter))


def _number_of(event: Event) -> int:
    return event.number


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    SaveInterests: save,
    MoveCursor: _move,
    RecordEvents: _record,
    RecordSeries: _record_series,
    EndSeries: _end_series,
    NumberEvents: _number,
    SweepEvents: _sweep,
}
READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    ShowInterests: _show_interests,
    ShowLogEnds: _show_ends,
    ListEvents: _list,
    ReadLog: _read_log,
}
