"""The schedules of a real ensemble pass the same suites as those of every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.testing.conformance import Make, RetentionSuite, SharedScheduleSuite
from tests.zookeeper.driving import on

if TYPE_CHECKING:
    from tests.zookeeper.server import Ensemble


@pytest.mark.usefixtures("unhurried")
class TestZookeeper(SharedScheduleSuite):
    @pytest.fixture
    def make(self, ensemble: Ensemble, chroot: str) -> Make:
        return on(ensemble.url(chroot))


@pytest.mark.usefixtures("unhurried")
class TestZookeeperRetention(RetentionSuite):
    @pytest.fixture
    def make(self, ensemble: Ensemble, chroot: str) -> Make:
        return on(ensemble.url(chroot))
