"""The close of a run, for each reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.errand_rules import after_close

if TYPE_CHECKING:
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import ChildPolicy, EventBase


def close(draft: Draft, kind: type[EventBase], *, children: ChildPolicy | None = None, **attributes: object) -> None:
    """Record the event that closes a run, which is not parked any more.

    The jobs of its open activities are deleted, except those of abandoned activities: they go on, and nothing records their ends.
    ``children`` replaces the policies of its open children, if the event applies them.
    """
    open_children = list(draft.state.children.values())
    for activity in draft.state.activities.values():
        if not activity.abandoned:
            draft.withdraw(activity.job)
    after_close(draft, draft.record(kind, **attributes), open_children, children)
    parking = draft.parking
    parking.parked = None
    parking.parked_us = parking.retry_us = 0
