"""The default store: one SQLite file, in WAL mode with ``synchronous=FULL``, so that what was committed survives a power cut."""

from __future__ import annotations

import queue
import sys
import threading
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import apsw

from mainspring.engines.sqlite import jobs, queries
from mainspring.engines.sqlite.lock import FileLock
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import Transaction
from mainspring.errors import StoreBrokenError, StoreCorruptError, StoreError, StoreForeignError, StoreFullError
from mainspring.ids import Term
from mainspring.jobs.store import PHASES
from mainspring.queries.jobs import ListJobs
from mainspring.storage.engine import Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mainspring.ids import NodeId
    from mainspring.storage.engine import Committed
    from mainspring.storage.operation import Operation

APPLICATION_ID = 0x4D535052
"""``MSPR`` in the file's header: the file is ours."""

SCHEMA_VERSION = 1
CACHE_KIB = 48 * 1024
THREAD_ROWS = 512
"""Groups of more rows run in the engine's thread, so that the loop reads on meanwhile; smaller ones are over sooner than a
hand-over to a thread and back takes."""

_HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]] = {
    **jobs.HANDLERS,
    ListJobs: queries.list_jobs,
}
_ORDER = (*PHASES, ListJobs)


class SqliteEngine:
    """A store in one file, for one node at a time."""

    durable = True
    max_value = 900_000_000
    """SQLite's own limit of a row is 1,000,000,000 bytes."""

    def __init__(self, path: Path, *, thread_rows: int = THREAD_ROWS) -> None:
        self._path = path
        self._lock = FileLock(path)
        self._thread_rows = thread_rows
        self._connection: apsw.Connection | None = None
        self._work: queue.SimpleQueue[tuple[Sequence[Operation], Committed] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # ---- opening ----

    def open(self, node: NodeId, deliver: Callable[[Callable[[], None]], object]) -> Opened:
        """Open or create the file for a node and begin its next term."""
        self._deliver = deliver
        if not self._path.parent.is_dir():
            raise StoreError(
                f"cannot open {self._path}: the directory {self._path.parent} does not exist; create it first"
            )
        self._check_file()
        self._lock.take()
        try:
            return self._open(node)
        except apsw.Error as error:
            self.close()
            raise self._explain(error) from error
        except BaseException:
            self.close()
            raise

    def _check_file(self) -> None:
        """Refuse a file that is not ours before anything touches it."""
        try:
            with self._path.open("rb") as file:
                head = file.read(100)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        if not head:
            return
        if not head.startswith(b"SQLite format 3\0"):
            raise StoreCorruptError(
                f"{self._path} is not a SQLite database; move it away, or name another file with --store"
            )
        if len(head) == 100 and int.from_bytes(head[68:72], "big") != APPLICATION_ID:
            self._refuse_foreign()

    def _refuse_foreign(self) -> None:
        tables = set()
        try:
            connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            connection.close()
        except apsw.Error as error:
            raise self._explain(error) from error
        if "gearman_queue" in tables:
            raise StoreForeignError(
                f"{self._path} is a queue of gearmand's and was left untouched; start the server with a store of its own, "
                f"then run: mainspring import {self._path}"
            )
        raise StoreForeignError(
            f"{self._path} is a database of another program and was left untouched; name another file with --store"
        )

    def _open(self, node: NodeId) -> Opened:
        connection = apsw.Connection(str(self._path))
        self._connection = connection
        connection.set_busy_timeout(5000)
        cursor = connection.cursor()
        for setting in (
            "journal_mode=WAL",
            "synchronous=FULL",
            f"cache_size=-{CACHE_KIB}",
            "wal_autocheckpoint=8000",
            "temp_store=MEMORY",
            f"journal_size_limit={64 * 2**20}",
        ):
            cursor.execute(f"PRAGMA {setting}").fetchall()
        ((version,),) = cursor.execute("PRAGMA user_version")
        if version > SCHEMA_VERSION:
            raise StoreForeignError(
                f"{self._path} has schema {version} of a newer Mainspring, this one knows {SCHEMA_VERSION}: "
                "use that version, or name another file with --store"
            )
        cursor.execute("BEGIN IMMEDIATE")
        for number in range(version + 1, SCHEMA_VERSION + 1):
            migration = files(__package__).joinpath(f"migrations/{number:04}.sql").read_text("utf-8")
            cursor.execute(migration)
        cursor.execute(f"PRAGMA application_id={APPLICATION_ID}")
        cursor.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        ((term,),) = cursor.execute(SQL["next_term"], (node,))
        terms = dict(cursor.execute(SQL["terms"]))
        cursor.execute("COMMIT")
        self._tx = Transaction(cursor)
        self._thread = threading.Thread(target=self._run, name="sqlite", daemon=True)
        self._thread.start()
        # With CPython's default of 5 ms the engine's thread would wait that long for every row beside a busy loop.
        sys.setswitchinterval(1e-4)
        return Opened(Term(term), terms)

    # ---- committing ----

    def commit(self, group: Sequence[Operation], committed: Committed) -> None:
        """Run a group: a small one here and now, a large one in the engine's thread."""
        if sum(operation.rows for operation in group) > self._thread_rows:
            self._work.put((group, committed))
        else:
            committed(self._try(group))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            group, committed = work
            outcomes = self._try(group)
            self._deliver(lambda then=committed, what=outcomes: then(what))  # type: ignore[misc]

    def _try(self, group: Sequence[Operation]) -> Sequence[Any] | StoreError:
        cursor = self._tx.cursor
        try:
            cursor.execute("BEGIN IMMEDIATE")
            outcomes = self._handle(group)
            self._tx.write_counts()
            cursor.execute("COMMIT")
        except apsw.Error as error:
            self._roll_back()
            return self._explain(error)
        return outcomes

    def _handle(self, group: Sequence[Operation]) -> Sequence[Any]:
        if len(group) == 1:
            return _HANDLERS[type(group[0])](self._tx, group)
        kinds: dict[type[Operation], list[int]] = {}
        for index, operation in enumerate(group):
            kinds.setdefault(type(operation), []).append(index)
        outcomes: list[Any] = [None] * len(group)
        for kind in _ORDER:
            indexes = kinds.get(kind)
            if indexes:
                for index, outcome in zip(
                    indexes, _HANDLERS[kind](self._tx, [group[index] for index in indexes]), strict=True
                ):
                    outcomes[index] = outcome
        return outcomes

    def _roll_back(self) -> None:
        connection = self._tx.cursor.connection
        try:
            if connection.in_transaction:
                self._tx.cursor.execute("ROLLBACK")
            self._tx.rolled_back()
        except apsw.Error:
            # What is broken shows again at the next group, with its own message.
            return

    def _explain(self, error: apsw.Error) -> StoreError:
        if isinstance(error, apsw.FullError):
            return StoreFullError(f"no space is left for {self._path}; free some, what was accepted is safe")
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            return StoreCorruptError(
                f"{self._path} is damaged ({error}); restore a backup, or salvage it with: sqlite3 {self._path} .recover"
            )
        if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError)):
            return StoreError(
                f"cannot write {self._path} ({error}); check the permissions of the file and its directory"
            )
        if isinstance(error, apsw.IOError):
            return StoreBrokenError(
                f"the disk failed under {self._path} ({error}); what was acknowledged before is on it"
            )
        return StoreError(f"{self._path}: {error}")

    # ---- closing ----

    def close(self) -> None:
        """End the thread, fold the log into the file and release the lock."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lock.release()
