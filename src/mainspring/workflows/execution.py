"""The execution of a run: its begin, requests from outside, completed decisions, and its close.

| request | refused if | answer |
|---|---|---|
| signal | the run is closed | ``closed`` |
| signal | one with its request key was recorded before: late but harmless, the first one counts | ``repeated`` |
| signal | the history is in its last 1,000 events | ``full`` |
| cancel request | as a signal; in the last 1,000 events only if there was one before | |
| terminate | the run is closed: late but harmless | ``closed`` |

The completion of a decision has guards, the events of its steps and decisions, and the next decision task. Events of a lean
completion, in this order:

| event | if |
|---|---|
| DecisionTaskStarted | the decision has no record yet |
| MarkerRecorded for each step | its number is not recorded yet |
| TimerStarted for each step that waits for its next attempt | |
| DecisionTaskCompleted | unless the decider goes on (``more``) with neither decisions nor newer events |
| the events of the decisions, in order | |
| ActivityTaskCanceled for each activity that the list has scheduled and cancelled | the run is open |
| DecisionTaskScheduled | the decider goes on, or lacks an event that asks for a decision, or a decision failed |

``DecisionTaskCompleted.seen`` is the last event that the decider was given. If it was fused, that includes the ends of the
activities that it has brought along.

Late but harmless completions are *stale*: nothing of them is recorded, and the decider evicts the run.

| stale because | as when |
|---|---|
| the run is closed, or parked | it was terminated meanwhile |
| no decision task is open, or the open one is newer than ``seen`` | another decider has made the decision |
| ``seen`` is not that of the recorded steps of the decision | a decider does not resume a decision as it was begun |
| a step is recorded with another digest | two deciders have executed it |
| fused, and a decision task is open | a signal came before |
| fused, and there is a newer event that it has not brought | an activity has timed out; another worker's activity has ended |
| fused, and its code has read a time that has not come | the decider's clock runs ahead, or the node's was stepped back |
| fused, and the run is paused | its decisions wait for the resume |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.jobs.model import decode_options, failure
from mainspring.quantities import format_size
from mainspring.sizes import CANNOT_READ
from mainspring.workflows import (
    activities,
    history,
    hold_calls,
    other_runs,
    requests,
)
from mainspring.workflows.carrying import marker_attributes
from mainspring.workflows.draft import (
    close,
    ensure_room,
    park,
    progressed,
    recorded,
    schedule_decision,
    start_decision,
    takes_requests,
)
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import YEAR, Status
from mainspring.workflows.other_runs import cancel_waiting
from mainspring.workflows.requests import (
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    FailWorkflowExecution,
    Reached,
    Ruling,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.workflows.carrying import Carried
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import State
    from mainspring.workflows.requests import Completion, Decision, DecisionBase, RequestVerdict, Signal, StepResult

UNHANDLED_DECISION: Final = "UNHANDLED_DECISION"


def begin_run(
    draft: Draft,
    *,
    type: str,  # noqa: A002 - SWF's name
    version: str,
    input: bytes,  # noqa: A002 - SWF's name
    run: int,
    root: int,
    workflow_id: str,
    namespace: str = "default",
    timeout: float = 0,
    seed: int = 0,
    full: bool = False,
    task_list: str = "",
    task_priority: int = 1,
    task_timeout: float = 0,
    child_policy: ChildPolicy = ChildPolicy.TERMINATE,
    tags: tuple[str, ...] = (),
    parent_run: int = 0,
    parent_initiated: int = 0,
    depth: int = 0,
    continued_run: int = 0,
    forked_run: int = 0,
    requests: tuple[int, ...] = (),
    carried: Sequence[Carried] = (),
) -> None:
    """Begin a run and ask for its first decision. ``timeout`` is at most the limit of the node, which 0 stands for.

    ``carried``: the results that it takes over as a rerun.
    """
    longest = draft.limits.timeout
    draft.record(
        history.WorkflowExecutionStarted,
        type=type,
        version=version,
        input=input,
        task_list=task_list,
        task_priority=task_priority,
        child_policy=child_policy,
        execution_timeout=min(timeout or longest, longest),
        task_timeout=task_timeout,
        tags=tags,
        continued_run=continued_run,
        parent_run=parent_run,
        parent_initiated=parent_initiated,
        run=run,
        root=root,
        namespace=namespace,
        workflow_id=workflow_id,
        seed=seed,
        full=full,
        requests=requests,
        **recorded(draft.limits),
        depth=depth,
        forked_run=forked_run,
    )
    for result in carried:
        draft.record(history.MarkerRecorded, **marker_attributes(result))
    schedule_decision(draft)


# ---- requests from outside ----


def signal(draft: Draft, request: Signal, **external: object) -> Reached:
    """Record a signal. ``external`` has the attributes of the run that has sent it."""
    state = draft.state
    if request.request and request.request in state.requests:
        return reached(draft, "repeated")
    if state.status:
        return reached(draft, "closed")
    if not takes_requests(draft) or not ensure_room(draft, 2):
        return reached(draft, "full")
    event = draft.record(
        history.WorkflowExecutionSignaled,
        name=request.name,
        input=request.input,
        request=request.request,
        depth=request.depth,
        **external,
    )
    schedule_decision(draft)
    return reached(draft, "recorded", event.id)


def request_cancel(draft: Draft, *, reason: str = "", request: int = 0, cause: str = "", **external: object) -> Reached:
    """Ask a run to cancel itself.

    ``cause`` is ``CHILD_POLICY_APPLIED`` or empty; ``external`` has the attributes of the run that asks.
    """
    state = draft.state
    if request and request in state.requests:
        return reached(draft, "repeated")
    if state.status:
        return reached(draft, "closed")
    if (state.cancel_requested and not takes_requests(draft)) or not ensure_room(draft, 2):
        return reached(draft, "full")
    event = draft.record(
        history.WorkflowExecutionCancelRequested, cause=cause, reason=reason, request=request, **external
    )
    if state.begin_us > draft.now_us:
        cancel_waiting(draft, reason)
    schedule_decision(draft)
    return reached(draft, "recorded", event.id)


def terminate(
    draft: Draft,
    *,
    reason: str = "",
    details: bytes = b"",
    children: ChildPolicy | None = None,
    cause: str = "OPERATOR_INITIATED",
) -> Reached:
    """End a run at once. ``children`` replaces the run's own child policy."""
    state = draft.state
    if state.status:
        return reached(draft, "closed")
    policy = state.child_policy if children is None else children
    close(
        draft,
        history.WorkflowExecutionTerminated,
        children=children,
        cause=cause,
        reason=reason,
        details=details,
        child_policy=policy,
    )
    return reached(draft, "recorded", state.last)


