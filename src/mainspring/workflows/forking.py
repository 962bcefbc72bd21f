"""Forks: another run of the same workflow id that begins with a part of an earlier one.

| kind | its history begins with | its code |
|---|---|---|
| *reset* | the events of the earlier run up to a completed decision, which is made anew | repeats the decisions before it |
| *rerun* | a start, perhaps with another input, and the results of the earlier run (`carrying`) | begins anew |

An open run continues as its fork: it closes in the same transaction, with the status ``continued_as_new``, and the fork has its
root job. So those who wait for the run get the outcome of the fork, and its parent waits on. The activities of the closed run
are withdrawn, and its children end by their child policies. The fork of a closed run has a root job of its own, and
no parent. It is refused while a run of the workflow id is open or waits.

The fork gets the signals of the earlier run again that its begin does not contain, unless the request says otherwise.

A reset schedules the activities and children anew that were open at its decision, with new jobs and runs; their timeouts run
from now. Timers keep their times: one that is due fires at once. A request to another run that had no answer gets the one
that the earlier history has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from msgspec.structs import asdict, replace

from mainspring.errors import UsageError
from mainspring.workflows import history
from mainspring.workflows.carrying import Choice, calls_of, find_call, plan_rerun
from mainspring.workflows.cross_run import ApplyPolicy
from mainspring.workflows.draft import after_initiated, close, fold, schedule_decision
from mainspring.workflows.execution import begin_run
from mainspring.workflows.history import ChildPolicy, DecisionTaskCompleted, RequestNotTaken, RequestTaken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.workflows.carrying import Plan
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import State

NO_CHOICE: Final = Choice()


class Point(NamedTuple):
    """The decision to which a run is reset, given in one of four ways."""

    event: int = 0
    """The number of its DecisionTaskCompleted."""
    before: str = ""
    """A call that it made, as of `carrying.Choice`."""
    end: Literal["", "first", "last"] = ""
    """The first or the last completed decision."""


class Change(NamedTuple):
    """The wishes of the person who forks a run. Without a point, it is a rerun."""

    point: Point | None = None
    choice: Choice = NO_CHOICE
    """Of a rerun."""
    input: bytes | None = None
    """Of a rerun: its encoded arguments; None: those of the earlier run."""
    version: str = ""
    """Of a rerun; empty: the version for new runs."""
    drop_signals: bool = False
    reason: str = ""


class ForkPlan(NamedTuple):
    """The parts of the earlier run that a fork has, and the others."""

    point: int = 0
    """Of a reset: the DecisionTaskCompleted that is made anew; 0: a rerun."""
    kept: int = 0
    """Of a reset: the number of events that it begins with."""
    carried: tuple[str, ...] = ()
    """The calls whose results it has, such as ``charge#1``."""
    repeated: tuple[str, ...] = ()
    """The calls that execute again, if the code makes them again."""
    given: tuple[str, ...] = ()
    """Of a rerun: the calls that get a result of the request."""
    signals: int = 0
    """Signals that it gets again."""
    dropped: int = 0
    """Of a reset: the events of the earlier run that it does not have; repeated signals are among them."""
    dropped_signals: int = 0
    """Signals that it does not get."""


def point_of(events: Sequence[Event], wanted: Point) -> DecisionTaskCompleted:
    """Return the completed decision that a request names. Raises UsageError if there is none."""
    decisions = [event for event in events if isinstance(event, DecisionTaskCompleted)]
    if not decisions:
        raise UsageError("the run has completed no decision: there is nothing to which it could be reset")
    if wanted.end:
        return decisions[0 if wanted.end == "first" else -1]
    if wanted.before:
        return _decision_of(events, decisions, find_call(events, wanted.before).event, wanted.before)
    for one in decisions:
        if one.id == wanted.event:
            return one
    numbers = [str(one.id) for one in decisions if one.id > wanted.event][:1] or [str(decisions[-1].id)]
    raise UsageError(
        f"event {wanted.event} is no completed decision (DecisionTaskCompleted): the next to it is event {numbers[0]}"
    )


