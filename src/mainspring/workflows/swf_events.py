"""Events as Amazon SWF's API shows them.

See https://docs.aws.amazon.com/amazonswf/latest/apireference/API_HistoryEvent.html. SWF writes durations and ids of runs as
strings. It leaves out optional attributes without a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.workflows import history

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mainspring.workflows.history import Event, EventBase


def swf_event(event: Event, *, native: bool = False) -> dict[str, Any]:
    """Return an event as SWF's API writes it in JSON. With ``native``, add the attributes that SWF does not have."""
    kind = type(event).__name__
    attributes: dict[str, Any] = {}
    renamed = _RENAMED.get(type(event), _NOTHING)
    own = _OWN.get(type(event), _NO_NAMES)
    for field in type(event).__struct_fields__[_HEAD:]:
        value = getattr(event, field)
        name = renamed.get(field) or _NAMES.get(field)
        if name is None or field in own:
            if native and value not in _EMPTY:
                attributes[_camel(field)] = _CONVERTED.get(field, _plain)(value)
        elif value not in _EMPTY or name.endswith(_REQUIRED):
            _put(attributes, name.removesuffix(_REQUIRED), _CONVERTED.get(field, _plain)(value))
    return {
        "eventTimestamp": event.at_us / 1_000_000,
        "eventType": kind,
        "eventId": event.id,
        f"{kind[0].lower()}{kind[1:]}EventAttributes": attributes,
    }


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    """Set an attribute; one with a dot belongs to an object."""
    outer, _, inner = name.partition(".")
    if inner:
        attributes.setdefault(outer, {})[inner] = value
    else:
        attributes[name] = value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _plain(value: Any) -> Any:
    return _text(value) if isinstance(value, bytes) else list(value) if isinstance(value, tuple) else value


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _seconds(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _strings(values: tuple[int, ...]) -> list[str]:
    return list(map(str, values))


_HEAD: Final = 2
"""The number and the time come first in each event."""
_EMPTY: Final[tuple[Any, ...]] = (0, "", b"", (), False)
_REQUIRED: Final = "!"
"""The last character of a name that SWF's API requires."""
_NOTHING: Final[Mapping[str, str]] = {}
_NO_NAMES: Final[frozenset[str]] = frozenset()

_NAMES: Final[Mapping[str, str]] = {
    "activity_id": "activityId!",
    "cancel_requested": "latestCancelRequestedEventId",
    "cause": "cause",
    "child_policy": "childPolicy!",
    "context": "executionContext",
    "continued_run": "continuedExecutionRunId",
    "control": "control",
    "decision_completed": "decisionTaskCompletedEventId!",
    "details": "details",
    "execution_timeout": "executionStartToCloseTimeout",
    "external_initiated": "externalInitiatedEventId",
    "external_run": "externalWorkflowExecution.runId",
    "external_workflow_id": "externalWorkflowExecution.workflowId",
    "function": "activityType.name!",
    "heartbeat": "heartbeatTimeout",
    "identity": "identity",
    "initiated": "initiatedEventId!",
    "input": "input",
    "lambda_id": "id!",
    "lambda_role": "lambdaRole",
    "message": "message",
    "new_run": "newExecutionRunId!",
    "parent_initiated": "parentInitiatedEventId",
    "parent_run": "parentWorkflowExecution.runId",
    "reason": "reason",
    "result": "result",
    "schedule_to_close": "scheduleToCloseTimeout",
    "schedule_to_start": "scheduleToStartTimeout",
    "scheduled": "scheduledEventId!",
    "start_to_close": "startToCloseTimeout",
    "start_to_fire": "startToFireTimeout!",
    "started": "startedEventId!",
    "tags": "tagList",
    "task_list": "taskList.name!",
    "task_priority": "taskPriority",
    "task_timeout": "taskStartToCloseTimeout",
    "timeout": "timeoutType!",
    "timer_id": "timerId!",
    "type": "workflowType.name!",
    "version": "workflowType.version!",
}
"""SWF's names of attributes in all events but those of `_RENAMED`; other attributes are not in SWF."""

_ACTIVITY_VERSION: Final = {"version": "activityType.version!"}
_SIGNAL: Final = {"name": "signalName!"}
_MARKER: Final = {"name": "markerName!"}
_LAMBDA: Final = {"name": "name!"}
_EXECUTION: Final = {"workflow_id": "workflowExecution.workflowId!", "run": "workflowExecution.runId!"}
_ADDRESS: Final = {"workflow_id": "workflowId!", "run": "runId"}

_RENAMED: Final[Mapping[type[EventBase], Mapping[str, str]]] = {
    history.ActivityTaskScheduled: _ACTIVITY_VERSION,
    history.ScheduleActivityTaskFailed: _ACTIVITY_VERSION,
    history.WorkflowExecutionSignaled: _SIGNAL,
    history.MarkerRecorded: _MARKER,
    history.RecordMarkerFailed: _MARKER,
    history.LambdaFunctionScheduled: _LAMBDA,
    history.ScheduleLambdaFunctionFailed: _LAMBDA,
    history.StartChildWorkflowExecutionInitiated: {"workflow_id": "workflowId!"},
    history.StartChildWorkflowExecutionFailed: {"workflow_id": "workflowId!"},
    history.ChildWorkflowExecutionStarted: _EXECUTION,
    history.ChildWorkflowExecutionCompleted: _EXECUTION,
    history.ChildWorkflowExecutionFailed: _EXECUTION,
    history.ChildWorkflowExecutionTimedOut: _EXECUTION,
    history.ChildWorkflowExecutionCanceled: _EXECUTION,
    history.ChildWorkflowExecutionTerminated: _EXECUTION,
    history.ExternalWorkflowExecutionSignaled: _EXECUTION,
    history.ExternalWorkflowExecutionCancelRequested: _EXECUTION,
    history.SignalExternalWorkflowExecutionInitiated: _ADDRESS | _SIGNAL,
    history.SignalExternalWorkflowExecutionFailed: _ADDRESS,
    history.RequestCancelExternalWorkflowExecutionInitiated: _ADDRESS,
    history.RequestCancelExternalWorkflowExecutionFailed: _ADDRESS,
}

_OWN: Final[Mapping[type[EventBase], frozenset[str]]] = {
    history.ChildWorkflowExecutionTerminated: frozenset({"reason"}),
    history.RequestCancelExternalWorkflowExecutionInitiated: frozenset({"reason"}),
    history.WorkflowExecutionCancelRequested: frozenset({"reason"}),
    history.MarkerRecorded: frozenset({"function"}),
}
"""Attributes that other events have in SWF."""

_CONVERTED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "continued_run": str,
    "digest": str,
    "execution_timeout": _seconds,
    "external_run": str,
    "heartbeat": _seconds,
    "job": str,
    "new_run": str,
    "options": msgspec.msgpack.decode,
    "parent_run": str,
    "requests": _strings,
    "root": str,
    "run": str,
    "schedule_to_close": _seconds,
    "schedule_to_start": _seconds,
    "seed": str,
    "start_to_close": _seconds,
    "start_to_fire": _seconds,
    "task_priority": str,
    "task_timeout": _seconds,
}
"""Numbers that JSON's readers would round are strings, as SWF's durations are."""
