from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.suite.driver import Store
from tests.conformance.suite.flows import Flows
from tests.engines import sqlite_engine

from mainspring.errors import StoreError
from mainspring.workflows.model import Key
from mainspring.workflows.requests import Signal

if TYPE_CHECKING:
    from pathlib import Path


def change(path: Path, statement: str) -> None:
    """Change the file behind the engine's back."""
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()


def test_a_run_that_is_not_as_the_node_has_it_is_left_alone(tmp_path: Path) -> None:
    store = Store(lambda: sqlite_engine(tmp_path / "jobs.db"))
    flows = Flows(store)
    run = flows.start()
    change(tmp_path / "jobs.db", "UPDATE runs SET events = 7")
    with pytest.raises(StoreError, match=f"not as this node has it in memory.*{run}"):
        flows.signal(Signal(Key(job=run), "a", b""))
    change(tmp_path / "jobs.db", "UPDATE runs SET events = 2")
    assert flows.signal(Signal(Key(job=run), "a", b""))[0].event == 3
    flows.check()
    store.close()


def test_a_snapshot_of_another_format_is_ignored(tmp_path: Path) -> None:
    store = Store(lambda: sqlite_engine(tmp_path / "jobs.db"))
    flows = Flows(store)
    run = flows.start()
    for number in range(60):
        flows.signal(Signal(Key(run=run), f"s{number}", b"x" * 500))
    change(tmp_path / "jobs.db", "UPDATE snapshots SET state = x'92cd270f90'")  # the format 9999
    store.reopen()
    store.recover()
    flows.running(run, flows.timer(1))
    assert flows.row(run).events == 65
    flows.check()
    store.close()
