"""The fold of events to a run's state.

A run's state is the fold of all its events, and also of a stored state with the events after it. Each event must be legal where
it stands: the tables of the ``machines`` have the legal transitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.workflows import history
from mainspring.workflows.machines import activity, child, decision_task, execution, external, timer
from mainspring.workflows.machines.transition import illegal
from mainspring.workflows.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.workflows.history import EventBase


def apply(state: State, event: EventBase) -> None:
    """Apply the next event to a state; raise IllegalTransitionError if it is not legal there."""
    kind = event.__class__
    if event.id != state.last + 1:
        raise illegal(event, f"does not follow event {state.last}")
    if state.status:
        raise illegal(event, "comes after the close of the run")
    if not state.last and kind is not history.WorkflowExecutionStarted:
        raise illegal(event, "does not begin a run")
    _FOLDS[kind](state, event)
    state.last, state.last_us = event.id, event.at_us
    # Native code waits for the ends of children alone, so that the begin of a child need not cause a decision.
    if kind in TRIGGERS and (state.full or kind is not history.ChildWorkflowExecutionStarted):
        state.last_trigger = event.id


def fold(events: Iterable[EventBase], state: State | None = None) -> State:
    """Return the state after further events; without a state, after all events of a run."""
    if state is None:
        state = State()
    for event in events:
        apply(state, event)
    return state


def _record_only(_state: State, _event: EventBase) -> None:
    """Apply an event that changes nothing else."""


def _refuse(_state: State, event: EventBase) -> None:
    raise illegal(event, "is never recorded: this service runs no lambda functions")


_REFUSED_DECISIONS: Final[tuple[type[EventBase], ...]] = (
    history.CompleteWorkflowExecutionFailed,
    history.FailWorkflowExecutionFailed,
    history.CancelWorkflowExecutionFailed,
    history.ContinueAsNewWorkflowExecutionFailed,
    history.ScheduleActivityTaskFailed,
    history.RequestCancelActivityTaskFailed,
    history.RecordMarkerFailed,
    history.StartTimerFailed,
    history.CancelTimerFailed,
    history.ScheduleLambdaFunctionFailed,
)
_NEVER_RECORDED: Final[tuple[type[EventBase], ...]] = (
    history.LambdaFunctionScheduled,
    history.LambdaFunctionStarted,
    history.LambdaFunctionCompleted,
    history.LambdaFunctionFailed,
    history.LambdaFunctionTimedOut,
    history.StartLambdaFunctionFailed,
)

_FOLDS: Final[dict[type[EventBase], Callable[[State, Any], None]]] = {
    **execution.FOLDS,
    **decision_task.FOLDS,
    **activity.FOLDS,
    **timer.FOLDS,
    **child.FOLDS,
    **external.FOLDS,
    **dict.fromkeys(_REFUSED_DECISIONS, _record_only),
    **dict.fromkeys(_NEVER_RECORDED, _refuse),
}

TRIGGERS: Final[frozenset[type[EventBase]]] = frozenset(
    {
        history.WorkflowExecutionStarted,
        history.WorkflowExecutionSignaled,
        history.WorkflowExecutionCancelRequested,
        history.ActivityTaskCompleted,
        history.ActivityTaskFailed,
        history.ActivityTaskTimedOut,
        history.ActivityTaskCanceled,
        history.TimerFired,
        history.StartChildWorkflowExecutionFailed,
        history.ChildWorkflowExecutionStarted,
        history.ChildWorkflowExecutionCompleted,
        history.ChildWorkflowExecutionFailed,
        history.ChildWorkflowExecutionTimedOut,
        history.ChildWorkflowExecutionCanceled,
        history.ChildWorkflowExecutionTerminated,
        history.SignalExternalWorkflowExecutionFailed,
        history.ExternalWorkflowExecutionSignaled,
        history.RequestCancelExternalWorkflowExecutionFailed,
        history.ExternalWorkflowExecutionCancelRequested,
        *_REFUSED_DECISIONS,
    }
)
"""The events that ask for a decision: the decider needs them and did not cause them. Refused decisions are such events."""
