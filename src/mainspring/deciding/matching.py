"""Compares the commands of workflow code with those in its history.

A command is compared by kind, number, name and arguments. The durations of timers are not compared: a recorded timer keeps
its time, and a changed duration applies to later ones. A local step is compared when its result is found in the history, by
its function and by a digest of function, arguments and result.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mainspring.jobs.failures import describe_failure
from mainspring.workflows import history
from mainspring.workflows.decisions import model as decisions
from mainspring.workflows.history import MarkerName, MarkerRecorded
from mainspring.workflows.model import Parked
from mainspring.workflows.payloads import same_digest, same_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.workflows.decisions.model import Decision

    Same = Callable[[bytes], bool]
    """Returns whether a recorded payload is that of a command, although their bytes differ."""

SHOWN: Final = 10
"""Commands that a mismatch shows before and after the first difference."""
_TEXT: Final = 60
"""Characters of a command's arguments that a mismatch shows."""


class Mismatch(Exception):  # noqa: N818 - a finding, not an error
    """The code and the history differ. It never leaves this package."""

    def __init__(self, recorded: str, code: str) -> None:
        super().__init__(recorded, code)
        self.recorded = recorded
        self.code = code


# ---- commands and their events ----

_CLOSES: Final = (
    decisions.CompleteWorkflowExecution,
    decisions.FailWorkflowExecution,
    decisions.CancelWorkflowExecution,
    decisions.ContinueAsNewWorkflowExecution,
)
_EVENTS: Final[dict[type[Any], tuple[type[Any], type[Any]]]] = {
    decisions.ScheduleActivityTask: (history.ActivityTaskScheduled, history.ScheduleActivityTaskFailed),
    decisions.RequestCancelActivityTask: (
        history.ActivityTaskCancelRequested,
        history.RequestCancelActivityTaskFailed,
    ),
    decisions.StartTimer: (history.TimerStarted, history.StartTimerFailed),
    decisions.CancelTimer: (history.TimerCanceled, history.CancelTimerFailed),
    decisions.RecordMarker: (history.MarkerRecorded, history.RecordMarkerFailed),
    decisions.StartChildWorkflowExecution: (
        history.StartChildWorkflowExecutionInitiated,
        history.StartChildWorkflowExecutionFailed,
    ),
    # These are always carried out; their failure is an answer.
    decisions.SignalExternalWorkflowExecution: (
        history.SignalExternalWorkflowExecutionInitiated,
        history.SignalExternalWorkflowExecutionInitiated,
    ),
    decisions.RequestCancelExternalWorkflowExecution: (
        history.RequestCancelExternalWorkflowExecutionInitiated,
        history.RequestCancelExternalWorkflowExecutionInitiated,
    ),
    decisions.CompleteWorkflowExecution: (
        history.WorkflowExecutionCompleted,
        history.CompleteWorkflowExecutionFailed,
    ),
    decisions.FailWorkflowExecution: (history.WorkflowExecutionFailed, history.FailWorkflowExecutionFailed),
    decisions.CancelWorkflowExecution: (history.WorkflowExecutionCanceled, history.CancelWorkflowExecutionFailed),
    decisions.ContinueAsNewWorkflowExecution: (
        history.WorkflowExecutionContinuedAsNew,
        history.ContinueAsNewWorkflowExecutionFailed,
    ),
}
"""The events of each decision: carried out, and failed."""
_NAMES: Final = ("activity_id", "timer_id", "name")
RECORDS: Final = frozenset(event for pair in _EVENTS.values() for event in pair)
"""Events that record a command, if their ``decision_completed`` is set."""
CLOSING: Final = frozenset(_EVENTS[kind][0] for kind in _CLOSES)
"""Events that close the run."""


def is_close(decision: Decision) -> bool:
    """Return whether a decision closes the run."""
    return isinstance(decision, _CLOSES)


def matches(event: Any, decision: Any, same: Same | None = None) -> bool:
    """Return whether an event records a decision. ``same`` tells whether a recorded payload is that of the decision."""

    def is_same(recorded: bytes, computed: bytes) -> bool:
        return same_payload(recorded, computed) or (same is not None and same(recorded))

    if (reason := _failure_of(event)) and (own := _failure_of(decision)):
        return reason == own  # whether another attempt follows is no difference of the code
    done, failed = _EVENTS[type(decision)]
    kind = type(event)
    if kind is not done and kind is not failed:
        return False
    if kind is history.ActivityTaskScheduled:
        return bool(
            event.activity_id == decision.activity_id
            and event.function == decision.function
            and is_same(event.input, decision.input)
        )
    if kind is history.TimerStarted:
        return bool(event.timer_id == decision.timer_id)
    if kind is history.MarkerRecorded:
        return bool(
            event.name == decision.name
            and event.number == decision.number
            and event.function == decision.function
            and same_digest(event.digest, decision.digest)
        )
    if kind in _OTHER_RUNS:
        return event.number == decision.number and _same_request(event, decision, is_same)
    if kind is history.WorkflowExecutionCompleted:
        return is_same(event.result, decision.result)
    if kind is history.WorkflowExecutionContinuedAsNew:
        stated = not decision.version or event.version == decision.version
        return bool(event.attempt == decision.attempt and stated) and is_same(event.input, decision.input)
    if kind is history.WorkflowExecutionFailed:
        return bool(event.reason == decision.reason)
    return all(getattr(event, name, None) == getattr(decision, name, None) for name in _NAMES)


