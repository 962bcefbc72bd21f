"""Names and numbers of functions in a SQLite store, and the cache of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
from tests.conformance.suite import Store
from tests.conformance.suite.operations import ANYTHING

from mainspring.engines.sqlite import transaction
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.jobs.model import Priority, State
from mainspring.jobs.store import ShowCounts

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_functions_are_listed_while_another_program_writes(tmp_path: Path) -> None:
    store = Store(lambda: SqliteEngine(tmp_path / "j.db"))
    writer = apsw.Connection(str(tmp_path / "j.db"))
    try:
        store.submitted()
        writer.execute("BEGIN IMMEDIATE")
        page = store.read(ShowCounts())
        assert page == ({(b"f", State.PENDING, Priority.NORMAL): 1}, None)
    finally:
        writer.close()
        store.close()


def test_the_cache_of_functions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "CACHE_LIMIT", 3)
    engine = SqliteEngine(tmp_path / "j.db")
    store = Store(lambda: engine)
    try:
        jobs = [store.submitted(function=b"%d" % number, unique=b"u%d" % number) for number in range(20)]
        assert len(engine._tx.functions._keys) <= 3  # noqa: SLF001 - the size of the cache shows nowhere else
        assert [job.id for job in store.claim(b"7")] == [jobs[7].id]
        assert store.find_unique((b"9", b"u9"), (ANYTHING, b"u11"), (ANYTHING, b"none")) == [
            (jobs[9].id, State.PENDING, 0),
            (jobs[11].id, State.PENDING, 0),
            None,
        ]
        pending = {(job.function, State.PENDING, Priority.NORMAL): 1 for job in jobs if job is not jobs[7]}
        assert store.counts() == pending | {(b"7", State.LEASED, Priority.NORMAL): 1}
        assert len(engine._tx.functions._keys) <= 3  # noqa: SLF001 - the size of the cache shows nowhere else
    finally:
        store.close()
