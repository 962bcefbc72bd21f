"""Changes of schedules inside one transaction: all of a request, or none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from mainspring.errors import ConflictError, MainspringError, NotFoundError, UsageError
from mainspring.namespaces import DEFAULT, places_left, split_text
from mainspring.schedules import consequences, rules
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.firing import decide, is_set_aside
from mainspring.schedules.model import Origin, Reason
from mainspring.schedules.reconcile import Stored, is_unchanged
from mainspring.schedules.store import Saved

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.schedules.changes import ScheduleChanges
    from mainspring.schedules.store import Change, SaveSchedules

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
