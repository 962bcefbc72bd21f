"""The port that the jobs slice needs: its operations, and what each answers.

An engine runs them in the order of their phases (``storage.phases``). Every operation names what guards it; a row whose guard
does not hold is left alone and said so in the outcome, and costs only itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainspring.jobs.rules import Outcome
from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement


class Ended(NamedTuple):
    """A job that has ended for good in the transaction under way: what its owner (``rules.owner``) is told.

    Engines gather these while they run the operations that can end jobs, and then call what they have registered for the owner,
    before anything else: so what follows from an end is committed with it, and the jobs slice knows nothing of what that is.
    """

    id: int
    state: int
    term: int
    """The lease under which it ended; 0 where nobody held it."""
    attempt: int
    worker: str
    started_us: int
    ended_us: int
    error: bytes

    @classmethod
    def of(cls, job: Job, worker: str = "") -> Ended:
        """Return the end of a job as it is stored."""
        return cls(job.id, job.state, job.term, job.attempt, worker, job.started_us, job.ended_us, job.error)

    @classmethod
    def by(cls, settlement: Settlement, state: int) -> Ended:
        """Return the end that a settlement brings about, with the state that follows from its event."""
        job, (started_us, ended_us) = settlement.job, (settlement.started_us, settlement.ended_us)
        error = settlement.error or job.error
        return cls(job.id, state, job.term, settlement.counted, settlement.worker, started_us, ended_us, error)


class Followers(Protocol):
    """What a node does for the jobs that a store makes by itself in a transaction, because others have ended or a time has come.

    All methods are called on the node's thread.
    """

    def next_id(self) -> int:
        """Return the id of a new job."""

    def coming(self, job: Job) -> bool:
        """Hear of a new job before it is written; False where it may not be: a job in this node's memory has its unique.

        After True exactly one of the following two is called with it.
        """

    def stored(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs are committed, before the outcomes of their group are."""

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs were not written after all: they joined others, or their transaction failed."""

    def stop(self, ids: Sequence[int]) -> None:
        """Cancel jobs, as after a commit that has replaced them."""


class Settle(Operation):
    """End leases. Guard: the job is held under the settlement's ``job.term``.

    A success clears the payload and the error of earlier attempts; any other settlement without an error leaves the last one.
    Outcome: ``set[int]``, the ids of the jobs whose guard failed (the settlement is stale). Of two settlements of one job the
    first counts, and the id is in the outcome.
    """

    __slots__ = ("settlements",)

    phase = Phase.SETTLE
    brings_jobs = True

    def __init__(self, settlements: list[Settlement]) -> None:
        super().__init__()
        self.settlements = settlements
        self.rows = len(settlements)


class Submit(Operation):
    """Store new jobs, each in the state that it carries (SCHEDULED, PENDING, or LEASED under the node's term).

    Guard: no live job of the same function has the same unique. With ``options.keep_unique`` also: no such job that was submitted
    with ``keep_unique`` has succeeded so recently; a live job comes before it. Jobs of one operation are stored in order.
    A background job that joins a live foreground one makes that a background one. With a ``waiter``, the term of a node of a
    shared store, a client of that node waits for each job that is stored or joined, as after ``Wait``.
    Outcome: ``dict[int, Found]``: for each job that was not stored (by its id), the one that it joins. Usually empty.
    """

    __slots__ = ("jobs", "waiter")

    phase = Phase.SUBMIT
    brings_jobs = True

    def __init__(
        self,
        jobs: list[Job],
        waiter: int = 0,
    ) -> None:
        super().__init__()
        self.jobs = jobs
        self.waiter = waiter
        self.rows = len(jobs)


class Want(NamedTuple):
    """How many jobs of a function a node would take."""

    function: bytes
    limit: int
    slots: frozenset[int] | None = None
    """Only jobs of these hash slots; None is all of them."""
    overdue_us: int = 0
    """Jobs that were created or due before this time are taken whatever their slot."""


class Claim(Operation):
    """Lease due jobs to a term, in the order of priority and then of age.

    On a shared store the order is approximate, and jobs that another node takes at this moment are passed over.
    Outcome: ``list[list[Job]]``: for each want, the whole jobs, in order.
    """

    __slots__ = ("term", "wants")

    phase = Phase.CLAIM

    def __init__(
        self,
        term: int,
        wants: list[Want],
    ) -> None:
        super().__init__()
        self.term = term
        self.wants = wants
        self.rows = sum(want.limit for want in wants)


class ClaimByKey(Operation):
    """Lease due jobs of one function to a term, in the order of priority, and within one by turns of their keys.

    In each priority, keys are met in their order, from the first behind ``after`` (None: from the first of all) round to that
    one. Of each, up to ``per_key`` jobs are taken, oldest first; of those in ``enough``, none. However many jobs a key has, it
    costs no more than any other key. Slots and ``overdue_us`` are those of ``Want``; on a store that shares by slots, jobs of
    others' slots may be passed over after those that were looked at. Outcome: ``ClaimedByKey``.
    """

    __slots__ = ("after", "enough", "function", "limit", "overdue_us", "per_key", "slots", "term")

    phase = Phase.CLAIM

    def __init__(
        self,
        term: int,
        want: Want,
        per_key: int,
        after: After,
        enough: frozenset[bytes],
    ) -> None:
        super().__init__()
        self.term = term
        self.function, self.limit, self.slots, self.overdue_us = want
        self.per_key = per_key
        self.after = after
        self.enough = enough
        self.rows = want.limit


After = tuple[bytes | None, bytes | None, bytes | None]
"""For each priority the key with which a claim has ended."""


class ClaimedByKey(NamedTuple):
    """The outcome of ClaimByKey."""

    jobs: list[Job]
    """Whole jobs, in the order in which they were met."""
    after: After
    """Where the next claim goes on."""
    more: bool
    """Whether it ended because it had enough, or had met as many keys as a claim may."""


KEYS_AT_MOST = 1000
"""A claim meets no more keys than that in one priority."""


class Assign(Operation):
    """Record that jobs run, and how many attempts were counted before. Guard: held under ``job.term``. Outcome: None."""

    __slots__ = ("jobs",)

    phase = Phase.ASSIGN
    brings_jobs = True

    def __init__(self, jobs: list[Job]) -> None:
        super().__init__()
        self.jobs = jobs
        self.rows = len(jobs)


class Found(NamedTuple):
    """What is known of a stored job without its payload."""

    id: int
    state: int
    attempt: int


class Cancel(Operation):
    """Cancel a job that waits. Guard: SCHEDULED or PENDING. Outcome: ``Cancelled``."""

    __slots__ = ("error", "id", "now_us")

    phase = Phase.CANCEL

    def __init__(
        self,
        job_id: int,
        error: bytes,
        now_us: int,
    ) -> None:
        super().__init__()
        self.id = job_id
        self.error = error
        self.now_us = now_us


class Cancelled(NamedTuple):
    """The outcome of Cancel: the job as it is now, without payload and result, and the state that it was in before."""

    job: Job | None
    before: int


class Redrive(Operation):
    """Put an ended, unsuccessful job back to pending, its attempts counted anew.

    It is a background job from then on, for the clients of a foreground one have had their answer.
    Guard: FAILED, CANCELLED or EXPIRED, and its unique is not live. Outcome: ``Redriven``. ``function`` is the job's, for the
    node's own counts.
    """

    __slots__ = ("function", "id")

    phase = Phase.REDRIVE

    def __init__(
        self,
        job_id: int,
        function: bytes = b"",
    ) -> None:
        super().__init__()
        self.id = job_id
        self.function = function


class Redriven(NamedTuple):
    """The outcome of Redrive: the job as it is now, without payload and result.

    ``rival`` is the live job that has its unique, where that is why it was refused.
    """

    job: Job | None
    redriven: bool
    rival: int | None = None


class Wake(Operation):
    """Make jobs pending whose time has come, and expire those that wait after their time and have no counted attempt.

    Each at most as many as the limit says. Outcome: ``Woken``.
    """

    __slots__ = ("now_us",)

    phase = Phase.WAKE

    def __init__(self, now_us: int, limit: int = 1000) -> None:
        super().__init__()
        self.now_us = now_us
        self.rows = limit


class Woken(NamedTuple):
    """The outcome of Wake."""

    due: dict[tuple[bytes, int], int]
    """How many jobs of each function and priority became pending."""
    expired: list[tuple[Job, int]]
    """The jobs that expired, without payload, and the state that each was in before."""
    next_us: int
    """When to wake next, at the earliest: 0 where nothing waits for a time."""


class Find(Operation):
    """Look jobs up by id. Outcome: ``dict[int, Job]``, without payloads, and with the results that fit into ``room`` bytes.

    No engine reads a result before it knows its size: the others are left in the store, and ``Job.unread`` says so.
    """

    __slots__ = ("ids", "room")

    phase = Phase.READ
    reads = True

    def __init__(
        self,
        ids: list[int],
        room: int = 0,
    ) -> None:
        super().__init__()
        self.ids = ids
        self.room = room
        self.rows = len(ids)


def fitting(jobs: Mapping[int, Job], room: int) -> list[Job]:
    """Return those of some jobs whose results are read: in their order, each that fits into what is left of ``room`` bytes."""
    fit: dict[int, Job] = {}
    for job in jobs.values():
        if 0 < job.output_size <= room and job.id not in fit:
            fit[job.id] = job
            room -= job.output_size
    return list(fit.values())


def leave_unread(jobs: Mapping[int, Job], room: int) -> None:
    """Drop the results that do not fit, where it costs nothing to have read them."""
    fit = {job.id for job in fitting(jobs, room)}
    for job in jobs.values():
        if job.id not in fit:
            job.result = b""


class FindUnique(Operation):
    """Look live jobs up by function and unique. A function of None means any.

    Outcome: ``list[Found | None]``, one for each key.
    """

    __slots__ = ("keys",)

    phase = Phase.READ
    reads = True

    def __init__(
        self,
        keys: list[tuple[bytes | None, bytes]],
    ) -> None:
        super().__init__()
        self.keys = keys
        self.rows = len(keys)


class Sweep(Operation):
    """Forget jobs that ended before a time: failed ones (dead letters) have a time of their own.

    A store that drops many at once may keep some for longer, by at most the span of what it drops (PostgreSQL: a day, of failed
    ones a week), and failed ones as long as any others. Outcome: ``int``, how many were forgotten one by one.
    """

    __slots__ = ("dead_before_us", "ended_before_us")

    phase = Phase.SWEEP

    def __init__(
        self,
        ended_before_us: int,
        dead_before_us: int,
        limit: int = 1000,
    ) -> None:
        super().__init__()
        self.ended_before_us = ended_before_us
        self.dead_before_us = dead_before_us
        self.rows = limit


class Recover(Operation):
    """Give back jobs that are held under terms that have ended, and forget who waited at them.

    Without ``of``: under every term other than the node's own, all at once, which is right where the store is one node's. With
    it, as many as the limit says, from terms that have ended; and foreground jobs for which nobody else waits are dropped.
    Outcome: ``Recovered``.
    """

    __slots__ = ("of", "term")

    phase = Phase.RECOVER

    def __init__(
        self,
        term: int,
        of: Sequence[int] | None = None,
        limit: int = 1000,
    ) -> None:
        super().__init__()
        self.term = term
        self.of = of
        self.rows = limit


class LostAttempt(NamedTuple):
    """An attempt that had been recorded as running and was lost with its node."""

    job_id: int
    function: bytes
    attempt: int
    """Its number, from 1 on."""


class Recovered(NamedTuple):
    """The outcome of Recover."""

    number: int
    """How many jobs were given back."""
    pending: dict[tuple[bytes, int], int]
    """The same by function and priority."""
    more: bool = False
    """Whether the limit was reached."""
    lost: frozenset[LostAttempt] = frozenset()
    """The attempts that these jobs have lost."""


def lost_attempts(settlements: Iterable[Settlement]) -> frozenset[LostAttempt]:
    """Return the attempts among what was recovered; see ``rules.recovered``."""
    return frozenset(
        LostAttempt(one.job.id, one.job.function, one.counted) for one in settlements if one.outcome is Outcome.LOST
    )


class Wait(Operation):
    """Say that clients of a node of a shared store wait for jobs: whoever settles one elsewhere tells that node.

    Outcome: as that of ``Find``; ended jobs need no waiting.
    """

    __slots__ = ("ids", "room", "term")

    phase = Phase.WAIT

    def __init__(
        self,
        term: int,
        ids: list[int],
        room: int = 0,
    ) -> None:
        super().__init__()
        self.term = term
        self.ids = ids
        self.room = room
        self.rows = len(ids)


class TakeInbox(Operation):
    """Move jobs on that users' own transactions have submitted and committed, as many as the limit says.

    Jobs whose unique is taken join, as in ``Submit``; their ids lead to the job that they have joined, wherever one is looked up.
    Outcome: ``Taken``.
    """

    __slots__ = ()

    phase = Phase.INBOX

    def __init__(self, limit: int = 1000) -> None:
        super().__init__()
        self.rows = limit


class Taken(NamedTuple):
    """The outcome of TakeInbox."""

    pending: dict[tuple[bytes, int], int]
    """How many jobs of each function and priority are pending now."""
    next_us: int
    """When the first of those that are not due yet will be: 0 where there is none."""
    more: bool
    """Whether the limit was reached."""


class Leave(Operation):
    """Say that nobody at a node of a shared store waits for jobs any more.

    A foreground job that waits (SCHEDULED, PENDING, or LEASED under this term) and for which nobody waits at any node is
    dropped, as if it had never been. Outcome: ``set[int]``, the ids of the dropped jobs.
    """

    __slots__ = ("ids", "term")

    phase = Phase.LEAVE

    def __init__(self, term: int, ids: list[int]) -> None:
        super().__init__()
        self.term = term
        self.ids = ids
        self.rows = len(ids)


class Watchers(Operation):
    """Look up at which other nodes clients wait for jobs.

    Outcome: ``dict[int, list[int]]``, ids to terms, without the own term and without jobs that nobody else waits for.
    """

    __slots__ = ("ids", "term")

    phase = Phase.WATCH
    reads = True

    def __init__(
        self,
        term: int,
        ids: list[int],
    ) -> None:
        super().__init__()
        self.term = term
        self.ids = ids
        self.rows = len(ids)


class Look(Operation):
    """Look at what waits in a shared store: other nodes put it there, or take it. Outcome: ``Outlook``.

    With ``functions``, only these are counted: a node has nothing to do with most of very many.
    """

    __slots__ = ("functions",)

    phase = Phase.READ
    reads = True

    def __init__(
        self,
        functions: Sequence[bytes] | None = None,
    ) -> None:
        super().__init__()
        self.functions = functions


class Outlook(NamedTuple):
    """The outcome of Look, as it was at some moment of the last seconds."""

    pending: dict[tuple[bytes, int], int]
    """By function and priority."""
    live: dict[bytes, int]
    """How many jobs of each function have not ended."""
    next_us: int
    """When the next job becomes due or expires: 0 where nothing waits for a time."""
    inbox: bool = False
    """Whether users' own transactions have submitted jobs that nobody has moved on."""


class Count(Operation):
    """Read the counts. Outcome: ``dict[tuple[bytes, int, int], int]``: by function, state and priority.

    Held jobs are counted as LEASED, whether or not they are recorded as running.
    """

    __slots__ = ()

    phase = Phase.READ
    reads = True


class CountLive(Operation):
    """Read how many jobs of some functions have not ended. Outcome: ``Counted``.

    The functions are those named; or, page by page, all that the store has ever known, in an order of its own. A page costs
    its length, however many functions there are, and is empty where all jobs of its functions have ended. It is for who looks;
    who counts from there on names the functions.
    """

    __slots__ = ("after", "functions")

    phase = Phase.READ
    reads = True

    def __init__(
        self,
        functions: Sequence[bytes] | None = None,
        *,
        after: bytes = b"",
        limit: int = 1000,
    ) -> None:
        super().__init__()
        self.functions = functions
        self.after = after
        self.rows = limit if functions is None else len(functions)
        self.overtakes = functions is None


def numbered(place: bytes) -> int:
    """Return the number that a place is in most stores: clients hand places back, and what is none stands for the beginning."""
    return int(place) if place.isdigit() and len(place) <= 9 else 0


class Counted(NamedTuple):
    """The outcome of CountLive."""

    counts: dict[tuple[bytes, int, int], int]
    """By function, state and priority, as that of ``Count``, without zeros."""
    next: bytes | None = None
    """What the next page comes ``after``: None where this was the last."""