def _failure_of(one: Any) -> str:
    """Return why an event or a decision closes a run as failed, whether another attempt follows or not; empty for others."""
    if isinstance(one, (history.WorkflowExecutionFailed, decisions.FailWorkflowExecution)):
        return str(one.reason)
    if isinstance(one, (history.WorkflowExecutionContinuedAsNew, decisions.ContinueAsNewWorkflowExecution)):
        return describe_failure(one.failure).partition(":")[0] if one.attempt > 1 else ""
    return ""


_OTHER_RUNS: Final = frozenset(
    {
        history.StartChildWorkflowExecutionInitiated,
        history.StartChildWorkflowExecutionFailed,
        history.SignalExternalWorkflowExecutionInitiated,
        history.RequestCancelExternalWorkflowExecutionInitiated,
    }
)


def _same_request(event: Any, decision: Any, is_same: Callable[[bytes, bytes], bool]) -> bool:
    """Return whether an event records a decision about another run, as far as its number does not say so."""
    if isinstance(decision, decisions.StartChildWorkflowExecution):
        if event.type != decision.type or (decision.workflow_id and event.workflow_id != decision.workflow_id):
            return False
        failed = type(event) is history.StartChildWorkflowExecutionFailed
        return failed or is_same(event.input, decision.input)
    # The node fills in the names of a child.
    if not decision.child and (event.workflow_id, event.run) != (decision.workflow_id, decision.run):
        return False
    if isinstance(decision, decisions.SignalExternalWorkflowExecution):
        return bool(event.name == decision.name) and is_same(event.input, decision.input)
    return True


# ---- words ----


def describe_event(event: Any) -> str:
    """Return one line for a recorded command."""
    if isinstance(event, MarkerRecorded):
        if event.name == MarkerName.STEP:
            return f"step #{event.number} {event.function}"
        return _describe(decisions.RecordMarker, event)
    for kind, (done, failed) in _EVENTS.items():
        if isinstance(event, (done, failed)):
            text = _describe(kind, event)
            return text if isinstance(event, done) else f"{text} (failed: {event.cause})"
    return type(event).__name__


def describe_decision(decision: Any) -> str:
    """Return one line for a command of the code."""
    return _describe(type(decision), decision)


def _describe(kind: type[Any], one: Any) -> str:
    if kind is decisions.ScheduleActivityTask:
        given = getattr(one, "input", None)
        shown = "" if given is None else f" {_shorten(given)}"
        return f"activity #{one.activity_id} {one.function.decode('utf-8', 'replace')}{shown}"
    if kind is decisions.RequestCancelActivityTask:
        return f"cancel activity #{one.activity_id}"
    if kind is decisions.StartTimer:
        return f"timer #{one.timer_id}"
    if kind is decisions.CancelTimer:
        return f"cancel timer #{one.timer_id}"
    if kind is decisions.RecordMarker:
        number = getattr(one, "number", 0)
        if one.name == MarkerName.PATCH and getattr(one, "native", False):
            return f"patch {one.function}"
        return f"{_marker_title(one.name)} #{number} {getattr(one, 'function', '')}".rstrip()
    if kind is decisions.StartChildWorkflowExecution:
        given = getattr(one, "input", None)
        shown = "" if given is None else f" {_shorten(given)}"
        return f"child #{one.number} {one.type}{shown}"
    if kind is decisions.SignalExternalWorkflowExecution:
        return f"signal #{one.number} {one.name} {_shorten(one.input)}".rstrip()
    if kind is decisions.RequestCancelExternalWorkflowExecution:
        return f"cancel another run #{one.number}"
    if kind is decisions.CompleteWorkflowExecution:
        return f"return {_shorten(getattr(one, 'result', b''))}".rstrip()
    if kind is decisions.FailWorkflowExecution:
        return f"fail with {getattr(one, 'reason', '')}".rstrip()
    if kind is decisions.ContinueAsNewWorkflowExecution and one.attempt > 1:
        return f"fail with {describe_failure(one.failure)}, and begin again"
    if kind is decisions.ContinueAsNewWorkflowExecution:
        return f"continue as new {_shorten(getattr(one, 'input', b''))}".rstrip()
    return "end as cancelled"


def _marker_title(name: str) -> str:
    return "side effect" if name == MarkerName.SIDE else f"marker {name}"


def _shorten(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


class Comparison:
    """The last commands on which code and history agree, and their first difference."""

    def __init__(self) -> None:
        self._agreed: deque[Any] = deque(maxlen=SHOWN)

    def agree(self, event: Any) -> None:
        """Note an event whose command the code has issued too."""
        self._agreed.append(event)

    def park(self, recorded: Iterable[str], code: Iterable[str]) -> Parked:
        """Return why the run is parked, given the lines of both sides from the first difference on."""
        before = [describe_event(event) for event in self._agreed]
        theirs, ours = list(recorded)[: SHOWN + 1], list(code)[: SHOWN + 1]
        return Parked(
            "mismatch",
            f"the code differs from the history: recorded is {_first(theirs)}, the code has {_first(ours)}; "
            "restore the code, or start a worker with code that makes the recorded commands",
            (*before, *theirs),
            (*before, *ours),
            len(before),
        )


def _first(lines: list[str]) -> str:
    return lines[0] if lines else "nothing"
