"""The schedules' unit of work in one transaction: it reads rows, applies the rules, and collects the results for one write.

Due schedules fire; users trigger fire times by hand, and fire past ones that have not run (a backfill). Changes of schedules
are all made, or none of a request. States that no single transaction could detect are repaired periodically. Retention says
which rows of histories are deleted, and why a deleted fire time is never decided again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.errors import ConflictError, MainspringError, NotFoundError, UsageError
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended
from mainspring.jobs.rules import duration_us
from mainspring.namespaces import DEFAULT, name_of, name_text, places_left, split_text
from mainspring.schedules import consequences, rules
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.consequences import ScheduleChanges, reopen_descendants, split_range
from mainspring.schedules.model import Fire, FireState, Origin, Overlap, Reason
from mainspring.schedules.reconcile import Stored, is_unchanged
from mainspring.schedules.rules import MAX_QUEUED, Backfilled, past_times
from mainspring.schedules.store import (
    Declare,
    Fired,
    FireSchedules,
    ForgetFires,
    Forgotten,
    Refused,
    RepairSchedules,
    RingAbsences,
    Saved,
    SaveSchedules,
    TriggerSchedule,
    Writes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.jobs.owners import Notice
    from mainspring.schedules.parents import Graph
    from mainspring.schedules.rules import Backfill, Step
    from mainspring.schedules.store import Change, HistoryTables
    from mainspring.storage.engine import Operation, Plan

KIND: Final = "schedules"
"""The owner of a schedule's jobs."""
FOLLOWS: Final = frozenset({Ended})
WRITES: Final[frozenset[type[Operation]]] = frozenset(
    {SaveSchedules, Declare, RepairSchedules, FireSchedules, TriggerSchedule, ForgetFires, RingAbsences}
)


