"""Tools for tests: an App in memory, a manual clock, and the conformance suites for engines."""

from __future__ import annotations

from mainspring.testing.app import InMemory, in_memory
from mainspring.testing.clock import ManualClock

__all__ = ["InMemory", "ManualClock", "in_memory"]
