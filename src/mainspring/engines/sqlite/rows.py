"""Jobs to rows and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs.model import NO_UNIQUE, Job, decode_options, encode_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

Row = tuple[Any, ...]

LARGEST_ID = 2**63 - 1
"""SQLite's integers end here, and handles that strangers send do not."""

REMEMBERED = 20_000
"""Functions whose numbers are remembered at most: any client can name new ones."""


class Functions:
    """Function names to the numbers that rows carry, and back; some of them are remembered.

    A number is given in the transaction that first needs it; ``forget`` after a transaction that was rolled back. The cursor is
    its own: numbers are looked up while another one's rows are read.
    """

    def __init__(self, cursor: apsw.Cursor, insert: str, named: str, numbered: str) -> None:
        self._cursor = cursor
        self._insert = insert
        self._named = named
        self._numbered = numbered
        self._numbers: dict[tuple[str, bytes], int] = {}
        self._names: dict[int, tuple[str, bytes]] = {}

    def forget(self) -> None:
        """Read the numbers anew."""
        self._numbers.clear()
        self._names.clear()

    def _know(self, number: int, namespace: str, name: bytes) -> None:
        if len(self._names) >= REMEMBERED:
            self.forget()
        self._numbers[namespace, name] = number
        self._names[number] = (namespace, name)

    def number(self, namespace: str, name: bytes) -> int:
        """Return the number of a name, a new one where it has none yet."""
        known = self._numbers.get((namespace, name))
        if known is None:
            ((known,),) = self._cursor.execute(self._insert, (namespace, name))
            self._know(known, namespace, name)
        return known

    def find(self, name: bytes) -> int | None:
        """Return the number of a name, None where it has none: only what was submitted has one."""
        known = self._numbers.get(("default", name))
        if known is None:
            for (known,) in self._cursor.execute(self._named, ("default", name)):
                self._know(known, "default", name)
        return known

    def name(self, number: int) -> tuple[str, bytes]:
        """Return the namespace and the name of a number."""
        known = self._names.get(number)
        if known is None:
            ((namespace, name),) = self._cursor.execute(self._numbered, (number,))
            known = (namespace, name)
            self._know(number, namespace, name)
        return known


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
    """Return the jobs of rows selected in the order of the statements ``claim``, ``find`` and ``list``."""
    jobs = []
    known, namespace, name = -1, "", b""
    for (
        job_id, function, state, priority, unique, created, due, expires, started, ended, term, attempt, suspects,
        input_size, output_size, options, error, result, payload, key,
    ) in rows:  # fmt: skip
        if function != known:  # most rows are of one function
            known, (namespace, name) = function, functions.name(function)
        jobs.append(
            Job(
                job_id, name, payload or b"", unique or NO_UNIQUE, priority, state, created, due, expires,
                None if options is None else decode_options(options),
                term, attempt, suspects, started, ended, result or b"", error or b"", input_size, output_size, namespace,
                key=key or b"",
            )
        )  # fmt: skip
    return jobs
