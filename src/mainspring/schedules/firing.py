"""Fire times inside one transaction: due ones, and those that a user triggers by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import ConflictError
from mainspring.schedules import consequences, rules
from mainspring.schedules.model import Overlap
from mainspring.schedules.store import Fired, Refused

if TYPE_CHECKING:
    from mainspring.schedules.changes import ScheduleChanges
    from mainspring.schedules.model import Fire
    from mainspring.schedules.parents import Graph
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.rules import Step
    from mainspring.schedules.store import FireSchedules, TriggerSchedule


async def fire(changes: ScheduleChanges, operation: FireSchedules) -> dict[str, Fired]:
    """Decide the due fire times of schedules; a schedule that is named twice is decided once."""
    due, now_us = dict(operation.due).items(), operation.now_us
    await changes.read_schedules({name for name, _ in due})
    won = []
    for name, version in due:
        stored = changes.schedules[name]
        if stored is not None and stored.state.version == version:
            won.append(stored)
    await changes.read_unfinished({one.schedule.name for one in won if one.schedule.overlap is not Overlap.ALLOW})
    steps: list[tuple[Stored, Step | None]] = []
    graph = (await changes.tables.catalogue()).graph
    faults = {name: fault for name, version in due if (fault := _fault(changes, name, version))}
    for stored in won:
        try:
            steps.append((stored, decide(changes, graph, stored, now_us, operation.limit)))
        except Exception as error:  # noqa: BLE001 - whatever one schedule's times lead to, the others fire; nothing was changed
            faults[stored.schedule.name] = repr(error)
    await changes.read_fires((row.schedule, row.fire_us) for _, step in steps if step for row in step.fires)
    more: set[str] = set()
    operation.fires = 0
    for stored, step in steps:
        if step is not None:
            operation.fires += len(step.fires)
            await consequences.apply_step(changes, stored, step, now_us)
            if step.more:
                more.add(stored.schedule.name)
    names = {stored.schedule.name for stored in won}
    return {
        name: Fired(False, None, fault=faults[name])
        if name in faults
        else Fired(name in names, changes.schedules[name], name in more)
        for name, _ in due
    }


def _fault(changes: ScheduleChanges, name: str, version: int) -> str:
    """Return the fault of a due schedule; empty if it has none, or if another node was first."""
    stored, fault = changes.set_aside.get(name, (None, ""))
    return fault if stored is not None and stored.state.version == version else ""


def decide(changes: ScheduleChanges, graph: Graph, stored: Stored, now_us: int, limit: int) -> Step | None:
    """Return the rules' decision on the due fire times of a schedule. Read its unfinished rows before, if overlap needs them."""
    schedule, state, _ = stored
    live = bool(changes.live(schedule.name))
    step = rules.decide(schedule, state, now_us, live=live, limit=limit)
    if step is not None and step.fires and step.fires[0].until_us and not graph.skips_with(schedule.name):
        return rules.decide(schedule, state, now_us, live=live, limit=limit, ranges=False)
    return step


async def trigger(changes: ScheduleChanges, operation: TriggerSchedule) -> Fire | Refused | None:
    """Run a schedule by hand."""
    name, now_us = operation.name, operation.now_us
    stored = await changes.read_schedule(name)
    if name in changes.set_aside:
        return Refused(is_set_aside(changes, name))
    if stored is None:
        return None
    await changes.read_unfinished_of(stored)
    graph = (await changes.tables.catalogue()).graph
    relatives = [*graph.ancestors(name), name, *(one.name for one in graph.descendants(name))]
    while True:
        step = rules.trigger_now(stored.schedule, stored.state, now_us, live=bool(changes.live(name)))
        (row,) = step.fires
        await changes.read_fires((one, row.fire_us) for one in relatives)
        taken = any(changes.fires[one][row.fire_us] is not None for one in relatives)
        if not taken and not graph.may_fire_at(name, row.fire_us):
            break
        # An occasion of a related schedule has this time, or an earlier schedule of this name had it.
        now_us = row.fire_us + 1
    await consequences.apply_step(changes, stored, step, now_us)
    return changes.fires[name][row.fire_us]


def is_set_aside(changes: ScheduleChanges, name: str) -> ConflictError:
    """Return the error of a request about a schedule that this node has set aside."""
    _, fault = changes.set_aside[name]
    return ConflictError(f"schedule {name!r} is set aside on this node: {fault}; replace or remove the schedule")
