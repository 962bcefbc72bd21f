from __future__ import annotations

import pytest

from mainspring.bulk.unit import KIND
from mainspring.server.build import keeps_operations
from mainspring.server.engines import build_engine
from mainspring.server.settings import parse_store


@pytest.mark.parametrize("store", ["memory://", "sqlite:///jobs.db", "postgresql://h/d", "zookeeper://h:2181"])
def test_all_stores_but_zookeeper_keep_operations(store: str) -> None:
    settings = parse_store(store)
    assert keeps_operations(build_engine(settings)) is (settings.engine != "zookeeper"), KIND
