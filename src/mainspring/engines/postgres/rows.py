"""Conversions of jobs to columns of parallel arrays, and of rows back to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from mainspring.engines.postgres.statements import load
from mainspring.jobs import rules
from mainspring.jobs.model import NO_UNIQUE, Job, Options, State, decode_options, encode_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.rules import Settlement

T = TypeVar("T")

SQL: Final = load("jobs.sql")
"""The statements of the job operations."""

LARGEST_ID: Final = 2**63 - 1
"""The largest integer of PostgreSQL; handles from clients may exceed it."""

_NO_OPTIONS = Options()
_SCHEDULED = int(State.SCHEDULED)

PORTION_BYTES: Final = 64 * 2**20
"""Bytes of payloads or results in one statement, unless one alone is larger: PostgreSQL refuses messages of a gigabyte."""

Columns = list[Any]
"""Parallel arrays, one per parameter of a statement."""


def portions(items: Sequence[T], size: Callable[[T], int], most: int = PORTION_BYTES) -> Iterator[Sequence[T]]:
    """Cut a sequence into runs whose sizes add up to at most ``most``; a larger item is a run of its own."""
    begin = total = 0
    for at, item in enumerate(items):
        total += size(item)
        if total > most and at > begin:
            yield items[begin:at]
            begin, total = at, size(item)
    yield items[begin:]


def sparse(values: list[T | None]) -> list[T | None]:
    """Return a column, or an empty one if all its values are NULL: ``unnest`` pads it."""
    return values if any(value is not None for value in values) else []


class Keyed(set[int]):
    """Functions that this node claims by key: their jobs without a key are stored under the empty key."""


def submitted(
    jobs: Sequence[Job], ranks: list[int], functions: list[int], waited: list[bool | None], keyed: Keyed
) -> Columns:
    """Return the columns of the statement ``submit``."""
    return [
        [job.id for job in jobs],
        ranks,
        [job.created_us for job in jobs],
        # a scheduled job always has a time, even if it is 0
        sparse([job.due_us or (None if job.state else 0) for job in jobs]),
        sparse([job.expires_us or None for job in jobs]),
        sparse([job.term or None for job in jobs]),
        functions,
        [job.input_size for job in jobs],
        [job.state for job in jobs],
        [job.priority for job in jobs],
        [rules.slot(job) for job in jobs],
        sparse([job.foreground or None for job in jobs]),
        waited,
        sparse([_options(job) for job in jobs]),
        [job.payload for job in jobs],
        sparse(
            [
                key_column(job.key) if job.key or function in keyed else None
                for job, function in zip(jobs, functions, strict=True)
            ]
        ),
    ]


def _options(job: Job) -> bytes | None:
    """Return the options as they are stored: with the key, for which only live jobs have a column."""
    if job.key:
        return encode_options(msgspec.structs.replace(job.options or _NO_OPTIONS, key=job.key))
    return None if job.options is None else encode_options(job.options)


def key_column(key: bytes) -> bytes:
    """Return a key as its column stores it, where it is never empty."""
    return b":" + key


def decode_stored_options(
    data: bytes | None, decode: Callable[[bytes], Options] = decode_options
) -> tuple[Options | None, bytes]:
    """Decode a job's options and its key, which are stored together."""
    if data is None:
        return None, b""
    options = decode(data)
    if options.key is None:
        return options, b""
    rest = msgspec.structs.replace(options, key=None)
    return None if rest == _NO_OPTIONS else rest, options.key


def uniques(jobs: Sequence[Job]) -> Columns:
    """Return the columns that the statement ``submit_unique`` has in addition to those of ``submit``."""
    return [sparse([job.unique or None for job in jobs]), sparse([keeps(job) is not None or None for job in jobs])]


def keeps(job: Job) -> float | None:
    """Return for how many seconds later submits join a success of the same unique; None if the job does not set it."""
    return job.options.keep_unique if job.options is not None else None


def settled(settlements: Sequence[Settlement]) -> Columns:
    """Return the first columns of the statements ``succeed``, ``end_unsuccessful`` and ``give_back``, up to the due times."""
    return [
        [settlement.job.id for settlement in settlements],
        [settlement.job.term for settlement in settlements],
        [settlement.counted for settlement in settlements],
        [settlement.job.suspects for settlement in settlements],
        sparse([settlement.started_us or None for settlement in settlements]),
        sparse([settlement.ended_us or None for settlement in settlements]),
    ]


def known_ids(ids: Iterable[int]) -> list[int]:
    """Return the ids that a stored job can have, sorted, without duplicates."""
    return sorted({job_id for job_id in ids if 0 < job_id <= LARGEST_ID})


async def stored(
    tx: Transaction, records: Sequence[Record], decode: Callable[[bytes], Options] = decode_options
) -> list[Job]:
    """Return the jobs of rows; all statements select the same columns in the same order.

    ``decode`` decodes options: `read_options` for jobs that are only shown.
    """
    if not records:
        return []
    await tx.functions.load_keys({record[1] for record in records})
    await tx.nodes.load([record[0] for record in records])
    keys = tx.functions.keys
    jobs = []
    for record in records:
        (
            job_id, function, state, priority, unique, created, due, expires, started, ended, term, attempt, suspects,
            input_size, output_size, options, error, result, payload, foreground,
        ) = record[:20]  # fmt: skip
        job_options, key = (None, b"") if options is None else decode_stored_options(options, decode)
        jobs.append(
            Job(
                job_id, keys[function], payload or b"", unique or NO_UNIQUE, priority, state, created, due or 0, expires or 0,
                job_options,
                term, attempt, suspects, started or 0, ended or 0, result or b"", error or b"", input_size, output_size,
                foreground or False, key,
            )
        )  # fmt: skip
    return jobs
