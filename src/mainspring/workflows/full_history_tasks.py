"""The starts and ends of tasks in a full history, where each start is an event of its own.

A task that was started has no job any more; only its timeouts detect its loss. Lean histories use none of these rules. A start
or an end of a closed task is late but harmless: it returns False, and records nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.workflows.decision_tasks import schedule_decision
from mainspring.workflows.decision_tasks import start_decision as record_start
from mainspring.workflows.history import ActivityTaskStarted
from mainspring.workflows.limits import ensure_room

if TYPE_CHECKING:
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import EventBase


def start_decision(draft: Draft, scheduled: int, identity: str = "") -> bool:
    """Record that a decider has a decision task."""
    state = draft.state
    if state.scheduled != scheduled or state.started or not scheduled or not ensure_room(draft, 1):
        return False
    record_start(draft, identity)
    return True


def start_activity(draft: Draft, scheduled: int, identity: str = "") -> bool:
    """Record that a worker has an activity."""
    activity = draft.state.activities.get(scheduled)
    if activity is None or activity.started or not ensure_room(draft, 1):
        return False
    draft.record(ActivityTaskStarted, scheduled=scheduled, identity=identity)
    return True


def close_activity(draft: Draft, kind: type[EventBase], scheduled: int, started: int, **attributes: object) -> bool:
    """Record how a started activity has ended: completed, failed or canceled."""
    activity = draft.state.activities.get(scheduled)
    if activity is None or activity.started != started or not started or not ensure_room(draft, 2):
        return False
    draft.record(kind, scheduled=scheduled, started=started, **attributes)
    schedule_decision(draft)
    return True
