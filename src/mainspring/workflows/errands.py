"""Errands: the requests of one run to another, which its events cause.

The transaction that records the cause keeps the errand, in memory or in the store. Doing it, answering it and deleting it are one
transaction too, so that no crash loses an errand or repeats it. All errands of a store are done in the order of their causes.

| cause | errand |
|---|---|
| StartChildWorkflowExecutionInitiated | the child begins; the answer is ChildWorkflowExecutionStarted or StartChild…Failed |
| the close of a child, but not ContinuedAsNew | the parent gets ChildWorkflowExecutionCompleted, …Failed, and so on |
| SignalExternalWorkflowExecutionInitiated | the other run gets the signal |
| RequestCancelExternalWorkflowExecutionInitiated | the other run gets the request |
| WorkflowExecutionTerminated, …TimedOut of a parent | each open child is terminated or asked to cancel itself, by its policy |

An errand to a closed run is dropped, or answered with a …Failed event where SWF has one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.workflows.history import (
    ChildPolicy,
    RequestCancelExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionInitiated,
    StartChildWorkflowExecutionInitiated,
    WorkflowExecutionCanceled,
    WorkflowExecutionCompleted,
    WorkflowExecutionFailed,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
)

CHILD_POLICY_APPLIED: Final = "CHILD_POLICY_APPLIED"

Close = (
    WorkflowExecutionCompleted
    | WorkflowExecutionFailed
    | WorkflowExecutionTimedOut
    | WorkflowExecutionCanceled
    | WorkflowExecutionTerminated
)


class ErrandBase(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="kind"):
    """The run that an errand comes from."""

    source: int
    namespace: str
    workflow_id: str


class StartChild(ErrandBase, frozen=True, tag=1):
    """Begin a child of the source."""

    initiated: StartChildWorkflowExecutionInitiated


class EndChild(ErrandBase, frozen=True, tag=2):
    """Record the end of the source in its parent."""

    parent: int
    initiated: int
    """The event of the parent that initiated the source."""
    type: str
    version: str
    close: Close


class SignalOther(ErrandBase, frozen=True, tag=3):
    """Send a signal of the source to another run."""

    initiated: SignalExternalWorkflowExecutionInitiated


class CancelOther(ErrandBase, frozen=True, tag=4):
    """Ask another run to cancel itself."""

    initiated: RequestCancelExternalWorkflowExecutionInitiated


class ApplyPolicy(ErrandBase, frozen=True, tag=5):
    """End a child of the source, or ask it to cancel itself, because the source was terminated or has timed out."""

    child: int
    initiated: int
    """The event of the source that initiated the child."""
    policy: ChildPolicy


Errand = StartChild | EndChild | SignalOther | CancelOther | ApplyPolicy

encode_errand: Final = msgspec.msgpack.Encoder().encode
decode_errand: Final = msgspec.msgpack.Decoder(Errand).decode
"""To and from the stored form of an errand."""