def time_out_run(draft: Draft) -> None:
    """Close a run that has lasted longer than its execution timeout."""
    close(draft, history.WorkflowExecutionTimedOut, child_policy=draft.state.child_policy)


def reached(draft: Draft, verdict: RequestVerdict, event: int = 0) -> Reached:
    """Return the answer to a request."""
    state = draft.state
    return Reached(verdict, state.run, state.root, event, Status(state.status))


# ---- closes ----


def complete_run(draft: Draft, decision: CompleteWorkflowExecution, completed: int) -> None:
    """Close a run with a result."""
    close(draft, history.WorkflowExecutionCompleted, decision_completed=completed, result=decision.result)


def fail_run(draft: Draft, decision: FailWorkflowExecution, completed: int) -> None:
    """Close a run as failed."""
    close(
        draft,
        history.WorkflowExecutionFailed,
        decision_completed=completed,
        reason=decision.reason,
        details=decision.details,
    )


def cancel_run(draft: Draft, decision: CancelWorkflowExecution, completed: int) -> None:
    """Close a run as cancelled. Its clients get the reason of the request, unless the decision has other details."""
    reason = "" if draft.state.full else draft.state.cancel_reason
    details = decision.details or (failure("Cancelled", reason) if reason else b"")
    close(draft, history.WorkflowExecutionCanceled, decision_completed=completed, details=details)


def refuse_close(draft: Draft, decision: Decision, completed: int) -> None:
    """Record that the run goes on, because it has events that its decider has not been given."""
    draft.record(REFUSED[decision.__class__], decision_completed=completed, cause=UNHANDLED_DECISION)


REFUSED: Final[Mapping[type[DecisionBase], type[Event]]] = {
    CompleteWorkflowExecution: history.CompleteWorkflowExecutionFailed,
    FailWorkflowExecution: history.FailWorkflowExecutionFailed,
    CancelWorkflowExecution: history.CancelWorkflowExecutionFailed,
    ContinueAsNewWorkflowExecution: history.ContinueAsNewWorkflowExecutionFailed,
}
"""The decisions that close a run, with the events that are recorded in place of the close."""

MOST_AHEAD_US: Final = 5_000_000
"""The code of a fused decision reads the time that its decider estimates. It may be so far ahead of the node's: two clocks drift
apart, and the estimate is renewed with each decision that a node assigns."""


