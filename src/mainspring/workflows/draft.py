"""One transaction's changes of one run, and the fold of events to a run's state.

Rules append events to a draft. Each is applied to the state at once, so that the next rule, also of another operation of the same
transaction, decides on the state so far. The state must not be used any more if the transaction fails.

A run's state is the fold of all its events, and also of a stored state with the events after it. Each event must be legal where
it stands: the tables of the ``machines`` have the legal transitions.

The rules also tell whether a run goes on: its decision tasks, its parking, and its close.

An event that the decider has not been given asks for a decision task, unless one is scheduled and not started. Behind a started
one a second is scheduled. Events are never held back.

The code of a parked run cannot make the next decision, so that it waits for other code or for a person. It takes events on.
Its decision task stays scheduled and has no job. A run is parked on request of a decider, or because its decision task was
lost five times without a record in between. No event says so: the values are stored beside the state.

| parked by | goes on |
|---|---|
| a decider: mismatch, missing definition, defect | by hand; when a build is connected that has not failed |
| a node: its token lacks a permission | the same |
| losses | by hand; after 5 minutes, and one more loss then parks it |

The builds that have failed are remembered until they record something of the run themselves, or it is unparked by hand. Their
code would fail again, because it has to repeat the decisions before. If a record of another build made the node forget them,
they would get the run again and park it, and so on for ever.

The limits of a run are rules that keep its history within them, and warnings on the way.

| limit | at the limit |
|---|---|
| 25,000 events | the run is terminated: ``EVENT_LIMIT_EXCEEDED`` is its last event |
| the last 1,000 events | take no signals, and no second cancel request, so that no client can end a run |
| 1,000 open activities, timers, children each | the decision fails: ``OPEN_…_LIMIT_EXCEEDED`` |
| the size of a payload | the list of decisions is refused whole |
| 10,000 events, 10 MiB | a warning |

In a full history each start of a task is an event of its own. A task that was started has no job any more; only its timeouts
detect its loss. Lean histories use none of these rules (`start_full_decision` and the next two). A start or an end of a closed
task is late but harmless: it returns False, and records nothing.

`after_initiated` and `after_close` add the errands that events of a run cause; `cross_run` has the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.jobs.owners import AttemptEnded
from mainspring.jobs.rules import Event
from mainspring.quantities import format_size
from mainspring.workflows import history, machines
from mainspring.workflows.cross_run import (
    CHILD_POLICY_APPLIED,
    ApplyPolicy,
    CancelOther,
    Close,
    EndChild,
    SignalOther,
    StartChild,
)
from mainspring.workflows.history import ChildPolicy, TimeoutType, kinds
from mainspring.workflows.machines import illegal
from mainspring.workflows.model import SEMANTICS, UNKNOWN_BUILD, Limits, Parked, Parking, State, depth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mainspring.jobs.owners import Ended
    from mainspring.workflows.cross_run import Errand
    from mainspring.workflows.model import Definition, OpenChild, Pause
    from mainspring.workflows.requests import RecordMarker


def apply(state: State, event: history.Event) -> None:
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


def fold(events: Iterable[history.Event], state: State | None = None) -> State:
    """Return the state after further events; without a state, after all events of a run."""
    if state is None:
        state = State()
    for event in events:
        apply(state, event)
    return state


def _record_only(_state: State, _event: history.Event) -> None:
    """Apply an event that changes nothing else."""


_FOLDS: Final[dict[type[history.Event], Callable[[State, Any], None]]] = {
    **machines.EXECUTION_FOLDS,
    **machines.DECISION_FOLDS,
    **machines.ACTIVITY_FOLDS,
    **machines.TIMER_FOLDS,
    **machines.CHILD_FOLDS,
    **machines.REQUEST_FOLDS,
    **dict.fromkeys(kinds(history.Refused), _record_only),
}

TRIGGERS: Final = frozenset(kind for kind in kinds(history.Event) if kind.triggers)
"""The events that ask for a decision. Refused decisions are such events."""

E = TypeVar("E", bound=history.Event)


class Draft:
    """The new events of a run and their effects on jobs, which the caller writes."""

    __slots__ = (
        "base",
        "brought",
        "cancels",
        "definitions",
        "errands",
        "events",
        "had_holds",
        "handle_of",
        "holds",
        "limits",
        "new_run",
        "next_id",
        "now_us",
        "parking",
        "state",
        "submitted",
        "to_hold",
        "to_release",
        "was_paused",
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
        self.events: list[history.Event] = []
        self.submitted: dict[int, history.ActivityTaskScheduled] = {}
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
        self.holds: list[RecordMarker] = []
        """The recorded requests for slots of resources, and those that give some back."""
        self.had_holds = False
        """Whether the run had some, or waited for some, when it closed."""
        self.to_hold: set[int] = set()
        """Activities that a pause has to hold if they wait, by their Scheduled events."""
        self.to_release: dict[int, int] = {}
        """Held activities that go on after a resume, as ``Pause.held`` has them."""
        self.was_paused: Pause | None = None
        """The pause of the run when it closed."""
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

    def copy(self, event: history.Event) -> None:
        """Append the next event of another run's history as it is."""
        apply(self.state, event)
        self.events.append(event)

    @property
    def timed_from_us(self) -> int:
        """Return the time from which a new event's timeouts run, if it is not the event's own; 0 if it is."""
        return self.now_us if self.now_us < self.state.last_us else 0

    def withdraw(self, job: int) -> None:
        """Delete a job, or do not submit it at all."""
        if job and self.submitted.pop(job, None) is None:
            self.withdrawn.append(job)


