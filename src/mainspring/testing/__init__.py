"""For tests: an App in memory, a clock that they move, and the suites that an engine has to pass."""

from __future__ import annotations

from mainspring.testing.app import InMemory, in_memory
from mainspring.testing.clock import ManualClock

__all__ = ["InMemory", "ManualClock", "in_memory"]
