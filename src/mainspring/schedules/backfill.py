"""Backfills inside one transaction: a schedule is fired for past fire times that have not run.

These are times without a row, from before the schedule existed or had its present times, and times that were skipped. Each runs
once: its row shows it. Children that were skipped because of such a time follow its run (``reopening``). Times whose rows may
have been deleted (``retention``) do not run, because they may have run already.

A backfill runs paused schedules and late times, as a user who triggers a schedule does. ``overlap`` decides how many times one
step fires: with ``queue``, as many as may wait; with ``forbid`` and ``replace``, one while no run is under way.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.byte_names import name_text
from mainspring.namespaces import name_of
from mainspring.schedules import consequences
from mainspring.schedules.firing import is_set_aside
from mainspring.schedules.model import Fire, FireState, Overlap
from mainspring.schedules.past_times import Backfilled, past_times
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.reopening import reopen_descendants, split_range
from mainspring.schedules.rules import MAX_QUEUED

if TYPE_CHECKING:
    from mainspring.schedules.changes import ScheduleChanges
    from mainspring.schedules.past_times import Backfill


async def backfill(changes: ScheduleChanges, step: Backfill) -> Backfilled:
    """Fire the next past fire times of a schedule."""
    stored = await changes.read_schedule(step.name)
    error = str(is_set_aside(changes, step.name)) if step.name in changes.set_aside else _refusal(stored, step)
    if stored is None or error:
        return Backfilled([], step.after_us, error=error)
    schedule, state, _ = stored
    await changes.read_unfinished_of(stored)
    steps = past_times(stored, step.after_us, step.until_us)
    times = list(islice((at for at in steps if at is not None), step.limit + 1))
    is_last = len(times) <= step.limit
    times = times[: step.limit]
    await changes.read_fires((schedule.name, at) for at in times)
    is_busy = bool(changes.live(schedule.name)) or state.queued > 0
    room = _room(stored, len(times), is_busy=is_busy)
    rows: list[Fire] = []
    place = step.after_us
    already = forgotten = queued = 0
    for at in times:
        before = changes.fires[schedule.name][at]
        if before is not None and before.state is not FireState.SKIPPED:
            already += 1
        elif at <= state.forgotten_us:
            forgotten += 1
        elif len(rows) == room:
            is_last = False
            break
        else:
            waits = is_busy and schedule.overlap is not Overlap.ALLOW
            row = Fire(
                schedule=schedule.name,
                fire_us=at,
                state=FireState.WAITING if waits else FireState.FIRED,
                operation=step.operation,
                due_us=step.now_us,
                decided_us=step.now_us,
            )
            if before is not None:
                await reopen_descendants(changes, before)
                await split_range(changes, schedule, before)
            row = await consequences.with_children(changes, schedule, row)
            changes.put(row)
            if waits:
                queued += 1
            else:
                changes.start(schedule, row, step.now_us)
                is_busy = True
            rows.append(row)
        place = at
    if rows:
        fired_us = max(state.fired_us, *(row.fire_us for row in rows if row.state is FireState.FIRED), 0)
        changes.save(Stored(schedule, replace(state, queued=state.queued + queued, fired_us=fired_us)))
    return Backfilled(rows, place, is_last, already, forgotten)


def _refusal(stored: Stored | None, step: Backfill) -> str:
    """Return why a backfill cannot go on; empty if it can."""
    if stored is None:
        return "the schedule was removed"
    if stored.schedule.trigger is None:
        return "the schedule has no times of its own any more: it runs after others"
    function = name_text(name_of(stored.schedule.function))
    return "" if step.permits(function) else f"its caller may not run the function {function!r}"


def _room(stored: Stored, number: int, *, is_busy: bool) -> int:
    """Return how many of some times the schedule's overlap rule permits now."""
    match stored.schedule.overlap:
        case Overlap.ALLOW:
            return number
        case Overlap.QUEUE:
            return max(MAX_QUEUED - stored.state.queued, 0)
        case _:
            return 0 if is_busy else 1