def _decision_of(
    events: Sequence[Event], decisions: list[DecisionTaskCompleted], call: int, text: str
) -> DecisionTaskCompleted:
    """Return the decision that made a call: it is named by the command's event, or comes after the recorded step."""
    completed = getattr(events[call - 1], "decision_completed", 0)
    for one in decisions:
        if one.id == completed or (not completed and one.started < call < one.id):
            return one
    raise UsageError(
        f"the decision that called {text} is not completed: reset the run to the one before it, or rerun it from the step"
    )


def later_signals(events: Sequence[Event], after: int) -> list[history.WorkflowExecutionSignaled]:
    """Return the signals of clients and other runs after an event."""
    return [
        event
        for event in events
        if isinstance(event, history.WorkflowExecutionSignaled)
        and event.id > after
        and not history.is_hold_answer(event)
    ]


def plan_fork(events: Sequence[Event], change: Change, most_carried: int) -> tuple[ForkPlan, Plan | None]:
    """Return what a fork of a run has, and for a rerun its results. Raises UsageError for what the run does not have."""
    if change.point is None:
        plan = plan_rerun(events, change.choice, most_carried)
        signals, dropped = _divided(later_signals(events, 0), change)
        shown = ForkPlan(
            0,
            0,
            tuple(map(str, plan.kept)),
            tuple(map(str, plan.repeated)),
            tuple(change.choice.skip),
            signals,
            dropped_signals=dropped,
        )
        return shown, plan
    point = point_of(events, change.point)
    kept = events[: point.started - 1]
    state = fold(kept)
    if state.holds:
        raise UsageError(
            f"the run held slots of resources, or waited for some, at event {point.id}: choose a decision before or after that"
        )
    signals, dropped = _divided(later_signals(events, kept[-1].id), change)
    ended = [call for call in calls_of(kept) if call.ended]
    after = {(call.function, call.occurrence) for call in ended}
    repeated = [call for call in calls_of(events) if (call.function, call.occurrence) not in after]
    names = tuple(map(str, ended)), tuple(map(str, repeated))
    return ForkPlan(point.id, len(kept), *names, (), signals, len(events) - len(kept), dropped), None


def _divided(signals: Sequence[Event], change: Change) -> tuple[int, int]:
    """Return how many of the later signals a fork gets, and how many it does not."""
    return (0, len(signals)) if change.drop_signals else (len(signals), 0)


def close_forked(draft: Draft, new_run: int, change: Change, version: str, payload: bytes) -> None:
    """Close an open run that goes on as its fork. Its children end by their policies."""
    state = draft.state
    children = list(state.children.values())
    source = (state.run, state.namespace, state.workflow_id)
    close(
        draft,
        history.WorkflowExecutionContinuedAsNew,
        decision_completed=0,
        new_run=new_run,
        type=state.type,
        version=version,
        input=payload,
        task_list=state.task_list,
        task_priority=state.task_priority,
        child_policy=state.child_policy,
        task_timeout=state.task_timeout,
        tags=state.tags,
        reason=change.reason or ("reset" if change.point is not None else "rerun"),
    )
    for child in children:
        policy = state.child_policy if state.full else child.policy
        if policy is not ChildPolicy.ABANDON:
            draft.errands.append(ApplyPolicy(*source, child.run, child.initiated, policy))


class Origin(NamedTuple):
    """The run that a fork begins with."""

    events: Sequence[Event]
    state: State
    """As of its end, or of now."""
    goes_on: bool
    """Whether the run was open, so that its chain goes on with the fork."""

    @property
    def started(self) -> history.WorkflowExecutionStarted:
        """Its first event."""
        first = self.events[0]
        assert isinstance(first, history.WorkflowExecutionStarted)
        return first


