"""The machines of a run's state: the phases of its execution and of all that it waits for.

A machine's table has, for each phase and event that may meet, the next phase. Everything else is a defect of Mainspring itself
and raises. A late but harmless request is no event: the rules (`execution` and others) list these with the reasons.

**The execution** begins, takes signals and cancel requests, and closes once, by a `history.Close`. A closed run takes no event;
`fold` guards that. Its open tasks, timers and children vanish without events.

**Decision tasks**: at most one is scheduled and one is started; another one that is scheduled meanwhile waits. A lean history has
the start of a task right before the first record of the decision, and no timeouts of tasks.

**An activity**, from its schedule to its only end. Its id may be used again after that.

**A timer**, from its start until it fires or is cancelled. Its id may be used again after that.

**A child**, as its parent's history shows it. A refused decision is a failure without an initiated event: it concerns no machine.

**A signal or a cancel request to another run** is initiated, and answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.errors import IllegalTransitionError
from mainspring.jobs.model import describe_failure
from mainspring.workflows import history
from mainspring.workflows.carrying import is_carried
from mainspring.workflows.history import LACKING, Event, MarkerName, handlers_by_kind, is_hold_answer, kinds
from mainspring.workflows.model import REQUESTS_KEPT, OpenActivity, OpenChild, OpenTimer, Status, depth_of

if TYPE_CHECKING:
    from mainspring.workflows.model import State

P = TypeVar("P", bound=Enum)
Folds = Mapping[type[Event], Callable[..., None]]
"""The effects of a machine's events on a state, by the events' classes."""


def transition(table: Mapping[tuple[P, type[Event]], P], phase: P, event: Event) -> P:
    """Return the phase after an event; raise IllegalTransitionError if the table has no such transition."""
    following = table.get((phase, event.__class__))
    if following is None:
        raise illegal(event, f"is not possible in the phase {phase.name}")
    return following


def illegal(event: Event, why: str) -> IllegalTransitionError:
    """Return the error for an event that the state does not allow."""
    return IllegalTransitionError(f"{type(event).__name__} (event {event.id}) {why}")


CLOSES: Final[dict[type[Event], Status]] = {kind: Status[kind.status] for kind in kinds(history.Close)}


def _execution_begun(state: State, event: history.WorkflowExecutionStarted) -> None:
    if state.last:
        raise illegal(event, "is not the first")
    state.run = event.run
    state.root = event.root
    state.type = event.type
    state.version = event.version
    state.namespace = event.namespace
    state.workflow_id = event.workflow_id
    state.started_us = event.at_us
    state.full = event.full
    state.task_list = event.task_list
    state.task_priority = event.task_priority
    state.task_timeout = event.task_timeout
    state.child_policy = event.child_policy
    state.tags = event.tags
    state.parent_run = event.parent_run
    state.parent_initiated = event.parent_initiated
    state.continued_run = event.continued_run
    state.attempt = event.attempt
    state.failure = event.failure
    state.timed_from_us = event.timed_from_us
    state.forked_run, state.forked_at = event.forked_run, event.forked_at
    if event.delay:
        state.begin_us = event.at_us + int(event.delay * 1_000_000)
    if event.execution_timeout:
        state.close_by_us = (event.timed_from_us or event.at_us) + int(event.execution_timeout * 1_000_000)
    if event.depth:
        state.depth, state.depth_us = event.depth, event.depth_us or event.at_us
    for request in event.requests:
        state.requests[request] = None


def _execution_signaled(state: State, event: history.WorkflowExecutionSignaled) -> None:
    if event.name == LACKING and is_hold_answer(event):
        state.holds.pop(event.external_initiated, None)
    if event.depth and event.depth >= depth_of(state, event.at_us):
        state.depth, state.depth_us = event.depth, event.at_us
    if event.request:
        _execution_remember(state, event.request)


def _execution_cancel_requested(state: State, event: history.WorkflowExecutionCancelRequested) -> None:
    state.cancel_requested = event.id
    state.cancel_reason = state.cancel_reason or event.reason
    if event.request:
        _execution_remember(state, event.request)


def _execution_remember(state: State, request: int) -> None:
    requests = state.requests
    requests[request] = None
    if len(requests) > REQUESTS_KEPT:
        del requests[next(iter(requests))]


def _execution_closed(state: State, event: history.Close) -> None:
    state.status = int(CLOSES[event.__class__])
    state.closed_us = event.at_us
    state.scheduled = state.started = state.waiting = state.task_by_us = state.close_by_us = 0
    state.activities = {}
    state.activity_ids = {}
    state.deadlines = {}
    state.timers = {}
    state.children = {}
    state.externals = {}
    state.steps = {}
    state.batch = state.step_seen = state.step_us = state.begin_us = 0
    state.holds = {}


def _execution_continued(state: State, event: history.WorkflowExecutionContinuedAsNew) -> None:
    _execution_closed(state, event)
    state.new_run = event.new_run
    if event.failure:
        state.failure = describe_failure(event.failure)


EXECUTION_FOLDS: Final[Folds] = handlers_by_kind(
    _execution_begun, _execution_signaled, _execution_cancel_requested, _execution_closed, _execution_continued
)


class DecisionPhase(Enum):
    """The phases of a run's decision tasks."""

    NONE = 0
    SCHEDULED = 1
    STARTED = 2
    WAITING = 3


