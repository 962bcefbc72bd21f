"""The state of a run: what its events amount to.

`fold` makes it of events, and the store keeps a snapshot of it, so that a long history is not read again.
"""

from __future__ import annotations

import msgspec


class OpenActivity(msgspec.Struct, array_like=True):
    """An activity that has not closed."""

    scheduled: int
    activity_id: str
    function: bytes
    job: int
    scheduled_us: int
    start_by_us: int = 0
    """The end of its schedule-to-start timeout; 0: it has none, or it is over."""
    close_by_us: int = 0
    """The end of its schedule-to-close timeout."""
    started: int = 0
    cancel_requested: int = 0
    """The event that requests its cancellation."""


class OpenTimer(msgspec.Struct, array_like=True):
    """A timer that has not fired."""

    started: int
    timer_id: str
    fire_us: int


class State(msgspec.Struct, array_like=True):
    """The state of a run after its event ``last``."""

    last: int = 0
    status: int = 0
    """`model.Status`."""
    type: str = ""
    version: str = ""
    namespace: str = "default"
    workflow_id: str = ""
    root: int = 0
    started_us: int = 0
    close_by_us: int = 0
    """The end of the execution timeout."""
    full: bool = False
    scheduled: int = 0
    """The open decision task's event; 0 if there is none. A second one may be scheduled behind a started one: ``waiting``."""
    started: int = 0
    waiting: int = 0
    seen: int = 0
    """The last event that a completed decision was given."""
    cancel_requested: int = 0
    activities: dict[int, OpenActivity] = {}
    """By the event that scheduled them."""
    activity_ids: dict[str, int] = {}
    timers: dict[str, OpenTimer] = {}
    steps: dict[int, int] = {}
    """The steps that were recorded since the last completed decision: their digests by number."""
    requests: dict[int, None] = {}
    """The keys of the last requests from outside, the oldest first."""
