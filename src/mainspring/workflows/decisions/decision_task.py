"""Decision tasks: when a run gets one, and how it starts.

An event that the decider has not been given asks for a decision task, unless one is scheduled and not started. Behind a started
one a second is scheduled. Events are never held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.history import (
    DecisionTaskScheduled,
    DecisionTaskStarted,
    DecisionTaskTimedOut,
    TimeoutType,
)

if TYPE_CHECKING:
    from mainspring.workflows.draft import Draft


def schedule_decision(draft: Draft) -> None:
    """Schedule a decision task if the run is open, does not wait for its begin, and has no unstarted one."""
    state = draft.state
    if state.status or state.begin_us > draft.now_us or (state.scheduled and (state.waiting or not state.started)):
        return
    if state.full:
        draft.record(
            DecisionTaskScheduled,
            task_list=state.task_list,
            task_priority=state.task_priority,
            start_to_close=state.task_timeout,
        )
    else:
        draft.record(DecisionTaskScheduled)


def start_decision(draft: Draft, identity: str = "") -> None:
    """Start the scheduled decision task. In a lean history that belongs to its first record."""
    draft.record(DecisionTaskStarted, scheduled=draft.state.scheduled, identity=identity)


def time_out_decision(draft: Draft, timeout: TimeoutType) -> None:
    """Close a decision task that was not started or not completed in time, and schedule another one; only in a full history."""
    state = draft.state
    draft.record(DecisionTaskTimedOut, scheduled=state.scheduled, started=state.started, timeout=timeout)
    schedule_decision(draft)