def after_initiated(draft: Draft, event: history.Event) -> None:
    """Add the errand of an initiated child, signal or cancel request."""
    state = draft.state
    source, depth = (state.run, state.namespace, state.workflow_id), depth_of(state, event.at_us)
    match event:
        case history.StartChildWorkflowExecutionInitiated():
            draft.errands.append(StartChild(*source, event, depth))
        case history.SignalExternalWorkflowExecutionInitiated():
            draft.errands.append(SignalOther(*source, event, depth))
        case history.RequestCancelExternalWorkflowExecutionInitiated():
            draft.errands.append(CancelOther(*source, event))
        case _:
            raise TypeError(f"{type(event).__name__} initiates nothing")


def after_close(
    draft: Draft, close: history.Close, children: Iterable[OpenChild], override: ChildPolicy | None
) -> None:
    """Add the errands of a run's close. ``children`` were open; ``override`` replaces their policies."""
    state = draft.state
    source = (state.run, state.namespace, state.workflow_id)
    if close.ends_children:
        for child in children:
            # In SWF the policy is one of the parent's own attributes; natively each child has its own.
            own = state.child_policy if state.full else child.policy
            policy = own if override is None else override
            if policy is not ChildPolicy.ABANDON:
                draft.errands.append(ApplyPolicy(*source, child.run, child.initiated, policy))
    if not state.parent_run or not isinstance(close, Close):
        return  # the chain of runs goes on
    if isinstance(close, history.WorkflowExecutionTerminated) and close.cause == CHILD_POLICY_APPLIED:
        return  # the parent is closed
    ended = EndChild(*source, state.parent_run, state.parent_initiated, state.type, state.version, close)
    draft.errands.append(ended)


def schedule_decision(draft: Draft) -> None:
    """Schedule a decision task if the run is open, does not wait for its begin, and has no unstarted one."""
    state = draft.state
    if state.status or state.begin_us > draft.now_us or (state.scheduled and (state.waiting or not state.started)):
        return
    if state.full:
        draft.record(
            history.DecisionTaskScheduled,
            task_list=state.task_list,
            task_priority=state.task_priority,
            start_to_close=state.task_timeout,
        )
    else:
        draft.record(history.DecisionTaskScheduled)


def start_decision(draft: Draft, identity: str = "") -> None:
    """Start the scheduled decision task. In a lean history that belongs to its first record."""
    draft.record(history.DecisionTaskStarted, scheduled=draft.state.scheduled, identity=identity)


def time_out_decision(draft: Draft, timeout: TimeoutType) -> None:
    """Close a decision task that was not started or not completed in time, and schedule another one; only in a full history."""
    state = draft.state
    draft.record(history.DecisionTaskTimedOut, scheduled=state.scheduled, started=state.started, timeout=timeout)
    schedule_decision(draft)


MOST_LOSSES: Final = 5
RETRY_AFTER_US: Final = 300_000_000
"""A run that is parked after losses is tried once more after this time."""
BUILDS_KEPT: Final = 20


def needs_decision(state: State, parking: Parking) -> bool:
    """Return whether the decision task of a run has a job."""
    return state.scheduled != 0 and parking.parked is None


def park(draft: Draft, parked: Parked, build: str = "") -> None:
    """Park a run."""
    parking = draft.parking
    if parking.parked is None:
        parking.parked_us = draft.now_us
    parking.parked = parked
    parking.retry_us = draft.now_us + RETRY_AFTER_US if parked.kind == "losses" else 0
    _add(parking, UNKNOWN_BUILD if parked.kind == "losses" else build)


def unpark(draft: Draft, build: str = "") -> bool:
    """Let a parked run go on: by hand, or because a build connects; return False if it is not parked or the build has failed."""
    parking = draft.parking
    if parking.parked is None or (build and not tried_by(build).isdisjoint(parking.builds)):
        return False
    _release(parking)
    parking.losses = 0
    if not build:
        parking.builds = ()
    return True


def retry_parked(draft: Draft) -> None:
    """Try a run once more that was parked after losses, if it is time."""
    parking = draft.parking
    if parking.parked is not None and 0 < parking.retry_us <= draft.now_us:
        _release(parking)
        _remove(parking, UNKNOWN_BUILD)
        parking.losses = MOST_LOSSES - 1