def begin_rerun(draft: Draft, origin: Origin, change: Change, plan: Plan, run: int, root: int, version: str) -> None:
    """Begin a rerun, with the results that it takes over."""
    started, goes_on = origin.started, origin.goes_on
    begin_run(
        draft,
        type=started.type,
        version=version,
        input=started.input if change.input is None else change.input,
        run=run,
        root=root,
        workflow_id=started.workflow_id,
        namespace=started.namespace,
        timeout=started.execution_timeout,
        seed=started.seed,
        full=started.full,
        task_list=started.task_list,
        task_priority=started.task_priority,
        task_timeout=started.task_timeout,
        child_policy=started.child_policy,
        tags=started.tags,
        parent_run=started.parent_run if goes_on else 0,
        parent_initiated=started.parent_initiated if goes_on else 0,
        continued_run=origin.state.run if goes_on else 0,
        forked_run=origin.state.run,
        requests=tuple(origin.state.requests),
        carried=plan.carried,
    )
    if not change.drop_signals:
        repeat_signals(draft, later_signals(origin.events, 0))


def repeat_signals(draft: Draft, signals: Sequence[history.WorkflowExecutionSignaled]) -> None:
    """Record signals of the earlier run."""
    for signal in signals:
        attributes = asdict(signal)
        del attributes["id"], attributes["at_us"]
        draft.record(history.WorkflowExecutionSignaled, **attributes)
    schedule_decision(draft)


def begin_reset(draft: Draft, origin: Origin, change: Change, plan: ForkPlan, run: int, root: int) -> None:
    """Begin a reset: with the events that it keeps, of which those about open tasks are scheduled anew."""
    kept = list(origin.events[: plan.kept])
    started, goes_on = origin.started, origin.goes_on
    kept[0] = replace(
        started,
        run=run,
        root=root,
        continued_run=origin.state.run if goes_on else 0,
        parent_run=started.parent_run if goes_on else 0,
        parent_initiated=started.parent_initiated if goes_on else 0,
        requests=tuple(origin.state.requests),
        forked_run=origin.state.run,
        forked_at=plan.point,
        timed_from_us=draft.now_us,
    )
    open_state = fold(kept)
    _renew_activities(draft, kept, open_state)
    _renew_children(draft, kept, open_state)
    for event in kept:
        draft.copy(event)
    for scheduled in open_state.activities:
        event = kept[scheduled - 1]
        assert isinstance(event, history.ActivityTaskScheduled)
        draft.submitted[event.job] = event
    for initiated in open_state.children:
        after_initiated(draft, kept[initiated - 1])
    _answer_requests(draft, origin.events, open_state)
    if not change.drop_signals:
        repeat_signals(draft, later_signals(origin.events, plan.kept))
    schedule_decision(draft)


def _renew_activities(draft: Draft, kept: list[Event], state: State) -> None:
    """Give new jobs to the activities that are open."""
    for scheduled in state.activities:
        event = kept[scheduled - 1]
        assert isinstance(event, history.ActivityTaskScheduled)
        kept[scheduled - 1] = replace(event, job=draft.next_id(), timed_from_us=draft.now_us)


def _renew_children(draft: Draft, kept: list[Event], state: State) -> None:
    """Give new runs to the children that are open."""
    for initiated, child in state.children.items():
        event = kept[initiated - 1]
        assert isinstance(event, history.StartChildWorkflowExecutionInitiated)
        run = draft.next_id()
        workflow_id = child.workflow_id
        if workflow_id == draft.handle_of(event.run):
            workflow_id = draft.handle_of(run)
        kept[initiated - 1] = replace(event, run=run, workflow_id=workflow_id)
        if child.started:
            begun = kept[child.started - 1]
            assert isinstance(begun, history.ChildWorkflowExecutionStarted)
            kept[child.started - 1] = replace(begun, run=run, workflow_id=workflow_id)


def _answer_requests(draft: Draft, events: Sequence[Event], state: State) -> None:
    """Record the answers that open requests to other runs have got since, and make the others again."""
    answers = {event.initiated: event for event in events if isinstance(event, (RequestTaken, RequestNotTaken))}
    for initiated in list(state.externals):
        answer = answers.get(initiated)
        if answer is None:
            after_initiated(draft, events[initiated - 1])
            continue
        attributes = asdict(answer)
        del attributes["id"], attributes["at_us"]
        draft.record(type(answer), **attributes)
