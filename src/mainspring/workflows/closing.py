"""The close of a run, for each reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import EventBase


def close(draft: Draft, kind: type[EventBase], **attributes: object) -> None:
    """Record the event that closes a run, which is not parked any more.

    The jobs of its open activities are deleted, except those of abandoned activities: they go on, and nothing records their ends.
    """
    for activity in draft.state.activities.values():
        if not activity.abandoned:
            draft.withdraw(activity.job)
    draft.record(kind, **attributes)
    parking = draft.parking
    parking.parked = None
    parking.parked_us = parking.retry_us = 0
