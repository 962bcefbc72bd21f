"""Retention: which rows of histories are deleted, and why a deleted fire time is never decided again.

Rows of a schedule are deleted from the oldest on, up to the first that must stay. A row is deleted if it is finished, if its end
and its fire time are older than the retention, and if no future event of the schedule or of its ancestors can have its fire time
or an earlier one. So these rows stay:

- rows from the first undecided fire time on, of the schedule and of all its ancestors. A stored row shows that a due time was
  decided already, by a removed schedule of this name; and an ancestor that is behind will bring its occasions to its descendants.
- rows from the first unfinished row on, of all these schedules. Its end brings its occasion to the children; and if it waits for
  children, it has to find their rows.

A schedule decides its own fire times in order, and a new specification starts after the newest decided one (``rules.changed``).
A deleted fire time could still come again in three ways: a schedule is added again with one time in the past, it becomes the
child of a schedule that is behind, or a user backfills it. So the store keeps the newest deleted fire time of each name, also
after the schedule was removed. Fire times up to it are skipped (``rules``), with a row that gives the reason, and no backfill
runs them.

The newest rows of each schedule always stay, so that a monthly schedule has a history too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from mainspring.schedules.reconcile import Stored
from mainspring.schedules.store import Forgotten, Writes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.schedules.model import Fire
    from mainspring.schedules.store import ForgetFires, HistoryTables

MIN_ROWS: Final = 100
"""The number of newest rows of each schedule that stay, whatever their age."""
NAMES_PER_STEP: Final = 100
"""Schedules that one transaction processes."""


async def forget(tables: HistoryTables, operation: ForgetFires) -> Forgotten:
    """Delete old rows of some schedules; see `ForgetFires`."""
    names, rows = await tables.oldest(operation.after, operation.before_us, operation.rows)
    old = ripe(rows, operation.before_us, operation.now_us)
    graph = (await tables.catalogue()).graph
    sources = {name: {name, *graph.ancestors(name)} for name in old}
    everyone = {source for some in sources.values() for source in some}
    stored = await tables.schedules(everyone)  # this locks them, so that the reads stay valid
    bounds = dict.fromkeys(everyone, float("inf"))
    for row in await tables.unfinished(everyone):
        bounds[row.schedule] = min(bounds[row.schedule], row.fire_us)
    for name, one in stored.items():
        bounds[name] = min(bounds[name], float("inf") if one.state.next_us is None else one.state.next_us)
    gone: dict[str, list[int]] = {}
    for name, times in old.items():
        if name in stored and stored[name].unread:
            continue  # the write would lose what this version cannot read
        bound = min(bounds[source] for source in sources[name])
        if may_go := [fire_us for fire_us in times if fire_us < bound]:
            gone[name] = may_go
    if gone:
        await tables.forget({name: times[-1] for name, times in gone.items()})
        states = {
            name: Stored(one.schedule, replace(one.state, forgotten_us=gone[name][-1]))
            for name, one in stored.items()
            if name in gone
        }
        await tables.write(Writes(states, [], [], [], respecified=False))
    number = sum(map(len, gone.values()))
    if len(rows) == operation.rows and rows[-1].schedule in gone:
        last = names.index(rows[-1].schedule)  # this schedule may have more old rows
        return Forgotten(number, names[last - 1] if last else operation.after)
    if len(rows) == operation.rows:
        return Forgotten(number, rows[-1].schedule)
    return Forgotten(number, names[-1] if len(names) == NAMES_PER_STEP else None)


def ripe(rows: Iterable[Fire], before_us: int, now_us: int = sys.maxsize) -> dict[str, list[int]]:
    """Return, for each schedule, the fire times of its oldest rows that ended before a time, up to the first that did not.

    ``rows`` are sorted by schedule, and the oldest come first. ``now_us`` as in `ForgetFires`.
    """
    found: dict[str, list[int]] = {}
    young: set[str] = set()
    for row in rows:
        if row.schedule in young:
            continue
        decided_us = row.decided_us if row.decided_us <= now_us else 0
        if row.finished and max(row.fire_us, decided_us, row.ended_us) < before_us:
            found.setdefault(row.schedule, []).append(row.fire_us)
        else:
            young.add(row.schedule)
    return found