DECISION_TRANSITIONS: Final[Mapping[tuple[DecisionPhase, type[Event]], DecisionPhase]] = {
    (DecisionPhase.NONE, history.DecisionTaskScheduled): DecisionPhase.SCHEDULED,
    (DecisionPhase.SCHEDULED, history.DecisionTaskStarted): DecisionPhase.STARTED,
    (DecisionPhase.SCHEDULED, history.DecisionTaskTimedOut): DecisionPhase.NONE,
    (DecisionPhase.STARTED, history.DecisionTaskScheduled): DecisionPhase.WAITING,
    (DecisionPhase.STARTED, history.DecisionTaskCompleted): DecisionPhase.NONE,
    (DecisionPhase.STARTED, history.DecisionTaskTimedOut): DecisionPhase.NONE,
    (DecisionPhase.WAITING, history.DecisionTaskCompleted): DecisionPhase.SCHEDULED,
    (DecisionPhase.WAITING, history.DecisionTaskTimedOut): DecisionPhase.SCHEDULED,
}


def phase_of_decision(state: State) -> DecisionPhase:
    """Return the phase of a run's decision tasks."""
    if state.started:
        return DecisionPhase.WAITING if state.waiting else DecisionPhase.STARTED
    return DecisionPhase.SCHEDULED if state.scheduled else DecisionPhase.NONE


def _decision_scheduled(state: State, event: history.DecisionTaskScheduled) -> None:
    if transition(DECISION_TRANSITIONS, phase_of_decision(state), event) is DecisionPhase.WAITING:
        state.waiting = event.id
        return
    state.scheduled = event.id
    state.begin_us = 0
    if event.schedule_to_start:
        state.task_by_us = event.at_us + int(event.schedule_to_start * 1_000_000)


def _decision_started(state: State, event: history.DecisionTaskStarted) -> None:
    transition(DECISION_TRANSITIONS, phase_of_decision(state), event)
    if event.scheduled != state.scheduled:
        raise illegal(event, f"names task {event.scheduled}; {state.scheduled} is scheduled")
    state.started = event.id
    if state.full:
        state.task_by_us = event.at_us + int(state.task_timeout * 1_000_000) if state.task_timeout else 0


def _decision_completed(state: State, event: history.DecisionTaskCompleted) -> None:
    transition(DECISION_TRANSITIONS, phase_of_decision(state), event)
    state.seen = event.seen or event.started
    state.previous_started = event.started
    state.decided_us = max(state.decided_us, event.now_us)
    _decision_close(state, event)


def _decision_timed_out(state: State, event: history.DecisionTaskTimedOut) -> None:
    transition(DECISION_TRANSITIONS, phase_of_decision(state), event)
    _decision_close(state, event)


def _decision_close(state: State, event: history.DecisionTaskCompleted | history.DecisionTaskTimedOut) -> None:
    if event.scheduled != state.scheduled or event.started != state.started:
        open_task = f"{state.scheduled}, started at {state.started}, is open"
        raise illegal(event, f"names task {event.scheduled}, started at {event.started}; {open_task}")
    state.scheduled = state.waiting
    state.waiting = state.started = state.task_by_us = 0
    if state.batch:
        state.steps = {}
        state.batch = state.step_seen = state.step_us = 0


