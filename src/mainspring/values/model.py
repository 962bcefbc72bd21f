"""Published values of a job or a run: the last value of each name, and the rule for their number.

A value of a task belongs to an attempt: a delivery that has lost its lease publishes nothing any more. A value of a run is
written in the transaction of the report that brought it, so no value is ahead of the history. The values of a chain of runs
belong to its root job.

A caller gets an error for a value that is too large, and for one name too many. A store has the last word, because earlier
attempts, and earlier runs of a chain, may have published other names: of too many values it keeps the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from mainspring.errors import UsageError
from mainspring.sizes import CANNOT_READ, is_too_deep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MOST_NAMES: Final = 100
"""Names of one job or run."""
NAME_LIMIT: Final = 100
"""Characters of a name."""
VALUE_BYTES: Final = 64 * 1024
"""Bytes of one value, as JSON."""
ALL_BYTES: Final = 2**20
"""Bytes of all values of one job or run."""


class NewValue(NamedTuple):
    """A value that is to be stored."""

    job: int
    """The job, or the root job of a run."""
    name: str
    attempt: int
    """The attempt of the job or of the run that has published it; the first is 1."""
    at_us: int
    value: bytes
    """JSON."""


class StoredValue(NamedTuple):
    """The last value of a name."""

    job: int
    name: str
    attempt: int
    number: int
    """The number of the change among those of its job: a later change has a higher one."""
    at_us: int
    value: bytes


class Mark(NamedTuple):
    """A stored value without its content."""

    job: int
    name: str
    number: int
    size: int
    """Bytes of the value."""


def is_name(name: str) -> bool:
    """Return whether a text can be the name of a value."""
    return 0 < len(name) <= NAME_LIMIT and name.isprintable()


def check_name(name: object) -> str:
    """Return a name that a user passes. Raises UsageError."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a published value is a text such as 'stage'; this is {type(name).__name__}")
    if not is_name(name):
        raise UsageError(
            f"{name[:NAME_LIMIT]!r} is no name of a published value: give 1 to {NAME_LIMIT} printable characters"
        )
    return name


class Published:
    """The names that one attempt or run has published, with the sizes of their last values."""

    __slots__ = ("_bytes", "_sizes")

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    def add(self, name: object, value: bytes) -> str:
        """Count a value, and return its name. Raises UsageError if it is too large, or if there are too many."""
        checked = check_name(name)
        if len(value) > VALUE_BYTES:
            raise UsageError(
                f"the value {checked!r} has {len(value):,} bytes as JSON, and a published value at most {VALUE_BYTES:,}:"
                " publish a summary, and return or store the rest"
            )
        if checked not in self._sizes and len(self._sizes) == MOST_NAMES:
            raise UsageError(
                f"{checked!r} would be the {MOST_NAMES + 1}st name, and at most {MOST_NAMES} are kept: publish one value with"
                " several parts"
            )
        total = self._bytes - self._sizes.get(checked, 0) + len(value)
        if total > ALL_BYTES:
            raise UsageError(
                f"with {checked!r} the published values have {total:,} bytes, and at most {ALL_BYTES:,} are kept: publish less"
            )
        self._sizes[checked], self._bytes = len(value), total
        return checked


def is_json(value: bytes) -> bool:
    """Return whether a value is JSON that readers can decode."""
    try:
        msgspec.json.decode(value)
    except CANNOT_READ:
        return False
    return not is_too_deep(value)


def refused_values(values: Sequence[tuple[str, bytes]]) -> str:
    """Return why a report with these names and values cannot be taken; empty if it can. A worker may send anything."""
    if len(values) > MOST_NAMES:
        return f"a report has at most {MOST_NAMES} published values"
    for name, value in values:
        if not is_name(name):
            return f"{name[:NAME_LIMIT]!r} is no name of a published value"
        if len(value) > VALUE_BYTES or not is_json(value):
            return f"the published value {name!r} has {len(value)} bytes, of at most {VALUE_BYTES}, or is not JSON"
    return ""


