"""The activities, timers and local steps for which a run waits, with SWF's decisions about them.

| decision | fails if | cause |
|---|---|---|
| ScheduleActivityTask | an open activity has the id | ``ACTIVITY_ID_ALREADY_IN_USE`` |
| ScheduleActivityTask | 1,000 activities are open | ``OPEN_ACTIVITIES_LIMIT_EXCEEDED`` |
| RequestCancelActivityTask | no open activity has the id | ``ACTIVITY_ID_UNKNOWN`` |
| StartTimer | an open timer has the id | ``TIMER_ID_ALREADY_IN_USE`` |
| StartTimer | 1,000 timers are open | ``OPEN_TIMERS_LIMIT_EXCEEDED`` |
| CancelTimer | no open timer has the id | ``TIMER_ID_UNKNOWN`` |

SWF's other causes depend on registered types, which only SWF's face has.

A lean history records the end of an activity's job. ``started`` means that a worker has had it.

| end of the job | events |
|---|---|
| succeeded | ActivityTaskStarted, ActivityTaskCompleted; a result after a cancel request counts |
| failed | ActivityTaskStarted, ActivityTaskFailed |
| failed by ``Timeout`` or ``WorkerLost`` | ActivityTaskStarted, ActivityTaskTimedOut (START_TO_CLOSE or HEARTBEAT) |
| cancelled, started | ActivityTaskStarted, ActivityTaskCanceled |
| cancelled, not started | ActivityTaskCanceled with ``started`` 0 |
| expired | ActivityTaskTimedOut (SCHEDULE_TO_START), with ``started`` 0 unless there was an attempt |
| of a closed activity or a closed run | none: late but harmless, a timeout or a close came first |

The next attempt of a local step is a timer, too, without a decision: ``number`` is that of the step, and ``control`` the number
of its attempts. It precedes DecisionTaskCompleted, so that workers of earlier versions do not take it for a command of the code.

A step's result is a marker. It is recorded before its decision ends, so that it precedes DecisionTaskCompleted, whether it was
recorded by itself or together with the decision. Side effects and patches are decisions, and follow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import JobFailure, decode_failure
from mainspring.jobs.model import State as JobState
from mainspring.workflows import history, hold_calls
from mainspring.workflows.draft import ensure_room, schedule_decision
from mainspring.workflows.history import STEP_TIMER, MarkerName, TimeoutType
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.owners import Ended
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.model import OpenActivity
    from mainspring.workflows.requests import (
        CancelTimer,
        Completion,
        RecordMarker,
        RequestCancelActivityTask,
        ScheduleActivityTask,
        StartTimer,
        StepResult,
        StepRetry,
    )

# ---- decisions ----


def schedule_activity(draft: Draft, decision: ScheduleActivityTask, completed: int) -> None:
    """Schedule an activity; in a lean history a new job does it."""
    state = draft.state
    activity_id = decision.activity_id
    if activity_id in state.activity_ids:
        cause = "ACTIVITY_ID_ALREADY_IN_USE"
    elif len(state.activities) >= draft.limits.open_activities:
        cause = "OPEN_ACTIVITIES_LIMIT_EXCEEDED"
    else:
        job = 0 if state.full else draft.next_id()
        event = draft.record(
            history.ActivityTaskScheduled,
            decision_completed=completed,
            activity_id=activity_id,
            function=decision.function,
            version=decision.version,
            input=decision.input,
            task_list=decision.task_list,
            task_priority=decision.task_priority,
            schedule_to_start=decision.schedule_to_start,
            schedule_to_close=decision.schedule_to_close,
            start_to_close=decision.start_to_close,
            heartbeat=decision.heartbeat,
            control=decision.control,
            job=job,
            options=decision.options,
            key=decision.key,
            number=decision.number,
            abandoned=decision.abandoned,
            timed_from_us=draft.timed_from_us,
            digest=decision.digest,
        )
        if job:
            draft.submitted[job] = event
        return
    draft.record(
        history.ScheduleActivityTaskFailed,
        decision_completed=completed,
        activity_id=activity_id,
        function=decision.function,
        version=decision.version,
        cause=cause,
    )


def request_cancel_activity(draft: Draft, decision: RequestCancelActivityTask, completed: int) -> None:
    """Request the cancellation of an activity. An unstarted one is cancelled after the list of decisions."""
    activity_id = decision.activity_id
    if activity_id in draft.state.activity_ids:
        draft.record(history.ActivityTaskCancelRequested, decision_completed=completed, activity_id=activity_id)
    else:
        draft.record(
            history.RequestCancelActivityTaskFailed,
            decision_completed=completed,
            activity_id=activity_id,
            cause="ACTIVITY_ID_UNKNOWN",
        )


def finish_cancel(draft: Draft, activity_id: str) -> None:
    """After a list of decisions: cancel an unstarted activity. In a lean history only the job's row shows whether it is one."""
    state = draft.state
    activity = state.activities.get(state.activity_ids.get(activity_id, 0))
    if activity is None or not activity.cancel_requested or activity.started:
        return
    if state.full or activity.job in draft.submitted:
        draft.withdraw(activity.job)
        _cancel(draft, activity)
    elif activity.scheduled not in draft.cancels:
        draft.cancels.append(activity.scheduled)


