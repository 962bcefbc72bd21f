"""Periodic repair of states that no single transaction could detect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended
from mainspring.schedules import consequences
from mainspring.schedules.model import Overlap

if TYPE_CHECKING:
    from mainspring.schedules.changes import ScheduleChanges
    from mainspring.schedules.model import Fire
    from mainspring.schedules.store import RepairSchedules

LOST = b'{"type":"Lost","message":"its job is no longer kept, and how it ended was not noted"}'


async def repair(changes: ScheduleChanges, operation: RepairSchedules) -> int:
    """Repair states that no transaction could detect; return how many rows changed."""
    now_us, limit = operation.now_us, operation.limit
    repaired = 0
    for row, job in await changes.tables.joined(limit):
        changes.cache(row)
        now = changes.fires[row.schedule][row.fire_us]
        if now is not None and not now.outcome:
            await consequences.end(changes, now, job or _lost(row, now_us))
            repaired += 1
    for row in await changes.tables.stuck(limit):
        repaired += await _recount(changes, row, now_us)
    for name in sorted(await changes.tables.queued(limit)):
        stored = await changes.read_schedule(name)
        await changes.read_unfinished({name})
        if await consequences.start_waiting(changes, name, now_us):
            repaired += 1
        elif stored is not None and stored.schedule.overlap is Overlap.REPLACE:
            changes.stop(name)
    return repaired


async def _recount(changes: ScheduleChanges, row: Fire, now_us: int) -> bool:
    stored = await changes.read_schedule(row.schedule)
    stored_row = await changes.row(row.schedule, row.fire_us)
    if stored_row is None or stored_row.finished or stored_row.outcome == "" or row.schedule in changes.set_aside:
        return False  # it was finished meanwhile
    counted = replace(stored_row, children_left=0)
    if stored is not None:
        counted = await consequences.with_children(changes, stored.schedule, counted)
    if counted == stored_row:
        return False
    changes.put(counted)
    if counted.finished:
        await consequences.finish(changes, counted, now_us)
    return True


def _lost(row: Fire, now_us: int) -> Ended:
    return Ended(row.job, int(State.FAILED), 0, 0, "", 0, now_us, LOST)
