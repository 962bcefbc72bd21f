"""A skipped fire time runs after all: the descendants that were skipped because of it are undecided again.

Their rows are removed, and their joins are counted anew from the rows of their parents. So the end of the run decides about them
as about any other occasion. A descendant stays skipped if its own rules skipped it, or if another parent did not succeed. If that
parent runs after all, too, the descendant is undecided again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.schedules import triggers
from mainspring.schedules.model import FireState, Reason
from mainspring.schedules.parents import Join

if TYPE_CHECKING:
    from mainspring.schedules.changes import ScheduleChanges
    from mainspring.schedules.model import Fire, Schedule


async def reopen_descendants(changes: ScheduleChanges, row: Fire) -> None:
    """Forget that the descendants of a skipped row were skipped because of it."""
    graph = (await changes.tables.catalogue()).graph
    root = changes.schedules.get(row.schedule)
    family = [one for one in graph.descendants(row.schedule) if graph.takes_part(one.name, row)]
    if not family:
        return
    names = {name for one in family for name in (one.name, *one.parents)}
    await changes.read_schedules(names)
    await changes.read_fires((name, row.fire_us) for name in names)
    undecided = {row.schedule}
    for child in family:  # parents before their children
        if undecided.isdisjoint(child.parents):
            continue
        others = [name for name in child.parents if name not in undecided]
        ended = [name for name in others if _has_ended(changes, name, row.fire_us)]
        is_stopped = any(not _has_succeeded(changes, name, row.fire_us) for name in ended)
        if len(child.parents) > 1:
            changes.put_joins([Join(child.name, row.fire_us, len(child.parents) - len(ended), is_stopped)])
        found = changes.fires[child.name][row.fire_us]
        if found is None:
            undecided.add(child.name)
        elif found.reason is Reason.PARENT and not is_stopped:
            changes.remove_row(found)
            if root is not None:
                await split_range(changes, root.schedule, found)
            undecided.add(child.name)
            _count_again(changes, others, row.fire_us)


async def split_range(changes: ScheduleChanges, schedule: Schedule, row: Fire) -> None:
    """Give the other times of a range a row of their own, if its first time gets another; ``schedule`` has the times."""
    following = triggers.next_after(schedule, row.fire_us) if row.until_us else None
    if following is not None and following <= row.until_us and await changes.row(row.schedule, following) is None:
        changes.put(replace(row, fire_us=following, until_us=row.until_us if following < row.until_us else 0))


def _has_ended(changes: ScheduleChanges, name: str, fire_us: int) -> bool:
    """Return whether a parent has counted at the join of its child; so has a parent whose row was deleted."""
    row, stored = changes.fires[name][fire_us], changes.schedules[name]
    if row is None:
        return stored is not None and fire_us <= stored.state.forgotten_us
    return row.state is FireState.SKIPPED or row.outcome != ""


def _has_succeeded(changes: ScheduleChanges, name: str, fire_us: int) -> bool:
    row = changes.fires[name][fire_us]
    return row is not None and row.outcome == "succeeded"


def _count_again(changes: ScheduleChanges, parents: list[str], fire_us: int) -> None:
    """Let parents that wait for their children, and are not finished, wait for one more."""
    for name in parents:
        row, stored = changes.fires[name][fire_us], changes.schedules[name]
        if row is not None and stored is not None and stored.schedule.wait_for_children and not row.finished:
            changes.put(replace(row, children_left=row.children_left + 1))
