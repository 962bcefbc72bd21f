"""Conversions of jobs to rows and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs.model import NO_UNIQUE, Job, decode_options, encode_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

Row = tuple[Any, ...]

LARGEST_ID = 2**63 - 1
"""The largest integer of SQLite; handles from clients may exceed it."""

CACHE_LIMIT = 20_000
"""The most functions whose numbers are cached: any client can name new ones."""


class Functions:
    """A cache of the numbers of functions, in both directions.

    A number is allocated in the transaction that first needs it; call ``forget`` after a rollback. It has its own cursor, since
    numbers are looked up while another cursor's rows are read.
    """

    def __init__(self, cursor: apsw.Cursor, insert: str, named: str, numbered: str) -> None:
        self._cursor = cursor
        self._insert = insert
        self._named = named
        self._numbered = numbered
        self._numbers: dict[tuple[str, bytes], int] = {}
        self._names: dict[int, tuple[str, bytes]] = {}

    def forget(self) -> None:
        """Empty the cache."""
        self._numbers.clear()
        self._names.clear()

    def _cache(self, number: int, namespace: str, name: bytes) -> None:
        if len(self._names) >= CACHE_LIMIT:
            self.forget()
        self._numbers[namespace, name] = number
        self._names[number] = (namespace, name)

    def number(self, namespace: str, name: bytes) -> int:
        """Return the number of a function; allocate one if it has none."""
        number = self._numbers.get((namespace, name))
        if number is None:
            ((number,),) = self._cursor.execute(self._insert, (namespace, name))
            self._cache(number, namespace, name)
        return number

    def find(self, name: bytes) -> int | None:
        """Return the number of a function, None if it has none: only submitted functions have one."""
        number = self._numbers.get(("default", name))
        if number is None:
            for (number,) in self._cursor.execute(self._named, ("default", name)):
                self._cache(number, "default", name)
        return number

    def name(self, number: int) -> tuple[str, bytes]:
        """Return the namespace and the name for a number."""
        key = self._names.get(number)
        if key is None:
            ((namespace, name),) = self._cursor.execute(self._numbered, (number,))
            key = (namespace, name)
            self._cache(number, namespace, name)
        return key


def submitted(job: Job, function: int) -> Row:
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


def stored(rows: Iterable[Sequence[Any]], functions: Functions) -> list[Job]:
    """Return the jobs of rows; the statements ``claim``, ``find`` and ``list`` select the same columns in the same order."""
    jobs = []
    last, namespace, name = -1, "", b""
    for (
        job_id, function, state, priority, unique, created, due, expires, started, ended, term, attempt, suspects,
        input_size, output_size, options, error, result, payload, key,
    ) in rows:  # fmt: skip
        if function != last:  # most rows are of one function
            last, (namespace, name) = function, functions.name(function)
        jobs.append(
            Job(
                job_id, name, payload or b"", unique or NO_UNIQUE, priority, state, created, due, expires,
                None if options is None else decode_options(options),
                term, attempt, suspects, started, ended, result or b"", error or b"", input_size, output_size, namespace,
                key=key or b"",
            )
        )  # fmt: skip
    return jobs
