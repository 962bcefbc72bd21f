"""Before the first group: refusing what is not ours, the connection's settings, the schema."""

from __future__ import annotations

import os
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Literal

import apsw
import structlog

from mainspring.engines.sqlite import failures
from mainspring.errors import StoreError
from mainspring.private_files import is_readable_by_all

LOG_PAGES = 8000
"""The write-ahead log is folded into the file when it has so many pages, and then written from its beginning again."""
LOG_BYTES = LOG_PAGES * (4096 + 24)
CHUNK = 2**20
ROOM = 32
"""The log is laid out where so many times its size is free."""

APPLICATION_ID = 0x4D535052
"""``MSPR`` in the file's header: the file is ours."""

SCHEMA_VERSION = 4
CACHE_BYTES = 48 * 2**20
Synchronous = Literal["full", "normal"]

log = structlog.get_logger("mainspring.store")

_HEADER = 100
_SETTINGS = (
    "wal_autocheckpoint=0",  # see folding.py
    "temp_store=MEMORY",
    f"journal_size_limit={64 * 2**20}",
)


def real(path: Path) -> Path:
    """Return where a file is, whatever links lead to it: SQLite keeps its log there, and one node has one lock for it."""
    return Path(os.path.realpath(path))


def check_file(path: Path) -> None:
    """Refuse a file that is not ours before anything touches it."""
    if not path.parent.is_dir():
        raise StoreError(f"cannot open {path}: the directory {path.parent} does not exist; create it first")
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if not head:
        return
    if not head.startswith(b"SQLite format 3\0") or len(head) < _HEADER:
        raise failures.not_a_database(path)
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise failures.of_gearmand(path) if "gearman_queue" in _tables(path) else failures.foreign(path)


def _tables(path: Path) -> set[str]:
    try:
        # `immutable`: no lock, no log and no journal is made or rolled back beside a file that is somebody else's.
        connection = apsw.Connection(
            f"{path.absolute().as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        try:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        finally:
            connection.close()
    except apsw.Error as error:
        raise failures.explain(error, path) from error


def prepare(
    connection: apsw.Connection, path: Path, *, synchronous: Synchronous = "full", cache_bytes: int = CACHE_BYTES
) -> None:
    """Set a connection up and bring the file's schema up to date; raises apsw.Error or StoreError.

    Where another program has locked the file, it waits as long as the connection's busy timeout says.
    """
    ((version,),) = connection.execute("PRAGMA user_version")
    if version > SCHEMA_VERSION:
        raise failures.newer(path, version, SCHEMA_VERSION)
    ((application,),) = connection.execute("PRAGMA application_id")
    if application != APPLICATION_ID:
        # Before the log is in use: a node may be killed before the log reaches the file, and the file's own header has to say
        # whose it is.
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
    ((mode,),) = connection.execute("PRAGMA journal_mode=WAL")
    if mode != "wal":
        raise StoreError(
            f"cannot keep a write-ahead log beside {path} (its journal mode stays {mode!r}): "
            "the store has to be on a local file system that can be written"
        )
    if version:
        write_log_again(connection, path)
    for setting in (f"synchronous={synchronous}", f"cache_size=-{cache_bytes // 1024}", *_SETTINGS):
        connection.execute(f"PRAGMA {setting}").fetchall()
    if version < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        try:
            migrate(connection, version)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:  # after some errors SQLite has rolled back by itself
                connection.execute("ROLLBACK")


def write_log_again(connection: apsw.Connection, path: Path) -> None:
    """Put the log that a process before has left on the disk, whatever became of it.

    Raises apsw.Error, StoreBrokenError or StoreFullError.

    After a failed ``fsync`` Linux takes what it could not write for written, and goes on showing it to whoever reads the file.
    SQLite would find the last transactions there, and add to a log that has a hole on the disk: with the next power cut all
    behind the hole would be gone, or a half-written checkpoint could not be repeated. What is written once more is written.
    """
    try:
        file = path.with_name(f"{path.name}-wal").open("r+b", buffering=0)
    except OSError:
        return  # there is none, or SQLite says what is wrong with it
    with file:
        connection.execute("BEGIN IMMEDIATE")  # nobody else may add to the log meanwhile
        try:
            place = 0
            while chunk := os.pread(file.fileno(), CHUNK, place):
                place += os.pwrite(file.fileno(), chunk, place) if chunk.strip(b"\0") else len(chunk)
            os.fsync(file.fileno())
        except OSError as error:
            raise failures.disk_failed(path, error.strerror or str(error), error.errno or 0) from error
        finally:
            connection.execute("ROLLBACK")


def warn_of_readers(path: Path) -> None:
    """Warn where every user of the machine may read the payloads: earlier versions left the mode of the files to the umask."""
    files = (path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm"))
    if open_to_all := [str(file) for file in files if is_readable_by_all(file)]:
        log.warning(
            "every user of this machine can read the jobs in the store",
            path=str(path),
            repair=f"chmod o-rwx {shlex.join(open_to_all)}",
        )


def lay_out_log(connection: apsw.Connection, path: Path) -> None:
    """Give the write-ahead log its size at once, in zeros, where there is room for it and nobody else writes.

    An ``fdatasync`` of a file that grows has to write the file system's own log too, and takes about twice as long. Measured:
    2,400 to 3,900 commits of one row a second while the log grew, 5,900 once it did not.
    SQLite takes a frame for the log's end unless its salt and checksum fit, so zeros behind the end are nothing to it.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        disk = os.statvfs(path.parent)
        if disk.f_bavail * disk.f_frsize < ROOM * LOG_BYTES:
            return
        connection.execute("BEGIN IMMEDIATE")  # the zeros must not come over what another program adds to the log
        try:
            with log.open("r+b") as file:
                missing = LOG_BYTES - file.seek(0, os.SEEK_END)
                while missing > 0:
                    missing -= file.write(bytes(min(missing, CHUNK)))
        finally:
            connection.execute("ROLLBACK")
    except (OSError, apsw.BusyError):
        return  # it is only slower without


def migrate(connection: apsw.Connection, version: int) -> None:
    """Take the schema from a version to the present one, inside the caller's transaction."""
    for number in range(version + 1, SCHEMA_VERSION + 1):
        connection.execute(files(__package__).joinpath(f"migrations/{number:04}.sql").read_text("utf-8"))
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}").fetchall()
