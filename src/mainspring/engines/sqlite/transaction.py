"""The transaction of a group: the state that its handlers share, with the conversions of jobs to rows and back.

Translates SQLite's errors into the store's errors, with advice.
"""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import apsw

from mainspring import namespaces
from mainspring.engines.sqlite.statements import SQL, Statements
from mainspring.errors import (
    StoreBrokenError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreFullError,
    StoreUnavailableError,
)
from mainspring.event_log.interests import CurrentInterests, NewEvents
from mainspring.jobs.model import NO_UNIQUE, Job, State, counted_as, decode_options, encode_options, read_options
from mainspring.private_data import refusal_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from mainspring.jobs.model import Options
    from mainspring.jobs.owners import Notices
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.resources.hold_store import AskHolds
    from mainspring.resources.holds import Holder
    from mainspring.schedules.catalogue import Catalogue

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})


def explain(error: apsw.Error, path: Path, system_error: int = 0) -> StoreError:
    """Translate an error of SQLite's into one for the store at ``path``; ``system_error`` is its ``errno``."""
    if isinstance(error, apsw.FullError):
        return _full(path)
    if isinstance(error, (apsw.IOError, apsw.CantOpenError)) and system_error in _NO_SPACE:
        return _full(path)
    if isinstance(error, apsw.IOError):
        return disk_failed(path, str(error))
    if isinstance(error, apsw.NotADBError):
        return not_a_database(path)
    if isinstance(error, apsw.CorruptError):
        return StoreCorruptError(
            # SQLite reports the same error if the disk cannot be read.
            f"{path} is damaged ({error}); check the system's log for failures of its disk, restore a backup, "
            "or save the readable jobs as docs/how-to/back-up.md describes"
        )
    if isinstance(error, apsw.CantOpenError) and system_error in _NO_FILES:
        return _too_many_files(path)
    if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError)):
        return _no_permission(path, str(error))
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreBusyError(f"another program has locked {path} ({error}); close it there, and try again")
    return StoreError(f"{path}: {error}")


def cannot_open(path: Path, error: OSError) -> StoreError:
    """Return the error for a file that the system does not open or create."""
    if error.errno in _NO_SPACE:
        return full_at_start(path)
    if error.errno in _NO_FILES:
        return _too_many_files(path)
    return _no_permission(path, refusal_reason(error))


def _too_many_files(path: Path) -> StoreError:
    return StoreError(f"cannot open {path}: too many open files; raise the limit (ulimit -n; systemd's LimitNOFILE=)")


def _no_permission(path: Path, reason: str) -> StoreError:
    return StoreError(f"cannot write {path} ({reason}); check the permissions of the file and of its directory")


def file_moved(path: Path, *, deleted: bool, descriptor: int) -> StoreUnavailableError:
    """Return the error for a path that leads to another file than the open one, or to none."""
    if deleted:
        return StoreUnavailableError(
            f"{path} was deleted while the node uses it, and nothing is stored any more: before you stop the node, "
            f"copy /proc/{os.getpid()}/fd/{descriptor} to {path}, and leave {path}-wal, which belongs to it, in its place"
        )
    return StoreUnavailableError(
        f"{path} was moved or replaced while the node uses it, and nothing is stored until the same file is back: put it back, "
        f"and leave {path}-wal, which belongs to it, in its place"
    )


def cannot_check(path: Path, error: OSError) -> StoreUnavailableError:
    """Return the error for a path that cannot be checked."""
    return StoreUnavailableError(
        f"{path} cannot be checked ({error.strerror}), and nothing is stored until it can: check the directories of its path"
    )


def file_gone(path: Path) -> StoreError:
    """Return the error for a log without its file."""
    return StoreError(
        f"{path} is gone or empty, and its log {path}-wal is still there: the file was moved or deleted while a node used "
        "it, and the log can have accepted jobs; put the file back, or, to begin with an empty store, "
        f"move {path}-wal and {path}-shm away"
    )


def file_replaced(path: Path, lock: Path) -> StoreError:
    """Return the error for a log of another file."""
    return StoreError(
        f"{path} was replaced, and the log {path}-wal belongs to the file before, and can have accepted jobs; put that back, "
        f"or, to continue with this one (a restored copy), move {path}-wal and {path}-shm away; "
        f"if log and file do belong together, remove {lock} and start again"
    )


def disk_failed(path: Path, reason: str, system_error: int = 0) -> StoreError:
    """Return the error for a read or write that has failed, or whose result is unknown."""
    if system_error in _NO_SPACE:
        return _full(path)
    return StoreBrokenError(
        f"the disk failed under {path} ({reason}): check the system's log, then start the node again; "
        "jobs acknowledged before are on the disk"
    )


