"""The transaction of a group: the state that its handlers share, with the conversions of jobs to rows and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring import namespaces
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs.model import NO_UNIQUE, Job, State, counted_as, decode_options, encode_options, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import apsw

    from mainspring.jobs.model import Options
    from mainspring.jobs.owners import Notices
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.schedules.catalogue import Catalogue

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

    def __init__(self, cursor: apsw.Cursor, term: int, nodes: dict[int, str], lifecycle: JobLifecycle | None) -> None:
        self.cursor = cursor
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
        self.large.clear()
        self.catalogue = None
        self.functions.forget()