def _decision_marked(state: State, event: history.MarkerRecorded) -> None:
    if event.decision_completed:
        if event.native and event.name == MarkerName.HOLD:
            state.holds[event.number] = event.id
        elif event.native and event.name == MarkerName.RELEASE:
            state.holds.pop(event.number, None)
        return
    if is_carried(event) and not state.scheduled and not state.decided_us:
        return
    if phase_of_decision(state) not in _DECIDING or event.number in state.steps:
        raise illegal(event, "is a step that is already recorded, or outside of a decision")
    state.steps[event.number] = event.digest
    state.batch = event.batch
    state.step_seen = event.seen
    state.step_us = event.now_us
    state.decided_us = max(state.decided_us, event.now_us)


_DECIDING: Final = (DecisionPhase.STARTED, DecisionPhase.WAITING)

DECISION_FOLDS: Final[Folds] = handlers_by_kind(
    _decision_scheduled, _decision_started, _decision_completed, _decision_timed_out, _decision_marked
)


class ActivityPhase(Enum):
    """The phases of an activity."""

    SCHEDULED = 0
    STARTED = 1
    CLOSED = 2


ACTIVITY_TRANSITIONS: Final[Mapping[tuple[ActivityPhase, type[Event]], ActivityPhase]] = {
    (ActivityPhase.SCHEDULED, history.ActivityTaskStarted): ActivityPhase.STARTED,
    (ActivityPhase.SCHEDULED, history.ActivityTaskTimedOut): ActivityPhase.CLOSED,
    (ActivityPhase.SCHEDULED, history.ActivityTaskCanceled): ActivityPhase.CLOSED,
    (ActivityPhase.SCHEDULED, history.ActivityTaskCancelRequested): ActivityPhase.SCHEDULED,
    (ActivityPhase.STARTED, history.ActivityTaskCancelRequested): ActivityPhase.STARTED,
    **{(ActivityPhase.STARTED, kind): ActivityPhase.CLOSED for kind in kinds(history.ActivityEnd)},
}

ACTIVITY_LATE: Final[Mapping[tuple[ActivityPhase, type[Event]], str]] = {
    (ActivityPhase.CLOSED, kind): "a timeout, a cancel or the close of the run came first"
    for kind in kinds(history.ActivityEnd)
}
"""Late but harmless: the rules record no event of these kinds, for these reasons. As events they are illegal."""


def phase_of_activity(activity: OpenActivity) -> ActivityPhase:
    """Return the phase of an open activity."""
    return ActivityPhase.STARTED if activity.started else ActivityPhase.SCHEDULED


def _activity_scheduled(state: State, event: history.ActivityTaskScheduled) -> None:
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
    _activity_set_deadline(state, activity)


def _activity_started(state: State, event: history.ActivityTaskStarted) -> None:
    activity = _activity_open(state, event.scheduled, event)
    activity.started = event.id
    activity.start_by_us = 0
    if activity.start_to_close:
        activity.end_by_us = event.at_us + int(activity.start_to_close * 1_000_000)
    if activity.heartbeat:
        activity.beat_by_us = event.at_us + int(activity.heartbeat * 1_000_000)
    _activity_set_deadline(state, activity)


def _activity_cancel_requested(state: State, event: history.ActivityTaskCancelRequested) -> None:
    activity = _activity_open(state, state.activity_ids.get(event.activity_id, 0), event)
    activity.cancel_requested = event.id


def _activity_closed(state: State, event: history.ActivityEnd) -> None:
    activity = _activity_open(state, event.scheduled, event)
    if event.started != activity.started:
        raise illegal(event, f"names start {event.started}; the activity was started at {activity.started}")
    del state.activities[activity.scheduled], state.activity_ids[activity.activity_id]
    if state.deadlines:
        state.deadlines.pop(activity.scheduled, None)