def complete(draft: Draft, completion: Completion) -> Ruling:
    """Judge a completion and record it."""
    state = draft.state
    fused = not completion.job and not state.full
    why = _fused_stale(draft, completion) if fused else _stale(state, completion)
    if not why:
        why = "the run is parked" if draft.parking.parked is not None else _contradiction(state, completion.steps)
    if why:
        return Ruling("stale", why)
    if completion.parked is not None:
        park(draft, completion.parked, completion.build)
        return Ruling("parked")
    why = _malformed(draft, completion)
    if why:
        return Ruling("refused", why)
    draft.new_run = completion.new_run
    decisions, steps = completion.decisions, completion.steps
    # One event each, a second for each cancelled activity, and the decision task's own three.
    if not ensure_room(draft, 3 + len(steps) + 2 * len(decisions) + 2 * len(completion.retries)):
        return Ruling("stale", "the history is full: the run is terminated")
    seen = state.last if fused or state.full else completion.seen
    _record_steps(draft, completion, seen)
    if completion.retries:
        if not state.started:
            start_decision(draft, completion.identity)
        for retry in completion.retries:
            activities.wait_for_attempt(draft, retry)
    unseen = state.last_trigger > (state.started if state.full else seen)
    if completion.more and not decisions and not unseen:
        return Ruling("recorded")
    refused_close = _record_decisions(draft, completion, seen, unseen=unseen)
    if completion.more or state.last_trigger > state.seen:
        schedule_decision(draft)
    return Ruling("recorded", "", refused_close)


# ---- guards ----


def _stale(state: State, completion: Completion) -> str:
    if state.status:
        return "the run is closed"
    seen = completion.seen
    if state.full:
        return "" if state.started and seen == state.started else "the decision task is not open"
    if not state.scheduled or not state.scheduled <= seen <= state.last:
        return "the decision task is not open"
    if completion.parked is None and state.batch and seen != state.step_seen:
        return f"the decision's recorded steps were given the events up to {state.step_seen}, not up to {seen}"
    return ""


def _fused_stale(draft: Draft, completion: Completion) -> str:
    state = draft.state
    if state.status:
        return "the run is closed"
    if state.started or 0 < state.scheduled <= draft.base:
        return "a decision task is open"
    if draft.parking.pause is not None:
        return "the run is paused"
    brought = draft.brought
    seen = completion.seen
    for job in completion.settled:
        events = brought.get(job)
        if not events:
            return "an activity has closed otherwise"
        seen += events
    if seen != state.last or not completion.settled:
        return "the run has newer events"
    if completion.now_us > max(draft.now_us + MOST_AHEAD_US, state.decided_us):
        return f"the decider's clock is {(completion.now_us - draft.now_us) / 1_000_000:.0f} s ahead of the node's"
    return ""


def _contradiction(state: State, steps: Sequence[StepResult]) -> str:
    recorded = state.steps
    if recorded:
        for step in steps:
            if recorded.get(step.number, step.digest) != step.digest:
                return f"step {step.number} is recorded with another result"
    return ""


def _malformed(draft: Draft, completion: Completion) -> str:
    """Return why a list is refused whole; empty if it is not."""
    decisions = completion.decisions
    largest = draft.limits.largest
    if why := hold_calls.too_many(draft, decisions):
        return why
    if completion.more and decisions and decisions[-1].__class__ in _CLOSES:
        return "a decision that goes on may not close the run"
    for decision in decisions[:-1]:
        if decision.__class__ in _CLOSES:
            return f"{type(decision).__name__} must be the last decision"
    for decision in decisions:
        kind = decision.__class__
        check = _CHECKS.get(kind)
        why = check(decision, largest) if check is not None else ""
        if why:
            return f"command {decision.number} ({kind.__name__}): {why}"
    if not (completion.steps or completion.retries):
        return ""
    if not completion.job or draft.state.full:
        return "a step needs a decision task: settle the activity with `more` before the step starts"
    return _malformed_steps(draft.state, completion.steps, largest)


def _malformed_steps(state: State, steps: Sequence[StepResult], largest: int) -> str:
    batch = state.batch
    recorded = state.steps
    numbers = set()
    for step in steps:
        if step.number in numbers:
            return f"step {step.number} is twice in the list"
        numbers.add(step.number)
        if step.number in recorded:
            continue
        if step.batch < batch or step.batch <= state.batch:
            return f"step {step.number} belongs to batch {step.batch}, and batch {batch} is recorded already"
        batch = step.batch
        if len(step.result) > largest:
            return f"step {step.number} ({step.function}): {_too_large('result', len(step.result), largest)}"
    return ""


def _activity_problem(decision: requests.ScheduleActivityTask, largest: int) -> str:
    if len(decision.input) > largest:
        return _too_large("input", len(decision.input), largest)
    if not decision.options:
        return ""
    try:
        decode_options(decision.options)
    except CANNOT_READ as error:
        return f"its options are not valid: {error}"
    return ""


def _timer_problem(decision: requests.StartTimer, _largest: int) -> str:
    seconds = decision.start_to_fire
    return "" if 0 <= seconds <= YEAR else f"{seconds} s is no time for a timer: it is from 0 s to a year"


