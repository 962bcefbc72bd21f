"""Which rows of the schedules' histories may go, and why no fire time ever comes again for it.

Of each schedule, the oldest rows go, one after the other, up to the first that has to stay. A row goes where it is finished,
where that and its fire time are long ago, and where nothing that may still happen, in the schedule or in those that it runs
after, has its fire time or an earlier one. So rows stay

- from the first fire time on that is not decided, of the schedule and of its parents, theirs, and so on. Where something is due,
  a row that is there says that it was decided, for a schedule of this name that was removed; and a parent that is behind brings
  its occasions with it.
- from the first unfinished row on, of all these: its end brings its occasion to the children, and where it waits for them, it has
  to find theirs.

A schedule decides its own fire times in order, and new times of it begin behind the newest one (``rules.changed``). That leaves
two ways in which a fire time that was forgotten could come again: a schedule is added anew with one time in the past, or it
becomes the child of another one, which is behind. For both, the store keeps the newest fire time that was forgotten of each name,
also when the schedule is gone. Whatever comes at or below it is skipped (``rules``), with a row that says so.

The newest rows of each stay in any case: what runs once a month has a history too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from mainspring.schedules.reconcile import Stored
from mainspring.schedules.store import Forgotten, Writes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.schedules.model import Fire
    from mainspring.schedules.store import ForgetFires, HistoryTables

KEPT: Final = 100
"""So many of the newest rows of each schedule stay, however old they are."""
NAMES: Final = 100
"""Schedules that are looked at in one transaction."""


async def forget(tables: HistoryTables, operation: ForgetFires) -> Forgotten:
    """Drop the rows of some schedules that may go; see ``ForgetFires``."""
    names, rows = await tables.oldest(operation.after, operation.before_us, operation.rows)
    old = ripe(rows, operation.before_us)
    graph = (await tables.catalogue()).graph
    sources = {name: {name, *graph.ancestors(name)} for name in old}
    everyone = {source for some in sources.values() for source in some}
    stored = await tables.schedules(everyone)  # which locks them: what is read of them stays so
    bounds = dict.fromkeys(everyone, float("inf"))
    for row in await tables.unfinished(everyone):
        bounds[row.schedule] = min(bounds[row.schedule], row.fire_us)
    for name, one in stored.items():
        bounds[name] = min(bounds[name], float("inf") if one.state.next_us is None else one.state.next_us)
    gone: dict[str, list[int]] = {}
    for name, times in old.items():
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
        last = names.index(rows[-1].schedule)  # there may be more of it
        return Forgotten(number, names[last - 1] if last else operation.after)
    if len(rows) == operation.rows:
        return Forgotten(number, rows[-1].schedule)
    return Forgotten(number, names[-1] if len(names) == NAMES else None)


def ripe(rows: Iterable[Fire], before_us: int) -> dict[str, list[int]]:
    """Return, of the oldest rows of schedules, the fire times of those that ended before a time, up to the first that did not.

    ``rows`` are those of one schedule after the other, the oldest first.
    """
    found: dict[str, list[int]] = {}
    young: set[str] = set()
    for row in rows:
        if row.schedule in young:
            continue
        if row.finished and max(row.fire_us, row.decided_us, row.ended_us) < before_us:
            found.setdefault(row.schedule, []).append(row.fire_us)
        else:
            young.add(row.schedule)
    return found
