"""Tools for tests: an App in memory, a manual clock, and replays of histories."""

from __future__ import annotations

from mainspring.testing.app import InMemory, in_memory
from mainspring.testing.histories import History, assert_replays
from mainspring.testing.passing_time import ManualClock

__all__ = ["History", "InMemory", "ManualClock", "assert_replays", "in_memory"]