def _activity_open(state: State, scheduled: int, event: Event) -> OpenActivity:
    activity = state.activities.get(scheduled)
    if activity is None:
        raise illegal(event, f"names activity {scheduled}, which is not open")
    transition(ACTIVITY_TRANSITIONS, phase_of_activity(activity), event)
    return activity


def _activity_set_deadline(state: State, activity: OpenActivity) -> None:
    due_us = activity.due_us
    if due_us:
        state.deadlines[activity.scheduled] = due_us
    elif state.deadlines:
        state.deadlines.pop(activity.scheduled, None)


ACTIVITY_FOLDS: Final[Folds] = handlers_by_kind(
    _activity_scheduled, _activity_started, _activity_closed, _activity_cancel_requested
)


def _timer_started(state: State, event: history.TimerStarted) -> None:
    if event.timer_id in state.timers:
        raise illegal(event, f"uses the id {event.timer_id!r} of an open timer")
    state.timers[event.timer_id] = OpenTimer(
        event.id, event.timer_id, event.fire_us, event.start_to_fire, event.control
    )


def _timer_closed(state: State, event: history.TimerFired | history.TimerCanceled) -> None:
    timer = state.timers.get(event.timer_id)
    if timer is None or timer.started != event.started:
        raise illegal(event, f"names timer {event.timer_id!r} of event {event.started}, which is not open")
    del state.timers[event.timer_id]


TIMER_FOLDS: Final[Folds] = handlers_by_kind(_timer_started, _timer_closed)


class ChildPhase(Enum):
    """The phases of a child."""

    INITIATED = 0
    STARTED = 1
    CLOSED = 2


CHILD_TRANSITIONS: Final[Mapping[tuple[ChildPhase, type[Event]], ChildPhase]] = {
    (ChildPhase.INITIATED, history.ChildWorkflowExecutionStarted): ChildPhase.STARTED,
    (ChildPhase.INITIATED, history.StartChildWorkflowExecutionFailed): ChildPhase.CLOSED,
    **{(ChildPhase.STARTED, kind): ChildPhase.CLOSED for kind in kinds(history.ChildEnd)},
}

CHILD_LATE: Final[Mapping[tuple[ChildPhase, type[Event]], str]] = {
    (ChildPhase.CLOSED, kind): "the parent has closed, or it has recorded the notice before"
    for _, kind in CHILD_TRANSITIONS
}
"""Late but harmless: the rules record no event of these kinds, for these reasons. As events they are illegal."""


def phase_of_child(child: OpenChild) -> ChildPhase:
    """Return the phase of an open child."""
    return ChildPhase.STARTED if child.started else ChildPhase.INITIATED


def _child_initiated(state: State, event: history.StartChildWorkflowExecutionInitiated) -> None:
    state.children[event.id] = OpenChild(
        event.id, event.workflow_id, event.run, event.child_policy, number=event.number, type=event.type
    )


def _child_refused(state: State, event: history.StartChildWorkflowExecutionFailed) -> None:
    if event.initiated:
        del state.children[_child_open(state, event).initiated]


def _child_started(state: State, event: history.ChildWorkflowExecutionStarted) -> None:
    _child_open(state, event).started = event.id


def _child_closed(state: State, event: history.ChildEnd) -> None:
    child = _child_open(state, event)
    if event.started != child.started:
        raise illegal(event, f"names start {event.started}; the child was started at {child.started}")
    del state.children[event.initiated]


def _child_open(state: State, event: Any) -> OpenChild:
    child = state.children.get(event.initiated)
    if child is None:
        raise illegal(event, f"names the child of event {event.initiated}, which is not open")
    transition(CHILD_TRANSITIONS, phase_of_child(child), event)
    return child


CHILD_FOLDS: Final[Folds] = handlers_by_kind(_child_initiated, _child_refused, _child_started, _child_closed)


def _request_initiated(state: State, event: history.RequestInitiated) -> None:
    state.externals[event.id] = None


def _request_answered(state: State, event: history.Answer) -> None:
    initiated: int = event.initiated  # type: ignore[attr-defined]
    if initiated not in state.externals:
        raise illegal(event, f"answers event {initiated}, which is not open")
    del state.externals[initiated]


REQUEST_FOLDS: Final[Folds] = handlers_by_kind(_request_initiated, _request_answered)
