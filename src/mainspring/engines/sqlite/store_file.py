"""The file of a SQLite store: its lock, its opening with the schema, its copies, and the folding of its write-ahead log.

One node uses a store: it has a lock on the store's path and a lock on its file, and checks that the path still leads to the file.

The opening checks that the file is Mainspring's, and sets the connection. The file is copied before an update of its schema,
which also a command without a running node makes (`migrate_file`); backups by command use the same copies.

`Folding` moves the write-ahead log into the file. SQLite would do it itself, but without a report of failures: the log would grow
until the disk is full.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shlex
import struct
import sys
import threading
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import apsw
import structlog

from mainspring.engines.sqlite import transaction
from mainspring.errors import StoreBrokenError, StoreBusyError, StoreCorruptError, StoreError, StoreFullError
from mainspring.private_data import is_readable_by_all, open_own, open_private, refusal_reason
from mainspring.quantities import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BYTE = 0x4D535052 << 24
"""The locked byte of the file: far above the largest file that SQLite writes, and none of the 512 bytes at 2**30 that SQLite
locks. So the locks never meet, even if a file system keeps all of them in one list."""
_PROCESS_BYTES = 32
"""The first bytes of the lock file name the process; a line about the store's file follows."""
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")

log = structlog.get_logger("mainspring.store")


class FileLock:
    """Keeps other nodes away from a store, and checks that its file is still in its place.

    The first lock is an exclusive ``flock`` on ``<store>.lock``: the lock file names the process that has the store. The second
    is a lock on the file itself, since a file can have several names (hard links), and a lock file can be deleted. SQLite's own
    locks do not keep a second node out: they last for a transaction. Descriptors are closed on exec, so that executors do not
    inherit the locks, and a node that gets them has proof that the last node is gone.

    Release it after SQLite's connection is closed: closing any descriptor of a file ends SQLite's locks on it.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._log = Path(f"{store}-wal")
        self._path = Path(f"{store}.lock")
        self._name = self._file = -1
        self._identity = (0, 0)

    def acquire(self) -> None:
        """Acquire both locks; create the file if it does not exist.

        Raises StoreBusyError if another node has one of them, StoreFullError, and StoreError if the present write-ahead log
        belongs to another file: SQLite would delete that log, or write it over this file.
        """
        try:
            self._lock_path()
            self._check_log()
            self._lock_file()
        except BaseException:
            self.release()
            raise
        with contextlib.suppress(OSError):
            # The number is only for messages; a full disk may not have space for it.
            os.pwrite(self._name, b"%-31d\n" % os.getpid(), 0)

    def _lock_path(self) -> None:
        try:
            self._name = open_own(self._path)
        except OSError as error:
            raise StoreError(
                f"cannot open the lock {self._path}: {refusal_reason(error)}; the store's directory must exist and be writable"
            ) from error
        try:
            fcntl.flock(self._name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._name, _PROCESS_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
            raise self._busy(f" (process {owner})") from None

    def _lock_file(self) -> None:
        try:
            self._file = open_own(self._store)
        except OSError as error:
            raise transaction.cannot_open(self._store, error) from error
        try:
            _lock_byte(self._file)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                raise self._busy(", under another name or with a lock file that was deleted") from None
            log.warning(
                "the file system has no locks of this kind: only the lock file keeps other nodes away", why=str(error)
            )
        found = os.fstat(self._file)
        self._identity = (found.st_dev, found.st_ino)
        if found.st_nlink > 1:
            log.warning(
                "the store's file has several names: always use the same one, since its log has that name",
                path=str(self._store),
                names=found.st_nlink,
            )

    def _busy(self, how: str) -> StoreBusyError:
        return StoreBusyError(
            f"{self._store} is in use by another node{how}; stop that one, or give this one a store of its own with --store"
        )

    def _check_log(self) -> None:
        try:
            number = self._log.stat().st_ino
            with self._log.open("rb") as file:
                used = file.read(4) in _LOG_MAGIC
        except OSError:
            return  # there is no log, or SQLite will report what is wrong with it
        if not used:
            return
        try:
            found = self._store.stat()
        except FileNotFoundError:
            found = None
        if found is None or not found.st_size:
            raise transaction.file_gone(self._store)
        former = os.pread(self._name, 100, _PROCESS_BYTES).split()
        if len(former) == 2 and former[1] == b"%d" % number and former[0] != b"%d" % found.st_ino:
            raise transaction.file_replaced(self._store, self._path)

    def record_pair(self) -> None:
        """Record that the file and the log belong together, for a start after a crash; call it once SQLite has opened both."""
        with contextlib.suppress(OSError):
            os.pwrite(self._name, b"%-20d %-20d\n" % (self._identity[1], self._log.stat().st_ino), _PROCESS_BYTES)

    def check(self) -> None:
        """Raise StoreUnavailableError if the path no longer leads to the file: one ``stat``."""
        try:
            found = self._store.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise transaction.cannot_check(self._store, error) from error
        raise transaction.file_moved(self._store, deleted=not os.fstat(self._file).st_nlink, descriptor=self._file)

    def release(self) -> None:
        """Release the locks; the lock file stays, since removing it would race with the next node."""
        for descriptor in (self._file, self._name):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._name = -1


def _lock_byte(descriptor: int) -> None:
    """Lock a byte of an open file for this descriptor only. Raises OSError.

    Not ``flock``: on network file systems that is a lock on the whole file, and SQLite could not lock its bytes any more.
    """
    if sys.platform == "linux":
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _BYTE, 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)


LOG_PAGES = 8000
"""Pages after which the write-ahead log is folded into the file, and then written from its beginning again."""
LOG_BYTES = LOG_PAGES * (4096 + 24)
CHUNK_BYTES = 2**20
FREE_SPACE_FACTOR = 32
"""The log is laid out if this multiple of its size is free."""

APPLICATION_ID = 0x4D535052
"""``MSPR`` in the header of a file: it is Mainspring's."""