def _input_problem(decision: Any, largest: int) -> str:
    size = len(decision.input)
    return _too_large("input", size, largest) if size > largest else ""


def _continuation_problem(decision: requests.ContinueAsNewWorkflowExecution, largest: int) -> str:
    if not 0 <= decision.delay <= YEAR:
        return f"{decision.delay} s is no delay for another attempt: it is from 0 s to a year"
    if len(decision.failure) > largest:
        return _too_large("failure", len(decision.failure), largest)
    return _input_problem(decision, largest)


def _result_problem(decision: requests.CompleteWorkflowExecution, largest: int) -> str:
    size = len(decision.result)
    return _too_large("result", size, largest) if size > largest else ""


def _details_problem(decision: Any, largest: int) -> str:
    size = len(decision.details)
    return _too_large("value", size, largest) if size > largest else ""


def _marker_problem(decision: requests.RecordMarker, largest: int) -> str:
    return _details_problem(decision, largest) or hold_calls.problem(decision)


def _too_large(what: str, size: int, largest: int) -> str:
    limit = f"the limit is {format_size(largest)}"
    return f"the {what} has {format_size(size)}; {limit}: store the value elsewhere and pass a reference to it"


# ---- records ----


def _record_steps(draft: Draft, completion: Completion, seen: int) -> None:
    state = draft.state
    recorded = state.steps
    fresh = [step for step in completion.steps if step.number not in recorded]
    if not fresh:
        return
    if not state.started:
        start_decision(draft, completion.identity)
    for step in fresh:
        activities.record_step(draft, step, seen, completion)
    progressed(draft.parking, completion.build)


def _record_decisions(draft: Draft, completion: Completion, seen: int, *, unseen: bool) -> bool:
    """Complete the decision task and apply the decisions; return whether a close was refused."""
    state = draft.state
    if not state.started:
        start_decision(draft, completion.identity)
    completed = draft.record(
        history.DecisionTaskCompleted,
        scheduled=state.scheduled,
        started=state.started,
        seen=0 if state.full else seen,
        now_us=completion.now_us,
        batch=completion.batch,
        semantics=completion.semantics,
    ).id
    progressed(draft.parking, completion.build)
    decisions = completion.decisions
    if not decisions:
        return False
    close: Decision | None = decisions[-1]
    if close.__class__ in _CLOSES:
        decisions = decisions[:-1]
    else:
        close = None
    cancels: list[str] = []
    for decision in decisions:
        _RULES[decision.__class__](draft, decision, completed)
        if isinstance(decision, requests.RequestCancelActivityTask):
            cancels.append(decision.activity_id)
    if close is not None:
        if not unseen or (close.__class__ is requests.ContinueAsNewWorkflowExecution and not state.full):
            _RULES[close.__class__](draft, close, completed)
            return False
        refuse_close(draft, close, completed)
    for activity_id in cancels:
        activities.finish_cancel(draft, activity_id)
    return close is not None


_RULES: Final[dict[type[DecisionBase], Callable[[Draft, Any, int], None]]] = {
    requests.ScheduleActivityTask: activities.schedule_activity,
    requests.RequestCancelActivityTask: activities.request_cancel_activity,
    requests.CompleteWorkflowExecution: complete_run,
    requests.FailWorkflowExecution: fail_run,
    requests.CancelWorkflowExecution: cancel_run,
    requests.ContinueAsNewWorkflowExecution: other_runs.continue_as_new,
    requests.RecordMarker: activities.record_marker,
    requests.StartTimer: activities.start_timer,
    requests.CancelTimer: activities.cancel_timer,
    requests.StartChildWorkflowExecution: other_runs.start_child,
    requests.SignalExternalWorkflowExecution: other_runs.signal_external,
    requests.RequestCancelExternalWorkflowExecution: other_runs.cancel_external,
    requests.ScheduleLambdaFunction: other_runs.schedule_lambda,
}
_CLOSES: Final = frozenset(REFUSED)

_CHECKS: Final[dict[type[DecisionBase], Callable[[Any, int], str]]] = {
    requests.ScheduleActivityTask: _activity_problem,
    requests.CompleteWorkflowExecution: _result_problem,
    requests.FailWorkflowExecution: _details_problem,
    requests.CancelWorkflowExecution: _details_problem,
    requests.ContinueAsNewWorkflowExecution: _continuation_problem,
    requests.RecordMarker: _marker_problem,
    requests.StartTimer: _timer_problem,
    requests.StartChildWorkflowExecution: _input_problem,
    requests.SignalExternalWorkflowExecution: _input_problem,
    requests.ScheduleLambdaFunction: _input_problem,
}
"""The problem of a decision that refuses its whole list; empty if there is none."""