class Merged(NamedTuple):
    """The rows that a transaction writes and deletes."""

    put: list[StoredValue]
    dropped: list[tuple[int, str]]
    """Stored values that are too many, by job and name."""


def merge(stored: Iterable[Mark], new: Sequence[NewValue]) -> Merged:
    """Return the rows to write for new values; ``stored`` are the earlier values of their jobs.

    A later value replaces an earlier one of the same name. Each job keeps the newest values that are within the limits.
    """
    kept: dict[int, dict[str, Mark]] = {}
    for mark in stored:
        kept.setdefault(mark.job, {})[mark.name] = mark
    before = {(job, name) for job, names in kept.items() for name in names}
    put: dict[tuple[int, str], StoredValue] = {}
    for one in new:
        names = kept.setdefault(one.job, {})
        number = max((mark.number for mark in names.values()), default=0) + 1
        names[one.name] = Mark(one.job, one.name, number, len(one.value))
        put[one.job, one.name] = StoredValue(one.job, one.name, one.attempt, number, one.at_us, one.value)
    excess = {(mark.job, mark.name) for names in kept.values() for mark in _excess(names.values())}
    return Merged([put[key] for key in sorted(put) if key not in excess], sorted(excess & before))


def _excess(marks: Collection[Mark]) -> list[Mark]:
    """Return the oldest values that are too many."""
    found: list[Mark] = []
    names = size = 0
    for mark in sorted(marks, key=lambda one: one.number, reverse=True):
        if found or names == MOST_NAMES or size + mark.size > ALL_BYTES:
            found.append(mark)
        else:
            names += 1
            size += mark.size
    return found


class SweptTables(Protocol):
    """Rows of jobs that stay when their jobs are deleted, until a sweep."""

    async def valued(self, after: int, limit: int) -> Sequence[int]:
        """Return the jobs after one that have rows, in order."""

    async def existing(self, jobs: Collection[int]) -> Collection[int]:
        """Return those of some jobs that are stored."""

    async def forget(self, jobs: Collection[int]) -> None:
        """Delete all rows of jobs."""


class ValueTables(SweptTables, Protocol):
    """The rows of published values in a transaction."""

    async def held(self, jobs: Collection[int], term: int) -> Collection[int]:
        """Return those of some jobs that are stored as held under a term."""

    async def marks(self, jobs: Collection[int]) -> Sequence[Mark]:
        """Return the values of jobs."""

    async def put(self, rows: Sequence[StoredValue]) -> None:
        """Write values in place of earlier ones, in the order of jobs and names."""

    async def drop(self, values: Sequence[tuple[int, str]]) -> None:
        """Delete values by job and name."""


async def save(tables: ValueTables, new: Sequence[NewValue]) -> None:
    """Write new values."""
    put, dropped = merge(await tables.marks(sorted({one.job for one in new})), new)
    if put:
        await tables.put(put)
    if dropped:
        await tables.drop(dropped)


async def publish(tables: ValueTables, new: Sequence[NewValue], term: int) -> list[int]:
    """Write the values of jobs that are held under a term; return these jobs. Others have got another holder, or have ended."""
    held = set(await tables.held(sorted({one.job for one in new}), term))
    if held:
        await save(tables, [one for one in new if one.job in held])
    return sorted(held)


class Swept(NamedTuple):
    """The outcome of one part of a sweep."""

    last: int
    """The last examined job; 0 if no more follow."""
    kept: bool
    """Whether one of the examined jobs keeps its rows."""


async def sweep(tables: SweptTables, after: int, limit: int) -> Swept:
    """Delete the rows of jobs that are stored no more, of ``limit`` jobs with ids above ``after``."""
    jobs = await tables.valued(after, limit)
    if not jobs:
        return Swept(0, kept=False)
    gone = sorted(set(jobs) - set(await tables.existing(jobs)))
    if gone:
        await tables.forget(gone)
    return Swept(jobs[-1] if len(jobs) == limit else 0, kept=len(gone) < len(jobs))
