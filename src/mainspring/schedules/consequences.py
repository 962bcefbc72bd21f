"""The consequences of an end: children start and waiting rows follow, in the transaction of the row that ended.

If a skipped fire time runs after all, the descendants that were skipped because of it are undecided again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.jobs.model import State, brief, failure
from mainspring.schedules import rules, triggers
from mainspring.schedules.model import Cause, Fire, FireState, Reason
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.owners import Ended
    from mainspring.schedules.changes import ScheduleChanges
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.rules import Step

# ---- beginnings ----


async def apply_step(changes: ScheduleChanges, stored: Stored, step: Step, now_us: int) -> None:
    """Apply a step of the rules."""
    name = stored.schedule.name
    if step.drop_waiting:
        await drop_waiting(changes, name, Reason.OVERLAP, now_us)
    if step.cancel:
        changes.stop(name)
    changes.save(Stored(stored.schedule, step.state))
    decided = waited = 0
    for row in step.fires:
        before = await changes.row(name, row.fire_us)
        if before is not None and may_run_again(before, row, now_us):
            await reopen_descendants(changes, before)
        elif before is not None:
            decided += 1  # by an earlier schedule of this name, or under its earlier specification
            waited += row.state is FireState.WAITING
            continue
        row = await with_children(changes, stored.schedule, row)
        changes.put(row)
        if row.state is FireState.FIRED:
            changes.start(stored.schedule, row, now_us)
        elif row.state is FireState.SKIPPED:
            await finish(changes, row, now_us)
            await _spread(changes, row, now_us, succeeded=False)
    if waited:
        changes.count_queued(name, -waited)
    if decided:
        await start_waiting(changes, name, now_us)  # the rules have queued rows behind these, but no run is under way


def may_run_again(before: Fire, row: Fire, now_us: int) -> bool:
    """Return whether a row replaces a skipped one of its fire time: that was decided while the clock was ahead of now."""
    return before.state is FireState.SKIPPED and before.decided_us > now_us and row.state is not FireState.SKIPPED


async def drop_waiting(changes: ScheduleChanges, name: str, reason: Reason, now_us: int) -> None:
    """Skip the waiting rows of a schedule."""
    for row in changes.waiting(name):
        dropped = rules.dropped(row, reason, now_us)
        changes.put(dropped)
        await finish(changes, dropped, now_us)
        await _spread(changes, dropped, now_us, succeeded=False)


# ---- ends ----


async def ended(changes: ScheduleChanges, jobs: Sequence[Ended]) -> None:
    """Record the outcomes of runs and apply their consequences."""
    by_id = {job.id: job for job in jobs}
    rows = await changes.tables.of_jobs(sorted(by_id))
    catalogue = await changes.tables.catalogue()
    await changes.read_unfinished({row.schedule for row in rows if catalogue.queues(row.schedule)})
    for row in rows:
        changes.cache(row)
    for row in rows:
        now = changes.fires[row.schedule][row.fire_us]  # the end of an earlier one may have changed it
        if now is not None and not now.outcome:
            await end(changes, now, by_id[row.job])


async def end(changes: ScheduleChanges, row: Fire, job: Ended) -> None:
    """Record the outcome of a run."""
    succeeded = job.state == State.SUCCEEDED
    row = replace(
        row,
        node=changes.tables.node(job.term) if job.term else "",
        worker=job.worker,
        started_us=job.started_us,
        ended_us=job.ended_us,
        outcome=State(job.state).name.lower(),
        error=b"" if succeeded or not job.error else brief(job.error),
        attempt=job.attempt,
    )
    changes.put(row)
    if row.finished:
        await finish(changes, row, job.ended_us)
    await _spread(changes, row, job.ended_us, succeeded=succeeded)


# ---- parents and children ----


async def with_children(changes: ScheduleChanges, schedule: Schedule, row: Fire) -> Fire:
    """Return a row with the number of children that it waits for."""
    if not schedule.wait_for_children or row.state is FireState.SKIPPED:
        return row
    graph = (await changes.tables.catalogue()).graph
    children = [child.name for child in graph.children_of(row)]
    await changes.read_fires((child, row.fire_us) for child in children)
    rows = [(child, changes.fires[child][row.fire_us]) for child in children]
    return graph.with_children(row, {child for child, found in rows if found is not None and found.finished})


async def _spread(changes: ScheduleChanges, row: Fire, now_us: int, *, succeeded: bool) -> None:
    """Apply the success or failure of a row to its children."""
    graph = (await changes.tables.catalogue()).graph
    if not graph.children(row.schedule):
        return
    names = graph.joins(row, succeeded=succeeded)
    await changes.read_joins((name, row.fire_us) for name in names)
    joins = {name: changes.joins[name, row.fire_us] for name in names if (name, row.fire_us) in changes.joins}
    spread = graph.spread(row, joins, now_us, succeeded=succeeded)
    changes.put_joins(spread.joins)
    await changes.read_fires((one.schedule, one.fire_us) for one in spread.stopped)
    for stopped in spread.stopped:
        if changes.fires[stopped.schedule][stopped.fire_us] is None:
            changes.put(stopped)
            await finish(changes, stopped, now_us)
    for child in spread.ready:
        await _start_child(changes, child.name, row, now_us)


async def _start_child(changes: ScheduleChanges, name: str, parent: Fire, now_us: int) -> None:
    stored = await changes.read_schedule(name)
    if name in changes.set_aside and await changes.row(name, parent.fire_us) is None:
        await _miss(changes, name, parent, now_us)
    if stored is None or await changes.row(name, parent.fire_us) is not None:
        return
    await changes.read_unfinished_of(stored)
    live = bool(changes.live(name))
    await apply_step(
        changes, stored, rules.decide_child(stored.schedule, stored.state, parent, now_us, live=live), now_us
    )


async def _miss(changes: ScheduleChanges, name: str, parent: Fire, now_us: int) -> None:
    """Skip the occasion of a child that is set aside here: its history says why it did not run."""
    _, fault = changes.set_aside[name]
    row = Fire(
        schedule=name,
        fire_us=parent.fire_us,
        state=FireState.SKIPPED,
        reason=Reason.MISFIRE,
        cause=Cause.PARENT,
        root=parent.root,
        parent=parent.schedule,
        decided_us=now_us,
        error=failure("SetAside", fault),
    )
    changes.put(row)
    await finish(changes, row, now_us)
    await _spread(changes, row, now_us, succeeded=False)


async def finish(changes: ScheduleChanges, row: Fire, now_us: int) -> None:
    """Count a finished row at its waiting parents, and start the rows that are queued behind runs that are finished now."""
    catalogue = await changes.tables.catalogue()
    finished = [row]
    ancestors = catalogue.graph.ancestors(row.schedule)
    if ancestors:
        await changes.read_fires((name, row.fire_us) for name in ancestors)
        found = {name: changes.fires[name][row.fire_us] for name in ancestors}
        parents = {name: one for name, one in found.items() if one is not None}
        for changed in catalogue.graph.finish(row, parents):
            changes.put(changed)
            if changed.finished:
                finished.append(changed)
    for one in finished:
        if catalogue.queues(one.schedule) and one.state is not FireState.SKIPPED:
            await start_waiting(changes, one.schedule, now_us)


async def start_waiting(changes: ScheduleChanges, name: str, now_us: int) -> bool:
    """Start the oldest waiting row of a schedule unless a run is under way; return whether it started one."""
    stored = await changes.read_schedule(name)
    if stored is None or not stored.state.queued:
        return False
    await changes.read_unfinished({name})
    waiting = changes.waiting(name)
    if changes.live(name) or not waiting:
        return False
    row, state = rules.start_waiting(stored.state, waiting[0], now_us)
    changes.save(Stored(stored.schedule, state))
    changes.put(row)
    changes.start(stored.schedule, row, now_us)
    return True


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
