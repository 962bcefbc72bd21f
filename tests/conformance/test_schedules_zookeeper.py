"""The schedules of a real ZooKeeper server pass the same suites as those of every engine."""

from __future__ import annotations

import pytest

from tests.conformance.suite import Make, RetentionSuite, SharedScheduleSuite
from tests.zookeeper.driving import on


@pytest.mark.usefixtures("unhurried")
class TestZookeeper(SharedScheduleSuite):
    @pytest.fixture
    def make(self, zookeeper: str, chroot: str) -> Make:
        return on(f"zookeeper://{zookeeper}{chroot}")


@pytest.mark.usefixtures("unhurried")
class TestZookeeperRetention(RetentionSuite):
    @pytest.fixture
    def make(self, zookeeper: str, chroot: str) -> Make:
        return on(f"zookeeper://{zookeeper}{chroot}")
