"""Timers and timeouts: which are due, and their records.

The earliest is applied first; then the state decides which are left. Those of one time come in this order:

| order | timeout | runs from | effect |
|---|---|---|---|
| 1 | execution start-to-close | WorkflowExecutionStarted | the run is closed as TimedOut |
| 2 | decision start-to-close | DecisionTaskStarted | DecisionTaskTimedOut; only in a full history |
| 3 | decision schedule-to-start | DecisionTaskScheduled | DecisionTaskTimedOut |
| 4 | activity schedule-to-close, over all attempts | ActivityTaskScheduled | ActivityTaskTimedOut; the job is deleted |
| 5 | activity schedule-to-start | ActivityTaskScheduled | the same; ActivityTaskStarted if a worker has had the job |
| 6 | activity start-to-close, heartbeat | ActivityTaskStarted | ActivityTaskTimedOut; only in a full history |
| 7 | timer | TimerStarted | TimerFired |
| 8 | begin of another attempt | WorkflowExecutionStarted | DecisionTaskScheduled |
| 9 | trial of a run that is parked after losses | its last loss | it gets a decision task's job; no event |
| 10 | end of a pause | its begin | the run is resumed; no event |

In a lean history a node watches start-to-close and heartbeat of an activity, as it does for every job, and the lease of a
decision.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.workflows import execution, history
from mainspring.workflows.activities import time_out_activity
from mainspring.workflows.draft import ensure_room, retry_parked, schedule_decision, time_out_decision
from mainspring.workflows.history import TimeoutType
from mainspring.workflows.pausing import resume_in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.workflows.draft import Draft
    from mainspring.workflows.model import OpenActivity, State


def unstarted_jobs(state: State, now_us: int) -> list[int]:
    """Return the jobs of activities whose schedule-to-start timeout is due.

    Only their rows show whether a worker has had them: see ``ring``.
    """
    if not state.deadlines:
        return []
    due = (activity for activity in state.activities.values() if 0 < activity.start_by_us <= now_us)
    return [activity.job for activity in due if activity.job]


def ring(draft: Draft, started: Collection[int] = ()) -> None:
    """Record everything that is due at the draft's time, the earliest first.

    ``started`` has those of ``unstarted_jobs`` that a worker has or has had.
    """
    retry_parked(draft)
    resume_in_time(draft)
    while True:
        due = _due(draft.state, draft.now_us)
        if not due:
            return
        for alarm in due:
            if draft.state.status or not ensure_room(draft, 2):
                return
            alarm.apply(draft, alarm, started)


class _Alarm(NamedTuple):
    time_us: int
    order: int
    event: int
    apply: Callable[[Draft, _Alarm, Collection[int]], None]
    timer_id: str = ""


def _due(state: State, now_us: int) -> list[_Alarm]:
    """Return what is due, in order. Only the close of the run ends others before their turn."""
    due: list[_Alarm] = []
    if 0 < state.close_by_us <= now_us:
        due.append(_Alarm(state.close_by_us, 1, 0, _execution))
    if 0 < state.task_by_us <= now_us:
        due.append(_Alarm(state.task_by_us, 2 if state.started else 3, state.scheduled, _decision))
    for scheduled, time_us in state.deadlines.items():
        if time_us <= now_us:
            activity = state.activities[scheduled]
            due.append(_Alarm(time_us, _order(activity), scheduled, _activity))
    if 0 < state.begin_us <= now_us:
        due.append(_Alarm(state.begin_us, 8, 0, _begin))
    fired = (timer for timer in state.timers.values() if timer.fire_us <= now_us)
    due.extend(_Alarm(timer.fire_us, 7, timer.started, _timer, timer.timer_id) for timer in fired)
    due.sort(key=_ORDER)
    return due


def _order(activity: OpenActivity) -> int:
    due_us = activity.due_us
    if due_us == activity.close_by_us:
        return 4
    return 5 if due_us == activity.start_by_us else 6


def _execution(draft: Draft, alarm: _Alarm, started: Collection[int]) -> None:
    del alarm, started
    execution.time_out_run(draft)


def _decision(draft: Draft, alarm: _Alarm, started: Collection[int]) -> None:
    del alarm, started
    time_out_decision(draft, TimeoutType.START_TO_CLOSE if draft.state.started else TimeoutType.SCHEDULE_TO_START)


def _activity(draft: Draft, alarm: _Alarm, started: Collection[int]) -> None:
    activity = draft.state.activities[alarm.event]
    if alarm.order == 5 and activity.job in started:
        draft.record(history.ActivityTaskStarted, scheduled=activity.scheduled)
        return
    timeout = _TIMEOUT_TYPES[alarm.order]
    if alarm.order == 6 and activity.end_by_us != alarm.time_us:
        timeout = TimeoutType.HEARTBEAT
    draft.withdraw(activity.job)
    time_out_activity(draft, activity, timeout)
    schedule_decision(draft)


def _timer(draft: Draft, alarm: _Alarm, started: Collection[int]) -> None:
    del started
    draft.record(history.TimerFired, timer_id=alarm.timer_id, started=alarm.event)
    schedule_decision(draft)


def _begin(draft: Draft, alarm: _Alarm, started: Collection[int]) -> None:
    del alarm, started
    schedule_decision(draft)


_TIMEOUT_TYPES: Final = {
    4: TimeoutType.SCHEDULE_TO_CLOSE,
    5: TimeoutType.SCHEDULE_TO_START,
    6: TimeoutType.START_TO_CLOSE,
}
_ORDER: Final = attrgetter("time_us", "order", "event")
