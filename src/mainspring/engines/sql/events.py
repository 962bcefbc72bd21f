"""The event log: interests, events, and the ends of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sql.statements import LARGEST
from mainspring.event_log import series
from mainspring.event_log.store import (
    AllInterests,
    EndSeries,
    Event,
    ListEvents,
    LogEnds,
    LogPart,
    MoveCursor,
    ReadLog,
    RecordEvents,
    RecordSeries,
    SaveInterests,
    ShowInterests,
    ShowLogEnds,
    StoredInterest,
    SweepEvents,
    begun,
    encode_interest,
    event_of,
    interest_of,
    list_events,
    numbers_in,
    read_log,
    row_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction
    from mainspring.event_log.interests import NewEvent
    from mainspring.storage.engine import Meter, Page


async def count_dead_letters(tx: Any, left: Callable[[Any, bytes], Awaitable[int]]) -> list[NewEvent]:
    """Count the new dead letters of a group, and return the events of their series.

    ``left`` returns the number of a function's dead letters in the store. Call it last in a group: on a shared store, the rows
    are locked from here on. They are locked in their order, so that groups do not deadlock.
    """
    recorded = []
    for function, failed in sorted(tx.events.take_dead_letters().items()):
        new, last_us = len(failed), max(failed)
        if not tx.events.interests.wants(series.dead_letters(function)):
            continue
        key = series.dead_letters_key(function)
        found = await _count_series(tx.sql, key, new, last_us, series.PAUSE_US)
        number = found.number
        if found.may_have_ended(last_us) and await left(tx, function) <= new:
            number = new
            await tx.sql.execute("begin_series", key, new)
        if series.has_event(number, new):
            recorded.append(series.dead_letters(function, number))
    return recorded


async def _count_series(sql: Statements, key: bytes, new: int, at_us: int, pause_us: int) -> series.Series:
    return series.Series(*await sql.first("count_series", key, new, at_us, at_us - pause_us))


async def append(sql: Statements, events: Sequence[NewEvent]) -> bool:
    """Write new events, in their order, and return whether they have got their numbers.

    Call it last in a group: on a shared store no other transaction numbers events from here on. If one does at the moment, or if
    earlier events still have no numbers, these wait with them for `NumberEvents`.
    """
    place = await sql.first("next_event")
    if place is None:
        await append_unnumbered(sql, events)
        return False
    number, at_us = place
    rows = [(at, at_us, *row_of(event)) for at, event in enumerate(events, number)]
    await sql.many("append_numbered_events", rows)
    return True


async def append_unnumbered(sql: Statements, events: Sequence[NewEvent]) -> None:
    """Write new events of a shared store, for `NumberEvents`."""
    await sql.many("append_events", map(row_of, events))


async def save(tx: Transaction, operations: Sequence[SaveInterests]) -> list[AllInterests]:
    """Save and remove interests; see `SaveInterests`."""
    sql = tx.sql
    for one in operations:
        await sql.execute("count_interest_changes")  # on a shared store, the row is locked from here on
        await sql.execute("remove_ended_interests", one.now_us)
        await sql.execute("remove_interests", sql.among(one.removed))
        if one.saved:
            present, last = (await all_interests(sql)).interests, (await ends(sql)).last
            saved = begun([*{row.id: row for row in one.saved}.values()], present, last)
            await sql.many(
                "save_interests",
                [(row.id, row.until_us, encode_interest(row.interest), row.since, row.place) for row in saved],
            )
            if any(row.is_read and row.since > last for row in saved):
                await sql.execute("leave_out_number")
    new = await all_interests(sql)
    interests = new.at(max(one.now_us for one in operations))
    tx.commits.append(lambda: tx.interests.use(interests))
    return [new] * len(operations)


async def all_interests(sql: Statements) -> AllInterests:
    """Return all interests."""
    log_ends = await ends(sql)
    rows = await sql.fetch("interests")
    found = [(interest_of(stored), name, until_us, since, place) for name, until_us, stored, since, place in rows]
    readable = [StoredInterest(name, one, *more) for one, name, *more in found if one is not None]
    return AllInterests(log_ends.changes, readable, len(found) - len(readable))


async def _move(tx: Transaction, operations: Sequence[MoveCursor]) -> list[int | None]:
    places: list[int | None] = []
    for one in operations:
        await tx.sql.execute("move_cursor", one.id, one.number)
        row = await tx.sql.first("cursor_place", one.id)
        places.append(None if row is None else row[0])
    return places


async def ends(sql: Statements) -> LogEnds:
    """Return the ends of the log."""
    return LogEnds(*await sql.first("log_ends"))


async def _record(_: Transaction, operations: Sequence[RecordEvents]) -> list[None]:
    return [None] * len(operations)  # `NewEvents.take` has the events


async def _record_series(tx: Transaction, operations: Sequence[RecordSeries]) -> list[bool]:
    noted = {one.key: one for one in operations}
    has_begun = {}
    for key, one in sorted(noted.items()):
        has_begun[key] = (await _count_series(tx.sql, key, 1, one.now_us, one.pause_us)).number == 1
    return [noted[one.key] is one and has_begun[one.key] for one in operations]


async def _end_series(tx: Transaction, operations: Sequence[EndSeries]) -> list[None]:
    for key in sorted({one.key for one in operations}):
        await tx.sql.execute("end_series", key)
    return [None] * len(operations)


async def _sweep(tx: Transaction, operations: Sequence[SweepEvents]) -> list[int]:
    outcomes = []
    for one in operations:
        row = await tx.sql.first("swept_until", one.before_us, one.most, one.limit)
        until = 0 if row is None or row[0] is None else row[0]
        if until:
            await tx.sql.execute("note_swept", until)
        outcomes.append(await tx.sql.execute("sweep_events", until) if until else 0)
    return outcomes


async def _show_interests(tx: Transaction, _: ShowInterests, __: Meter) -> AllInterests:
    return await all_interests(tx.sql)


async def _show_ends(tx: Transaction, _: ShowLogEnds, __: Meter) -> LogEnds:
    return await ends(tx.sql)


async def _list(tx: Transaction, query: ListEvents, meter: Meter) -> Page[Event]:
    if query.backward:
        name, outside = ("events_backward" if query.job is None else "events_of_job_backward"), LARGEST
    else:
        name, outside = ("events" if query.job is None else "events_of_job"), 0
    which = () if query.job is None else (query.job,)

    async def read(after: int | None, most: int) -> Sequence[Event]:
        rows = await tx.sql.fetch(name, outside if after is None else after, most, *which)
        return [event_of(row) for row in rows]

    page = await list_events(query, meter, read)
    await tx.load_nodes(number for event in page.items for number in numbers_in(event))
    return page


async def _read_log(tx: Transaction, query: ReadLog, meter: Meter) -> LogPart:
    return await read_log(query, await ends(tx.sql), lambda events: _list(tx, events, meter))


HANDLERS: Final[Handlers] = {
    SaveInterests: save,
    MoveCursor: _move,
    RecordEvents: _record,
    RecordSeries: _record_series,
    EndSeries: _end_series,
    SweepEvents: _sweep,
}
"""Each engine has its own of `NumberEvents`."""
READERS: Final[Readers] = {
    ShowInterests: _show_interests,
    ShowLogEnds: _show_ends,
    ListEvents: _list,
    ReadLog: _read_log,
}