def canceled_before_start(draft: Draft, scheduled: int) -> None:
    """Record that an activity of ``Draft.cancels`` was cancelled, because no worker has its job: the caller deletes that."""
    activity = draft.state.activities.get(scheduled)
    if activity is not None and ensure_room(draft, 2):
        _cancel(draft, activity)
        schedule_decision(draft)


def _cancel(draft: Draft, activity: OpenActivity) -> None:
    draft.record(
        history.ActivityTaskCanceled,
        scheduled=activity.scheduled,
        started=0,
        cancel_requested=activity.cancel_requested,
    )


# ---- ends ----


def activity_ended(draft: Draft, scheduled: int, ended: Ended) -> bool:
    """Record the end of an activity's job; return False if it is late but harmless."""
    state = draft.state
    activity = state.activities.get(scheduled)
    if activity is None or activity.job != ended.id or not ensure_room(draft, 3):
        return False
    before = state.last
    started = activity.started
    if not started and (ended.term or ended.attempt):
        attempt = ended.attempt or 1
        started = draft.record(
            history.ActivityTaskStarted, scheduled=scheduled, identity=ended.worker, attempt=attempt
        ).id
    _ENDS[ended.state](draft, activity, started, ended)
    schedule_decision(draft)
    draft.brought[ended.id] = state.last - before
    return True


def _completed(draft: Draft, activity: OpenActivity, started: int, ended: Ended) -> None:
    draft.record(history.ActivityTaskCompleted, scheduled=activity.scheduled, started=started, result=ended.result)


def _failed(draft: Draft, activity: OpenActivity, started: int, ended: Ended) -> None:
    failed = decode_failure(ended.error) if ended.error else JobFailure("", "")
    # A task's own exception may have the name Timeout; the node's have no traceback.
    timeout = _TIMEOUTS.get(failed.type) if failed.traceback is None else None
    if timeout is None:
        reason = failed.type
        draft.record(
            history.ActivityTaskFailed,
            scheduled=activity.scheduled,
            started=started,
            reason=reason,
            details=ended.error,
        )
    else:
        time_out_activity(draft, activity, timeout, ended.error)


def _canceled(draft: Draft, activity: OpenActivity, started: int, ended: Ended) -> None:
    draft.record(
        history.ActivityTaskCanceled,
        scheduled=activity.scheduled,
        started=started,
        cancel_requested=activity.cancel_requested,
        details=ended.error,
    )


def _expired(draft: Draft, activity: OpenActivity, started: int, ended: Ended) -> None:
    del started, ended
    time_out_activity(draft, activity, TimeoutType.SCHEDULE_TO_START)


