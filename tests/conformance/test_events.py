"""Engines that keep events pass the suite for them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NoReturn

import pytest

from mainspring.errors import StoreError
from mainspring.event_log import types
from mainspring.jobs import store as ops
from mainspring.nodes import node_events
from tests.conformance.suite import EventSuite, Make, Store
from tests.conformance.suite.driver import NOW
from tests.conformance.suite.event_causes import EventCauseSuite
from tests.conformance.suite.events import brief, numbered, want
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path


class TestMemoryEvents(EventSuite, EventCauseSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqliteEvents(EventSuite, EventCauseSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")

    def test_a_group_that_is_rolled_back_has_no_events(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        want(store)
        job = store.leased()
        cancelled = store.submitted()

        def fail(*_: object) -> NoReturn:
            raise StoreError("planted")

        with monkeypatch.context() as patch:
            patch.setitem(store.engine._handlers, ops.Count, fail)  # type: ignore[attr-defined]
            with pytest.raises(StoreError, match="planted"):
                store.group(ops.Cancel(cancelled.id, b"", NOW), ops.Recover(job.term + 1), ops.Count())
        assert brief(store) == []
        store.end(store.leased())
        assert len(brief(store)) == 1

    def test_a_node_that_was_killed_is_dead_although_it_held_no_jobs(self, store: Store, tmp_path: Path) -> None:
        want(store, "node.*")
        store.end(store.leased())
        killed = tmp_path / "killed"
        killed.mkdir()
        for one in tmp_path.glob("jobs.db*"):
            shutil.copy(one, killed)
        after = Store(lambda: sqlite_engine(killed / "jobs.db"), "n2")
        dead, joined = numbered(after)
        after.close()
        assert (dead.type, dead.subject, joined.subject) == (types.NODE_DEAD, "n1", "n2")
        assert dead.fields == {"node": "n2", "why": node_events.LEFT_OPEN}


class TestPostgresEvents(EventSuite, EventCauseSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
