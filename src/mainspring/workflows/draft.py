"""One transaction's changes of one run, and the fold of events to a run's state.

Rules append events to a draft. Each is applied to the state at once, so that the next rule, also of another operation of the same
transaction, decides on the state so far. The state must not be used any more if the transaction fails.

A run's state is the fold of all its events, and also of a stored state with the events after it. Each event must be legal where
it stands: the tables of the ``machines`` have the legal transitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.workflows import history, machines
from mainspring.workflows.history import ActivityTaskScheduled, EventBase
from mainspring.workflows.machines import illegal
from mainspring.workflows.model import Parking, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mainspring.workflows.cross_run import Errand
    from mainspring.workflows.model import Definition, Limits


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
    **machines.EXECUTION_FOLDS,
    **machines.DECISION_FOLDS,
    **machines.ACTIVITY_FOLDS,
    **machines.TIMER_FOLDS,
    **machines.CHILD_FOLDS,
    **machines.REQUEST_FOLDS,
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

E = TypeVar("E", bound=EventBase)


class Draft:
    """The new events of a run and their effects on jobs, which the caller writes."""

    __slots__ = (
        "base",
        "brought",
        "cancels",
        "definitions",
        "errands",
        "events",
        "handle_of",
        "limits",
        "new_run",
        "next_id",
        "now_us",
        "parking",
        "state",
        "submitted",
        "withdrawn",
    )

    def __init__(
        self,
        state: State,
        *,
        now_us: int,
        next_id: Callable[[], int],
        limits: Limits,
        parking: Parking | None = None,
        errands: list[Errand] | None = None,
        handle_of: Callable[[int], str] = str,
    ) -> None:
        self.state = state
        self.parking = Parking() if parking is None else parking
        self.now_us = now_us
        """The node's time. Timers and timeouts run from it and are due by it, whatever the times of earlier events are."""
        self.next_id = next_id
        """Returns the id of a new job."""
        self.new_run = 0
        """The id of the run that continues this one, if the caller has chosen it; 0: ``next_id`` returns it."""
        self.limits = limits
        self.base = state.last
        """The last event before this transaction."""
        self.events: list[EventBase] = []
        self.submitted: dict[int, ActivityTaskScheduled] = {}
        """The new jobs, by their ids."""
        self.withdrawn: list[int] = []
        """Jobs to be deleted in any state, because their activities or the run have closed otherwise."""
        self.cancels: list[int] = []
        """The activities whose jobs a decision asks to cancel, by their Scheduled events. A job that is not held ends at once:
        `decisions.activity.canceled_before_start` records it. The request is noted in the row of another one."""
        self.errands: list[Errand] = [] if errands is None else errands
        """The errands of all runs of the transaction, in the order of their causes."""
        self.handle_of = handle_of
        """Returns the handle of a job: the workflow id of a child without another one."""
        self.definitions: Mapping[tuple[str, str], Definition] | None = None
        """The workflows that a completion starts as children, by name and the version that it gives. A missing one is not
        registered. None: any may be started."""
        self.brought: dict[int, int] = {}
        """The number of events that the end of each job has added."""

    def record(self, kind: type[E], **attributes: object) -> E:
        """Append an event and apply it; raise IllegalTransitionError if it is not legal.

        Its time is not before that of the run's last event, which may lie ahead if the clock was stepped back.
        """
        state = self.state
        event = kind(state.last + 1, max(self.now_us, state.last_us), **attributes)
        apply(state, event)
        self.events.append(event)
        return event

    @property
    def timed_from_us(self) -> int:
        """Return the time from which a new event's timeouts run, if it is not the event's own; 0 if it is."""
        return self.now_us if self.now_us < self.state.last_us else 0

    def withdraw(self, job: int) -> None:
        """Delete a job, or do not submit it at all."""
        if job and self.submitted.pop(job, None) is None:
            self.withdrawn.append(job)
