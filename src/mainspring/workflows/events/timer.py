"""Events of timers."""

from __future__ import annotations

from typing import Final

from mainspring.workflows.events.model import EventBase

STEP_TIMER: Final = "step-"
"""The ids of the timers for the next attempts of local steps begin with this text; those of code are numbers."""


class TimerStarted(EventBase, frozen=True, tag=29):
    """A decision has started a timer. ``decision_completed`` is 0 for the next attempt of a local step."""

    decision_completed: int
    timer_id: str
    start_to_fire: float
    control: str = ""
    # Not in SWF:
    fire_us: int = 0
    number: int = 0


class StartTimerFailed(EventBase, frozen=True, tag=30):
    """The decision did not start a timer."""

    decision_completed: int
    timer_id: str
    cause: str


class TimerFired(EventBase, frozen=True, tag=31):
    """A timer's time has come."""

    timer_id: str
    started: int


class TimerCanceled(EventBase, frozen=True, tag=32):
    """A decision has cancelled a timer."""

    decision_completed: int
    timer_id: str
    started: int


class CancelTimerFailed(EventBase, frozen=True, tag=33):
    """The decision named no open timer."""

    decision_completed: int
    timer_id: str
    cause: str
