"""Engines that deliver events pass the suite for subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import Make, SubscriptionSuite
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path


class TestMemorySubscriptions(SubscriptionSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine

    test_a_delivery_that_ended_without_a_notice_is_repaired = None  # type: ignore[assignment]  # there are no other nodes
    test_deliveries_that_go_on_hide_none_behind_them_from_the_repair = None  # type: ignore[assignment]  # likewise


class TestSqliteSubscriptions(SubscriptionSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class TestPostgresSubscriptions(SubscriptionSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
