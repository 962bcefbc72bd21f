"""The events of a history: the 54 types of Amazon SWF, and no other.

See https://docs.aws.amazon.com/amazonswf/latest/apireference/API_HistoryEvent.html for their meaning. Each class lists the
attributes that SWF does not have after a comment or with one; SWF's view of a history leaves them out. The native API records
everything else as a marker with one of the names in `MarkerName`.

An event is an array: a tag, its number, its time, its attributes. New attributes are added at the end, with defaults, so that
older histories can be read. A default of a duration is a whole number, which takes one byte. Numbers are dense and begin with 1.
Times are microseconds of wall time, durations are seconds; 0 means none, if nothing else is stated. Ids of events name earlier
events of the same history.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.workflows.events import (
    STEP_TIMER,
    ActivityTaskCanceled,
    ActivityTaskCancelRequested,
    ActivityTaskCompleted,
    ActivityTaskFailed,
    ActivityTaskScheduled,
    ActivityTaskStarted,
    ActivityTaskTimedOut,
    CancelTimerFailed,
    CancelWorkflowExecutionFailed,
    ChildPolicy,
    ChildWorkflowExecutionCanceled,
    ChildWorkflowExecutionCompleted,
    ChildWorkflowExecutionFailed,
    ChildWorkflowExecutionStarted,
    ChildWorkflowExecutionTerminated,
    ChildWorkflowExecutionTimedOut,
    CompleteWorkflowExecutionFailed,
    ContinueAsNewWorkflowExecutionFailed,
    DecisionTaskCompleted,
    DecisionTaskScheduled,
    DecisionTaskStarted,
    DecisionTaskTimedOut,
    EventBase,
    ExternalWorkflowExecutionCancelRequested,
    ExternalWorkflowExecutionSignaled,
    FailWorkflowExecutionFailed,
    LambdaFunctionCompleted,
    LambdaFunctionFailed,
    LambdaFunctionScheduled,
    LambdaFunctionStarted,
    LambdaFunctionTimedOut,
    MarkerName,
    MarkerRecorded,
    RecordMarkerFailed,
    RequestCancelActivityTaskFailed,
    RequestCancelExternalWorkflowExecutionFailed,
    RequestCancelExternalWorkflowExecutionInitiated,
    ScheduleActivityTaskFailed,
    ScheduleLambdaFunctionFailed,
    SignalExternalWorkflowExecutionFailed,
    SignalExternalWorkflowExecutionInitiated,
    StartChildWorkflowExecutionFailed,
    StartChildWorkflowExecutionInitiated,
    StartLambdaFunctionFailed,
    StartTimerFailed,
    TimeoutType,
    TimerCanceled,
    TimerFired,
    TimerStarted,
    WorkflowExecutionCanceled,
    WorkflowExecutionCancelRequested,
    WorkflowExecutionCompleted,
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionFailed,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
)

__all__ = [
    "STEP_TIMER",
    "ActivityTaskCancelRequested",
    "ActivityTaskCanceled",
    "ActivityTaskCompleted",
    "ActivityTaskFailed",
    "ActivityTaskScheduled",
    "ActivityTaskStarted",
    "ActivityTaskTimedOut",
    "CancelTimerFailed",
    "CancelWorkflowExecutionFailed",
    "ChildPolicy",
    "ChildWorkflowExecutionCanceled",
    "ChildWorkflowExecutionCompleted",
    "ChildWorkflowExecutionFailed",
    "ChildWorkflowExecutionStarted",
    "ChildWorkflowExecutionTerminated",
    "ChildWorkflowExecutionTimedOut",
    "CompleteWorkflowExecutionFailed",
    "ContinueAsNewWorkflowExecutionFailed",
    "DecisionTaskCompleted",
    "DecisionTaskScheduled",
    "DecisionTaskStarted",
    "DecisionTaskTimedOut",
    "Event",
    "EventBase",
    "ExternalWorkflowExecutionCancelRequested",
    "ExternalWorkflowExecutionSignaled",
    "FailWorkflowExecutionFailed",
    "LambdaFunctionCompleted",
    "LambdaFunctionFailed",
    "LambdaFunctionScheduled",
    "LambdaFunctionStarted",
    "LambdaFunctionTimedOut",
    "MarkerName",
    "MarkerRecorded",
    "RecordMarkerFailed",
    "RequestCancelActivityTaskFailed",
    "RequestCancelExternalWorkflowExecutionFailed",
    "RequestCancelExternalWorkflowExecutionInitiated",
    "ScheduleActivityTaskFailed",
    "ScheduleLambdaFunctionFailed",
    "SignalExternalWorkflowExecutionFailed",
    "SignalExternalWorkflowExecutionInitiated",
    "StartChildWorkflowExecutionFailed",
    "StartChildWorkflowExecutionInitiated",
    "StartLambdaFunctionFailed",
    "StartTimerFailed",
    "TimeoutType",
    "TimerCanceled",
    "TimerFired",
    "TimerStarted",
    "WorkflowExecutionCancelRequested",
    "WorkflowExecutionCanceled",
    "WorkflowExecutionCompleted",
    "WorkflowExecutionContinuedAsNew",
    "WorkflowExecutionFailed",
    "WorkflowExecutionSignaled",
    "WorkflowExecutionStarted",
    "WorkflowExecutionTerminated",
    "WorkflowExecutionTimedOut",
    "decode_events",
    "encode_events",
]

Event = (
    WorkflowExecutionStarted
    | WorkflowExecutionCancelRequested
    | WorkflowExecutionCompleted
    | CompleteWorkflowExecutionFailed
    | WorkflowExecutionFailed
    | FailWorkflowExecutionFailed
    | WorkflowExecutionTimedOut
    | WorkflowExecutionCanceled
    | CancelWorkflowExecutionFailed
    | WorkflowExecutionContinuedAsNew
    | ContinueAsNewWorkflowExecutionFailed
    | WorkflowExecutionTerminated
    | DecisionTaskScheduled
    | DecisionTaskStarted
    | DecisionTaskCompleted
    | DecisionTaskTimedOut
    | ActivityTaskScheduled
    | ScheduleActivityTaskFailed
    | ActivityTaskStarted
    | ActivityTaskCompleted
    | ActivityTaskFailed
    | ActivityTaskTimedOut
    | ActivityTaskCanceled
    | ActivityTaskCancelRequested
    | RequestCancelActivityTaskFailed
    | WorkflowExecutionSignaled
    | MarkerRecorded
    | RecordMarkerFailed
    | TimerStarted
    | StartTimerFailed
    | TimerFired
    | TimerCanceled
    | CancelTimerFailed
    | StartChildWorkflowExecutionInitiated
    | StartChildWorkflowExecutionFailed
    | ChildWorkflowExecutionStarted
    | ChildWorkflowExecutionCompleted
    | ChildWorkflowExecutionFailed
    | ChildWorkflowExecutionTimedOut
    | ChildWorkflowExecutionCanceled
    | ChildWorkflowExecutionTerminated
    | SignalExternalWorkflowExecutionInitiated
    | SignalExternalWorkflowExecutionFailed
    | ExternalWorkflowExecutionSignaled
    | RequestCancelExternalWorkflowExecutionInitiated
    | RequestCancelExternalWorkflowExecutionFailed
    | ExternalWorkflowExecutionCancelRequested
    | LambdaFunctionScheduled
    | LambdaFunctionStarted
    | LambdaFunctionCompleted
    | LambdaFunctionFailed
    | LambdaFunctionTimedOut
    | ScheduleLambdaFunctionFailed
    | StartLambdaFunctionFailed
)

encode_events: Final = msgspec.msgpack.Encoder().encode
decode_events: Final = msgspec.msgpack.Decoder(list[Event]).decode
"""To and from a block: the stored form of consecutive events."""