class ScheduleUnit:
    """The schedules' part of one transaction: see `jobs.slices.Unit`. ``monotonic`` measures fires."""

    def __init__(self, tables: HistoryTables, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tables = tables
        self._monotonic = monotonic
        self._fired: list[FireSchedules] = []
        """Operations whose fires are not written."""
        self._draft = ScheduleChanges(tables)

    async def lock(self, plan: Plan) -> None:
        """Lock nothing: the default for engines that run one transaction at a time."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Apply the consequences of ended jobs for schedules."""
        await consequences.ended(self._draft, [notice for notice in notices if isinstance(notice, Ended)])

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that writes schedules; return a function that returns its outcome."""
        changes = self._draft
        outcome: Any
        match operation:
            case FireSchedules():
                began = self._monotonic()
                outcome = await fire(changes, operation)
                operation.seconds = self._monotonic() - began
                self._fired.append(operation)
            case TriggerSchedule():
                row = await trigger(changes, operation)
                return lambda: changes.now(row) if isinstance(row, Fire) else row  # the row has its job by then
            case RingAbsences():
                await ring_absences(changes, operation)
                outcome = None
            case RepairSchedules():
                outcome = await repair(changes, operation)
            case Declare():
                if operation.digest:
                    await self._tables.declare(operation.app, operation.digest, operation.now_us)
                outcome = []
                for app in (operation.app, *operation.others):
                    outcome += await self._tables.declarations(app)
            case SaveSchedules():
                await (
                    self.flush()
                )  # its checks read earlier changes from the tables, and later operations read its changes there
                outcome = await save(self._draft, operation)
                await self.flush()
            case ForgetFires():
                await self.flush()  # it reads the tables
                outcome = await forget(self._tables, operation)
            case _:
                raise TypeError(f"{type(operation).__name__} is not an operation that writes schedules")
        return lambda: outcome

    async def backfill(self, step: Backfill) -> Backfilled:
        """Run and write a step of a backfill, in the transaction of the operation that it belongs to."""
        changes = self._draft
        done = await backfill(changes, step)
        await self.flush()
        return done._replace(rows=[changes.now(row) for row in done.rows])

    async def flush(self) -> None:
        """Write the changes so far, and start with empty ones."""
        changes, self._draft = self._draft, ScheduleChanges(self._tables)
        began = self._monotonic()
        await changes.flush()
        fired, self._fired = self._fired, []
        for operation in fired:
            operation.seconds += (self._monotonic() - began) / len(fired)


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


async def ring_absences(changes: ScheduleChanges, operation: RingAbsences) -> None:
    """Report schedules that have started no job in time; see `RingAbsences`."""
    names = [*dict.fromkeys(operation.names)]
    await changes.read_schedules(names)
    for name in names:
        stored = changes.schedules[name]
        if stored is not None and 0 < stored.state.late_us <= operation.now_us and name not in changes.reported:
            fire_us = stored.state.late_us - duration_us(stored.schedule.start_within or 0)
            await changes.read_fires([(name, fire_us)])
            changes.add_late(stored)
            changes.save(stored)
    readable = [name for name in names if name not in changes.set_aside]
    await changes.tables.remove_late(readable, operation.now_us)


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
        depth = 0 if operation.act is None else operation.act.depth
        live = bool(changes.live(name))
        step = rules.trigger_now(stored.schedule, stored.state, now_us, live=live, depth=depth)
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


async def backfill(changes: ScheduleChanges, step: Backfill) -> Backfilled:
    """Fire the next past fire times of a schedule."""
    stored = await changes.read_schedule(step.name)
    error = str(is_set_aside(changes, step.name)) if step.name in changes.set_aside else _backfill_refusal(stored, step)
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


def _backfill_refusal(stored: Stored | None, step: Backfill) -> str:
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


CATCH_UP_STEPS = 100
"""Steps of due fire times that are decided before a schedule is changed. A schedule with more has to fire them first."""

MOST: Final = 200_000
"""Schedules of all namespaces but ``default``: each node has all of them in memory."""
MOST_OF_NAMESPACE: Final = 100_000
"""Schedules of one of these namespaces after which it gets no new ones."""


async def save(changes: ScheduleChanges, operation: SaveSchedules) -> Saved:
    """Change schedules."""
    requested, now_us = operation.changes, operation.now_us
    before = await changes.tables.catalogue(lock=True)
    await changes.read_schedules({change.name for change in requested})
    error = _refusal(requested, changes) or _too_many(operation, before, changes) or _misfit(requested, before, now_us)
    if error is None:
        error = await _catch_up(changes, [change.name for change in requested if change.kind == "put"], now_us)
    if error is None:
        for change in requested:
            await _change(changes, change, now_us)
    return Saved({change.name: changes.schedules[change.name] for change in requested}, error)


def _too_many(operation: SaveSchedules, before: Catalogue, changes: ScheduleChanges) -> ConflictError | None:
    """Refuse new schedules above a namespace's share. Those that exist can be changed, also if they are more."""
    requested = operation.changes
    more = Counter(
        split_text(one.name)[0] for one in requested if one.kind == "put" and _now(changes, one.name) is None
    )
    del more[DEFAULT]
    if not more:
        return None
    more.subtract(split_text(one.name)[0] for one in requested if one.kind == "remove")
    if not any(number > 0 for number in more.values()):
        return None
    there = Counter(split_text(name)[0] for name in before.schedules)
    del there[DEFAULT]
    taken = there.total()
    for namespace, number in more.items():
        mine = there[namespace]
        left = min(MOST_OF_NAMESPACE - mine, places_left(MOST, taken, mine, spans=operation.spans))
        if number > max(left, 0):
            return ConflictError(
                f"the namespace {namespace} has {mine} schedules, and may have {max(mine + left, 0)} ({MOST} for all"
                f" namespaces, which have {taken}): remove some, or let one schedule do the work of several"
            )
        taken += number
    return None


def _misfit(requested: Sequence[Change], before: Catalogue, now_us: int) -> UsageError | None:
    after = dict(before.schedules)
    for change in requested:
        if change.schedule is not None:
            after[change.name] = change.schedule
        elif change.kind == "remove":
            after.pop(change.name, None)
    try:
        Catalogue(after).check([change.name for change in requested], now_us)
    except UsageError as error:
        return error
    return None


async def _catch_up(changes: ScheduleChanges, names: Iterable[str], now_us: int) -> ConflictError | None:
    """Decide the due fire times under the current specifications."""
    graph = (await changes.tables.catalogue()).graph
    for name in names:
        for _ in range(CATCH_UP_STEPS):
            stored = changes.schedules[name]
            if stored is None:
                break
            await changes.read_unfinished_of(stored)
            step = decide(changes, graph, stored, now_us, rules.STEP_ROWS)
            if step is None:
                break
            await consequences.apply_step(changes, stored, step, now_us)
            if not step.more:
                break
        else:
            return ConflictError(f"schedule {name!r} has very many fire times to decide first: try again later")
    return None


async def _change(changes: ScheduleChanges, change: Change, now_us: int) -> None:
    stored, schedule = _now(changes, change.name), change.schedule
    match change.kind:
        case "put":
            assert schedule is not None
            changes.respecified = True
            if stored is None:
                origin, declared = change.origin or Origin.CLI, change.declared or b""
                forgotten_us = (await changes.tables.forgotten({change.name})).get(change.name, 0)
                state = rules.created(
                    schedule,
                    now_us,
                    origin=origin,
                    app=change.app,
                    declared=declared,
                    forgotten_us=min(forgotten_us, now_us),
                    first_us=change.first_us,
                )
            else:
                state = rules.changed(stored.schedule, schedule, stored.state, now_us, change.first_us)
                if change.declared is not None:
                    state = replace(state, declared=change.declared)
                if change.app:
                    state = replace(state, origin=Origin.CODE, app=change.app)
            changes.save(Stored(schedule, state))
        case "remove":
            changes.respecified = True
            await changes.read_unfinished({change.name})
            await consequences.drop_waiting(changes, change.name, Reason.REMOVED, now_us)
            changes.remove(change.name)
        case "adopt":
            assert stored is not None
            version = stored.state.version + 1
            # Without a digest, the next declaration of the code applies.
            state = replace(stored.state, version=version, origin=Origin.CODE, app=change.app, declared=b"")
            changes.save(Stored(stored.schedule, state))
        case "pause" | "resume":
            assert stored is not None
            decided = rules.paused if change.kind == "pause" else rules.resumed
            state = decided(stored.state, now_us)
            if state is not stored.state:
                changes.save(Stored(stored.schedule, state))
        case "rewind":
            if stored is not None and change.name not in changes.set_aside:
                state = rules.rewound(stored.schedule, stored.state, now_us, change.before_us)
                if state is not stored.state:
                    changes.save(Stored(stored.schedule, state))


def _now(changes: ScheduleChanges, name: str) -> Stored | None:
    """Return a schedule that was read, also one that is set aside: requests that name it may replace, pause and remove it."""
    stored, _ = changes.set_aside.get(name, (None, ""))
    return changes.schedules[name] or stored


def _refusal(requested: Sequence[Change], changes: ScheduleChanges) -> MainspringError | None:
    if len({change.name for change in requested}) < len(requested):
        return UsageError("a schedule is named twice in one request")
    for change in requested:
        name, now = change.name, _now(changes, change.name)
        if now is None:
            if change.kind == "rewind" or (change.kind == "put" and not change.version and change.before is None):
                continue
            return NotFoundError(f"there is no schedule {name!r}")
        if change.kind == "put" and not change.version and change.before is None:
            return ConflictError(f"there is a schedule {name!r} already")
        is_other = change.version is not None and change.version != now.state.version
        if is_other or (change.before is not None and not is_unchanged(change.before, now)):
            return ConflictError(f"schedule {name!r} was changed meanwhile: read it again")
        if change.kind in {"pause", "resume"} and now.unread:
            return is_set_aside(changes, name)  # the write would lose what this version cannot read
    return None


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