def decision_lost(draft: Draft, notice: Ended | AttemptEnded) -> bool:
    """Count that a decision task's job ended, or its attempt, otherwise than by a completion; return whether the run is parked.

    A decision task that was handed back is not counted. The history gets no event. A job that has ended needs a successor.
    """
    parking = draft.parking
    if draft.state.status or parking.parked is not None:
        return parking.parked is not None
    if isinstance(notice, AttemptEnded) and notice.event in _UNCOUNTED:
        return False
    parking.losses += 1
    if parking.losses < MOST_LOSSES:
        return False
    why = f"{parking.losses} deciders in a row were lost with the decision; look for a crash of the worker process in its log"
    park(draft, Parked("losses", why))
    return True


def progressed(parking: Parking, build: str) -> None:
    """Note that a build has recorded a decision, or a step of it."""
    parking.losses = 0
    if parking.builds:
        _remove(parking, build)


def tried_by(build: str) -> frozenset[str]:
    """Return the entries of failed builds that keep a parked run from a build: each one does. No build has none."""
    return frozenset((build, UNKNOWN_BUILD)) if build else frozenset()


def _add(parking: Parking, build: str) -> None:
    if build and build not in parking.builds:
        parking.builds = (*parking.builds, build)[-BUILDS_KEPT:]


def _remove(parking: Parking, build: str) -> None:
    if build in parking.builds:
        parking.builds = tuple(one for one in parking.builds if one != build)


def _release(parking: Parking) -> None:
    parking.parked = None
    parking.parked_us = 0
    parking.retry_us = 0


_UNCOUNTED: Final = (Event.RELEASE, Event.SNOOZE)


def close(
    draft: Draft, kind: type[history.Close], *, children: ChildPolicy | None = None, **attributes: object
) -> None:
    """Record the event that closes a run, which is neither parked nor paused any more.

    The jobs of its open activities are deleted, except those of abandoned activities: they go on, and nothing records their ends.
    ``children`` replaces the policies of its open children, if the event applies them.
    """
    open_children = list(draft.state.children.values())
    for activity in draft.state.activities.values():
        if not activity.abandoned:
            draft.withdraw(activity.job)
    draft.had_holds = bool(draft.state.holds)
    after_close(draft, draft.record(kind, **attributes), open_children, children)
    parking = draft.parking
    parking.parked = None
    parking.parked_us = parking.retry_us = 0
    draft.was_paused, parking.pause = parking.pause, None


_DEFAULTS: Final = Limits()
EVENT_LIMIT_EXCEEDED: Final = "EVENT_LIMIT_EXCEEDED"


def ensure_room(draft: Draft, events: int) -> bool:
    """Return whether a history has room for events and one more; terminate its run otherwise."""
    state = draft.state
    if state.last + events < draft.limits.events:
        return True
    if not state.status:
        terminate_full(draft)
    return False


def terminate_full(draft: Draft) -> None:
    """Terminate a run whose history is full."""
    state = draft.state
    reason = f"the history has {state.last} events; the limit is {draft.limits.events}"
    policy = state.child_policy
    close(draft, history.WorkflowExecutionTerminated, cause=EVENT_LIMIT_EXCEEDED, reason=reason, child_policy=policy)


def takes_requests(draft: Draft) -> bool:
    """Return whether a history has room for requests of clients."""
    return draft.state.last < draft.limits.events - draft.limits.reserved


def recorded(limits: Limits) -> dict[str, int]:
    """Return the attributes of a run's start that tell its code what this node gives it.

    They are recorded, so that its code gets the same answers after the settings or the version of the node have changed; 0
    stands for a default.
    """
    found = {
        name: 0 if getattr(limits, name) == getattr(_DEFAULTS, name) else getattr(limits, name)
        for name in ("warn_events", "warn_bytes")
    }
    return found | {"semantics": SEMANTICS}


def warning(limits: Limits, events: int, size: int, new_events: int, new_size: int) -> str:
    """Return a warning for the log if the history has just become long; otherwise an empty text.

    ``events`` and ``size`` (in bytes) include the new ones.
    """
    if events - new_events < limits.warn_events <= events:
        return f"the history has {events} events; at {limits.events} the run is terminated: let it continue as new before, or end"
    if size - new_size < limits.warn_bytes <= size:
        return f"the history has {format_size(size)}: store large values elsewhere, and pass their location"
    return ""


def start_full_decision(draft: Draft, scheduled: int, identity: str = "") -> bool:
    """Record that a decider has a decision task."""
    state = draft.state
    if state.scheduled != scheduled or state.started or not scheduled or not ensure_room(draft, 1):
        return False
    start_decision(draft, identity)
    return True


def start_full_activity(draft: Draft, scheduled: int, identity: str = "") -> bool:
    """Record that a worker has an activity."""
    activity = draft.state.activities.get(scheduled)
    if activity is None or activity.started or not ensure_room(draft, 1):
        return False
    draft.record(history.ActivityTaskStarted, scheduled=scheduled, identity=identity)
    return True


def close_full_activity(
    draft: Draft, kind: type[history.Event], scheduled: int, started: int, **attributes: object
) -> bool:
    """Record how a started activity has ended: completed, failed or canceled."""
    activity = draft.state.activities.get(scheduled)
    if activity is None or activity.started != started or not started or not ensure_room(draft, 2):
        return False
    draft.record(kind, scheduled=scheduled, started=started, **attributes)
    schedule_decision(draft)
    return True
