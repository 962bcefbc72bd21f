"""A file with an older schema: a copy and two log lines, or a refusal that changes nothing."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import apsw
import pytest
from structlog.testing import capture_logs

from mainspring.cli.serve import NodeOptions
from mainspring.cli.stores import migrate
from mainspring.engines.sqlite import store_file
from mainspring.engines.sqlite.store_file import migrate_file
from mainspring.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MonkeyPatch = pytest.MonkeyPatch

pytestmark = pytest.mark.usefixtures("migrations")
OLD = store_file.SCHEMA_VERSION
NOW = OLD + 1


@pytest.fixture
def old(tmp_path: Path, upgrade: Callable[[], int]) -> Path:
    """A store of the version before."""
    path = tmp_path / "jobs.db"
    migrate_file(path)
    path.chmod(0o600)
    upgrade()
    return path


def version(path: Path) -> int:
    connection = apsw.Connection(str(path))
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


def copies(path: Path) -> list[str]:
    """Return the files beside a store, without its own."""
    own = {path.name, *(f"{path.name}{end}" for end in (".lock", "-wal", "-shm"))}
    return sorted({file.name for file in path.parent.iterdir()} - own)


def prepare(path: Path, update: store_file.Update) -> None:
    connection = apsw.Connection(str(path))
    try:
        store_file.prepare(connection, path, update=update)
    finally:
        connection.close()


def test_a_store_is_copied_before_its_schema_is_updated(old: Path) -> None:
    name = f"jobs.db.schema-{OLD}.backup"
    with capture_logs() as lines:
        assert migrate(store=f"sqlite:///{old}") == 0
    assert version(old) == NOW
    assert copies(old) == [name]
    copy = old.with_name(name)
    assert version(copy) == OLD
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600, "it has the payloads of the store"
    assert [line["event"] for line in lines] == [
        "the schema of the store is updated",
        "the store is copied",
        "the schema of the store is up to date",
    ]
    assert (lines[0]["path"], lines[0]["version"], lines[0]["new_version"]) == (str(old), OLD, NOW)
    with capture_logs() as lines:
        assert migrate(store=f"sqlite:///{old}") == 0
    assert (lines, copies(old)) == ([], [name]), "there is nothing to do"


def test_a_copy_replaces_no_file(old: Path) -> None:
    names = [f"jobs.db.schema-{OLD}{end}.backup" for end in ("", "-2", "-3")]
    old.with_name(names[0]).write_text("the copy of an earlier attempt")
    old.with_name(names[1]).symlink_to("nowhere")
    migrate_file(old)
    assert copies(old) == sorted(names)
    assert old.with_name(names[0]).read_text() == "the copy of an earlier attempt"
    assert version(old.with_name(names[2])) == OLD


def test_no_copy_is_made_where_none_is_wanted(old: Path) -> None:
    assert migrate(store=f"sqlite:///{old}", backup_before_migrate=False) == 0
    assert version(old) == NOW
    assert copies(old) == []


def test_a_new_store_is_created_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with capture_logs() as lines:
        prepare(path, store_file.Update(allowed=False))
    assert version(path) == OLD
    assert (lines, copies(path)) == ([], [])


def test_an_old_store_is_refused_unchanged_if_it_may_not_be_updated(old: Path) -> None:
    before = old.read_bytes()
    with pytest.raises(StoreError, match=rf"version {OLD}.* needs {NOW}: run `mainspring migrate` first"):
        prepare(old, store_file.Update(allowed=False))
    assert (old.read_bytes(), copies(old)) == (before, [])


def test_a_store_without_space_for_the_copy_stays_as_it_is(old: Path, monkeypatch: MonkeyPatch) -> None:
    disk = os.statvfs(old.parent)
    full = os.statvfs_result((disk.f_bsize, disk.f_frsize, disk.f_blocks, 1, 1, *disk[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(StoreError, match=r"needs .* free; free some space, or .* --no-backup-before-migrate"):
        migrate_file(old)
    assert (version(old), copies(old)) == (OLD, [])


def test_a_disk_that_fills_up_during_the_copy_leaves_the_store_as_it_is(old: Path, monkeypatch: MonkeyPatch) -> None:
    def fill_up(*_: object, **__: object) -> None:
        raise apsw.FullError

    monkeypatch.setattr(store_file, "_copy_pages", fill_up)
    with pytest.raises(StoreError, match=r"nothing was changed: no space is left .* --no-backup-before-migrate"):
        migrate_file(old)
    assert (version(old), copies(old)) == (OLD, [])


def test_a_failed_update_leaves_the_store_and_no_copy(old: Path, monkeypatch: MonkeyPatch) -> None:
    def fail(connection: apsw.Connection, _: int) -> None:
        connection.execute("DROP TABLE jobs")
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store_file, "update_schema", fail)
        for _ in range(2):
            with pytest.raises(StoreError):
                migrate_file(old)
    assert (version(old), copies(old)) == (OLD, []), "restarts do not fill the disk with copies"
    migrate_file(old)
    assert version(old) == NOW


def test_nodes_pass_the_options_on() -> None:
    assert NodeOptions().settings().store.backup_before_migrate
    store = NodeOptions(no_migrate=True, backup_before_migrate=False).settings().store
    assert (store.migrate, store.backup_before_migrate) == (False, False)