SCHEMA_VERSION = 34
FIRST_SCHEMA = 18
"""The oldest version of the schema that can be opened, in one file."""
MOVING: Final = 1000
"""Is added to the version in a file whose runs are being moved (`leaving_runs`): no version of a node opens it."""
MIGRATIONS = files(__package__).joinpath("migrations")
"""A file for `FIRST_SCHEMA`, and one for each later version with what it changes."""
CACHE_BYTES = 48 * 2**20
Synchronous = Literal["full", "normal"]

_HEADER = 100
_SETTINGS = (
    "wal_autocheckpoint=0",  # see `Folding`
    "temp_store=MEMORY",
    f"journal_size_limit={64 * 2**20}",
)


def real_path(path: Path) -> Path:
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
        raise transaction.not_a_database(path)
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise transaction.of_gearmand(path) if "gearman_queue" in _tables(path) else transaction.foreign(path)


def _tables(path: Path) -> set[str]:
    try:
        # `immutable`: SQLite takes no lock, and creates or rolls back no log and no journal of another program's file.
        connection = apsw.Connection(
            f"{path.absolute().as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        with contextlib.closing(connection):
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except apsw.Error as error:
        raise transaction.explain(error, path) from error


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
    moves: bool = False,
) -> None:
    """Set a connection up and update the file's schema, if that is allowed; raises apsw.Error or StoreError.

    If another program has locked the file, it waits for the connection's busy timeout. ``moves``: open a file although its runs
    are being moved, for the command that moves them.
    """
    ((version,),) = connection.execute("PRAGMA user_version")
    if version > MOVING:
        if not (moves and version == MOVING + SCHEMA_VERSION):
            raise moving(path, connection.execute("SELECT shown FROM move").get)
        version = SCHEMA_VERSION
    if version > SCHEMA_VERSION:
        raise transaction.newer(path, version, SCHEMA_VERSION)
    if 0 < version < FIRST_SCHEMA:
        raise transaction.too_old(path, version, FIRST_SCHEMA)
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


