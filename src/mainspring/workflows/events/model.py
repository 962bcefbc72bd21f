"""The base of all events of a history."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ChildPolicy(StrEnum):
    """The effect on the children of a run that is terminated or timed out."""

    TERMINATE = "TERMINATE"
    REQUEST_CANCEL = "REQUEST_CANCEL"
    ABANDON = "ABANDON"


class TimeoutType(StrEnum):
    """The clock that ran out."""

    START_TO_CLOSE = "START_TO_CLOSE"
    SCHEDULE_TO_START = "SCHEDULE_TO_START"
    SCHEDULE_TO_CLOSE = "SCHEDULE_TO_CLOSE"
    HEARTBEAT = "HEARTBEAT"


class EventBase(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="kind"):
    """The attributes of all events."""

    id: int
    at_us: int
