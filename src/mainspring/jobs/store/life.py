"""Operations on stored jobs from their submission to their deletion: clients, workers and time cause them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from mainspring.access.audit import Acting
from mainspring.event_log import types
from mainspring.jobs.job_events import by, having_events, of_job, of_settlement
from mainspring.jobs.lateness import base_us, moved
from mainspring.jobs.model import State
from mainspring.jobs.successors import is_successor
from mainspring.namespaces import DEFAULT
from mainspring.storage.engine import Operation, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator, Sequence

    from mainspring.access.caller import Act
    from mainspring.access.idempotency import KeyedAct
    from mainspring.event_log.interests import NewEvent
    from mainspring.jobs.lateness import Redated
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.rules import Settlement


class Submit(Operation):
    """Store new jobs, each in the state that it carries (SCHEDULED, PENDING, or LEASED under the node's term).

    Guard: no live job of the same function has the same unique. With ``options.keep_unique`` also: no such job that was submitted
    with ``keep_unique`` has succeeded so recently; a live job comes before it. Jobs of one operation are stored in order.
    A background job that joins a live foreground one makes that a background one. With a ``waiter``, the term of a node of a
    shared store, this also subscribes that node to each job that is stored or joined, as ``Subscribe`` does.
    Outcome: ``dict[int, Found]``: for each job that was not stored (by its id), the one that it joins. Usually empty.
    """

    phase = Phase.SUBMIT
    is_request = True
    brings_jobs = True
    jobs: list[Job]
    waiter: int = 0

    def __post_init__(self) -> None:
        self.rows = len(self.jobs)


class SubmitOnce(Submit, kw_only=True):
    """Store new jobs as `Submit` does, with the answer to the request for them.

    Outcome: that of `Submit`; or the earlier `Reservation` of the key, and then nothing changes.
    """

    keyed = True
    keyed_act: KeyedAct


class Found(NamedTuple):
    """A stored job in short, without its payload."""

    id: int
    state: int
    attempt: int

    @classmethod
    def of(cls, job: Job) -> Found:
        """Return a job in short."""
        return cls(job.id, job.state, job.attempt)


class Withdrawn(NamedTuple):
    """A live job that a slice has deleted, as it was before."""

    id: int
    term: int
    """The term that it was held under; 0 if it waited."""
    state: int
    function: bytes
    priority: int


class Assign(Operation):
    """Record jobs as running, with the number of attempts counted before. Guard: held under ``job.term``. Outcome: None."""

    phase = Phase.ASSIGN
    brings_jobs = True
    jobs: list[Job]

    def __post_init__(self) -> None:
        self.rows = len(self.jobs)


JobTerm = tuple[int, int]
"""A job's id, and the term under which it is held."""


def each_once(operations: Sequence[Settle]) -> tuple[dict[JobTerm, Settlement], list[set[int]]]:
    """Return the first settlement of each job and term, and for each operation the jobs that were settled before it."""
    first: dict[JobTerm, Settlement] = {}
    repeated = []
    for operation in operations:
        seen_before = set()
        for settlement in operation.settlements:
            job = settlement.job
            if first.setdefault((job.id, job.term), settlement) is not settlement:
                seen_before.add(job.id)
        repeated.append(seen_before)
    return first, repeated


class Settle(Operation):
    """Settle held jobs. Guard: the job is held under the settlement's ``job.term``.

    A success clears the payload and the error of earlier attempts; any other settlement without an error keeps the last error.
    A settlement that gives a job back ends it if that was requested (``RequestStop``); the settlement is changed accordingly.
    Outcome: ``set[int]``, the ids of the jobs whose guard failed (the settlement is stale). Of two settlements of one job the
    first counts, and the id is in the outcome.
    """

    phase = Phase.SETTLE
    brings_jobs = True
    causes = (types.JOBS - {types.RETRIED}) | {types.DEAD_LETTERS}
    sifts = True
    settlements: list[Settlement]

    def __post_init__(self) -> None:
        self.rows = len(self.settlements)

    def caused(self, outcome: Container[int], wanted: Collection[str]) -> Iterator[NewEvent | None]:
        """Yield the events of the recorded settlements; engines add those that the outcome hides (``job_events.add_hidden``)."""
        having = having_events(wanted)
        for one in self.settlements:
            if one.event in having and one.job.id not in outcome:
                yield of_settlement(one)


class Cancel(Acting):
    """Cancel a waiting job. Guard: SCHEDULED or PENDING, and in the namespace. Outcome: ``Cancelled``."""

    phase = Phase.CANCEL
    is_request = True
    causes = frozenset({types.CANCELLED})
    id: int
    error: bytes
    now_us: int
    namespace: str = DEFAULT

    def recorded(self, outcome: Cancelled) -> Act | None:
        """Return the act with the job's state before it, if the job was cancelled."""
        if self.act is None or outcome.job is None or outcome.before > State.PENDING:
            return None
        return replace(self.act, before=State(outcome.before).name.lower(), after="cancelled")

    def caused(self, outcome: Cancelled) -> Iterator[NewEvent | None]:
        """Yield the event of a job that was cancelled."""
        job = outcome.job
        if job is not None and outcome.before <= State.PENDING:
            yield of_job(types.CANCELLED, job, self.error, by=by(self.act))


class RequestStop(Acting):
    """Store a request to cancel jobs that are held, each under a term if one is given.

    From then on RETRY, SNOOZE, RELEASE and LOSE of the job, and its recovery, end it CANCELLED with ``request``; a success and a
    failure stay what they are. Only for engines that keep runs of workflows. Outcome: ``set[int]``, the ids of the jobs that are
    held so.
    """

    phase = Phase.CANCEL
    is_request = True
    jobs: Sequence[tuple[int, int | None]]
    request: StopRequest

    def __post_init__(self) -> None:
        self.rows = len(self.jobs)


class Cancelled(NamedTuple):
    """The outcome of Cancel: the job after it, without payload and result, and the job's state before it."""

    job: Job | None
    before: int


class Redrive(Acting):
    """Put an ended, unsuccessful job back to pending and reset its attempts.

    It becomes a background job: the clients of a foreground job have received their answer. With a ``payload``, it gets these
    arguments in place of its own; with ``due_us``, it is SCHEDULED until then.
    Guard: FAILED, CANCELLED or EXPIRED, in the namespace, no root job (``model.RUNS``), and its unique is not live.
    Outcome: ``Redriven``.
    ``function`` is the job's, for the node's own counts.
    """

    phase = Phase.REDRIVE
    is_request = True
    causes = frozenset({types.RETRIED})
    id: int
    function: bytes = b""
    namespace: str = DEFAULT
    payload: bytes | None = None
    due_us: int = 0

    def __post_init__(self) -> None:
        self.size += len(self.payload or b"")

    def recorded(self, outcome: Redriven) -> Act | None:
        """Return the act, if the job was put back."""
        return self.act if outcome.redriven else None

    def caused(self, outcome: Redriven) -> Iterator[NewEvent | None]:
        """Yield the event of a job that was put back."""
        if outcome.redriven and outcome.job is not None:
            yield of_job(types.RETRIED, outcome.job, due_us=self.due_us, by=by(self.act))


class Redriven(NamedTuple):
    """The outcome of Redrive: the job after it, without payload and result.

    ``rival`` is the live job with the same unique, if that is why the redrive was refused.
    """

    job: Job | None
    redriven: bool
    rival: int | None = None


class Reschedule(Acting):
    """Change when a waiting job starts, its priority, or when it expires; None leaves a value unchanged.

    With ``due_us``, the job is SCHEDULED if that is after ``now_us``, and PENDING otherwise; the times by which it should have
    begun and ended move as its due time does (`jobs.lateness.moved`), unless ``start_us`` or ``deadline_us`` sets them, as of
    `Redate`. An ``expires_us`` of 0 means that it does not expire. Guard: SCHEDULED or PENDING, in the namespace; with
    ``due_us``, no successor (`jobs.successors`), which is reported as LEASED. Outcome: ``Rescheduled``.
    """

    phase = Phase.CANCEL
    is_request = True
    causes = frozenset({types.SNOOZED})
    id: int
    now_us: int
    due_us: int | None = None
    priority: int | None = None
    expires_us: int | None = None
    start_us: int | None = None
    deadline_us: int | None = None
    namespace: str = DEFAULT

    def recorded(self, outcome: Rescheduled) -> Act | None:
        """Return the act, if the job waited."""
        return self.act if outcome.job is not None and outcome.before <= State.PENDING else None

    def is_too_soon(self, job: Job) -> bool:
        """Return whether it would let a job begin that waits for the live job of its unique."""
        return self.due_us is not None and is_successor(job)

    def redated(self, before: Job) -> Redated | None:
        """Return the change of the times of a job, as it was before."""
        by_us = 0 if self.due_us is None else self.due_us - base_us(before)
        return moved(before, by_us, self.now_us, self.start_us, self.deadline_us)

    def caused(self, outcome: Rescheduled) -> Iterator[NewEvent | None]:
        """Yield the event of a waiting job that was postponed; one that begins sooner has none."""
        job = outcome.job
        if (
            job is not None
            and outcome.before <= State.PENDING
            and self.due_us is not None
            and self.due_us > self.now_us
        ):
            yield of_job(types.SNOOZED, job, due_us=self.due_us, by=by(self.act))


class Redate(Acting):
    """Change by when a job should have begun and ended (`jobs.lateness`), also of one that a node holds, and of a root job.

    Times are microseconds of wall time; None leaves one as it is, 0 removes it. Guard: not ended, and in the namespace.
    Outcome: ``Job | None``, the job after it, without payload and result, or as it is if it has ended.
    """

    phase = Phase.CANCEL
    is_request = True
    id: int
    start_us: int | None = None
    deadline_us: int | None = None
    namespace: str = DEFAULT

    def recorded(self, outcome: Job | None) -> Act | None:
        """Return the act, if the job had not ended."""
        return self.act if outcome is not None and outcome.state < State.SUCCEEDED else None


class Rescheduled(NamedTuple):
    """The outcome of Reschedule: the job after it, without payload and result, and its state and priority before.

    The guard held if the state before is SCHEDULED or PENDING.
    """

    job: Job | None
    before: int
    priority: int


class DeleteEnded(Acting):
    """Delete an ended job. Guard: ended, in the namespace, and no root job (``model.RUNS``). Outcome: ``Deleted``."""

    phase = Phase.SWEEP
    is_request = True
    id: int
    namespace: str = DEFAULT

    def recorded(self, outcome: Deleted) -> Act | None:
        """Return the act, if the job was deleted."""
        return self.act if outcome.deleted else None


class Deleted(NamedTuple):
    """The outcome of DeleteEnded: the job as it was, without payload and result, and whether it was deleted."""

    job: Job | None
    deleted: bool


class ClaimRequest(NamedTuple):
    """The number of jobs of a function that a node requests."""

    function: bytes
    limit: int
    slots: frozenset[int] | None = None
    """Only jobs of these hash slots; None means all."""
    overdue_us: int = 0
    """Jobs that were created or due before this time are claimed whatever their slot."""


class Claim(Operation):
    """Lease due jobs to a term, in the order of priority and then of age.

    On a shared store the order is approximate, and the claim skips jobs that another node is claiming.
    Outcome: ``list[list[Job]]``: for each request, the whole jobs, in order.
    """

    phase = Phase.CLAIM
    term: int
    wants: list[ClaimRequest]

    def __post_init__(self) -> None:
        self.rows = sum(want.limit for want in self.wants)


class ClaimByKey(Operation):
    """Lease due jobs of one function to a term, by priority, and within a priority in rotation over the keys.

    In each priority the claim visits the keys in their order, from the first key after ``after`` (None: from the first key) and
    once around. It takes up to ``per_key`` jobs of each key, oldest first, and none of the keys in ``enough``. The cost of a key
    does not depend on its number of jobs. ``slots`` and ``overdue_us`` are those of ``ClaimRequest``. On a store that shares by
    slots, the claim may skip jobs of other slots after it has read them. With ``concurrency``, the number of tokens of each key,
    a claim of a shared store takes no job of a key whose tokens other nodes hold: they run it. Outcome: ``ClaimedByKey``.
    """

    phase = Phase.CLAIM
    term: int
    want: ClaimRequest
    per_key: int
    after: After
    enough: frozenset[bytes]
    concurrency: int | None = None

    def __post_init__(self) -> None:
        self.rows = self.want.limit


After = tuple[bytes | None, bytes | None, bytes | None]
"""For each priority, the last key that a claim visited."""


class ClaimedByKey(NamedTuple):
    """The outcome of ClaimByKey."""

    jobs: list[Job]
    """Whole jobs, in the order of the visit."""
    after: After
    """Where the next claim continues."""
    more: bool
    """Whether the claim ended at its limit of jobs or of keys."""
    skipped: frozenset[bytes] = frozenset()
    """The keys of ``enough`` that have jobs in the store. A store with one node may leave them out: the node counts its jobs."""


KEYS_PER_CLAIM = 1000
"""The most keys that a claim visits in one priority."""


class Wake(Operation):
    """Make due jobs pending, and expire waiting jobs that are past their expiry and have no counted attempt.

    The limit applies to each of the two. Outcome: ``Woken``.
    """

    phase = Phase.WAKE
    causes = frozenset({types.EXPIRED})
    now_us: int
    limit: int = 1000

    def __post_init__(self) -> None:
        self.rows = self.limit

    def caused(self, outcome: Woken) -> Iterator[NewEvent | None]:
        """Yield the events of the jobs that expired."""
        for job, _ in outcome.expired:
            yield of_job(types.EXPIRED, job)


class Woken(NamedTuple):
    """The outcome of Wake."""

    due: dict[tuple[bytes, int], int]
    """The number of jobs of each function and priority that became pending."""
    expired: list[tuple[Job, int]]
    """The jobs that expired, without payload, each with its state before."""
    next_us: int
    """The earliest time of the next wake; 0 if no job waits for a time."""


class Sweep(Operation):
    """Delete jobs that ended before a time; failed jobs (dead letters) have their own time. Root jobs (``model.RUNS``) stay.

    A store that drops whole partitions may keep jobs longer, by at most the span of a partition (PostgreSQL: a day, for failed
    jobs a week). It keeps failed jobs at least as long as others. Outcome: ``int``, how many jobs were deleted one by one.
    """

    phase = Phase.SWEEP
    ended_before_us: int
    dead_before_us: int
    limit: int = 1000

    def __post_init__(self) -> None:
        self.rows = self.limit