def moving(path: Path, target: str) -> StoreError:
    """Return the error for a file whose runs are being moved to the store at an address."""
    return StoreError(
        f"the move of the runs in {path} to {target} has not ended: "
        "run `mainspring move-runs` with this file and that store again"
    )


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
                copy = copy_before_migration(path, version, size)
                log.info("the store is copied", copy=str(copy))
        update_schema(connection, version)
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
            raise transaction.disk_failed(path, error.strerror or str(error), error.errno or 0) from error
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


def missing_migrations(version: int) -> range:
    """Return the numbers of the files between a version of the schema, 0 for a new file, and the present one."""
    return range(max(version + 1, FIRST_SCHEMA), SCHEMA_VERSION + 1)


def update_schema(connection: apsw.Connection, version: int) -> None:
    """Upgrade the schema from a version to the present one, inside the caller's transaction."""
    for number in missing_migrations(version):
        connection.execute(MIGRATIONS.joinpath(f"{number:04}.sql").read_text("utf-8"))
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}").fetchall()


STEP_PAGES = 1024
NO_COPY = "if you have a copy of your own, start with --no-backup-before-migrate"


def copy_before_migration(source: Path, version: int, size: int) -> Path:
    """Copy a store of ``size`` bytes before its schema is updated, beside it and under a new name; return the copy's path.

    The caller keeps other writers away. Raises StoreError, with what to do, if there is no space or the copy cannot be written.
    """
    names = (f"{source.name}.schema-{version}{end}.backup" for end in chain([""], map("-{}".format, count(2))))
    target = next(path for path in map(source.with_name, names) if not os.path.lexists(path))
    disk = os.statvfs(source.parent)
    free = disk.f_bavail * disk.f_frsize
    why = f"cannot copy {source} to {target} before its schema is updated"
    if free < size:
        raise StoreError(
            f"{why}: the copy needs {format_size(size)}, and {format_size(free)} are free; free some space, or {NO_COPY}"
        )
    try:
        copy_store(source, target, check=False)
    except StoreError as error:
        raise StoreError(f"{why}; nothing was changed: {error}; or {NO_COPY}") from error
    return target


