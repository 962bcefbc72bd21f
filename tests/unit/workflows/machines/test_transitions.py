"""Every event in every phase of each machine: the tables have exactly the legal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import IllegalTransitionError
from mainspring.workflows import history, machines
from mainspring.workflows.draft import _FOLDS, TRIGGERS, apply, fold
from mainspring.workflows.model import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import Enum

    from mainspring.workflows.history import Event


def event(kind: type[Event], place: int, /, **attributes: Any) -> Event:
    """Return an event with any values for the attributes that a test does not name."""
    values = {"id": place, "at_us": place} | attributes
    for field, default in zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False):
        values.setdefault(field, default)
    for field in kind.__struct_fields__:
        values.setdefault(field, 0)
    return kind(**values)


def run(*events: tuple[type[Event], dict[str, Any]]) -> State:
    """Return the state of a run that begins as all do, and goes on with these events from number 2."""
    begun = event(history.WorkflowExecutionStarted, 1, type="order", version="1")
    return fold([begun, *(event(kind, number, **named) for number, (kind, named) in enumerate(events, 2))])


def legal(state: State, kind: type[Event], /, **attributes: Any) -> bool:
    try:
        apply(state, event(kind, state.last + 1, **attributes))
    except IllegalTransitionError:
        return False
    return True


def test_the_fold_covers_every_event() -> None:
    assert set(_FOLDS) == set(history.kinds(history.Event))
    assert set(_FOLDS) >= TRIGGERS


SCHEDULED: tuple[type[Event], dict[str, Any]] = (history.DecisionTaskScheduled, {})
STARTED = (history.DecisionTaskStarted, {"scheduled": 2})
DECISION_PHASES: list[tuple[machines.DecisionPhase, Sequence[Any], dict[str, int]]] = [
    (machines.DecisionPhase.NONE, [], {}),
    (machines.DecisionPhase.SCHEDULED, [SCHEDULED], {"scheduled": 2, "started": 0}),
    (machines.DecisionPhase.STARTED, [SCHEDULED, STARTED], {"scheduled": 2, "started": 3}),
    (machines.DecisionPhase.WAITING, [SCHEDULED, STARTED, SCHEDULED], {"scheduled": 2, "started": 3}),
]
DECISION_EVENTS = [
    history.DecisionTaskScheduled,
    history.DecisionTaskStarted,
    history.DecisionTaskCompleted,
    history.DecisionTaskTimedOut,
]


@pytest.mark.parametrize("kind", DECISION_EVENTS)
@pytest.mark.parametrize(("phase", "events", "names"), DECISION_PHASES)
def test_decision_tasks(
    phase: machines.DecisionPhase, events: Sequence[Any], names: dict[str, int], kind: type[Event]
) -> None:
    state = run(*events)
    assert machines.phase_of_decision(state) is phase
    named = {name: value for name, value in names.items() if name in kind.__struct_fields__}
    following = machines.DECISION_TRANSITIONS.get((phase, kind))
    assert legal(state, kind, **named) == (following is not None)
    if following is not None:
        assert machines.phase_of_decision(state) is following


@pytest.mark.parametrize("kind", [history.DecisionTaskCompleted, history.DecisionTaskTimedOut])
def test_a_completion_names_the_open_task(kind: type[Event]) -> None:
    assert not legal(run(SCHEDULED, STARTED), kind, scheduled=1, started=3)
    assert not legal(run(SCHEDULED, STARTED), kind, scheduled=2, started=2)
    assert not legal(run(SCHEDULED), history.DecisionTaskStarted, scheduled=1)


def test_a_step_is_recorded_once_and_inside_a_decision() -> None:
    step = {"decision_completed": 0, "name": "step", "number": 1, "batch": 1}
    assert not legal(run(SCHEDULED), history.MarkerRecorded, **step)
    state = run(SCHEDULED, STARTED)
    assert legal(state, history.MarkerRecorded, **step)
    assert not legal(state, history.MarkerRecorded, **step)


ACTIVITY = (history.ActivityTaskScheduled, {"activity_id": "a", "job": 7})
ACTIVITY_PHASES = [
    (machines.ActivityPhase.SCHEDULED, [ACTIVITY], 0),
    (machines.ActivityPhase.STARTED, [ACTIVITY, (history.ActivityTaskStarted, {"scheduled": 2})], 3),
    (
        machines.ActivityPhase.CLOSED,
        [ACTIVITY, (history.ActivityTaskCanceled, {"scheduled": 2, "started": 0})],
        0,
    ),
]
ACTIVITY_EVENTS = sorted({kind for _, kind in machines.ACTIVITY_TRANSITIONS}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ACTIVITY_EVENTS)
@pytest.mark.parametrize(("phase", "events", "started"), ACTIVITY_PHASES)
def test_activities(phase: machines.ActivityPhase, events: Sequence[Any], started: int, kind: type[Event]) -> None:
    state = run(*events)
    named = {"scheduled": 2, "started": started, "activity_id": "a"}
    named = {name: value for name, value in named.items() if name in kind.__struct_fields__}
    following = machines.ACTIVITY_TRANSITIONS.get((phase, kind))
    assert legal(state, kind, **named) == (following is not None)
    if following is not None:
        found = state.activities.get(2)
        assert (machines.ActivityPhase.CLOSED if found is None else machines.phase_of_activity(found)) is following
        assert (following is machines.ActivityPhase.CLOSED) == ("a" not in state.activity_ids)


def test_an_activity_id_is_free_once_the_activity_is_closed() -> None:
    assert not legal(run(ACTIVITY), history.ActivityTaskScheduled, activity_id="a")
    closed = run(ACTIVITY, (history.ActivityTaskCanceled, {"scheduled": 2, "started": 0}))
    assert legal(closed, history.ActivityTaskScheduled, activity_id="a")


def test_an_end_names_the_activity_s_start() -> None:
    state = run(ACTIVITY, (history.ActivityTaskStarted, {"scheduled": 2}))
    assert not legal(state, history.ActivityTaskTimedOut, scheduled=2, started=0)


TIMER = (
    history.TimerStarted,
    {"timer_id": "t", "fire_us": 5, "start_to_fire": 60.0, "control": "signal approved"},
)


@pytest.mark.parametrize("kind", [history.TimerFired, history.TimerCanceled])
def test_timers(kind: type[Event]) -> None:
    assert not legal(run(), kind, timer_id="t", started=2)
    assert not legal(run(TIMER), kind, timer_id="t", started=1)
    assert not legal(run(TIMER), history.TimerStarted, timer_id="t")
    state = run(TIMER)
    assert [(timer.start_to_fire, timer.control) for timer in state.timers.values()] == [(60.0, "signal approved")]
    assert legal(state, kind, timer_id="t", started=2)
    assert not state.timers
    assert not legal(state, kind, timer_id="t", started=2)
    assert legal(state, history.TimerStarted, timer_id="t")


CHILD = (history.StartChildWorkflowExecutionInitiated, {"workflow_id": "c", "run": 9, "child_policy": "ABANDON"})
CHILD_PHASES = [
    (machines.ChildPhase.INITIATED, [CHILD], 0),
    (machines.ChildPhase.STARTED, [CHILD, (history.ChildWorkflowExecutionStarted, {"initiated": 2})], 3),
    (machines.ChildPhase.CLOSED, [CHILD, (history.StartChildWorkflowExecutionFailed, {"initiated": 2})], 0),
]
CHILD_EVENTS = sorted({kind for _, kind in machines.CHILD_TRANSITIONS}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", CHILD_EVENTS)
@pytest.mark.parametrize(("phase", "events", "started"), CHILD_PHASES)
def test_children(phase: machines.ChildPhase, events: Sequence[Any], started: int, kind: type[Event]) -> None:
    state = run(*events)
    named = {"initiated": 2, "started": started} if "started" in kind.__struct_fields__ else {"initiated": 2}
    following = machines.CHILD_TRANSITIONS.get((phase, kind))
    assert legal(state, kind, **named) == (following is not None)
    if following is not None:
        found = state.children.get(2)
        assert (machines.ChildPhase.CLOSED if found is None else machines.phase_of_child(found)) is following


def test_a_child_that_a_limit_refuses_concerns_no_machine() -> None:
    assert legal(run(), history.StartChildWorkflowExecutionFailed, initiated=0)


@pytest.mark.parametrize("kind", [one for one in machines.REQUEST_FOLDS if "initiated" in one.__struct_fields__])
@pytest.mark.parametrize(
    "initiated", [one for one in machines.REQUEST_FOLDS if "initiated" not in one.__struct_fields__]
)
def test_requests_to_other_runs_are_answered_once(initiated: type[Event], kind: type[Event]) -> None:
    assert not legal(run(), kind, initiated=2)
    state = run((initiated, {}))
    assert legal(state, kind, initiated=2)
    assert not legal(state, kind, initiated=2)


@pytest.mark.parametrize(("kind", "status"), machines.CLOSES.items())
def test_a_closed_run_takes_no_event(kind: type[Event], status: int) -> None:
    state = run(ACTIVITY, TIMER, CHILD, SCHEDULED)
    apply(state, event(kind, state.last + 1))
    assert state.status == status
    assert state.closed_us == state.last
    opened = (state.activities, state.activity_ids, state.timers, state.children, state.scheduled)
    assert not any(opened)
    for other in history.kinds(history.Event):
        assert not legal(state, other)


def test_a_run_begins_once_and_first() -> None:
    for kind in history.kinds(history.Event):
        assert legal(State(), kind) == (kind is history.WorkflowExecutionStarted)
    assert not legal(run(), history.WorkflowExecutionStarted)


def test_numbers_are_dense() -> None:
    state = run()
    for number in (1, 3):
        with pytest.raises(IllegalTransitionError, match="does not follow event 1"):
            apply(state, event(history.WorkflowExecutionSignaled, number, name="a"))


@pytest.mark.parametrize("kind", [one for one in _FOLDS if "Lambda" in one.__name__])
def test_lambda_functions_are_only_refused(kind: type[Event]) -> None:
    assert legal(run(), kind) == (kind is history.ScheduleLambdaFunctionFailed)


@pytest.mark.parametrize(
    ("transitions", "reasons", "phases"),
    [
        (machines.ACTIVITY_TRANSITIONS, machines.ACTIVITY_LATE, machines.ActivityPhase),
        (machines.CHILD_TRANSITIONS, machines.CHILD_LATE, machines.ChildPhase),
    ],
)
def test_late_ends_are_rows_of_the_tables(transitions: Any, reasons: Any, phases: Any) -> None:
    """Each event that closes something is late after the close; a row gives the reason, and no row is a transition too."""
    closing = {kind for (_, kind), phase in transitions.items() if phase is phases.CLOSED}
    late: set[tuple[Enum, type[Event]]] = set(reasons)
    assert {kind for _, kind in late} >= closing
    assert not late & set(transitions)
    assert all(reasons.values())
