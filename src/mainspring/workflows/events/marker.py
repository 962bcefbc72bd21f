"""Events of markers: the results of steps and side effects, and markers of SWF's deciders."""

from __future__ import annotations

from enum import StrEnum

from mainspring.workflows.events.model import EventBase


class MarkerName(StrEnum):
    """The markers of the native API. Users of SWF may use the same names: `MarkerRecorded.native` tells them apart."""

    STEP = "step"
    """The result of a local step."""
    SIDE = "side"
    """The result of a side effect."""
    PATCH = "patch"
    """The code asked for a patch."""
    UPDATE = "update"


class MarkerRecorded(EventBase, frozen=True, tag=27):
    """A decision has recorded a marker. ``decision_completed`` is 0 for a step that was recorded before its decision ended."""

    decision_completed: int
    name: str
    details: bytes = b""
    # Not in SWF:
    native: bool = False
    number: int = 0
    """The number of the step, the side effect or the patch among those of its name in the run."""
    batch: int = 0
    """The results of one batch came in one turn of the worker's loop; batches of a decision are numbered from 1."""
    seen: int = 0
    now_us: int = 0
    """``seen`` and ``now_us`` of the decision, so that a lost one can be resumed."""
    digest: int = 0
    """Of the result; for a step of its arguments, too. See ``deciding.matching``."""
    attempt: int = 1
    failed: bool = False
    """Whether ``details`` is the step's error (``jobs.failures.JobFailure`` as JSON) and not its result."""
    function: str = ""
    semantics: int = 0
    """As of ``DecisionTaskCompleted``, for the step of a decision that may be lost."""


class RecordMarkerFailed(EventBase, frozen=True, tag=28):
    """The decision did not record a marker."""

    decision_completed: int
    name: str
    cause: str
