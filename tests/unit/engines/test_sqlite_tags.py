from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
from tests.conformance.suite.driver import NOW, Store
from tests.engines import sqlite_engine

from mainspring.jobs.model import Options

if TYPE_CHECKING:
    from pathlib import Path


def test_the_tags_of_deleted_jobs_are_deleted(tmp_path: Path) -> None:
    store = Store(lambda: sqlite_engine(tmp_path / "jobs.db"))
    ended, kept = (store.leased(options=Options(tags=("a", "b"))) for _ in range(2))
    store.end(ended)
    assert store.sweep(NOW + 1, 0) == 1
    store.close()
    rows = apsw.Connection(str(tmp_path / "jobs.db")).execute("SELECT tag, job FROM tags ORDER BY 1").fetchall()
    assert rows == [("a", kept.id), ("b", kept.id)]
