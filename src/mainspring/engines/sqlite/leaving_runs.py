"""Open runs that leave the file of a SQLite store for another store.

`LeavingFile` has the store's lock, so no node has the file. Before the other store gets anything, ``begin`` marks the file, and
no node opens a marked one. It stays so until ``remove`` deletes the runs here, or until ``stay`` takes the mark off because the
other store will not have them. So a process that is killed between any two steps leaves the runs with one of the stores at
most, and the mark has what another call needs to finish.

With the open runs leave the closed ones that they continue, their histories and snapshots, early signals, errands, and these
jobs: root jobs, activities, decision tasks, and jobs that wait to begin as runs.
"""

from __future__ import annotations

import contextlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from mainspring.engines.sql.moved_runs import COLUMNS, MovedJob
from mainspring.engines.sql.statements import STATES
from mainspring.engines.sqlite import transaction
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.store_file import (
    MOVING,
    SCHEMA_VERSION,
    FileLock,
    Update,
    check_file,
    prepare,
    real_path,
)
from mainspring.engines.sqlite.transaction import Functions, stored_jobs
from mainspring.errors import StoreBusyError, StoreError, UsageError
from mainspring.jobs.model import UNREADABLE_OPTIONS, read_options
from mainspring.storage.engine import statements_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SQL: Final = statements_of(files(__package__).joinpath("leaving_runs.sql").read_text("utf-8"), STATES)
_JOB_COLUMNS: Final = 20
"""Columns of a job that `stored_jobs` reads."""


class Mark(NamedTuple):
    """A move that has begun."""

    id: bytes
    """Chosen at random: the other store keeps it with the runs."""
    target: bytes
    """The identity of the other store."""
    shown: str
    """The other store's address, without a password."""


class LeavingFile:
    """The file that runs leave: ``engines.sql.moved_runs.LeavingRuns``. It is open from its construction until ``close``."""

    def __init__(self, path: Path) -> None:
        """Lock and open a file, and choose what leaves.

        Raises StoreBusyError if a node has it, UsageError if there is no such file, or if runs hold resources, and StoreError if
        its schema is not the present one or a job cannot be read.
        """
        self.path = path = real_path(path)
        if not path.exists():
            raise UsageError(f"there is no store {path}: name the file of the old server with --from")
        check_file(path)
        self._lock = FileLock(path)
        try:
            self._lock.acquire()
        except StoreBusyError as error:
            raise StoreBusyError(
                f"a node uses {path}: stop it first, and its workers with it, then move its runs"
            ) from error
        self._connection: apsw.Connection | None = None
        try:
            self._open()
        except apsw.Error as error:
            self.close()
            raise transaction.explain(error, path) from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        connection = self._connection = apsw.Connection(str(self.path))
        connection.set_busy_timeout(5000)
        ((version,),) = connection.execute("PRAGMA user_version")
        if not version:
            raise StoreError(f"{self.path} has no schema: no node has used it")
        self.mark: Mark | None = None
        """The move that has begun, and has not ended."""
        if version == MOVING + SCHEMA_VERSION:
            (columns,) = connection.execute(_SQL["read_mark"])
            self.mark = Mark(*columns)
        prepare(connection, self.path, update=Update(allowed=False), moves=self.mark is not None)
        self._cursor = connection.cursor()
        self._functions = Functions(
            connection.cursor(), SQL["function_id"], SQL["function_named"], SQL["function_numbered"]
        )
        self._choose()

    def _choose(self) -> None:
        """Note the runs and jobs that leave, in temporary tables."""
        run = self._cursor.execute
        run(_SQL["choose_runs"])
        ((holders,),) = run(_SQL["holders"])
        if holders and self.mark is None:
            raise UsageError(
                f"{holders} open runs in {self.path} hold slots of resources, or wait for them, and resources stay: start the "
                "server again, and move when these blocks have ended, or terminate the runs"
            )
        run(_SQL["choose_jobs"])
        for job_id, data in list(run(_SQL["jobs_with_runs"])):
            options = read_options(data)
            if options is UNREADABLE_OPTIONS:
                raise StoreError(
                    f"this version of Mainspring cannot read the options of the job {job_id} in {self.path}: "
                    "move the runs with the version that the node had"
                )
            if options.run is not None and list(run(_SQL["is_open"], (options.run[0],))):
                run(_SQL["choose_job"], (job_id,))
        ((self.runs, self.jobs_number, errands),) = run(_SQL["numbers"])
        self.is_empty = not (self.runs or self.jobs_number or errands)
        """Whether nothing leaves."""

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._connection is not None:
            self._connection.close()
        self._lock.release()

    # ---- what leaves ----

    def terms(self) -> Iterator[tuple[int, str]]:
        """Yield all terms of the store, with the names of their nodes."""
        yield from self._cursor.execute(SQL["terms"])

    def jobs(self) -> Iterator[MovedJob]:
        """Yield the jobs that leave, by their ids."""
        for row in self._cursor.execute(_SQL["jobs"]):
            (job,) = stored_jobs([row[:_JOB_COLUMNS]], self._functions)
            keep, stopping, attempts = row[_JOB_COLUMNS:]
            yield MovedJob(job, bool(keep), stopping, None if attempts is None else attempts.encode())

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that leave of one of `COLUMNS`."""
        assert table in COLUMNS
        yield from self._cursor.execute(_SQL[table])

    # ---- the mark ----

    def begin(self, mark: Mark) -> None:
        """Mark the file, on the disk: no node opens it from now on. Raises StoreError."""
        with self._writing():
            self._cursor.execute(_SQL["mark"])
            self._cursor.execute(_SQL["note_mark"], mark)
            self._set_version(MOVING + SCHEMA_VERSION)
        self.mark = mark

    def stay(self) -> None:
        """Take the mark off: nodes may open the file and go on with the runs."""
        with self._writing():
            self._unmark()
        self.mark = None

    def remove(self) -> None:
        """Delete what has left, and take the mark off. Raises StoreError."""
        with self._writing():
            for statement in ("release_fires", "uncount"):
                self._cursor.execute(_SQL[statement])
            for table in ("history", "snapshots", "payloads", "runs", "early_signals", "errands", "jobs"):
                self._cursor.execute(_SQL[f"delete_{table}"])
            self._unmark()
        self.mark = None

    def _unmark(self) -> None:
        self._cursor.execute(_SQL["remove_mark"])
        self._set_version(SCHEMA_VERSION)

    def _set_version(self, version: int) -> None:
        self._cursor.execute(f"PRAGMA user_version={version}").fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Run a transaction."""
        assert self._connection is not None
        try:
            self._lock.check()
            self._cursor.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._cursor.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._cursor.execute("ROLLBACK")
        except apsw.Error as error:
            raise transaction.explain(error, self.path, self._connection.system_errno) from error
