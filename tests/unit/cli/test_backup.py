from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.cli.stores import backup
from mainspring.engines.sqlite.store_file import APPLICATION_ID, copy_store
from mainspring.errors import StoreCorruptError, StoreError, StoreForeignError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


Source = tuple["Path", sqlite3.Connection]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    path = tmp_path / "jobs.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, payload BLOB)")
    connection.execute("BEGIN")  # one wait for the disk, and not one for each row
    connection.executemany("INSERT INTO jobs (payload) VALUES (?)", [(b"x" * 1000,)] * 3000)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    yield path, connection
    connection.close()


def count(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])
    finally:
        connection.close()


def test_a_store_in_use_is_copied_as_of_one_moment(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.engines.sqlite.store_file.STEP_PAGES", 100)
    path, writer = source
    target = tmp_path / "copy.db"
    steps = []

    def meanwhile(remaining: int, pages: int) -> None:
        steps.append((remaining, pages))
        writer.execute("INSERT INTO jobs (payload) VALUES (?)", (b"y" * 1000,))  # a node writes during the copy

    size = copy_store(path, target, meanwhile)
    assert len(steps) > 1
    assert steps[-1][0] == 0
    assert count(target) == 3000
    assert count(path) > 3000
    assert size == target.stat().st_size
    assert not list(tmp_path.glob("copy.db-*"))
    assert not list(tmp_path.glob(".copy.db*"))


@pytest.mark.parametrize(("mode", "copied"), [(0o644, 0o600), (0o600, 0o600)])
def test_a_copy_is_for_its_owner_alone(source: Source, tmp_path: Path, mode: int, copied: int) -> None:
    source[0].chmod(mode)
    modes: list[int] = []

    def meanwhile(*_: object) -> None:
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob(".copy.db*"))

    old_umask = os.umask(0o022)
    try:
        copy_store(source[0], tmp_path / "copy.db", meanwhile)
    finally:
        os.umask(old_umask)
    assert {*modes, stat.S_IMODE((tmp_path / "copy.db").stat().st_mode)} == {copied}


def test_a_damaged_store_leaves_no_copy(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.db"
    rubbish.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreCorruptError, match="nothing was copied"):
        copy_store(rubbish, tmp_path / "copy.db")
    assert [entry.name for entry in tmp_path.iterdir()] == ["rubbish.db"]


def test_a_failed_copy_is_named_in_the_error(source: Source, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot copy"):
        copy_store(source[0], tmp_path / "missing" / "copy.db")


def test_a_copy_in_a_missing_directory_is_refused_with_the_remedy(source: Source, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(UsageError, match=f"the directory {missing} does not exist; create it"):
        backup(missing / "copy.db", store=f"sqlite:///{source[0]}")


@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "fsync", "rename"])
def test_a_disk_failure_during_the_copy_is_named_and_leaves_no_file(
    source: Source, tmp_path: Path, call: str, require: Callable[[str], str]
) -> None:
    later = ":when=20+" if call == "pwrite64" else ""
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error=EIO{later}")
    copy = f"copy_store(Path({str(source[0])!r}), Path('copy.db'))"
    script = f"from pathlib import Path; from mainspring.engines.sqlite.store_file import copy_store; {copy}"
    command = (require("strace"), "-f", "-qq", "-o", "/dev/null", *inject, sys.executable, "-c", script)
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"StoreError: cannot copy {source[0]} to copy.db: a disk has failed" in ended.stderr
    assert not [entry for entry in tmp_path.iterdir() if "copy" in entry.name]


def test_an_old_copy_is_kept_until_the_new_one_is_complete(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_bytes(b"old")
    source[0].write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError):
        copy_store(source[0], target)
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("store", "words"),
    [("memory://", "in memory"), ("postgresql://me:secret@db/jobs", r"//me:\*\*\*@db/jobs .* pg_dump")],
)
def test_a_store_of_another_kind_is_refused_with_the_remedy(tmp_path: Path, store: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        backup(tmp_path / "copy.db", store=store)


@pytest.mark.parametrize("name", ["jobs.db", "link.db"])
@pytest.mark.parametrize("force", [True, False])
def test_a_store_is_not_replaced_by_its_copy(source: Source, tmp_path: Path, name: str, force: bool) -> None:
    path = source[0]
    (tmp_path / "link.db").symlink_to(path)
    before = path.stat().st_ino
    with pytest.raises(UsageError, match="is the store itself: choose another name"):
        backup(tmp_path / name, store=f"sqlite:///{path}", force=force)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("force", [True, False])
def test_a_copy_next_to_the_log_of_another_store_is_refused(source: Source, tmp_path: Path, force: bool) -> None:
    """SQLite would write the content of that log into the copy."""
    target = tmp_path / "copy.db"
    with sqlite3.connect(target) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")
    if not force:
        target.unlink()
    with pytest.raises(UsageError, match=r"copy\.db-wal belongs to a store of that name"):
        backup(target, store=f"sqlite:///{source[0]}", force=force)
    other.close()
    assert target.exists() is force
    (tmp_path / "copy.db-wal").unlink(missing_ok=True)
    assert backup(target, store=f"sqlite:///{source[0]}", force=force) == 0
    assert count(target) == 3000


def test_a_directory_is_refused_as_a_copy(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (Path(), tmp_path):
        with pytest.raises(UsageError, match="is a directory"):
            backup(name, store=f"sqlite:///{source[0]}", force=True)


@pytest.mark.parametrize(("table", "words"), [("gearman_queue", "mainspring import"), ("notes", "of another program")])
def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path, table: str, words: str) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    connection.close()
    with pytest.raises(StoreForeignError, match=words):
        backup(tmp_path / "copy.db", store=f"sqlite:///{other}")
    assert list(tmp_path.iterdir()) == [other]


def test_the_next_copy_removes_the_partial_files_of_a_killed_one(source: Source, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    kept = {f".copy.db.{os.getppid()}.partial", f".copy2db.{ended.pid}.partial", ".copy.db.x.partial"}
    for name in (*kept, f".copy.db.{ended.pid}.partial", f".copy.db.{ended.pid}.partial-journal"):
        (tmp_path / name).touch()
    copy_store(source[0], tmp_path / "copy.db")
    assert {entry.name for entry in tmp_path.iterdir() if entry.suffix.startswith(".partial")} == kept
