"""Timers: SWF's decisions about them.

| decision | fails if | cause |
|---|---|---|
| StartTimer | an open timer has the id | ``TIMER_ID_ALREADY_IN_USE`` |
| StartTimer | 1,000 timers are open | ``OPEN_TIMERS_LIMIT_EXCEEDED`` |
| CancelTimer | no open timer has the id | ``TIMER_ID_UNKNOWN`` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.history import CancelTimerFailed, StartTimerFailed, TimerCanceled, TimerStarted

if TYPE_CHECKING:
    from mainspring.workflows.decisions.model import CancelTimer, StartTimer
    from mainspring.workflows.draft import Draft


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
            TimerStarted,
            decision_completed=completed,
            timer_id=timer_id,
            start_to_fire=decision.start_to_fire,
            control=decision.control,
            fire_us=draft.now_us + int(decision.start_to_fire * 1_000_000),
            number=decision.number,
        )
        return
    draft.record(StartTimerFailed, decision_completed=completed, timer_id=timer_id, cause=cause)


def cancel_timer(draft: Draft, decision: CancelTimer, completed: int) -> None:
    """Cancel a timer."""
    timer = draft.state.timers.get(decision.timer_id)
    if timer is None:
        draft.record(
            CancelTimerFailed, decision_completed=completed, timer_id=decision.timer_id, cause="TIMER_ID_UNKNOWN"
        )
    else:
        draft.record(TimerCanceled, decision_completed=completed, timer_id=decision.timer_id, started=timer.started)
