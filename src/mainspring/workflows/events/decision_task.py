"""Events of decision tasks."""

from __future__ import annotations

from mainspring.workflows.events.model import EventBase, TimeoutType


class DecisionTaskScheduled(EventBase, frozen=True, tag=13):
    """The run needs a decision."""

    task_list: str = ""
    task_priority: int = 1
    start_to_close: float = 0
    schedule_to_start: float = 0


class DecisionTaskStarted(EventBase, frozen=True, tag=14):
    """A decider has the task. In a lean history it is recorded with the first result of the decision, or with its end."""

    scheduled: int
    identity: str = ""


class DecisionTaskCompleted(EventBase, frozen=True, tag=15):
    """The decider has decided; the events of its decisions follow."""

    scheduled: int
    started: int
    context: str = ""
    # Not in SWF:
    seen: int = 0
    """The last event that the decider had."""
    now_us: int = 0
    """The time of the decision, as its code read it."""
    batch: int = 0
    """The last batch of step results that the decision has used."""
    semantics: int = 0
    """The behaviour of `deciding` with which its code ran; see ``workflows.model.SEMANTICS``."""


class DecisionTaskTimedOut(EventBase, frozen=True, tag=16):
    """The decider did not decide in time, or did not start."""

    scheduled: int
    started: int
    timeout: TimeoutType
