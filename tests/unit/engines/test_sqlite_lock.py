"""One node per store, by any name of the file and with any lock file; and a file that is removed under its node."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.conformance.suite.driver import Store

from mainspring.engines.sqlite import store_file
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.store_file import migrate_file
from mainspring.errors import StoreBusyError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("migrations")
ENDS = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture(autouse=True)
def _short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing a log of 32 MB would take most of the time of a test."""
    monkeypatch.setattr(store_file, "lay_out_log", lambda *_: None)


@contextmanager
def store_at(path: Path) -> Iterator[Store]:
    store = Store(lambda: SqliteEngine(path))
    try:
        yield store
    finally:
        store.close()


def beside(path: Path, end: str) -> Path:
    return path.with_name(f"{path.name}{end}")


def ids(store: Store) -> list[int]:
    return [job.id for job in reversed(store.list())]


# ---- modes ----


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o640), (0o000, 0o640), (0o077, 0o600)])
def test_other_users_may_not_read_a_store(path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with store_at(path) as store:
            store.submitted()
            found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert found == {f"jobs.db{end}": mode for end in (*ENDS, ".lock")}


def test_a_store_that_every_user_may_read_is_named_with_the_repair() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "jobs.db"
        path.touch()
        path.chmod(0o644)
        with capture_logs() as private, store_at(path):
            pass
        Path(directory).chmod(0o755)
        with capture_logs() as logged, store_at(path):
            pass
    assert private == [], "no other user can open its directory"
    (line,) = logged
    assert line["event"] == "every user of this machine can read the jobs in the store"
    assert line["repair"] == f"chmod o-rwx {path} {path}-wal {path}-shm"


def test_a_lock_file_that_is_a_link_is_not_followed(path: Path) -> None:
    precious = path.with_name("precious")
    precious.write_text("precious")
    beside(path, ".lock").symlink_to(precious)
    with (
        pytest.raises(StoreError, match=r"cannot open the lock .*jobs\.db\.lock: it is a symbolic link"),
        store_at(path),
    ):
        pass
    assert precious.read_text() == "precious"
    assert not path.exists()


# ---- two nodes ----


def test_a_second_node_is_refused_by_any_name_of_the_file(path: Path) -> None:
    with store_at(path) as store:
        job = store.submitted().id
        link = path.with_name("link.db")
        link.hardlink_to(path)
        with (
            pytest.raises(StoreBusyError, match=f"{link} is in use by another node, under another name"),
            store_at(link),
        ):
            pass
        with pytest.raises(StoreBusyError):
            migrate_file(link)
        assert not beside(link, "-wal").exists()
        assert ids(store) == [job]
    with capture_logs() as logged, store_at(path) as store:
        assert ids(store) == [job]
    assert [(line["event"].split(":")[0], line["names"]) for line in logged] == [
        ("the store's file has several names", 2)
    ]


def test_a_second_node_is_refused_though_the_lock_file_was_deleted(path: Path) -> None:
    with store_at(path) as store:
        beside(path, ".lock").unlink()
        with pytest.raises(StoreBusyError, match="with a lock file that was deleted"), store_at(path):
            pass
        store.submitted()


def test_a_file_system_without_such_locks_is_logged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("mainspring.engines.sqlite.store_file._lock_byte", refuse)
    with capture_logs() as logged, store_at(path) as store:
        store.submitted()
    assert [line["why"] for line in logged] == ["[Errno 22] Invalid argument"]


# ---- a file that is taken away ----


def test_nothing_is_stored_in_a_file_that_was_moved_away(path: Path) -> None:
    elsewhere = path.with_name("elsewhere.db")
    with store_at(path) as store:
        before = store.submitted().id
        path.rename(elsewhere)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=f"{path} was moved or replaced while the node uses it"):
                store.submitted()
        shutil.copyfile(elsewhere, path)
        with pytest.raises(StoreUnavailableError):
            store.submitted()
        elsewhere.rename(path)
        assert ids(store) == [before]
        after = store.submitted().id
        store.reopen()
        assert ids(store) == [before, after]


def test_a_store_whose_directory_is_moved_away(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    with store_at(place / "jobs.db") as store:
        place.rename(elsewhere)
        with pytest.raises(StoreUnavailableError, match="was moved or replaced"):
            store.submitted()
        place.symlink_to(place)
        with pytest.raises(StoreUnavailableError, match=r"cannot be checked \(Too many levels of symbolic links"):
            store.submitted()
        place.unlink()
        elsewhere.rename(place)
        store.submitted()


def test_a_log_without_its_file_is_not_thrown_away(path: Path) -> None:
    elsewhere = path.with_name("elsewhere.db")
    with store_at(path) as store:
        job = store.submitted().id
        path.rename(elsewhere)
    log = beside(path, "-wal").read_bytes()
    for found in (path.exists, path.touch):  # the second time, an empty file is there
        found()
        with (
            pytest.raises(StoreError, match=rf"{path} is gone or empty, and its log .*put the file back"),
            store_at(path),
        ):
            pass
    assert path.stat().st_size == 0
    assert beside(path, "-wal").read_bytes() == log
    elsewhere.rename(path)
    with store_at(path) as store:
        assert ids(store) == [job]


def test_a_log_is_not_written_over_a_restored_copy(path: Path) -> None:
    copy, damaged = path.with_name("copy.db"), path.with_name("damaged.db")
    with store_at(path) as store:
        old = store.submitted().id
    shutil.copyfile(path, copy)
    with store_at(path) as store:
        store.submitted()
        path.rename(damaged)
        shutil.copyfile(copy, path)
    with (
        pytest.raises(StoreError, match=rf"{path} was replaced, and the log {path}-wal belongs to the file before"),
        store_at(path),
    ):
        pass
    for end in ("-wal", "-shm"):
        beside(path, end).unlink(missing_ok=True)
    with store_at(path) as store:
        assert ids(store) == [old]


def test_files_that_are_copied_together_belong_together(path: Path, tmp_path: Path) -> None:
    """As a kill leaves them: the copies have other inode numbers than those in the lock file."""
    place = tmp_path / "copies"
    place.mkdir()
    with store_at(path) as store:
        job = store.submitted().id
        for end in ("", "-wal", ".lock"):
            shutil.copyfile(beside(path, end), place / beside(path, end).name)
    with store_at(place / path.name) as store:
        assert ids(store) == [job]


def test_the_advice_of_the_message_saves_a_deleted_file(path: Path) -> None:
    with store_at(path) as store:
        first = store.submitted().id
        path.unlink()
        with pytest.raises(
            StoreUnavailableError, match=r"was deleted while the node uses it.*before you stop the node"
        ) as refused:
            store.submitted()
        source = next(word for word in str(refused.value).split() if word.startswith("/proc/"))
        shutil.copyfile(source, path)
    with pytest.raises(StoreError, match=r"remove .*jobs\.db\.lock and start again"), store_at(path):
        pass
    beside(path, ".lock").unlink()
    with store_at(path) as store:
        assert ids(store) == [first]
