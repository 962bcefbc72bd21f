"""Faults of a store's file and disk: each has a message with the remedy, and loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.suite.driver import Store

import mainspring
from mainspring.engines.sqlite import engine as engine_module
from mainspring.engines.sqlite import store_file
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.store_file import migrate_file
from mainspring.errors import (
    StoreBrokenError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreFullError,
)
from mainspring.ids import NodeId
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.system

CHILD_PROGRAM = Path(__file__).with_name("store_child.py")
SOURCES = (Path(mainspring.__file__).parents[1], Path(__file__).parents[2])
"""The package, and the suites of the tests."""
IS_ROOT = os.geteuid() == 0
KIB_10 = 10_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def open_store(path: Path) -> Store:
    return Store(lambda: SqliteEngine(path))


@contextmanager
def store_at(path: Path) -> Iterator[Store]:
    store = open_store(path)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def run_child(path: Path, groups: int, *more: str, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run a process that commits groups, and end it afterwards."""
    process = subprocess.Popen(
        [*before, sys.executable, str(CHILD_PROGRAM), str(path), str(groups), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_lines(process: subprocess.Popen[str], until: str) -> list[str]:
    """Read a process's lines up to one that begins with a word."""
    assert process.stdout is not None
    read: list[str] = []
    for line in process.stdout:
        read.append(line.rstrip())
        if line.startswith(until):
            return read
    raise AssertionError(f"no line {until!r} in {read}")


def stored_ids(printed: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in printed if line.startswith("stored")]


def wait_for_port(port: int) -> None:
    """Wait until a server listens on a port of 127.0.0.1."""
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        # The program reports nothing when it is ready, so poll.
        threading.Event().wait(0.02)
    raise AssertionError(f"no server listens on {port}")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- no space ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MB."""
    if not IS_ROOT:
        pytest.skip("only root may mount a small file system; another test limits the file's size")
    mount = tmp_path / "disk"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system here ({mounted.stderr.strip()})")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def test_a_store_on_a_full_disk_refuses_jobs_and_recovers(small_disk: Path) -> None:
    path, ballast = small_disk / "jobs.db", small_disk / "ballast"
    with store_at(path) as store:
        ids = [store.submitted(payload=b"x" * KIB_10).id for _ in range(20)]
        fill(ballast)
        full = None
        while full is None:
            try:
                ids.append(store.submitted(payload=b"x" * KIB_10).id)
            except StoreFullError as error:
                full = str(error)
        assert full.startswith(f"no space is left for {path}")
        assert [job.id for job in reversed(store.list())] == ids
        ballast.unlink()
        ids.append(store.submitted().id)
        assert sum(store.counts().values()) == len(ids)
        store.reopen()
        assert [job.id for job in reversed(store.list())] == ids


@pytest.mark.usefixtures("migrations")
def test_a_full_disk_at_the_start_is_reported(small_disk: Path) -> None:
    fill(small_disk / "ballast")
    with pytest.raises(StoreError, match="no space is left"):
        open_store(small_disk / "jobs.db")
    (small_disk / "ballast").unlink()
    with store_at(small_disk / "jobs.db") as store:
        store.submitted()


def test_a_node_without_space_at_its_start_reports_the_remedy(path: Path) -> None:
    node = f"{sys.executable} -m mainspring.cli.main serve --gearman 127.0.0.1:0 --store sqlite:///{path}"
    ended = subprocess.run(
        ["sh", "-c", f"ulimit -f 1; exec {node}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"no space is left for {path}, and the node cannot start: free some, or raise the quota, and" in ended.stderr
    assert "by itself" not in ended.stderr


def test_a_limit_of_the_files_size_counts_as_a_full_disk(path: Path) -> None:
    with run_child(path, 1000, str(2**20)) as process:
        printed = read_lines(process, "Store")
        assert process.wait() == 3
    assert printed[-1].startswith(f"StoreFullError no space is left for {path}")
    with store_at(path) as store:
        assert {job.id for job in store.list()} >= set(stored_ids(printed)) != set()


# ---- no permission ----


def without_privileges(require: Callable[[str], str]) -> tuple[str, ...]:
    """Return a command prefix that drops root's privileges, so that permissions apply."""
    return (require("setpriv"), "--bounding-set=-all", "--inh-caps=-all") if IS_ROOT else ()


def test_a_read_only_directory_is_reported(tmp_path: Path, require: Callable[[str], str]) -> None:
    directory = tmp_path / "locked"
    directory.mkdir()
    directory.chmod(0o555)
    with run_child(directory / "jobs.db", 1, before=without_privileges(require)) as process:
        (message,) = read_lines(process, "Store")
        assert process.wait() == 3
    assert f"{directory}/jobs.db.lock: Permission denied" in message
    assert "must exist and be writable" in message


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_file_without_permission_is_reported(path: Path, mode: int, require: Callable[[str], str]) -> None:
    open_store(path).close()
    path.chmod(mode)
    with run_child(path, 1, before=without_privileges(require)) as process:
        (message,) = read_lines(process, "Store")
        assert process.wait() == 3
    assert message.startswith(f"StoreError cannot {'write' if mode else 'read'} {path}")


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the directory .*nowhere does not exist; create it first"):
        open_store(tmp_path / "nowhere" / "jobs.db")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_at_the_files_path_is_reported(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        open_store(path)


def test_too_many_open_files_are_named_as_the_reason(path: Path) -> None:
    store = open_store(path)  # keep the loop: a new one would need more files than the limit allows
    store.close_engine()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        with suppress(OSError):
            while True:
                descriptors.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(3):  # the lock, the file, and the file again as SQLite opens it
            os.close(descriptors.pop())
        with pytest.raises(StoreError, match=r"cannot open .*: too many open files; raise the limit \(ulimit -n"):
            store.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in descriptors:
            os.close(descriptor)


# ---- other programs ----


def test_a_second_node_is_refused_until_the_first_one_is_killed(path: Path) -> None:
    with run_child(path, 3) as process:
        printed = read_lines(process, "waiting")
        with pytest.raises(StoreBusyError, match=f"in use by another node .process {process.pid}.") as refused:
            open_store(path)
        assert "--store" in str(refused.value)
        process.kill()
        process.wait()
        with store_at(path) as store:
            assert [job.id for job in reversed(store.list())] == stored_ids(printed)
            with pytest.raises(StoreBusyError):
                open_store(path)


def test_a_second_node_is_refused_by_any_link_to_the_file(path: Path, tmp_path: Path) -> None:
    link, directory = tmp_path / "link.db", tmp_path / "directory"
    link.symlink_to(path)
    directory.symlink_to(tmp_path)
    for first, second in ((path, link), (link, path), (directory / "link.db", path)):
        with store_at(first) as store:
            with pytest.raises(StoreBusyError, match=f"{path} is in use by another node"):
                open_store(second)
            with pytest.raises(StoreBusyError):
                migrate_file(second)
            store.submitted()
    with store_at(path) as store:
        assert len(store.list()) == 3
    assert not list(tmp_path.glob("link.db?*"))


def test_a_store_whose_node_was_killed_at_once_can_be_opened(path: Path) -> None:
    """Only the log has the tables then: the file's own header must identify it as a store."""
    with run_child(path, 0) as process:
        read_lines(process, "waiting")
        process.kill()
        process.wait()
    assert path.stat().st_size <= 8192
    with store_at(path) as store:
        assert store.opened.nodes == {1: "n1", 2: "n1"}


def test_a_lock_of_another_program_is_named_as_the_reason(path: Path) -> None:
    with store_at(path) as store:
        assert isinstance(store.engine, SqliteEngine)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="another program has locked"):
            store.submitted()
        other.execute("ROLLBACK")
        other.close()
        store.submitted()


def test_a_lock_of_another_program_does_not_block_readers(path: Path) -> None:
    with store_at(path) as store:
        job = store.submitted()
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        assert [one.id for one in store.list()] == [job.id]
        with pytest.raises(StoreBusyError):
            store.submitted()
        other.close()
        store.submitted()
        assert len(store.list()) == 2


def test_a_start_waits_for_another_programs_lock_without_blocking_the_loop(path: Path) -> None:
    open_store(path).close()
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")

    async def test() -> None:
        engine = SqliteEngine(path)
        opening = asyncio.create_task(engine.open(NodeId("n1"), lambda function: function()))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not opening.done()
        other.close()
        assert (await opening).term == 2
        assert engine._connection is not None
        assert list(engine._connection.execute("PRAGMA busy_timeout")) == [(0,)]
        await engine.close()

    asyncio.run(test())


def test_a_start_reports_a_lasting_lock_of_another_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LOCK_RETRY_DELAYS", (0.001, 0.001))
    open_store(path).close()
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusyError, match=f"another program has locked {path}"):
        open_store(path)
    other.close()
    open_store(path).close()


@pytest.mark.parametrize("content", [b"garbage " * 1000, b"x", b"SQLite format 3\0", b"SQLite format 2\0" * 10])
def test_garbage_is_refused_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match="not a SQLite database; move it away"):
        open_store(path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.touch()
    with store_at(path) as store:
        store.submitted()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_another_program_is_refused_untouched(path: Path, mode: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA journal_mode={mode}").fetchall()
    connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, state INTEGER); INSERT INTO jobs VALUES (1, 2)")
    connection.close()
    before = digest(path)
    with pytest.raises(StoreForeignError, match="another program and was left untouched"):
        open_store(path)
    assert digest(path) == before
    assert list(path.parent.iterdir()) == [path]


def test_a_queue_of_gearmand_is_refused_untouched(
    path: Path, require: Callable[[str], str], free_port: int, tmp_path: Path
) -> None:
    gearmand = subprocess.Popen(
        [
            require("gearmand"),
            *("-p", str(free_port), "-L", "127.0.0.1", "-l", str(tmp_path / "log")),
            *("-q", "libsqlite3", f"--libsqlite3-db={path}", "--libsqlite3-table=gearman_queue"),
        ]
    )
    try:
        wait_for_port(free_port)
        for _ in range(3):
            subprocess.run(
                [require("gearman"), "-h", "127.0.0.1", "-p", str(free_port), "-b", "-f", "resize", "cat.png"],
                check=True,
                timeout=30,
            )
    finally:
        gearmand.kill()
        gearmand.wait()
    before = digest(path)
    files = set(tmp_path.iterdir())
    with pytest.raises(StoreForeignError, match=f"queue of gearmand's.*mainspring import {path}"):
        open_store(path)
    assert digest(path) == before
    assert set(tmp_path.iterdir()) == files


# ---- damage ----


def test_damaged_pages_are_reported(path: Path) -> None:
    with store_at(path) as store:
        for _ in range(5):
            store.submit(*[store.job(payload=b"x" * 1000) for _ in range(100)])
    content = bytearray(path.read_bytes())
    content[4096 * 2 :] = b"\xa5" * (len(content) - 4096 * 2)
    path.write_bytes(content)
    with (
        pytest.raises(StoreCorruptError, match=r"damaged.*restore a backup.*docs/how-to/back-up\.md"),
        store_at(path) as store,
    ):
        store.list()


@pytest.mark.parametrize("seed", range(5))
def test_a_truncated_log_keeps_all_synced_groups(tmp_path: Path, path: Path, seed: int) -> None:
    """After a power cut the log's tail may be missing or garbage; all groups before it must be there, in order."""
    chance = random.Random(seed)
    with store_at(path) as store:
        ids, ends = [], []
        for _ in range(12):
            ids.append(store.submitted(payload=chance.randbytes(chance.randrange(9000))).id)
            ends.append(Path(f"{path}-wal").stat().st_size)
        for number in range(20):
            after = tmp_path / f"after-{number}.db"
            shutil.copyfile(path, after)
            log = bytearray(Path(f"{path}-wal").read_bytes())
            cut = chance.randrange(ends[0], len(log) + 1)
            garbage = chance.randbytes(chance.choice([0, 100, 10_000]))
            Path(f"{after}-wal").write_bytes(log[:cut] + garbage)
            with store_at(after) as revived:
                found = [job.id for job in reversed(revived.list())]
                assert found == ids[: len(found)]
                assert len(found) >= sum(end <= cut for end in ends)
                assert sum(revived.counts().values()) == len(found)
                revived.submitted()


# ---- a failing disk ----


@pytest.mark.parametrize("when", [1, 4, 9])
def test_a_failing_fsync_ends_the_store_and_loses_nothing_acknowledged(
    path: Path, require: Callable[[str], str], tmp_path: Path, when: int
) -> None:
    open_store(path).close()
    inject = f"inject=fsync,fdatasync:error=EIO:when={when}+"
    strace = (
        require("strace"),
        "-f",
        "-qq",
        "-o",
        str(tmp_path / "trace"),
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        inject,
    )
    with run_child(path, 1000, before=strace) as process:
        printed = read_lines(process, "Store")
        assert process.wait() == 3
    assert printed[-1].startswith(f"StoreBrokenError the disk failed under {path}")
    assert "start the node again" in printed[-1]
    with store_at(path) as store:
        found = {job.id for job in store.list()}
        acknowledged = set(stored_ids(printed))
        assert acknowledged <= found
        assert len(found - acknowledged) <= 1, "the last group may have reached the disk"


def test_a_disk_that_fails_at_the_very_start_is_named(
    path: Path, require: Callable[[str], str], tmp_path: Path
) -> None:
    """SQLite then rolls back the first transaction itself; the error must not be that there is no transaction."""
    inject = ("-P", f"{path}-shm", "-e", "trace=fstat", "-e", "inject=fstat:error=EIO")
    with run_child(path, 1, before=(require("strace"), "-f", "-qq", "-o", str(tmp_path / "trace"), *inject)) as process:
        (message,) = read_lines(process, "Store")
        assert process.wait() == 3
    assert message.startswith(f"StoreBrokenError the disk failed under {path}")


def test_a_log_is_written_to_disk_again_before_anything_is_added(
    path: Path, require: Callable[[str], str], tmp_path: Path
) -> None:
    """After a failed fsync, Linux shows unwritten data and never writes it by itself: the store must write it again."""
    with run_child(path, 20) as process:
        read_lines(process, "waiting")
        process.kill()
        process.wait()
    log, trace = Path(f"{path}-wal"), tmp_path / "trace"
    used = len(log.read_bytes().rstrip(b"\0"))
    calls = ("-P", str(log), "-e", "trace=write,pwrite64,fsync,fdatasync")
    with run_child(path, 0, before=(require("strace"), "-f", "-qq", "-s", "0", "-o", str(trace), *calls)) as process:
        read_lines(process, "waiting")
    on_disk = 0
    for line in trace.read_text().splitlines():
        if "sync(" in line:
            break
        written = re.search(r"pwrite64\(.*, (\d+), (\d+)\)\s+= \1$", line)
        assert written is not None, line
        size, place = map(int, written.groups())
        assert place == on_disk
        on_disk = place + size
    assert on_disk >= used > 100_000
    with store_at(path) as store:
        assert len(store.list()) == 20


def test_a_log_that_cannot_be_written_to_disk_is_not_extended(
    path: Path, require: Callable[[str], str], tmp_path: Path
) -> None:
    with run_child(path, 3) as process:
        read_lines(process, "waiting")
        process.kill()
        process.wait()
    inject = ("-P", f"{path}-wal", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO")
    with run_child(path, 1, before=(require("strace"), "-f", "-qq", "-o", str(tmp_path / "trace"), *inject)) as process:
        (message,) = read_lines(process, "Store")
        assert process.wait() == 3
    assert message.startswith(f"StoreBrokenError the disk failed under {path} (Input/output error)")
    with store_at(path) as store:
        assert len(store.list()) == 3


def test_a_disk_that_fails_during_a_checkpoint_ends_the_store(
    path: Path, require: Callable[[str], str], tmp_path: Path
) -> None:
    """The log's own writes succeed, so only the checkpoint detects that the database file cannot be written."""
    open_store(path).close()
    inject = ("-P", str(path), "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1+")
    strace = (require("strace"), "-f", "-qq", "--seccomp-bpf", "-o", str(tmp_path / "trace"), *inject)
    with run_child(path, 5000, before=strace) as process:
        printed = read_lines(process, "Store")
        assert process.wait() == 3
    assert printed[-1].startswith(f"StoreBrokenError the disk failed under {path}")
    with store_at(path) as store:
        assert {job.id for job in store.list()} == set(stored_ids(printed)) != set()


def test_a_broken_store_accepts_no_more_groups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync, a successful one proves nothing."""
    with store_at(path) as store:
        engine = store.engine
        assert isinstance(engine, SqliteEngine)
        before = store.submitted()

        def fail() -> None:
            raise apsw.IOError("disk I/O error")

        with monkeypatch.context() as patch:
            patch.setattr(engine._tx, "write_counts", fail)
            with pytest.raises(StoreBrokenError, match="the disk failed"):
                store.submitted()
        for _ in range(2):
            with pytest.raises(StoreBrokenError, match="the disk failed"):
                store.list()
        log = Path(f"{path}-wal").read_bytes()
        store.close_engine()
        assert Path(f"{path}-wal").read_bytes() == log, (
            "no checkpoint writes possibly wrong pages from memory into the file"
        )
        store.open()
        assert store.state(before.id) is State.PENDING
        assert len(store.list()) == 1


def test_a_defect_fails_only_one_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(path) as store:
        engine = store.engine
        assert isinstance(engine, SqliteEngine)
        job = store.job(function=b"new")
        with monkeypatch.context() as patch:
            patch.setattr(engine._tx, "write_counts", lambda: int("none"))
            with pytest.raises(StoreError, match="a defect in the store's code: ValueError") as failed:
                store.submit(job)
        assert isinstance(failed.value.__cause__, ValueError)
        assert store.list() == []
        assert store.submit(job) == {}
        assert [one.id for one in store.claim(b"new")] == [job.id]


def test_a_group_with_a_used_id_fails_as_a_whole(path: Path) -> None:
    with store_at(path) as store:
        job = store.submitted()
        with pytest.raises(StoreError, match="UNIQUE constraint failed"):
            store.submit(store.job(), job)
        assert [one.id for one in store.list()] == [job.id]


def test_the_header_identifies_the_store_from_the_first_page_on(path: Path) -> None:
    open_store(path).close()
    assert int.from_bytes(path.read_bytes()[68:72], "big") == store_file.APPLICATION_ID
