"""What follows from what: a row ends, a child starts, a waiting row follows, all in the transaction of the first of them.

The way is always the same: a row is put into the ``Draft``; its success or failure is spread to its children; once it has become
finished, that counts at its parents and lets waiting rows start. Each of these may lead to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.jobs.model import State
from mainspring.schedules import rules
from mainspring.schedules.model import Fire, FireState, Reason
from mainspring.schedules.reconcile import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.owners import Ended
    from mainspring.schedules.draft import Draft
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.rules import Step


# ---- beginnings ----


async def take(draft: Draft, stored: Stored, step: Step, now_us: int) -> None:
    """Carry out a step of the rules."""
    name = stored.schedule.name
    if step.drop_waiting:
        await drop_waiting(draft, name, Reason.OVERLAP, now_us)
    if step.cancel:
        draft.stop(name)
    draft.save(Stored(stored.schedule, step.state))
    decided = waited = 0
    for row in step.fires:
        if await draft.row(name, row.fire_us) is not None:
            decided += 1  # for a schedule of this name that was removed or had other times
            waited += row.state is FireState.WAITING
            continue
        row = await with_children(draft, stored.schedule, row)
        draft.put(row)
        if row.state is FireState.FIRED:
            draft.start(stored.schedule, row, now_us)
        elif row.state is FireState.SKIPPED:
            await finish(draft, row, now_us)
            await _spread(draft, row, now_us, succeeded=False)
    if waited:
        draft.count_queued(name, -waited)
    if decided:
        await start_waiting(draft, name, now_us)  # what the rules let wait behind those waits behind nothing


async def drop_waiting(draft: Draft, name: str, reason: Reason, now_us: int) -> None:
    """Skip the rows of a schedule that wait."""
    for row in draft.waiting(name):
        dropped = rules.dropped(row, reason, now_us)
        draft.put(dropped)
        await finish(draft, dropped, now_us)
        await _spread(draft, dropped, now_us, succeeded=False)


# ---- ends ----


async def ended(draft: Draft, jobs: Sequence[Ended]) -> None:
    """Note how runs have ended, and do all that follows from it."""
    by_id = {job.id: job for job in jobs}
    rows = await draft.tables.of_jobs(sorted(by_id))
    catalogue = await draft.tables.catalogue()
    await draft.read_unfinished({row.schedule for row in rows if catalogue.queues(row.schedule)})
    for row in rows:
        draft.know(row)
    for row in rows:
        now = draft.fires[row.schedule][row.fire_us]  # an earlier one of these may have counted at it
        if now is not None and not now.outcome:
            await end(draft, now, by_id[row.job])


async def end(draft: Draft, row: Fire, job: Ended) -> None:
    """Note how a run has ended."""
    succeeded = job.state == State.SUCCEEDED
    row = replace(
        row,
        node=draft.tables.node(job.term) if job.term else "",
        worker=job.worker,
        started_us=job.started_us,
        ended_us=job.ended_us,
        outcome=State(job.state).name.lower(),
        error=b"" if succeeded else job.error,
        attempt=job.attempt,
    )
    draft.put(row)
    if row.finished:
        await finish(draft, row, job.ended_us)
    await _spread(draft, row, job.ended_us, succeeded=succeeded)


# ---- parents and children ----


async def with_children(draft: Draft, schedule: Schedule, row: Fire) -> Fire:
    """Return a row with the number of children that it has to wait for."""
    if not schedule.wait_for_children or row.state is FireState.SKIPPED:
        return row
    graph = (await draft.tables.catalogue()).graph
    children = [child.name for child in graph.children_of(row)]
    await draft.read_fires((child, row.fire_us) for child in children)
    rows = [(child, draft.fires[child][row.fire_us]) for child in children]
    return graph.with_children(row, {child for child, found in rows if found is not None and found.finished})


async def _spread(draft: Draft, row: Fire, now_us: int, *, succeeded: bool) -> None:
    """Tell the children of a row how it went."""
    graph = (await draft.tables.catalogue()).graph
    if not graph.children(row.schedule):
        return
    names = graph.joins(row, succeeded=succeeded)
    await draft.read_joins((name, row.fire_us) for name in names)
    known = {name: draft.joins[name, row.fire_us] for name in names if (name, row.fire_us) in draft.joins}
    spread = graph.spread(row, known, now_us, succeeded=succeeded)
    draft.put_joins(spread.joins)
    await draft.read_fires((one.schedule, one.fire_us) for one in spread.stopped)
    for stopped in spread.stopped:
        if draft.fires[stopped.schedule][stopped.fire_us] is None:
            draft.put(stopped)
            await finish(draft, stopped, now_us)
    for child in spread.ready:
        await _start_child(draft, child.name, row, now_us)


async def _start_child(draft: Draft, name: str, parent: Fire, now_us: int) -> None:
    stored = await draft.read_schedule(name)
    if stored is None or await draft.row(name, parent.fire_us) is not None:
        return
    await draft.read_unfinished_of(stored)
    live = bool(draft.live(name))
    await take(draft, stored, rules.decide_child(stored.schedule, stored.state, parent, now_us, live=live), now_us)


async def finish(draft: Draft, row: Fire, now_us: int) -> None:
    """Count a finished row at those that wait for it, and start what waits behind those that are finished thereby."""
    catalogue = await draft.tables.catalogue()
    finished = [row]
    ancestors = catalogue.graph.ancestors(row.schedule)
    if ancestors:
        await draft.read_fires((name, row.fire_us) for name in ancestors)
        found = {name: draft.fires[name][row.fire_us] for name in ancestors}
        parents = {name: one for name, one in found.items() if one is not None}
        for changed in catalogue.graph.finish(row, parents):
            draft.put(changed)
            if changed.finished:
                finished.append(changed)
    for one in finished:
        if catalogue.queues(one.schedule) and one.state is not FireState.SKIPPED:
            await start_waiting(draft, one.schedule, now_us)


async def start_waiting(draft: Draft, name: str, now_us: int) -> bool:
    """Start the oldest waiting row of a schedule, if no run of it is under way."""
    stored = await draft.read_schedule(name)
    if stored is None or not stored.state.queued:
        return False
    await draft.read_unfinished({name})
    waiting = draft.waiting(name)
    if draft.live(name) or not waiting:
        return False
    row, state = rules.start_waiting(stored.state, waiting[0], now_us)
    draft.save(Stored(stored.schedule, state))
    draft.put(row)
    draft.start(stored.schedule, row, now_us)
    return True
