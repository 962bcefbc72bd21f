"""Errands: the requests of one run to another, which its events cause.

The transaction that records the cause keeps the errand, in memory or in the store. Doing it, answering it and deleting it are one
transaction too (`outbox`), so that no crash loses an errand or repeats it. All errands of a store are done in the order of their
causes.

| cause | errand |
|---|---|
| StartChildWorkflowExecutionInitiated | the child begins; the answer is ChildWorkflowExecutionStarted or StartChild…Failed |
| the close of a child, but not ContinuedAsNew | the parent gets ChildWorkflowExecutionCompleted, …Failed, and so on |
| SignalExternalWorkflowExecutionInitiated | the other run gets the signal |
| RequestCancelExternalWorkflowExecutionInitiated | the other run gets the request |
| WorkflowExecutionTerminated, …TimedOut of a parent | each open child is terminated or asked to cancel itself, by its policy |
| the end of a job of a run that this node cannot read | the run gets the end: its activity's, or that of its decision task |
| a decision about resources for which a run waits | the run gets the slots, or the reason why it has got none |

An errand to a closed run is dropped, or answered with a …Failed event where SWF has one. An errand that this version cannot read,
or whose runs it cannot read, is set aside: it stays stored, and the others go on (``storage.reads``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.jobs.owners import Ended  # noqa: TC001 - msgspec reads the annotations
from mainspring.workflows import history

if TYPE_CHECKING:
    from mainspring.resources.holds import HoldAnswer, Holder

CHILD_POLICY_APPLIED: Final = "CHILD_POLICY_APPLIED"

Close = (
    history.WorkflowExecutionCompleted
    | history.WorkflowExecutionFailed
    | history.WorkflowExecutionTimedOut
    | history.WorkflowExecutionCanceled
    | history.WorkflowExecutionTerminated
)


class ErrandBase(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="kind"):
    """The run that an errand comes from."""

    source: int
    namespace: str
    workflow_id: str


class StartChild(ErrandBase, frozen=True, tag=1):
    """Begin a child of the source."""

    initiated: history.StartChildWorkflowExecutionInitiated
    depth: int = 0
    """That of the source; see ``jobs.model.Options``."""


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

    initiated: history.SignalExternalWorkflowExecutionInitiated
    depth: int = 0


class CancelOther(ErrandBase, frozen=True, tag=4):
    """Ask another run to cancel itself."""

    initiated: history.RequestCancelExternalWorkflowExecutionInitiated


class ApplyPolicy(ErrandBase, frozen=True, tag=5):
    """End a child of the source, or ask it to cancel itself, because the source was terminated or has timed out."""

    child: int
    initiated: int
    """The event of the source that initiated the child."""
    policy: history.ChildPolicy


class RecordEnd(ErrandBase, frozen=True, tag=6):
    """Record the end of a job of the source: of an activity, or of a decision task."""

    ended: Ended


class AnswerHold(ErrandBase, frozen=True, tag=7):
    """Record the answer to a request of the source for slots of resources."""

    number: int
    """The request, among the commands of the source."""
    answer: bytes
    """`resources.holds.HoldAnswer` as JSON."""


Errand = StartChild | EndChild | SignalOther | CancelOther | ApplyPolicy | RecordEnd | AnswerHold


def answer_errand(holder: Holder, answer: HoldAnswer) -> AnswerHold:
    """Return the errand that gives a run its answer."""
    return AnswerHold(holder.id, "", "", holder.term, _encode_answer(answer))


_encode_answer: Final = msgspec.json.Encoder().encode

encode_errand: Final = msgspec.msgpack.Encoder().encode
_decode_errand: Final = msgspec.msgpack.Decoder(Errand).decode


def decode_errand(data: bytes) -> Errand | str:
    """Return the errand of a stored form; if this version cannot read it, the reason."""
    try:
        errand: Errand = _decode_errand(data)
    except (ValueError, RecursionError) as error:  # a MsgspecError is a ValueError
        return f"this version of Mainspring cannot read it: {error}"
    return errand


class ErrandsAside:
    """The stored errands that a node has set aside.

    They stay stored, so that the number of each later errand is higher. All of them are tried again from time to time, in their
    order. Until then the runs that they wait for count as not readable, so that no later errand and no timeout overtakes them.
    """

    __slots__ = ("after", "faults", "runs")

    def __init__(self) -> None:
        self.after = 0
        """The last one of them. Those behind it have not been tried."""
        self.runs: dict[int, str] = {}
        """The runs that they wait for, with the faults."""
        self.faults: dict[int, str] = {}
        """The errands that cannot be read themselves, with their faults, by their numbers."""

    def copy(self) -> ErrandsAside:
        """Return a copy."""
        found = ErrandsAside()
        found.set(self)
        return found

    def set(self, other: ErrandsAside) -> None:
        """Take the values of another one."""
        self.after, self.runs, self.faults = other.after, dict(other.runs), dict(other.faults)
