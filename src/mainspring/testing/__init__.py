"""For tests: a clock that they move, and the suites that an engine has to pass."""

from __future__ import annotations

from mainspring.testing.clock import ManualClock

__all__ = ["ManualClock"]
