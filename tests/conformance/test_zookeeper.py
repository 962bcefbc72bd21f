"""A real server passes the suite that every engine passes, without limits."""

from __future__ import annotations

import pytest

from mainspring.engines.zookeeper.opening import engine
from mainspring.testing.conformance import Make, SharedJobsSuite


class TestZookeeper(SharedJobsSuite):
    @pytest.fixture
    def make(self, zookeeper: str, chroot: str) -> Make:
        return lambda: engine(f"zookeeper://{zookeeper}{chroot}", 2.0, standing=False)
