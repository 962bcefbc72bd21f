"""The schedules of an ensemble, in memory and real, pass the same suites as those of every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.engines.zookeeper.opening import engine
from mainspring.testing.conformance import Make, RetentionSuite, SharedScheduleSuite
from tests.zookeeper.memory import MemoryContent, MemoryTree

if TYPE_CHECKING:
    from tests.zookeeper.server import Ensemble


def in_memory() -> Make:
    """Return how to make an engine on an ensemble in memory."""
    content = MemoryContent()
    return lambda: ZookeeperEngine(lambda: MemoryTree(content), standing=False)


class TestMemoryTree(SharedScheduleSuite):
    @pytest.fixture
    def make(self) -> Make:
        return in_memory()


class TestMemoryTreeRetention(RetentionSuite):
    @pytest.fixture
    def make(self) -> Make:
        return in_memory()


@pytest.mark.usefixtures("unhurried")
class TestZookeeper(SharedScheduleSuite):
    @pytest.fixture
    def make(self, ensemble: Ensemble, chroot: str) -> Make:
        return lambda: engine(ensemble.url(chroot), 2.0, standing=False)


@pytest.mark.usefixtures("unhurried")
class TestZookeeperRetention(RetentionSuite):
    @pytest.fixture
    def make(self, ensemble: Ensemble, chroot: str) -> Make:
        return lambda: engine(ensemble.url(chroot), 2.0, standing=False)
