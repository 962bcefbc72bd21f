"""A timer: from its start until it fires or is cancelled. Its id may be used again after that.

| phase | event | next phase |
|---|---|---|
| OPEN | TimerFired, TimerCanceled | CLOSED |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.workflows.history import TimerCanceled, TimerFired, TimerStarted
from mainspring.workflows.machines.transition import illegal
from mainspring.workflows.state import OpenTimer

if TYPE_CHECKING:
    from mainspring.workflows.machines.transition import Folds
    from mainspring.workflows.state import State


def _started(state: State, event: TimerStarted) -> None:
    if event.timer_id in state.timers:
        raise illegal(event, f"uses the id {event.timer_id!r} of an open timer")
    state.timers[event.timer_id] = OpenTimer(
        event.id, event.timer_id, event.fire_us, event.start_to_fire, event.control
    )


def _closed(state: State, event: TimerFired | TimerCanceled) -> None:
    timer = state.timers.get(event.timer_id)
    if timer is None or timer.started != event.started:
        raise illegal(event, f"names timer {event.timer_id!r} of event {event.started}, which is not open")
    del state.timers[event.timer_id]


FOLDS: Final[Folds] = {TimerStarted: _started, TimerFired: _closed, TimerCanceled: _closed}
