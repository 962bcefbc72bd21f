"""The write-ahead log has its full size from the start, if there is space."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from structlog.testing import capture_logs

from mainspring.engines.sqlite import store_file
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.store_file import FOREIGN_READER, Folding
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job
from mainspring.storage.engine import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("migrations")


@pytest.fixture(autouse=True)
def full_log() -> Iterator[None]:
    """Lay out the whole log; other tests lay out less (``tests/conftest.py``)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_file, "LOG_BYTES", store_file.LOG_PAGES * (4096 + 24))
        yield


def log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def log_size(path: Path) -> int:
    return log(path).stat().st_size


def apart(place: int, outcome: Any) -> None:
    raise AssertionError((place, outcome))


def opened(path: Path) -> tuple[SqliteEngine, int]:
    engine = SqliteEngine(path, thread_rows=10**9)
    return engine, asyncio.run(engine.open(NodeId("n"), lambda then: then())).term


def test_the_log_does_not_grow_while_jobs_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    engine, term = opened(path)
    before = log_size(path)
    assert before == store_file.LOG_BYTES
    next_id = job_ids(term)  # type: ignore[arg-type]
    for _ in range(50):
        job = Job(next_id(), b"f", b"payload")
        engine.commit([ops.Submit([job])], lambda _: None, apart)
    assert log_size(path) == before
    asyncio.run(engine.close())


def test_nothing_is_laid_out_while_another_program_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    monkeypatch.setattr(store_file, "FREE_SPACE_FACTOR", 10**9)
    engine, _ = opened(path)
    monkeypatch.undo()
    before = log_size(path)
    connection, other = engine._tx.cursor.connection, apsw.Connection(str(path))  # noqa: SLF001 - the log is laid out on the connection of the engine
    other.execute("BEGIN IMMEDIATE")
    store_file.lay_out_log(connection, path)
    assert log_size(path) == before < store_file.LOG_BYTES
    other.close()
    store_file.lay_out_log(connection, path)
    assert log_size(path) == store_file.LOG_BYTES
    asyncio.run(engine.close())


def test_a_probe_is_written_to_the_log(tmp_path: Path) -> None:
    """SQLite would commit a change that leaves all pages as they were without a write."""
    path = tmp_path / "jobs.db"
    engine, _ = opened(path)
    for _ in range(3):
        before = log(path).read_bytes()
        engine.commit([Probe()], lambda _: None, apart)
        assert log(path).read_bytes() != before
    asyncio.run(engine.close())


def test_committed_jobs_are_found_before_the_zeros(tmp_path: Path) -> None:
    engine, term = opened(tmp_path / "jobs.db")
    job = Job(job_ids(term)(), b"f", b"payload")  # type: ignore[arg-type]
    engine.commit([ops.Submit([job])], lambda _: None, apart)
    # A copy of the present files is the state after a kill.
    copy = tmp_path / "copy.db"
    copy.write_bytes((tmp_path / "jobs.db").read_bytes())
    copy.with_name("copy.db-wal").write_bytes((tmp_path / "jobs.db-wal").read_bytes())
    asyncio.run(engine.close())
    survivor, _ = opened(copy)
    outcomes: list[Any] = []
    survivor.commit([ops.Find([job.id])], outcomes.append, apart)
    assert list(outcomes[0][0]) == [job.id]
    asyncio.run(survivor.close())


def test_a_small_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = os.statvfs_result((4096, 4096, 100_000, 50_000, 50_000, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    engine, _ = opened(tmp_path / "jobs.db")
    assert log_size(tmp_path / "jobs.db") < store_file.LOG_BYTES
    asyncio.run(engine.close())


PAGES = 20


def test_a_log_that_cannot_be_folded_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.engines.sqlite.engine.Folding", functools.partial(Folding, pages=PAGES))
    path = tmp_path / "jobs.db"
    engine, term = opened(path)
    next_id = job_ids(term)  # type: ignore[arg-type]

    def store(groups: int) -> list[Any]:
        outcomes: list[Any] = []
        for _ in range(groups):
            job = Job(next_id(), b"f", b"x" * 4096)
            engine.commit([ops.Submit([job])], outcomes.append, apart)
        assert outcomes == [[{}]] * groups
        return outcomes

    with capture_logs() as logged:
        store(5 * PAGES)
        assert logged == []
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT count(*) FROM jobs").fetchall()
        store(5 * PAGES)
        warnings = [(one["event"], one["why"]) for one in logged]
        assert set(warnings) == {("the log of the store grows", FOREIGN_READER)}
        assert len(warnings) < 5, "not for every group"
        reader.close()
        store(PAGES)
        assert len(logged) == len(warnings)
    asyncio.run(engine.close())


@pytest.fixture
def folding(tmp_path: Path) -> Iterator[tuple[Folding, Callable[[], None]]]:
    """Return the folding of a file, and a function that adds some pages to its log."""
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    store_file.prepare(connection, tmp_path / "jobs.db", synchronous="normal")
    connection.execute("CREATE TABLE filled (text)")
    folding = Folding(connection, tmp_path / "jobs.db", PAGES)

    def fill() -> None:
        connection.execute("INSERT INTO filled VALUES (?)", ("x" * 4096,))
        folding.after_commit()

    yield folding, fill
    connection.close()


def test_reads_one_after_the_other_let_the_log_be_folded(
    folding: tuple[Folding, Callable[[], None]], tmp_path: Path
) -> None:
    """A read is under way during each commit."""
    log, fill = folding
    schema = log_size(tmp_path / "jobs.db")
    reader = apsw.Connection(str(tmp_path / "jobs.db"), flags=apsw.SQLITE_OPEN_READONLY)
    for _ in range(100):
        with log.reading():
            reader.execute("BEGIN; SELECT count(*) FROM filled").fetchall()
            for _ in range(5):
                fill()
            reader.execute("ROLLBACK")
        log.after_read()
    assert log_size(tmp_path / "jobs.db") < schema + 4 * PAGES * 4096
    reader.close()


def test_no_read_begins_before_the_log_is_folded(folding: tuple[Folding, Callable[[], None]]) -> None:
    log, fill = folding

    def read() -> None:
        with log.reading():
            pass

    following = threading.Thread(target=read)
    with log.reading():
        for _ in range(PAGES):
            fill()
        log.after_read()  # of an earlier read: this one is still under way
        following.start()
    following.join(0.1)
    assert following.is_alive()
    log.after_read()
    following.join(10)
    assert not following.is_alive()
