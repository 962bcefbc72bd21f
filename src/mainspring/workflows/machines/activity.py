"""An activity: from its schedule to its only end. Its id may be used again after that.

| phase | event | next phase |
|---|---|---|
| SCHEDULED | ActivityTaskStarted | STARTED |
| SCHEDULED | ActivityTaskTimedOut, ActivityTaskCanceled | CLOSED |
| STARTED | ActivityTaskCompleted, ActivityTaskFailed, ActivityTaskTimedOut, ActivityTaskCanceled | CLOSED |
| SCHEDULED, STARTED | ActivityTaskCancelRequested | the same |
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from mainspring.workflows.history import (
    ActivityTaskCanceled,
    ActivityTaskCancelRequested,
    ActivityTaskCompleted,
    ActivityTaskFailed,
    ActivityTaskScheduled,
    ActivityTaskStarted,
    ActivityTaskTimedOut,
)
from mainspring.workflows.machines.transition import illegal, transition
from mainspring.workflows.state import OpenActivity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.workflows.history import EventBase
    from mainspring.workflows.machines.transition import Folds
    from mainspring.workflows.state import State


class Phase(Enum):
    """The phases of an activity."""

    SCHEDULED = 0
    STARTED = 1
    CLOSED = 2


TRANSITIONS: Final[Mapping[tuple[Phase, type[EventBase]], Phase]] = {
    (Phase.SCHEDULED, ActivityTaskStarted): Phase.STARTED,
    (Phase.SCHEDULED, ActivityTaskTimedOut): Phase.CLOSED,
    (Phase.SCHEDULED, ActivityTaskCanceled): Phase.CLOSED,
    (Phase.SCHEDULED, ActivityTaskCancelRequested): Phase.SCHEDULED,
    (Phase.STARTED, ActivityTaskCompleted): Phase.CLOSED,
    (Phase.STARTED, ActivityTaskFailed): Phase.CLOSED,
    (Phase.STARTED, ActivityTaskTimedOut): Phase.CLOSED,
    (Phase.STARTED, ActivityTaskCanceled): Phase.CLOSED,
    (Phase.STARTED, ActivityTaskCancelRequested): Phase.STARTED,
}

_LATE: Final = "a timeout, a cancel or the close of the run came first"
LATE: Final[Mapping[tuple[Phase, type[EventBase]], str]] = {
    (Phase.CLOSED, ActivityTaskCompleted): _LATE,
    (Phase.CLOSED, ActivityTaskFailed): _LATE,
    (Phase.CLOSED, ActivityTaskTimedOut): _LATE,
    (Phase.CLOSED, ActivityTaskCanceled): _LATE,
}
"""Late but harmless: the rules record no event of these kinds, for these reasons. As events they are illegal."""


def phase(activity: OpenActivity) -> Phase:
    """Return the phase of an open activity."""
    return Phase.STARTED if activity.started else Phase.SCHEDULED


def _scheduled(state: State, event: ActivityTaskScheduled) -> None:
    if event.activity_id in state.activity_ids:
        raise illegal(event, f"uses the id {event.activity_id!r} of an open activity")
    activity = OpenActivity(event.id, event.activity_id, event.function, event.job, event.at_us)
    state.activities[event.id] = activity
    state.activity_ids[event.activity_id] = event.id
    if state.full:
        activity.start_to_close = event.start_to_close
        activity.heartbeat = event.heartbeat
    if event.abandoned:
        activity.abandoned = True
    timed_from_us = event.timed_from_us or event.at_us
    if event.schedule_to_start:
        activity.start_by_us = timed_from_us + int(event.schedule_to_start * 1_000_000)
    if event.schedule_to_close:
        activity.close_by_us = timed_from_us + int(event.schedule_to_close * 1_000_000)
    _set_deadline(state, activity)


def _started(state: State, event: ActivityTaskStarted) -> None:
    activity = _open(state, event.scheduled, event)
    activity.started = event.id
    activity.start_by_us = 0
    if activity.start_to_close:
        activity.end_by_us = event.at_us + int(activity.start_to_close * 1_000_000)
    if activity.heartbeat:
        activity.beat_by_us = event.at_us + int(activity.heartbeat * 1_000_000)
    _set_deadline(state, activity)


def _cancel_requested(state: State, event: ActivityTaskCancelRequested) -> None:
    activity = _open(state, state.activity_ids.get(event.activity_id, 0), event)
    activity.cancel_requested = event.id


def _closed(
    state: State, event: ActivityTaskCompleted | ActivityTaskFailed | ActivityTaskTimedOut | ActivityTaskCanceled
) -> None:
    activity = _open(state, event.scheduled, event)
    if event.started != activity.started:
        raise illegal(event, f"names start {event.started}; the activity was started at {activity.started}")
    del state.activities[activity.scheduled], state.activity_ids[activity.activity_id]
    if state.deadlines:
        state.deadlines.pop(activity.scheduled, None)


def _open(state: State, scheduled: int, event: EventBase) -> OpenActivity:
    activity = state.activities.get(scheduled)
    if activity is None:
        raise illegal(event, f"names activity {scheduled}, which is not open")
    transition(TRANSITIONS, phase(activity), event)
    return activity


def _set_deadline(state: State, activity: OpenActivity) -> None:
    due_us = activity.due_us
    if due_us:
        state.deadlines[activity.scheduled] = due_us
    elif state.deadlines:
        state.deadlines.pop(activity.scheduled, None)


FOLDS: Final[Folds] = {
    ActivityTaskScheduled: _scheduled,
    ActivityTaskStarted: _started,
    ActivityTaskCompleted: _closed,
    ActivityTaskFailed: _closed,
    ActivityTaskTimedOut: _closed,
    ActivityTaskCanceled: _closed,
    ActivityTaskCancelRequested: _cancel_requested,
}
