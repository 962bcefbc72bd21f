"""The port of the workflows slice to an engine: the rows of runs, their histories, their snapshots, and definitions.

A snapshot is a stored state, so that a long history need not be read. It is written only when the events since the last one
outweigh it. So the writes stay proportional to the events, however large a state is, and a run that is not in memory costs at
most its snapshot and a few times as many bytes of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.jobs.slices import RunTransaction
from mainspring.namespaces import ANY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.jobs.model import Job, Options
    from mainspring.jobs.store import Reschedule, Rescheduled
    from mainspring.resources.rules import FunctionLimits
    from mainspring.streams.model import StreamTables
    from mainspring.values.model import ValueTables
    from mainspring.workflows.model import Definition
    from mainspring.workflows.payloads import Apart
    from mainspring.workflows.places import Candidate, StoredBucket
    from mainspring.workflows.requests import Signal
    from mainspring.workflows.store import RunRow

ALL: Final = -1
"""As a limit: none."""


class Snapshot(NamedTuple):
    """A stored state of a run."""

    history_bytes: int
    """Bytes of the history up to the last event that it includes."""
    state: bytes


class StoredRun(NamedTuple):
    """A run as it is stored, without its history."""

    row: RunRow
    snapshot: Snapshot | None


class Guarded(NamedTuple):
    """A changed row of a run, with the number of events that the run has before the change."""

    row: RunRow
    events: int


class Block(NamedTuple):
    """The events that one transaction appends to a run, from ``first`` on."""

    run: int
    first: int
    events: bytes


class Writes(NamedTuple):
    """The writes of one transaction. A run has at most one row in them."""

    new: list[RunRow]
    appended: list[Guarded]
    """Rows of which ``events``, ``history_bytes``, ``about`` and ``decision`` may have changed."""
    rescheduled: list[Guarded]
    """Rows of which ``due_us`` has changed, too."""
    changed: list[Guarded]
    """Rows of which other columns have changed as well."""
    blocks: list[Block]
    snapshots: list[tuple[int, Snapshot]]
    """New snapshots of runs, which replace earlier ones."""
    payloads: list[Apart]
    """Payloads that are kept apart from the events in ``blocks``."""


class EarlySignals(NamedTuple):
    """The signals that are stored for a job whose run has not begun."""

    number: int
    bytes: int
    """Of their names and inputs."""
    is_repeated: bool = False
    """Whether one of them has a certain key."""


def first_errands(sizes: Iterable[int], limit: int, most_bytes: int) -> int:
    """Return how many of the stored errands, which have these sizes, are first; see ``RunTables.errands``."""
    number = total = 0
    for size in sizes:
        total += size
        if number == limit or (number and total > most_bytes):
            break
        number += 1
    return number


class Runs(Protocol):
    """Reads of runs, in a transaction or in a query."""

    async def load(self, run: int, namespace: str = ANY) -> StoredRun | None:
        """Return a run, of one namespace or of any."""

    async def has_run(self, run: int, namespace: str) -> bool:
        """Return whether a run exists in a namespace."""

    async def blocks(self, run: int, first: int, limit: int = ALL) -> list[bytes]:
        """Return the blocks of a history in order, from the one that has the event ``first`` on, ``limit`` at most."""

    async def histories(self, runs: Collection[int]) -> dict[int, list[bytes]]:
        """Return all blocks of some histories, in order, by their runs."""

    async def payloads(self, run: int, events: Collection[int]) -> Mapping[int, bytes]:
        """Return the payloads of a run that are kept apart from some events, by their numbers."""

    async def job_options(self, jobs: Collection[int]) -> Mapping[int, Options]:
        """Return the options of those of these jobs that have any, by their ids."""

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        """Return the open run of a workflow id; 0 if there is none."""

    async def last_run(self, namespace: str, workflow_id: str) -> int:
        """Return the newest run of a workflow id; 0 if there is none."""

    async def last_link(self, root: int, namespace: str = ANY) -> int:
        """Return the newest run that continues another run of a root job; 0 if there is none."""

    async def definitions(self, namespace: str = "", name: str = "") -> list[Definition]:
        """Return the versions of a workflow; without a name, all definitions."""

    async def waiting_job(self, job_id: int, namespace: str = ANY) -> Job | None:
        """Return a job that is PENDING or SCHEDULED, of one namespace or of any, without its payload."""

    async def waiting_named(self, namespace: str, unique: bytes) -> list[Job]:
        """Return the jobs of any function with a unique that are PENDING or SCHEDULED, without their payloads."""


class RunTables(Runs, RunTransaction, Protocol):
    """The tables inside one transaction, as ``unit`` uses them. Reads include earlier writes of the transaction.

    A run changes only in a transaction that has it to itself (`hold`). Engines that run one transaction at a time have nothing
    to do for that.
    """

    stores_errands: bool
    """Whether errands of a transaction are left to later ones, because the runs that they reach may be locked."""

    @property
    def values(self) -> ValueTables:
        """The published values of runs, which are written with their events."""

    @property
    def streams(self) -> StreamTables:
        """The streams of runs, likewise."""

    async def hold(self, runs: Collection[int]) -> None:
        """Lock open runs until the end of the transaction, without waiting.

        If another transaction has one of them, this one begins anew.
        """

    async def look_up(self, names: Collection[tuple[str, str]]) -> None:
        """Read the open runs of namespaces and workflow ids at once, if a read is slow: for the next `open_run` of each."""

    def is_current(self, row: RunRow) -> bool:
        """Return whether a row in memory is as it is stored; False for a run that is not locked."""

    async def load_short(self, runs: Collection[int]) -> list[tuple[RunRow, list[bytes]]]:
        """Return those of some runs that are open and have no snapshot, each with the blocks of its history in order."""

    async def write(self, writes: Writes) -> None:
        """Write runs and events.

        The numbers of events guard the rows of runs that are not new. As a node has all runs of its store to itself, a guard that
        fails is a defect: it raises StoreError.
        """

    async def admits_runs(self) -> bool:
        """Return whether all nodes that share the store know runs, and let no others share it from now on if they do."""

    async def admits_pauses(self) -> bool:
        """Return whether all nodes that share the store know pauses, and let no others share it from now on if they do."""

    async def reschedule(self, changes: Sequence[Reschedule]) -> list[Rescheduled]:
        """Reschedule jobs, as ``jobs.store.Reschedule`` does.

        After the commit ``JobLifecycle.rescheduled`` has to be called with the outcomes.
        """

    async def admits_payloads(self) -> bool:
        """Return whether all nodes of the store can read payloads apart; if so, let no others share it from now on."""

    async def save_definitions(self, definitions: Iterable[Definition]) -> None:
        """Store definitions, in place of earlier ones of the same version."""

    async def remove_definition(self, namespace: str, name: str, version: str) -> None:
        """Delete a definition."""

    async def has_open_run(self, namespace: str, name: str, version: str) -> bool:
        """Return whether an open run has a definition."""

    async def reject_roots(self, jobs: Iterable[Job]) -> list[Job]:
        """End root jobs whose runs do not begin, each with ``state``, ``ended_us``, ``error`` and ``payload`` of the job given.

        Return them as they are afterwards, without their payloads: after the commit ``JobLifecycle.ended`` has to be called with
        them. They are ordinary jobs from then on, so that they may be redriven, and are deleted as other ended jobs are.
        """

    async def early(self, job: int, request: int) -> EarlySignals:
        """Return how many signals are stored for a job, and whether one of them has a key; 0 is none."""

    async def add_early(self, job: int, signals: EarlySignals, signal: Signal) -> None:
        """Store another signal for a job; ``signals`` are those with it."""

    async def take_early(self, job: int) -> list[Signal]:
        """Delete the signals that are stored for a job; return them in the order of their arrival."""

    async def early_jobs(self, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return the jobs after one that have stored signals, in the order of their ids, with whether a run may begin for each.

        None begins for a job that is stored no more, or that has ended as a task's.
        """

    async def forget_early(self, jobs: Collection[int]) -> None:
        """Delete the signals that are stored for jobs."""

    # ---- limits of open runs ----

    async def limits_of(self, function: bytes) -> FunctionLimits | None:
        """Return the stored limits of a workflow, which is given by its key; None if it has none."""

    async def hold_places(self, function: bytes, now_us: int) -> int | None:
        """Get the right to fill the places of a workflow until the end of the transaction, without waiting for another one.

        Return the store's time, by a clock that all nodes share if there is one; None if another transaction has the right.
        """

    async def count_open(self, namespace: str, name: str) -> int:
        """Return the number of open runs of a workflow, in all versions, without changes that are not written yet."""

    async def count_open_of_keys(self, function: bytes, keys: Collection[bytes]) -> Mapping[bytes, int]:
        """Return the numbers of live root jobs of a workflow with some keys; a key without any may be missing."""

    async def pending_keys(self, function: bytes, after: bytes | None, limit: int) -> list[bytes]:
        """Return the keys of pending jobs of a workflow, in order, after one of them: ``limit`` at most."""

    async def first_of_keys(self, function: bytes, numbers: Mapping[bytes, int]) -> list[Candidate]:
        """Return the first pending jobs of keys, as many of each as its number, at most.

        Those whose options this version cannot read are left out, and keep none behind them.
        """

    async def buckets(self, function: bytes, pools: Collection[bytes]) -> dict[bytes, StoredBucket]:
        """Return the stored buckets of pools (`resources.rules.pool_of`)."""

    async def save_buckets(self, function: bytes, buckets: Mapping[bytes, StoredBucket]) -> None:
        """Store buckets, in place of earlier ones."""

    async def errands(self, after: int, limit: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Return the first stored errands after a number, in order, with theirs: ``limit`` at most, and few if they are large."""

    async def change_errands(self, done: Collection[int], new: Collection[bytes]) -> None:
        """Delete errands by their numbers, and store others behind those that are left."""

    async def parked(self, definition: tuple[str, ...] | None, builds: Collection[str], limit: int) -> list[int]:
        """Return parked runs of a definition, or of all, without those that one of the builds has tried."""

    async def closed_runs(self, namespace: str, before_us: int, limit: int) -> list[RunRow]:
        """Return runs that were closed before a time, the oldest first."""

    async def forget(self, runs: Collection[int]) -> None:
        """Delete runs with their histories, payloads and snapshots."""


class SerialRuns:
    """The part of `RunTables` for engines that run one transaction at a time."""

    stores_errands = False

    async def hold(self, runs: Collection[int]) -> None:
        """Do nothing: no other transaction has them."""

    async def look_up(self, names: Collection[tuple[str, str]]) -> None:
        """Do nothing: a read is no message to a server."""

    def is_current(self, row: RunRow) -> bool:
        """Return True: no other node writes it."""
        del row
        return True

    async def hold_places(self, function: bytes, now_us: int) -> int:
        """Return the time: no other transaction begins runs."""
        del function
        return now_us

    async def admits_runs(self) -> bool:
        """Return True: no other node shares the store."""
        return True

    async def admits_pauses(self) -> bool:
        """Return True: no other node shares the store."""
        return True

    async def admits_payloads(self) -> bool:
        """Return True: no other node shares the store."""
        return True


MIN_BYTES: Final = 8 * 1024
"""Bytes of events that are read without a snapshot."""
WEIGHT: Final = 2
"""The bytes of events outweigh a snapshot if they are this many times as long: their writes already cost that much."""


def outweighs(event_bytes: int, snapshot_bytes: int) -> bool:
    """Return whether the events since a snapshot outweigh it."""
    return event_bytes >= max(MIN_BYTES, WEIGHT * snapshot_bytes)