def _full(path: Path) -> StoreFullError:
    return StoreFullError(
        f"no space is left for {path}: free some, or raise the quota; accepted jobs are safe, and the node continues "
        "as soon as there is space"
    )


def full_at_start(path: Path) -> StoreFullError:
    """Return the error for a full disk at the start, which ends the opening: it does not wait as it would later."""
    return StoreFullError(
        f"no space is left for {path}, and the node cannot start: free some, or raise the quota, and start it again; "
        "jobs accepted before are safe"
    )


def not_a_database(path: Path) -> StoreCorruptError:
    """Return the error for a file whose first bytes are not SQLite's."""
    return StoreCorruptError(f"{path} is not a SQLite database; move it away, or name another file with --store")


def of_gearmand(path: Path) -> StoreForeignError:
    """Return the error for the queue of a gearmand."""
    return StoreForeignError(
        f"{path} is a queue of gearmand's and was left untouched; start the server with a store of its own, "
        f"then run: mainspring import {path}"
    )


def foreign(path: Path) -> StoreForeignError:
    """Return the error for a SQLite database of another program."""
    return StoreForeignError(
        f"{path} is a database of another program and was left untouched; name another file with --store"
    )


def newer(path: Path, version: int, supported: int) -> StoreForeignError:
    """Return the error for a file that a newer Mainspring has written."""
    return StoreForeignError(
        f"{path} has schema {version} of a newer Mainspring, this one supports {supported}: "
        "use that version, or name another file with --store"
    )


def too_old(path: Path, version: int, first: int) -> StoreForeignError:
    """Return the error for a file with a schema that no migration of this version begins with."""
    return StoreForeignError(
        f"{path} has schema {version}, and this version of Mainspring opens {first} and later: update it with "
        "`mainspring migrate` of an earlier version, or name another file with --store"
    )


Row = tuple[Any, ...]

_LEASED = int(State.LEASED)

LARGEST_ID = 2**63 - 1
"""The largest integer of SQLite; handles from clients may exceed it."""

CACHE_LIMIT = 20_000
"""The most functions whose numbers are cached: any client can name new ones."""


class Functions:
    """A cache of the numbers of functions, in both directions. A function is given by its key; see ``namespaces``.

    A number is allocated in the transaction that first needs it; call ``forget`` after a rollback. It has its own cursor, since
    numbers are looked up while another cursor's rows are read.
    """

    def __init__(self, cursor: apsw.Cursor, insert: str, named: str, numbered: str) -> None:
        self._cursor = cursor
        self._insert = insert
        self._named = named
        self._numbered = numbered
        self._numbers: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def forget(self) -> None:
        """Empty the cache."""
        self._numbers.clear()
        self._keys.clear()

    def _cache(self, number: int, key: bytes) -> None:
        if len(self._keys) >= CACHE_LIMIT:
            self.forget()
        self._numbers[key] = number
        self._keys[number] = key

    def number(self, key: bytes) -> int:
        """Return the number of a function; allocate one if it has none."""
        number = self._numbers.get(key)
        if number is None:
            ((number,),) = self._cursor.execute(self._insert, namespaces.split(key))
            self._cache(number, key)
        return number

    def find(self, key: bytes) -> int | None:
        """Return the number of a function, None if it has none: only submitted functions have one."""
        number = self._numbers.get(key)
        if number is None:
            for (number,) in self._cursor.execute(self._named, namespaces.split(key)):
                self._cache(number, key)
        return number

    def load(self, numbers: Iterable[int]) -> None:
        """Cache the functions with these numbers, as far as there is room."""
        missing = [number for number in numbers if number not in self._keys]
        if missing:
            for number, *columns in self._cursor.execute(SQL["functions_numbered"], (json.dumps(missing),)):
                self._cache(number, namespaces.key(*columns))

    def key(self, number: int) -> bytes:
        """Return the key of the function with a number."""
        key = self._keys.get(number)
        if key is None:
            (columns,) = self._cursor.execute(self._numbered, (number,))
            key = namespaces.key(*columns)
            self._cache(number, key)
        return key


def submitted_row(job: Job, function: int) -> Row:
    """Return the row of a new job, in the order of the statements ``submit`` and ``submit_unique``."""
    options = job.options
    return (
        job.id,
        function,
        job.state,
        job.priority,
        job.unique or None,
        1 if options is not None and options.keep_unique is not None else None,
        job.created_us,
        job.due_us,
        job.expires_us,
        job.term,
        job.input_size,
        None if options is None else encode_options(options),
        job.payload,
        job.key or None,
    )


def claimed_jobs(rows: Iterable[Sequence[Any]], function: bytes, term: int) -> list[Job]:
    """Return the jobs of a function that were claimed with the statements ``claim`` and ``claim_these``.

    These select only what differs between claimed jobs, because each column of a row takes time. They have no result and no end.
    """
    rows = list(rows)
    try:
        return _claimed_jobs(rows, function, term, decode_options)
    except (ValueError, RecursionError):
        return _claimed_jobs(rows, function, term, read_options)


