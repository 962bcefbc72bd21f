"""The decision when to store a state, so that a long history need not be read.

A snapshot is written only when the events since the last one outweigh it. So the writes stay proportional to the events, however
large a state is, and a run that is not in memory costs at most its snapshot and a few times as many bytes of events.
"""

from __future__ import annotations

from typing import Final

MIN_BYTES: Final = 8 * 1024
"""Bytes of events that are read without a snapshot."""
WEIGHT: Final = 2
"""The bytes of events outweigh a snapshot if they are this many times as long: their writes already cost that much."""


def outweighs(event_bytes: int, snapshot_bytes: int) -> bool:
    """Return whether the events since a snapshot outweigh it."""
    return event_bytes >= max(MIN_BYTES, WEIGHT * snapshot_bytes)
