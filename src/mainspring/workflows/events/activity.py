"""Events of activities."""

from __future__ import annotations

from mainspring.workflows.events.model import EventBase, TimeoutType


class ActivityTaskScheduled(EventBase, frozen=True, tag=17):
    """A decision has scheduled an activity."""

    decision_completed: int
    activity_id: str
    function: bytes
    version: str = ""
    input: bytes = b""
    task_list: str = ""
    task_priority: int = 1
    schedule_to_start: float = 0
    schedule_to_close: float = 0
    start_to_close: float = 0
    heartbeat: float = 0
    control: str = ""
    # Not in SWF:
    job: int = 0
    """The job that a worker gets; 0 in a full history."""
    options: bytes = b""
    """``jobs.model.Options`` of the job as MessagePack: retry, timeout and heartbeat; empty: none."""
    key: bytes = b""
    """The job's key of limits."""
    number: int = 0
    """The number of the command in the run."""
    abandoned: bool = False
    """Whether the activity goes on after the close of the run."""
    timed_from_us: int = 0
    """The time from which its timeouts run; 0: that of the event. They differ after the clock was stepped back."""


class ScheduleActivityTaskFailed(EventBase, frozen=True, tag=18):
    """The decision did not schedule an activity."""

    decision_completed: int
    activity_id: str
    function: bytes
    version: str
    cause: str


class ActivityTaskStarted(EventBase, frozen=True, tag=19):
    """A worker has the activity. In a lean history it is recorded with the activity's end."""

    scheduled: int
    identity: str = ""
    attempt: int = 1
    """The number of the attempt. Not in SWF."""


class ActivityTaskCompleted(EventBase, frozen=True, tag=20):
    """The activity has a result."""

    scheduled: int
    started: int
    result: bytes = b""


class ActivityTaskFailed(EventBase, frozen=True, tag=21):
    """The activity has failed, after its last attempt."""

    scheduled: int
    started: int
    reason: str = ""
    details: bytes = b""
    """In a lean history the job's error (``jobs.failures.JobFailure`` as JSON)."""


class ActivityTaskTimedOut(EventBase, frozen=True, tag=22):
    """The activity did not start or end in time; ``started`` is 0 if it did not start."""

    scheduled: int
    started: int
    timeout: TimeoutType
    details: bytes = b""


class ActivityTaskCanceled(EventBase, frozen=True, tag=23):
    """The activity was cancelled; ``started`` is 0 if it did not start."""

    scheduled: int
    started: int
    cancel_requested: int = 0
    details: bytes = b""


class ActivityTaskCancelRequested(EventBase, frozen=True, tag=24):
    """A decision has asked to cancel an activity."""

    decision_completed: int
    activity_id: str


class RequestCancelActivityTaskFailed(EventBase, frozen=True, tag=25):
    """The decision named no open activity."""

    decision_completed: int
    activity_id: str
    cause: str