def copy_store(
    source: Path, target: Path, progress: Callable[[int, int], None] | None = None, *, check: bool = True
) -> int:
    """Copy the state of a SQLite file at one moment, even while others write to it; return the size of the copy in bytes.

    ``check``: whether to look for damage in the copy, which takes longer than to copy it. ``progress`` is called with the number
    of remaining pages and of all pages. The target appears complete or not at all. Raises StoreCorruptError if source or copy is
    damaged, StoreFullError and StoreError if the copy cannot be written.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _remove_abandoned(target)
        with contextlib.closing(apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)) as reader:
            reader.set_busy_timeout(10_000)
            # The transaction gives all steps the same state of the store. Writers continue in its WAL file.
            reader.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
            _copy_pages(reader, partial, progress, check=check)
        with partial.open("rb") as copy:
            os.fsync(copy.fileno())
            size = os.fstat(copy.fileno()).st_size
        partial.replace(target)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorruptError(f"{source} is damaged or is not a SQLite file ({error}); nothing was copied") from error
    except apsw.FullError as error:
        raise StoreFullError(f"no space is left for the copy {target}: free some, or choose another disk") from error
    except (apsw.IOError, OSError) as error:
        # SQLite's own text for a failed write of the copy is "not an error".
        raise StoreError(
            f"cannot copy {source} to {target}: a disk has failed ({getattr(error, 'strerror', None) or 'reading or writing'}); "
            "read the system's log, or choose another disk"
        ) from error
    except apsw.Error as error:
        raise StoreError(f"cannot copy {source} to {target}: {error}") from error
    finally:
        for end in ("", "-journal"):
            partial.with_name(f"{partial.name}{end}").unlink(missing_ok=True)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return size


def _remove_abandoned(target: Path) -> None:
    """Remove the partial files of killed processes that copied to the same name."""
    name = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.partial(-journal)?")
    for path in target.parent.iterdir():
        match = name.fullmatch(path.name)
        if match is None:
            continue
        try:
            os.kill(int(match[1]), 0)
        except (ProcessLookupError, OverflowError):
            path.unlink(missing_ok=True)
        except PermissionError:  # the process is alive and belongs to another user
            continue


def _copy_pages(
    reader: apsw.Connection, partial: Path, progress: Callable[[int, int], None] | None, *, check: bool
) -> None:
    partial.unlink(missing_ok=True)
    # For its owner alone: copies are moved to places with other groups. SQLite would only apply the umask.
    os.close(open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(apsw.Connection(str(partial))) as writer:
        with writer.backup("main", reader, "main") as steps:
            while not steps.done:
                steps.step(STEP_PAGES)
                if progress is not None:
                    progress(steps.remaining, steps.page_count)
        writer.execute("PRAGMA journal_mode=DELETE")  # a single file, without a WAL file
        (verdict,) = (writer.execute("PRAGMA quick_check(1)").fetchone() or ("",)) if check else ("ok",)
        if verdict != "ok":
            raise StoreCorruptError(f"the copy is damaged ({verdict}), so the store may be, too; the copy was removed")


def migrate_file(path: Path, *, copied: bool = True) -> list[int]:
    """Create the file or update its schema; return the numbers of the applied migrations. With ``copied``, it is copied first.

    Raises StoreBusyError if a node has the file, and StoreError as opening it does.
    """
    path = real_path(path)
    check_file(path)
    lock = FileLock(path)
    lock.acquire()
    try:
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            connection.set_busy_timeout(5000)  # blocking this thread delays no other work
            ((version,),) = connection.execute("PRAGMA user_version")
            prepare(connection, path, update=Update(copied=copied))
    except apsw.Error as error:
        raise transaction.explain(error, path) from error
    finally:
        lock.release()
    return list(missing_migrations(version))


REPORTED_GROWTH = 4
"""The log is reported once it has this multiple of its limit, and whenever it has doubled since."""
FOREIGN_READER = "another program reads the store in a transaction that does not end: end it there"


class Folding:
    """Folds the log of a connection whenever it has ``pages`` pages; called after each commit."""

    def __init__(self, connection: apsw.Connection, path: Path, pages: int = LOG_PAGES) -> None:
        self._connection = connection
        self._path = path
        self._limit = pages
        self._report_at = REPORTED_GROWTH * pages
        self._pages = 0
        self._condition = threading.Condition()
        self._is_read = False
        self._is_due = False
        """Whether to fold the log after the read under way and before the next one."""
        connection.set_wal_hook(self._committed)

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Run a read of the node's own reader, in its thread; it first waits for a folding that is due.

        SQLite can write the log from its beginning again only while no reader uses it, and consecutive reads would leave no such
        moment. So a new read waits for the folding.
        """
        with self._condition:
            self._condition.wait_for(lambda: not self._is_due)
            self._is_read = True
        try:
            yield
        finally:
            with self._condition:
                self._is_read = False

    def after_commit(self) -> None:
        """Fold the log if it has reached its limit: now, or after the read of the node's own reader.

        Raises StoreBrokenError if the disk fails. Nothing is lost: pages that were not folded stay in the log.
        """
        if self._pages < self._limit:
            self._report_at = REPORTED_GROWTH * self._limit
            return
        with self._condition:
            self._is_due = True
            if self._is_read:
                return
        self._fold()

    def after_read(self) -> None:
        """Fold the log if a read has delayed that, outside of any group. Raises StoreBrokenError, as `after_commit` does."""
        if self._is_due and not self._is_read:
            self._fold()

    def admit_reader(self) -> None:
        """Let the reader continue: no folding is due."""
        with self._condition:
            self._is_due = False
            self._condition.notify_all()

    def _fold(self) -> None:
        try:
            self._checkpoint()
        finally:
            self.admit_reader()

    def _checkpoint(self) -> None:
        reason = FOREIGN_READER
        try:
            pages, folded = self._connection.wal_checkpoint("main")
            if folded == pages:
                return
        except apsw.Error as error:
            failure = transaction.explain(error, self._path, self._connection.system_errno)
            if isinstance(failure, StoreBrokenError):
                raise failure from error
            reason = str(failure)
        if self._pages >= self._report_at:
            self._report_at = 2 * self._pages
            log.warning("the log of the store grows", log=f"{self._path}-wal", pages=self._pages, why=reason)
