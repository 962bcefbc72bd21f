"""The limits of a run's timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.errors import WorkflowUsageError
from mainspring.quantities import format_duration
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from mainspring.deciding.loop import WorkflowLoop


def check_timer(delay: float, loop: WorkflowLoop, started: int, limit: int) -> None:
    """Raise WorkflowUsageError for a timer that no node would start. ``started`` timers have commands."""
    if delay > YEAR:
        raise WorkflowUsageError(
            f"a timer of {format_duration(delay)} is longer than a run may last, {format_duration(YEAR)}: sleep in parts, or "
            "let a schedule start a later run"
        )
    if started + len(loop.new_timers) < limit:
        return
    if started + sum(not timer.cancelled() for timer in loop.new_timers) >= limit:
        raise WorkflowUsageError(
            f"the run has {limit:,} open timers, and no more are allowed: wait with fewer at a time, such as one sleep up to "
            "the earliest time"
        )