def time_out_activity(draft: Draft, activity: OpenActivity, timeout: TimeoutType, details: bytes = b"") -> None:
    """Record that an activity did not start or end in time."""
    draft.record(
        history.ActivityTaskTimedOut,
        scheduled=activity.scheduled,
        started=activity.started,
        timeout=timeout,
        details=details,
    )


_TIMEOUTS: Final = {"Timeout": TimeoutType.START_TO_CLOSE, "WorkerLost": TimeoutType.HEARTBEAT}
"""The failures of jobs that are timeouts: the node's own, and the loss of the worker after the last attempt."""

_ENDS: Final[dict[int, Callable[[Draft, OpenActivity, int, Ended], None]]] = {
    JobState.SUCCEEDED: _completed,
    JobState.FAILED: _failed,
    JobState.CANCELLED: _canceled,
    JobState.EXPIRED: _expired,
}


def start_timer(draft: Draft, decision: StartTimer, completed: int) -> None:
    """Start a timer."""
    timers = draft.state.timers
    timer_id = decision.timer_id
    if timer_id in timers:
        cause = "TIMER_ID_ALREADY_IN_USE"
    elif len(timers) >= draft.limits.open_timers:
        cause = "OPEN_TIMERS_LIMIT_EXCEEDED"
    else:
        draft.record(
            history.TimerStarted,
            decision_completed=completed,
            timer_id=timer_id,
            start_to_fire=decision.start_to_fire,
            control=decision.control,
            fire_us=draft.now_us + int(decision.start_to_fire * 1_000_000),
            number=decision.number,
        )
        return
    draft.record(history.StartTimerFailed, decision_completed=completed, timer_id=timer_id, cause=cause)


def cancel_timer(draft: Draft, decision: CancelTimer, completed: int) -> None:
    """Cancel a timer."""
    timer = draft.state.timers.get(decision.timer_id)
    if timer is None:
        draft.record(
            history.CancelTimerFailed,
            decision_completed=completed,
            timer_id=decision.timer_id,
            cause="TIMER_ID_UNKNOWN",
        )
    else:
        draft.record(
            history.TimerCanceled, decision_completed=completed, timer_id=decision.timer_id, started=timer.started
        )


def wait_for_attempt(draft: Draft, retry: StepRetry) -> None:
    """Start the timer of a step's next attempt, in place of one that is still open."""
    timer_id = f"{STEP_TIMER}{retry.number}"
    earlier = draft.state.timers.get(timer_id)
    if earlier is not None:
        draft.record(history.TimerCanceled, decision_completed=0, timer_id=timer_id, started=earlier.started)
    seconds = min(retry.wait_us / 1_000_000, YEAR)
    draft.record(
        history.TimerStarted,
        decision_completed=0,
        timer_id=timer_id,
        start_to_fire=seconds,
        control=str(retry.attempt),
        fire_us=draft.now_us + int(seconds * 1_000_000),
        number=retry.number,
    )


def record_marker(draft: Draft, decision: RecordMarker, completed: int) -> None:
    """Record a marker of a decision."""
    draft.record(
        history.MarkerRecorded,
        decision_completed=completed,
        name=decision.name,
        details=decision.details,
        native=decision.native,
        number=decision.number,
        digest=decision.digest,
        failed=decision.failed,
        function=decision.function,
    )
    hold_calls.note(draft, decision)


def record_step(draft: Draft, step: StepResult, seen: int, completion: Completion) -> None:
    """Record the result of a local step."""
    draft.record(
        history.MarkerRecorded,
        decision_completed=0,
        name=MarkerName.STEP,
        details=step.result,
        native=True,
        number=step.number,
        batch=step.batch,
        seen=seen,
        now_us=completion.now_us,
        digest=step.digest,
        attempt=step.attempt,
        failed=step.failed,
        function=step.function,
        semantics=completion.semantics,
    )
