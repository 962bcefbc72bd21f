"""Timers: SWF's decisions about them.

| decision | fails if | cause |
|---|---|---|
| StartTimer | an open timer has the id | ``TIMER_ID_ALREADY_IN_USE`` |
| StartTimer | 1,000 timers are open | ``OPEN_TIMERS_LIMIT_EXCEEDED`` |
| CancelTimer | no open timer has the id | ``TIMER_ID_UNKNOWN`` |

The next attempt of a local step is a timer, too, without a decision: ``number`` is that of the step, and ``control`` the number
of its attempts. It precedes DecisionTaskCompleted, so that workers of earlier versions do not take it for a command of the code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.history import STEP_TIMER, CancelTimerFailed, StartTimerFailed, TimerCanceled, TimerStarted
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from mainspring.workflows.decisions.model import CancelTimer, StartTimer, StepRetry
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


def wait_for_attempt(draft: Draft, retry: StepRetry) -> None:
    """Start the timer of a step's next attempt, in place of one that is still open."""
    timer_id = f"{STEP_TIMER}{retry.number}"
    earlier = draft.state.timers.get(timer_id)
    if earlier is not None:
        draft.record(TimerCanceled, decision_completed=0, timer_id=timer_id, started=earlier.started)
    seconds = min(retry.wait_us / 1_000_000, YEAR)
    draft.record(
        TimerStarted,
        decision_completed=0,
        timer_id=timer_id,
        start_to_fire=seconds,
        control=str(retry.attempt),
        fire_us=draft.now_us + int(seconds * 1_000_000),
        number=retry.number,
    )
