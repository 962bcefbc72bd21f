"""The schedules of an ensemble in memory pass the same suites as those of every engine."""

from __future__ import annotations

import pytest

from tests.conformance.suite import Make, RetentionSuite, SharedScheduleSuite
from tests.zookeeper.driving import in_memory


class TestMemoryTree(SharedScheduleSuite):
    @pytest.fixture
    def make(self) -> Make:
        return in_memory()


class TestMemoryTreeRetention(RetentionSuite):
    @pytest.fixture
    def make(self) -> Make:
        return in_memory()
