"""Jobs and runs that publish nothing run no statement about values, and those with small payloads none about
large ones, but for one that deletes many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.flows import Flows
from tests.conformance.suite.values import live_without_values
from tests.engines import sqlite_engine

from mainspring.values.model import NewValue
from mainspring.values.service import PublishValues

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements about values that later connections run."""
    found: list[str] = []

    def trace(_: object, statement: str, __: object) -> bool:
        if "job_values" in statement or (" payloads" in statement and not statement.startswith("DELETE")):
            found.append(statement)
        return True

    def traced(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, traced])
    return found


@pytest.fixture
def flows(tmp_path: Path, statements: list[str]) -> Iterator[Flows]:
    sqlite_engine(tmp_path / "jobs.db")
    store = Store(lambda: sqlite_engine(tmp_path / "jobs.db"))
    flows = Flows(store)
    statements.clear()  # those of the schema
    yield flows
    store.close()


def test_jobs_and_runs_without_values_do_not_touch_them(flows: Flows, statements: list[str]) -> None:
    live_without_values(flows)
    assert statements == []


def test_those_with_values_are_counted(flows: Flows, statements: list[str]) -> None:
    job = flows.store.leased()
    flows.store.group(PublishValues([NewValue(job.id, "a", 1, NOW, b"1")], flows.store.term))
    assert len(statements) == 2, "one reads what there is, and one writes"
    run = flows.start()
    statements.clear()
    flows.decide(run, flows.task(run), flows.activity(), values=[("a", b"1"), ("b", b"2")])
    assert len(statements) == 3, "a row each"
