"""The decision tasks of a run: at most one is scheduled and one is started.

| phase | event | next phase |
|---|---|---|
| NONE | DecisionTaskScheduled | SCHEDULED |
| SCHEDULED | DecisionTaskStarted | STARTED |
| SCHEDULED | DecisionTaskTimedOut (schedule to start) | NONE |
| STARTED | DecisionTaskScheduled | WAITING: another one is scheduled behind it |
| STARTED | DecisionTaskCompleted, DecisionTaskTimedOut | NONE |
| WAITING | DecisionTaskCompleted, DecisionTaskTimedOut | SCHEDULED |

A lean history has DecisionTaskStarted right before the first record of the decision, and no DecisionTaskTimedOut.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from mainspring.workflows.history import (
    DecisionTaskCompleted,
    DecisionTaskScheduled,
    DecisionTaskStarted,
    DecisionTaskTimedOut,
    MarkerRecorded,
)
from mainspring.workflows.machines.transition import illegal, transition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.workflows.history import EventBase
    from mainspring.workflows.machines.transition import Folds
    from mainspring.workflows.state import State


class Phase(Enum):
    """The phases of a run's decision tasks."""

    NONE = 0
    SCHEDULED = 1
    STARTED = 2
    WAITING = 3


TRANSITIONS: Final[Mapping[tuple[Phase, type[EventBase]], Phase]] = {
    (Phase.NONE, DecisionTaskScheduled): Phase.SCHEDULED,
    (Phase.SCHEDULED, DecisionTaskStarted): Phase.STARTED,
    (Phase.SCHEDULED, DecisionTaskTimedOut): Phase.NONE,
    (Phase.STARTED, DecisionTaskScheduled): Phase.WAITING,
    (Phase.STARTED, DecisionTaskCompleted): Phase.NONE,
    (Phase.STARTED, DecisionTaskTimedOut): Phase.NONE,
    (Phase.WAITING, DecisionTaskCompleted): Phase.SCHEDULED,
    (Phase.WAITING, DecisionTaskTimedOut): Phase.SCHEDULED,
}


def phase(state: State) -> Phase:
    """Return the phase of a run's decision tasks."""
    if state.started:
        return Phase.WAITING if state.waiting else Phase.STARTED
    return Phase.SCHEDULED if state.scheduled else Phase.NONE


def _scheduled(state: State, event: DecisionTaskScheduled) -> None:
    if transition(TRANSITIONS, phase(state), event) is Phase.WAITING:
        state.waiting = event.id
        return
    state.scheduled = event.id
    state.begin_us = 0
    if event.schedule_to_start:
        state.task_by_us = event.at_us + int(event.schedule_to_start * 1_000_000)


def _started(state: State, event: DecisionTaskStarted) -> None:
    transition(TRANSITIONS, phase(state), event)
    if event.scheduled != state.scheduled:
        raise illegal(event, f"names task {event.scheduled}; {state.scheduled} is scheduled")
    state.started = event.id
    if state.full:
        state.task_by_us = event.at_us + int(state.task_timeout * 1_000_000) if state.task_timeout else 0


def _completed(state: State, event: DecisionTaskCompleted) -> None:
    transition(TRANSITIONS, phase(state), event)
    state.seen = event.seen or event.started
    state.previous_started = event.started
    state.decided_us = max(state.decided_us, event.now_us)
    _close(state, event)


def _timed_out(state: State, event: DecisionTaskTimedOut) -> None:
    transition(TRANSITIONS, phase(state), event)
    _close(state, event)


def _close(state: State, event: DecisionTaskCompleted | DecisionTaskTimedOut) -> None:
    if event.scheduled != state.scheduled or event.started != state.started:
        open_task = f"{state.scheduled}, started at {state.started}, is open"
        raise illegal(event, f"names task {event.scheduled}, started at {event.started}; {open_task}")
    state.scheduled = state.waiting
    state.waiting = state.started = state.task_by_us = 0
    if state.batch:
        state.steps = {}
        state.batch = state.step_seen = state.step_us = 0


def _marked(state: State, event: MarkerRecorded) -> None:
    if event.decision_completed:
        return
    if phase(state) not in _DECIDING or event.number in state.steps:
        raise illegal(event, "is a step that is already recorded, or outside of a decision")
    state.steps[event.number] = event.digest
    state.batch = event.batch
    state.step_seen = event.seen
    state.step_us = event.now_us
    state.decided_us = max(state.decided_us, event.now_us)


_DECIDING: Final = (Phase.STARTED, Phase.WAITING)

FOLDS: Final[Folds] = {
    DecisionTaskScheduled: _scheduled,
    DecisionTaskStarted: _started,
    DecisionTaskCompleted: _completed,
    DecisionTaskTimedOut: _timed_out,
    MarkerRecorded: _marked,
}
