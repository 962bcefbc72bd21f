"""The port of work that runs elsewhere: its rows, the operations on them with their outcomes, and the rules of a row.

A row is one *submission* of a job's work to another system: it has a key, which the node makes before the worker submits, and
what the system has answered (``meta``). It is watched while its job is open. When the job has ended in any other way than by a
reported end of the work, the row asks for its cancellation by itself: no end of a job has to remember that, because a periodic
look compares rows with jobs (`verdict`).

| state | meaning | next |
|---|---|---|
| OPEN | submitted, or about to be | DONE, OVER, CANCEL, CANCELLING; deleted if its job has succeeded |
| DONE | it has succeeded elsewhere; its job is about to | deleted when its job ends |
| OVER | it has ended elsewhere, or is left alone; another attempt submits anew, with another key | deleted when its job ends |
| CANCEL | to be cancelled, although its job may go on with another attempt | CANCELLING |
| CANCELLING | a job cancels it | ANSWERED, GIVEN_UP |
| ANSWERED, GIVEN_UP | the other system has answered; or that job ended without an answer | deleted after `SHOWN_FOR` |
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.jobs.model import State
from mainspring.jobs.slices import SliceTransaction
from mainspring.storage.engine import Operation, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.jobs.model import Job

SHOWN_FOR: Final = 7 * 86_400.0
"""Seconds for which a cancelled submission is shown with its job."""


class Status(IntEnum):
    """The state of a submission. The numbers are stored."""

    OPEN = 0
    DONE = 1
    OVER = 2
    CANCEL = 3
    CANCELLING = 4
    ANSWERED = 5
    GIVEN_UP = 6


class Work(NamedTuple):
    """A submission, as it is stored."""

    job: int
    number: int
    """Its number among those of its job, from 1 on."""
    function: bytes
    """The key of its function."""
    status: int
    key: str
    """The text by which the other system recognizes a repeated submission."""
    meta: str = ""
    """Its answer, as JSON; empty before that."""
    payload: bytes = b""
    """The arguments, while there is no ``meta``: a cancellation may have to repeat the submission."""
    attempt: int = 0
    """The attempts of the job that were counted before this submission began. Lost workers and nodes count none."""
    since_us: int = 0
    canceller: int = 0
    """The job that cancels it; 0: none."""
    ended_us: int = 0
    """When that job was found to have ended."""


class Verdict(IntEnum):
    """The decision about a row."""

    KEEP = 0
    DELETE = 1
    CANCEL = 2
    NOTE = 3
    """Note how the job that cancels it has ended."""


def verdict(work: Work, job: Job | None, canceller: Job | None) -> Verdict:
    """Return what is to be done about a row, by its job and the job that cancels it, as far as they are stored."""
    status = Status(work.status)
    if status is Status.CANCEL:
        return Verdict.CANCEL
    if status is Status.CANCELLING:
        return Verdict.KEEP if canceller is not None and not State(canceller.state).ended else Verdict.NOTE
    if status > Status.CANCELLING:
        return Verdict.KEEP
    if job is not None and not State(job.state).ended:
        return Verdict.KEEP
    if status is not Status.OPEN or (job is not None and job.state == State.SUCCEEDED):
        return Verdict.DELETE
    return Verdict.CANCEL


class Starting(NamedTuple):
    """A job whose work a worker is about to submit or to watch."""

    job: int
    function: bytes
    key: str
    """The key of a new submission."""
    payload: bytes
    attempt: int


class BeginWork(Operation):
    """Begin submissions of jobs that workers have. One that is OPEN or DONE goes on; otherwise another one begins.

    Outcome: ``list[Work]``, the submission of each job, in order.
    """

    phase = Phase.SLICES
    starting: list[Starting]
    now_us: int

    def __post_init__(self) -> None:
        self.rows = len(self.starting)
        self.size = sum(200 + len(one.payload) for one in self.starting)


class Record(NamedTuple):
    """The answer of another system to a submission."""

    job: int
    number: int
    meta: str


class RecordWork(Operation):
    """Record what other systems have answered. Guard: the row is OPEN, or about to be cancelled without an answer.

    Outcome: ``set[tuple[int, int]]``, the jobs and numbers that were recorded.
    """

    phase = Phase.SLICES
    records: list[Record]

    def __post_init__(self) -> None:
        self.rows = len(self.records)
        self.size = sum(100 + len(one.meta) for one in self.records)


class End(NamedTuple):
    """The end of a submission: DONE, OVER or CANCEL."""

    job: int
    number: int
    status: int


class EndWork(Operation):
    """End OPEN submissions; others stay. Outcome: None."""

    phase = Phase.SLICES
    ends: list[End]

    def __post_init__(self) -> None:
        self.rows = len(self.ends)


class LookAtWork(Operation):
    """Delete rows that are over, and make jobs that cancel those that must not go on; up to the limit. Outcome: `Looked`."""

    phase = Phase.SLICES
    now_us: int
    limit: int = 500

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class Looked(NamedTuple):
    """The outcome of `LookAtWork`."""

    cancelled: int
    """Jobs that were made."""
    more: bool
    """Whether the limit was reached."""
    any: bool
    """Whether there are rows that may need another look."""


class FindWork(Query["list[Work]"], frozen=True):
    """Read the last `MOST_SHOWN` submissions of a job, without payloads, in their order."""

    is_small = True
    job: int


MOST_SHOWN: Final = 20


class WorkTables(SliceTransaction, Protocol):
    """The table inside a transaction of an engine."""

    async def works(self, jobs: Collection[int]) -> Sequence[Work]:
        """Return the submissions of jobs, without payloads, in the order of jobs and numbers, locked until the end."""

    async def add(self, works: Sequence[Work]) -> None:
        """Write new submissions."""

    async def record(self, records: Sequence[Record]) -> set[tuple[int, int]]:
        """Write answers of submissions that have none, and drop their payloads; return the jobs and numbers of these."""

    async def end(self, ends: Sequence[End]) -> None:
        """Change the states of OPEN submissions."""

    async def ripe(self, limit: int, old_us: int) -> Sequence[Work]:
        """Return submissions for which `verdict` is not KEEP, and those whose cancellation ended before ``old_us``.

        They are locked; those that another transaction has locked are left out.
        """

    async def is_any(self) -> bool:
        """Return whether there are submissions before ANSWERED."""

    async def change(self, works: Iterable[Work]) -> None:
        """Write status, canceller and end of submissions, and drop the payloads of those that are not OPEN."""

    async def delete(self, keys: Sequence[tuple[int, int]]) -> None:
        """Delete submissions by jobs and numbers."""

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        """Return jobs by their ids."""
