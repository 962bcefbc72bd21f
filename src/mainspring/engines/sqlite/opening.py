"""The opening of a file: the check that it is Mainspring's, the connection's settings, the schema."""

from __future__ import annotations

import os
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, NamedTuple

import apsw
import structlog

from mainspring.engines.sqlite import copying, failures
from mainspring.errors import StoreError
from mainspring.private_files import is_readable_by_all
from mainspring.quantities import format_size

LOG_PAGES = 8000
"""Pages after which the write-ahead log is folded into the file, and then written from its beginning again."""
LOG_BYTES = LOG_PAGES * (4096 + 24)
CHUNK_BYTES = 2**20
FREE_SPACE_FACTOR = 32
"""The log is laid out if this multiple of its size is free."""

APPLICATION_ID = 0x4D535052
"""``MSPR`` in the header of a file: it is Mainspring's."""

SCHEMA_VERSION = 18
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
    """Return the real path of a file: SQLite keeps its log there, and one node has one lock for it, with any symbolic link."""
    return Path(os.path.realpath(path))


def check_file(path: Path) -> None:
    """Refuse a file that is not Mainspring's before anything touches it."""
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
        # `immutable`: SQLite takes no lock, and creates or rolls back no log and no journal of another program's file.
        connection = apsw.Connection(
            f"{path.absolute().as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        try:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        finally:
            connection.close()
    except apsw.Error as error:
        raise failures.explain(error, path) from error


class Update(NamedTuple):
    """Whether to update a file with an older schema, and how."""

    allowed: bool = True
    copied: bool = True
    """Whether to copy the file first, see `copying.copy_before_migration`."""


UPDATE: Final = Update()


def prepare(
    connection: apsw.Connection,
    path: Path,
    *,
    synchronous: Synchronous = "full",
    cache_bytes: int = CACHE_BYTES,
    update: Update = UPDATE,
) -> None:
    """Set a connection up and update the file's schema, if that is allowed; raises apsw.Error or StoreError.

    If another program has locked the file, it waits for the connection's busy timeout.
    """
    ((version,),) = connection.execute("PRAGMA user_version")
    if version > SCHEMA_VERSION:
        raise failures.newer(path, version, SCHEMA_VERSION)
    if 0 < version < SCHEMA_VERSION and not update.allowed:
        raise StoreError(
            f"the schema of {path} is at version {version}, and this version of Mainspring needs {SCHEMA_VERSION}: "
            "run `mainspring migrate` first, or start without --no-migrate"
        )
    ((application,),) = connection.execute("PRAGMA application_id")
    if application != APPLICATION_ID:
        # Before the log is in use: a node may be killed before the log reaches the file, and the file's own header must identify
        # it.
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
    ((mode,),) = connection.execute("PRAGMA journal_mode=WAL")
    if mode != "wal":
        raise StoreError(
            f"cannot keep a write-ahead log beside {path} (its journal mode stays {mode!r}): "
            "the store must be on a writable local file system"
        )
    if version:
        rewrite_log(connection, path)
    for setting in (f"synchronous={synchronous}", f"cache_size=-{cache_bytes // 1024}", *_SETTINGS):
        connection.execute(f"PRAGMA {setting}").fetchall()
    if version < SCHEMA_VERSION:
        _update(connection, path, version, copied=update.copied)


def _update(connection: apsw.Connection, path: Path, version: int, *, copied: bool) -> None:
    """Create or update the schema in one transaction. A file with a schema is copied first, while nobody can write to it."""
    connection.execute("BEGIN IMMEDIATE")
    copy: Path | None = None
    try:
        if version:
            about = {"path": str(path), "version": version, "new_version": SCHEMA_VERSION}
            ((size,),) = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
            log.info("the schema of the store is updated", **about, size=format_size(size), copied=copied)
            if copied:
                copy = copying.copy_before_migration(path, version, size)
                log.info("the store is copied", copy=str(copy))
        migrate(connection, version)
        connection.execute("COMMIT")
        if version:
            log.info("the schema of the store is up to date", **about, copy=None if copy is None else str(copy))
    except BaseException:
        if copy is not None:
            copy.unlink(missing_ok=True)  # the store is as before; each repeated start would leave another copy
        raise
    finally:
        if connection.in_transaction:  # after some errors SQLite has rolled back by itself
            connection.execute("ROLLBACK")


def rewrite_log(connection: apsw.Connection, path: Path) -> None:
    """Write the last process's log to the disk again, whatever its state.

    Raises apsw.Error, StoreBrokenError or StoreFullError.

    After a failed ``fsync`` Linux marks the lost pages as written, and shows them to readers of the file. SQLite would find the
    last transactions there, and append to a log that has a hole on the disk: the next power cut would lose everything behind the
    hole, or a half-written checkpoint could not be repeated. Writing the log again closes the hole.
    """
    try:
        file = path.with_name(f"{path.name}-wal").open("r+b", buffering=0)
    except OSError:
        return  # there is no log, or SQLite will report what is wrong with it
    with file:
        connection.execute("BEGIN IMMEDIATE")  # no other program may append to the log now
        try:
            place = 0
            while chunk := os.pread(file.fileno(), CHUNK_BYTES, place):
                place += os.pwrite(file.fileno(), chunk, place) if chunk.strip(b"\0") else len(chunk)
            os.fsync(file.fileno())
        except OSError as error:
            raise failures.disk_failed(path, error.strerror or str(error), error.errno or 0) from error
        finally:
            connection.execute("ROLLBACK")


def warn_of_readers(path: Path) -> None:
    """Warn if every user of the machine may read the payloads: earlier versions left the mode of the files to the umask."""
    files = (path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm"))
    if open_to_all := [str(file) for file in files if is_readable_by_all(file)]:
        log.warning(
            "every user of this machine can read the jobs in the store",
            path=str(path),
            repair=f"chmod o-rwx {shlex.join(open_to_all)}",
        )


def lay_out_log(connection: apsw.Connection, path: Path) -> None:
    """Extend the write-ahead log to its full size with zeros, if there is space and no other program writes.

    An ``fdatasync`` of a growing file also writes the file system's own log, and takes about twice as long. Measured: 2,400 to
    3,900 commits of one row a second while the log grew, 5,900 at its full size. SQLite takes a frame for the log's end unless
    its salt and checksum fit, so it ignores zeros behind the end.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        disk = os.statvfs(path.parent)
        if disk.f_bavail * disk.f_frsize < FREE_SPACE_FACTOR * LOG_BYTES:
            return
        connection.execute("BEGIN IMMEDIATE")  # the zeros must not overwrite another program's frames
        try:
            with log.open("r+b") as file:
                missing = LOG_BYTES - file.seek(0, os.SEEK_END)
                while missing > 0:
                    missing -= file.write(bytes(min(missing, CHUNK_BYTES)))
        finally:
            connection.execute("ROLLBACK")
    except (OSError, apsw.BusyError):
        return  # without it, commits are only slower


def migrate(connection: apsw.Connection, version: int) -> None:
    """Upgrade the schema from a version to the present one, inside the caller's transaction."""
    for number in range(version + 1, SCHEMA_VERSION + 1):
        connection.execute(files(__package__).joinpath(f"migrations/{number:04}.sql").read_text("utf-8"))
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}").fetchall()
