"""Records of settlements: in memory until the store has them, and with their jobs, for people, as long as they are kept.

A worker repeats a settlement if the answer was lost; `SettledDeliveries` identifies it.

Records of attempts are stored with a job as lines of JSON, one for each attempt. A job that succeeds at its first attempt,
which nobody asked to stop and which reported no progress, has none, because its row says all but the worker's name. A job that
has failed before and was retried has one: readers of several attempts want to know the worker of each. Snoozed and released
deliveries are no attempts. A list that has grown to `LIMIT` bytes begins again, so the newest records are always there.

Jobs of some functions are deleted sooner after their success than others (`ResultRetention`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring.clock import to_us
from mainspring.jobs import rules
from mainspring.jobs.model import UNREADABLE, Job, decode_failure
from mainspring.jobs.rules import Event, Outcome, Settlement
from mainspring.jobs.store import DeleteEnded, Settle
from mainspring.namespaces import namespace_of
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import StopRequest
    from mainspring.jobs.store import LostAttempt
    from mainspring.jobs.user_data import ArgumentRules
    from mainspring.storage.commit_queue import CommitQueue

if TYPE_CHECKING:
    Acknowledge = Callable[[bool], None]
    """Is called with whether the settlement was recorded; False means that it was stale."""


class PendingSettlement(NamedTuple):
    """A reported settlement."""

    settlement: Settlement
    exception: bytes | None
    acknowledge: Acknowledge | None
    admission: AdmissionQueue[Held] | None
    """The queue that receives the job's tokens."""
    worker: Worker | None


class SettleBatch:
    """Settlements that are committed with operations of another slice: all of them, or none."""

    __slots__ = ("operation", "pending")

    def __init__(self) -> None:
        self.operation = Settle([])
        self.pending: list[PendingSettlement] = []


MAX_SETTLED = 10_000


class SettledDeliveries:
    """A bounded set of (handle, token, outcome). The outcome is part of it: a success after a release of a delivery is stale."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[tuple[bytes, bytes, bytes], None] = OrderedDict()

    def add(self, handle: bytes, token: bytes, outcome: bytes) -> None:
        """Add an entry, and evict the oldest if the set is full."""
        self._tokens[handle, token, outcome] = None
        if len(self._tokens) > MAX_SETTLED:
            self._tokens.popitem(last=False)

    def __contains__(self, key: tuple[bytes, bytes, bytes]) -> bool:
        return key in self._tokens


NODE_LOST: Final = "its node was lost"
"""The reason of lost attempts that were recorded as running at a lost node."""


def settlements_of(lost: Iterable[LostAttempt]) -> list[Settlement]:
    """Return the settlements that report lost attempts."""
    settlements = []
    for one in lost:
        settlement = Settlement(Job(one.job_id, one.function, b""), Event.LOSE, one.attempt)
        settlement.outcome, settlement.why = Outcome.LOST, NODE_LOST
        settlements.append(settlement)
    return settlements


RECORDS_LIMIT: Final = 32 * 1024
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
    return lines + line if len(lines) + len(line) <= RECORDS_LIMIT else line


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


_SUCCEED: Final = Event.SUCCEED


class Remembering:
    """Completes settlements of stored jobs. Nothing is kept of a job whose row is deleted at its end."""

    def __init__(self, handles: Handles, clock: Clock, arguments: ArgumentRules, results: ResultRetention) -> None:
        self._handles = handles
        self._clock = clock
        self.rules = arguments
        self._results = results

    def note(self, held: Held, settlement: Settlement) -> None:
        """Set in a settlement what is to be stored, while the job has its worker."""
        job = settlement.job
        if job.options is not None and job.options.forget:
            return
        progress = NO_PROGRESS
        if held.reported:  # most jobs report none
            progress = progress_of(held.numerator, held.denominator, held.text)
        if settlement.event is _SUCCEED:
            self._results.note(job)
            rules, payload = self.rules[job.function], job.payload
            settlement.payload = None if len(payload) <= rules.kept_whole else rules.kept(payload)
            if is_in_row(settlement, held.stop_us, progress):
                return
        worker = held.worker_name() or ""
        now_us = to_us(self._clock.wall())
        node = self._handles.node(job.term)
        settlement.record = record_of(settlement, held.started_us, now_us, node, worker, held.stop_us, progress)


MAX_RETAINED: Final = 1_000_000
"""Jobs that a node remembers, with 16 bytes each; others stay for the retention of all jobs."""
DELETED_PER_STEP: Final = 2_000
"""Jobs that are deleted in one step."""


class _Queue:
    """The succeeded jobs of a function, in the order in which they are due."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.due = array("d")
        self.ids = array("q")


class ResultRetention:
    """Deletes succeeded jobs of functions whose workers declare how long their results are kept.

    The node that has run a job deletes it. It does not remember over a restart which jobs are to be deleted: these stay for the
    retention of all jobs. It sets in ``rules`` whether each success has to be noted.
    """

    def __init__(self, commits: CommitQueue, monotonic: Callable[[], float], rules: ArgumentRules) -> None:
        self._commits = commits
        self._monotonic = monotonic
        self._rules = rules
        self._queues: dict[bytes, _Queue] = {}
        self._number = 0

    def declare(self, seconds: Mapping[bytes, float | None]) -> None:
        """Set the seconds for which the results of functions are kept; None: as those of others. It applies to later ends."""
        for function, kept in seconds.items():
            present = self._queues.get(function)
            if kept is None:
                if present is not None:
                    present.seconds = 0
            elif present is None:
                self._queues[function] = _Queue(kept)
            else:
                present.seconds = kept
        self._rules.notes_all(any(queue.seconds for queue in self._queues.values()))

    def seconds_of(self, function: bytes) -> float | None:
        """Return the seconds for which results of a function are kept; None: as those of others."""
        queue = self._queues.get(function)
        return queue.seconds or None if queue is not None else None

    def note(self, job: Job) -> None:
        """Note a stored job that succeeds."""
        queue = self._queues.get(job.function)
        if queue is None or not queue.seconds or self._number >= MAX_RETAINED:
            return
        if job.options is not None and job.options.keep_unique:
            return  # a submit may join it as long as it is kept
        due = self._monotonic() + queue.seconds
        # A declaration may have become shorter. Then it applies when the jobs before are due.
        queue.due.append(max(due, queue.due[-1]) if queue.due else due)
        queue.ids.append(job.id)
        self._number += 1

    def run_once(self) -> None:
        """Delete jobs that are due, at most `PER_STEP`."""
        if not self._number:
            return
        now, left = self._monotonic(), DELETED_PER_STEP
        for function, queue in list(self._queues.items()):
            due = min(bisect_right(queue.due, now), left)
            if due:
                for job_id in queue.ids[:due]:
                    # A job that has not ended yet, because the store is not available, is refused and stays.
                    self._commits.put(DeleteEnded(job_id, namespace_of(function)), _ignore, _ignore)
                del queue.due[:due], queue.ids[:due]
                self._number -= due
                left -= due
            if not queue.seconds and not queue.ids:
                del self._queues[function]


def _ignore(_: object) -> None:
    """Do nothing."""
