"""Records of attempts, which are stored with a job as lines of JSON: one for each attempt.

A job that succeeds at its first attempt, which nobody asked to stop and which reported no progress, has none, because its row
says all but the worker's name. A job that has failed before and was retried has one: readers of several attempts want to know the
worker of each. Snoozed and released deliveries are no attempts. A list that has grown to `LIMIT` bytes begins again, so the
newest records are always there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring.jobs import rules
from mainspring.jobs.failures import UNREADABLE, decode_failure
from mainspring.jobs.rules import Outcome
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.jobs.model import StopRequest
    from mainspring.jobs.rules import Settlement

LIMIT: Final = 32 * 1024
"""Bytes of a job's records, above which a new record replaces all of them. Statements in SQL have the same number."""
TYPE_LIMIT: Final = 200
MESSAGE_LIMIT: Final = 1000
"""Characters of an error in a record; the row has the last error in full."""

_ATTEMPTS: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST, Outcome.CANCELLED})


class AttemptRecord(msgspec.Struct, frozen=True, array_like=True):
    """An attempt that has ended. Stored as JSON, so fields are only ever added at the end."""

    number: int
    started_us: int
    """0 if unknown."""
    ended_us: int
    node: str
    worker: str
    """Empty if unknown."""
    outcome: str
    """A value of `rules.Outcome`."""
    error_type: str = ""
    message: str = ""
    stop_us: int = 0
    """When the worker was asked to stop; 0 if it was not. Nodes that lack the field ignore it, as the next ones."""
    done: int = 0
    """The last progress that the worker reported, as the next two."""
    total: int = 0
    text: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[AttemptRecord]).decode


def encode_record(record: AttemptRecord) -> bytes:
    """Return a record as a line."""
    return _encode(record) + b"\n"


def decode_records(lines: bytes) -> list[AttemptRecord]:
    """Return the records in lines, oldest first. A line that cannot be read is a record that says so."""
    parts = lines.splitlines()
    try:
        return _decode(b"[%b]" % b",".join(parts))
    except CANNOT_READ:
        return [_record(part) for part in parts]


def _record(line: bytes) -> AttemptRecord:
    try:
        (record,) = _decode(b"[%b]" % line)
    except CANNOT_READ as error:
        message = f"this version cannot read the record of this attempt: {error}"
        return AttemptRecord(0, 0, 0, "", "", Outcome.LOST.value, "Unreadable", message)
    return record


def append_record(lines: bytes, line: bytes) -> bytes:
    """Return the records of a job with another one."""
    return lines + line if len(lines) + len(line) <= LIMIT else line


class LastProgress(NamedTuple):
    """The last report of a worker."""

    done: int
    total: int
    text: str


NO_PROGRESS: Final = LastProgress(0, 0, "")


def progress_of(numerator: bytes, denominator: bytes, text: bytes) -> LastProgress:
    """Return the progress that a worker has sent: 0 in place of bytes that are no number, because plain workers may send any."""
    return LastProgress(number_of(numerator), number_of(denominator), text.decode("utf-8", "replace")[:MESSAGE_LIMIT])


def number_of(progress: bytes) -> int:
    """Return a number that a worker has sent; 0 if it is none."""
    return int(progress) if progress.isdigit() and len(progress) < 19 else 0


def is_in_row(settlement: Settlement, stop_us: int, progress: LastProgress) -> bool:
    """Return whether the row of a succeeded job says all about its attempts: it is the first one, also before any retry."""
    job = settlement.job
    is_first = settlement.counted == 1 and not job.suspects and not job.error
    return is_first and not stop_us and progress == NO_PROGRESS


def record_of(
    settlement: Settlement,
    started_us: int,
    now_us: int,
    node: str,
    worker: str,
    stop_us: int = 0,
    progress: LastProgress = NO_PROGRESS,
) -> bytes:
    """Return the record of the attempt that a settlement ends; empty if it has none."""
    outcome = settlement.outcome
    if outcome not in _ATTEMPTS:
        return b""
    if outcome is Outcome.SUCCEEDED and is_in_row(settlement, stop_us, progress):
        return b""
    kind, message = "", settlement.why
    if settlement.error:
        failed = decode_failure(settlement.error)
        if failed.type != UNREADABLE:  # else no failure that a node has written
            kind, message = failed.type, failed.message
    return encode_record(
        AttemptRecord(
            settlement.counted + settlement.suspected,
            started_us,
            settlement.ended_us or now_us,
            node,
            worker,
            outcome.value,
            kind[:TYPE_LIMIT],
            message[:MESSAGE_LIMIT],
            stop_us,
            *progress,
        )
    )


def note_lost(settlements: Iterable[Settlement], node: Callable[[int], str], now_us: int) -> None:
    """Set times and records of attempts that were lost with their nodes; ``node`` returns the name of a term's node."""
    for one in settlements:
        one.lost_us = now_us
        if one.job.options is None or not one.job.options.forget:
            one.record = record_of(one, 0, now_us, node(one.job.term), "")


def cancel_on_request(settlement: Settlement, request: StopRequest) -> None:
    """Turn a settlement into a cancel as `rules.cancel_on_request` does, and note the time of the request in its record."""
    rules.cancel_on_request(settlement, request)
    if settlement.record:
        (record,) = decode_records(settlement.record)
        stop_us = record.stop_us or request.at_us
        settlement.record = encode_record(msgspec.structs.replace(record, stop_us=stop_us))
