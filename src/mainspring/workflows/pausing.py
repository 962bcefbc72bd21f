"""Pauses of runs: the rules. `held_activities` changes the jobs of activities.

A paused run takes events on, as a parked one does. It does nothing of its own accord:

| of a paused run | while it is paused |
|---|---|
| a signal, a cancel request, a timer, a timeout, the end of an activity or child | is recorded |
| a decision task without a worker | has no job; the resume makes one |
| a decision task that a worker has | goes on, and the next one waits; it waits itself if its worker loses it or hands it back |
| an end of an activity with decisions in one packet (fused) | the end is recorded; the decisions are stale |
| an activity that waits for its first or next attempt | is held: its job is SCHEDULED for `HELD_US` |
| an activity that a worker has | goes on; if its attempt fails or is handed back, it is held |
| an activity that is to go on after the run (abandoned) | is left alone, as it belongs to the run no more |
| a run that continues it as new | is paused, too |

No clock stops: its timeouts, and its own end by its execution timeout, come while it is paused. The pause ends by itself at
`Pause.until_us`, an alarm of the run. A run can be parked and paused: each has its own end.

The values are stored beside the state, in ``model.Parking``. So a pause costs the history nothing, and code cannot depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from mainspring.workflows.execution import reached
from mainspring.workflows.model import Pause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.workflows.draft import Draft
    from mainspring.workflows.model import Parking
    from mainspring.workflows.requests import Reached

HELD_US: Final = 221_845_392_000_000_000
"""The due time of the job of a held activity: the year 9000. A job with another due time was rescheduled by hand since."""


def pause(draft: Draft, *, reason: str = "", by: str = "", until_us: int = 0) -> Reached:
    """Pause an open run, or give its pause another reason and end."""
    if draft.state.status:
        return reached(draft, "closed")
    before = draft.parking.pause
    at_us, held = (draft.now_us, {}) if before is None else (before.at_us, before.held)
    draft.parking.pause = Pause(at_us, until_us, reason, by, held)
    if before is None:
        draft.to_hold.update(draft.state.activities)
    return reached(draft, "recorded")


def resume(draft: Draft) -> Reached:
    """End the pause of a run, if it has one: everything that waits for it is due."""
    if draft.state.status:
        return reached(draft, "closed")
    before, draft.parking.pause = draft.parking.pause, None
    if before is None:
        return reached(draft, "repeated")
    draft.to_release.update(before.held)
    return reached(draft, "recorded")


def resume_in_time(draft: Draft) -> None:
    """End the pause of a run if it is time."""
    paused = draft.parking.pause
    if paused is not None and 0 < paused.until_us <= draft.now_us:
        resume(draft)


def inherited(before: Pause | None) -> Pause | None:
    """Return the pause of a run that continues a paused one as new."""
    return None if before is None else replace(before, held={})


def hands_out(parking: Parking) -> bool:
    """Return whether decisions of a run may be handed out, as far as pauses are concerned."""
    return parking.pause is None


def note_held(parking: Parking, held: Mapping[int, int]) -> None:
    """Note activities that a pause holds, with the due times of their jobs before."""
    if held and parking.pause is not None:
        parking.pause = replace(parking.pause, held={**parking.pause.held, **held})
