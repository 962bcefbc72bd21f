"""Every engine with schedules passes the same suite."""

from __future__ import annotations

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.testing.conformance import Make, ScheduleSuite


class TestMemory(ScheduleSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine()
        return lambda: engine