def _claimed_jobs(
    rows: Iterable[Sequence[Any]], function: bytes, term: int, decode: Callable[[bytes], Options]
) -> list[Job]:
    return [
        Job(
            job_id, function, payload or b"", unique or NO_UNIQUE, priority, _LEASED, created, due, expires,
            None if options is None else decode(options),
            term, attempt, suspects, started, 0, b"", error or b"", input_size,
            key=key or b"",
        )
        for (
            job_id, priority, unique, created, due, expires, started, attempt, suspects, input_size, options, error, payload, key,
        ) in rows
    ]  # fmt: skip


def stored_jobs(
    rows: Iterable[Sequence[Any]], functions: Functions, decode: Callable[[bytes], Options] = decode_options
) -> list[Job]:
    """Return the jobs of rows; the statements ``find`` and ``list`` select the same columns in the same order.

    ``decode`` decodes options: `read_options` for jobs that are only shown.
    """
    jobs = []
    last, key_of_function = -1, b""
    for (
        job_id, function, state, priority, unique, created, due, expires, started, ended, term, attempt, suspects,
        input_size, output_size, options, error, result, payload, key,
    ) in rows:  # fmt: skip
        if function != last:  # most rows are of one function
            last, key_of_function = function, functions.key(function)
        jobs.append(
            Job(
                job_id, key_of_function, payload or b"", unique or NO_UNIQUE, priority, state, created, due, expires,
                None if options is None else decode(options),
                term, attempt, suspects, started, ended, result or b"", error or b"", input_size, output_size,
                key=key or b"",
            )
        )  # fmt: skip
    return jobs


class Transaction:
    """A cursor in an open transaction, the functions' numbers, the changes of the counts, and the group's notices."""

    def __init__(
        self,
        cursor: apsw.Cursor,
        term: int,
        nodes: dict[int, str],
        lifecycle: JobLifecycle | None,
        interests: CurrentInterests | None = None,
    ) -> None:
        self.cursor = cursor
        self.sql = Statements(cursor)
        self.term = term
        self.nodes = nodes
        """Nodes by term."""
        self.lifecycle = lifecycle
        self.functions = Functions(
            cursor.connection.cursor(), SQL["function_id"], SQL["function_named"], SQL["function_numbered"]
        )
        self._deltas: dict[tuple[int, int, int], int] = {}
        self.notices: Notices = {}
        """The events in the group under way that the owners of jobs have not followed yet."""
        self.interests = interests or CurrentInterests()
        self.events = NewEvents(self.interests)
        """The events of the group under way."""
        self.asks_of_runs: list[AskHolds] = []
        """Questions of the runs that the group has changed: they are asked with the others."""
        self.answered_runs: list[Holder] = []
        """The holders of the kind RUN for which the group has stored answers."""
        self.large: list[list[Job]] = []
        """Jobs whose large results are still to be read, in one list per id."""
        self.stopping: set[int] = set()
        """Held jobs that may have a request to stop them; their rows decide. Most settlements need no lookup: it is empty."""
        self.catalogue: Catalogue | None = None
        """All schedules, once needed; transactions that change schedules keep it current."""
        self.commits: list[Callable[[], object]] = []
        self.rollbacks: list[Callable[[], object]] = []
        """Callbacks on the node's thread once the result of the group is certain."""

    def count(self, function: int, state: int, priority: int, number: int) -> None:
        """Add to a count; both held states are counted as leased."""
        key = (function, counted_as(state), priority)
        self._deltas[key] = self._deltas.get(key, 0) + number

    async def load_nodes(self, ids: Iterable[int]) -> None:
        """Do nothing: the nodes of all terms are known."""

    def write_counts(self) -> None:
        """Write the deltas; the last step before the commit."""
        if self._deltas:
            rows = [(*key, number) for key, number in self._deltas.items() if number]
            self._deltas.clear()
            self.cursor.executemany(SQL["count"], rows)

    def pop_callbacks(self) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
        """Return the callbacks for a commit and those for a rollback, and start with none for the next group."""
        taken = self.commits, self.rollbacks
        self.commits, self.rollbacks = [], []
        return taken

    def no_longer_stopping(self, ids: Sequence[int]) -> None:
        """Forget, with the commit, that jobs may have a request to stop them."""
        self.commits.append(lambda: self.stopping.difference_update(ids))

    def rolled_back(self) -> None:
        """Discard the state of the transaction."""
        self._deltas.clear()
        self.notices.clear()
        self.events.clear()
        self.asks_of_runs.clear()
        self.answered_runs.clear()
        self.large.clear()
        self.catalogue = None
        self.functions.forget()
