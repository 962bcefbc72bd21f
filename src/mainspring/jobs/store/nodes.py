"""Operations between nodes of a shared store: recovery of lost jobs, subscriptions, the backlog and the inbox.

Operations that read stored jobs by id and by unique, and that count them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.jobs.model import State
from mainspring.jobs.rules import Outcome
from mainspring.namespaces import ANY, DEFAULT
from mainspring.storage.engine import Operation, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement


class Recover(Operation):
    """Give back jobs that are held under ended terms, and delete the subscriptions of those terms.

    Without ``of``: all jobs under every term other than the node's own and ``model.RUNS``, for a store of one node. With
    ``of``: up to the limit, jobs under these ended terms; foreground jobs without subscribers at other nodes are dropped.
    ``now_us`` is the time in the records of the lost attempts. Outcome: ``Recovered``.
    """

    phase = Phase.RECOVER
    term: int
    of: Sequence[int] | None = None
    limit: int = 1000
    now_us: int = 0

    def __post_init__(self) -> None:
        self.rows = self.limit


class LostAttempt(NamedTuple):
    """An attempt that had been recorded as running and was lost with its node."""

    job_id: int
    function: bytes
    attempt: int
    """Its number, from 1 on."""


class Recovered(NamedTuple):
    """The outcome of Recover, without the jobs that a stored request has cancelled."""

    number: int
    """The number of jobs that were given back."""
    pending: dict[tuple[bytes, int], int]
    """The same by function and priority."""
    more: bool = False
    """Whether the limit was reached."""
    lost: frozenset[LostAttempt] = frozenset()
    """The attempts that these jobs lost."""


def tally(jobs: Iterable[Job]) -> dict[tuple[bytes, int], int]:
    """Count jobs by function and priority."""
    return dict(Counter([(job.function, job.priority) for job in jobs]))


def lost_attempts(settlements: Iterable[Settlement]) -> frozenset[LostAttempt]:
    """Return the lost attempts among recovered jobs; see ``rules.recovered``."""
    return frozenset(
        LostAttempt(one.job.id, one.job.function, one.counted) for one in settlements if one.outcome is Outcome.LOST
    )


class Subscribe(Operation):
    """Look jobs up, and subscribe a node of a shared store to them: a node that settles one notifies the subscribers.

    ``namespace`` and the outcome are as of ``Find``; ended jobs need no subscription.
    """

    phase = Phase.WAIT
    is_request = True
    term: int
    ids: list[int]
    room: int = 0
    namespace: str = DEFAULT

    def __post_init__(self) -> None:
        self.rows = len(self.ids)


class Unsubscribe(Operation):
    """Delete a node's subscriptions to jobs, because its last clients that waited for them have left.

    A waiting foreground job (SCHEDULED, PENDING, or LEASED under this term) without any subscriber is deleted.
    Outcome: ``set[int]``, the ids of the deleted jobs.
    """

    phase = Phase.LEAVE
    term: int
    ids: list[int]

    def __post_init__(self) -> None:
        self.rows = len(self.ids)


class FindSubscribers(Operation):
    """Look up the other nodes that subscribe to jobs.

    Outcome: ``dict[int, list[int]]``, ids to terms, without the own term and without jobs that have no other subscriber.
    """

    phase = Phase.WATCH
    reads = True
    term: int
    ids: list[int]

    def __post_init__(self) -> None:
        self.rows = len(self.ids)


class ReadBacklog(Operation):
    """Count the queued jobs of a shared store, which other nodes submit and claim as well. Outcome: ``Backlog``.

    With ``functions``, count only these: if there are very many functions, a node uses few of them.
    """

    phase = Phase.READ
    reads = True
    functions: Sequence[bytes] | None = None
    times: bool = False
    """Whether to read the times in `Signs`, too."""


class Backlog(NamedTuple):
    """The outcome of ReadBacklog; it may be some seconds old."""

    pending: dict[tuple[bytes, int], int]
    """By function and priority."""
    live: dict[bytes, int]
    """The number of jobs of each function that have not ended."""
    next_us: int
    """When the next job becomes due or expires; 0 if there is none."""
    inbox: bool = False
    """Whether the inbox has jobs that users submitted in their own transactions."""
    refused: RefusedSubmissions | None = None
    """Those of them that became no jobs; None if the store did not look for them this time."""
    signs: Signs | None = None
    """None: the store has none."""


SIGNS_LAST: Final = 4.5
"""Seconds for which a sign that there is nothing to do takes the place of a part's own look: the next one comes before."""


class Signs(NamedTuple):
    """Work for other parts of a node. The statement that reads the backlog finds it, because idle nodes send few."""

    limits: int
    """It rises with each change of limits of functions."""
    errands: bool
    """Whether requests of runs to other runs are stored."""
    signals: bool
    """Whether signals wait that users have sent in transactions of their own."""
    interests: int = 0
    """The version of the interests in events."""
    run_requests: bool = False
    """Whether runs wait for slots of resources."""
    alarm_us: int | None = None
    """The first alarm of a run; 0: there is none, None: it was not asked for."""
    fire_us: int | None = None
    """The same of the fire times of schedules."""
    deadline_us: int | None = None
    """The same of the times by which jobs should begin or end."""


REFUSED: Final = "refused_submissions"
"""The table of these submissions, in the store's schema."""
REFUSED_REMEDY: Final = (
    f"look at the table {REFUSED} of the store's schema, submit them again if they are yours, and delete the rows"
)


class RefusedSubmissions(NamedTuple):
    """Jobs of users' transactions that could not become jobs of the queue. Their rows are kept until somebody deletes them."""

    number: int
    since_us: int = 0
    """When the first one was refused."""
    reason: str = ""
    """Why the last one was refused."""


class DrainInbox(Operation):
    """Move jobs that users submitted in their own transactions from the inbox to the queue, up to the limit.

    A job whose unique is live joins the live job, as in ``Submit``; every lookup of its id then finds the job that it joined.
    Outcome: ``DrainedInbox``.
    """

    phase = Phase.INBOX
    limit: int = 1000

    def __post_init__(self) -> None:
        self.rows = self.limit


class DrainedInbox(NamedTuple):
    """The outcome of DrainInbox."""

    pending: dict[tuple[bytes, int], int]
    """The number of jobs of each function and priority that became pending."""
    next_us: int
    """When the first of the moved jobs that are not due yet becomes due; 0 if there is none."""
    more: bool
    """Whether the limit was reached."""


class Find(Operation):
    """Look jobs up by id. Outcome: ``dict[int, Job]``, without payloads, and with the results that fit into ``room`` bytes.

    No engine reads a result before it has read its size. The other results stay in the store; ``Job.unread`` is their size.
    Jobs of another namespace are not found.
    """

    phase = Phase.READ
    is_request = True
    reads = True
    ids: list[int]
    room: int = 0
    namespace: str = DEFAULT

    def __post_init__(self) -> None:
        self.rows = len(self.ids)


class ShowJob(Query["Job | None"], frozen=True):
    """Read a job of a namespace from what is committed, beside the groups. The answer has neither payload nor result."""

    is_small = True
    id: int
    namespace: str = ANY


def fitting(jobs: Mapping[int, Job], room: int) -> list[Job]:
    """Return the jobs whose results are read: in order, each job whose result fits into the rest of ``room`` bytes."""
    fit: dict[int, Job] = {}
    for job in jobs.values():
        if 0 < job.output_size <= room and job.id not in fit:
            fit[job.id] = job
            room -= job.output_size
    return list(fit.values())


def leave_unread(jobs: Mapping[int, Job], room: int) -> None:
    """Drop the results that do not fit, for engines that read results at no cost."""
    fit = {job.id for job in fitting(jobs, room)}
    for job in jobs.values():
        if job.id not in fit:
            job.result = b""


class InNamespace(NamedTuple):
    """Any function of a namespace."""

    namespace: str


class FindUnique(Operation):
    """Look live jobs up by function and unique.

    Outcome: ``list[Found | None]``, one for each key.
    """

    phase = Phase.READ
    is_request = True
    reads = True
    keys: list[tuple[bytes | InNamespace, bytes]]

    def __post_init__(self) -> None:
        self.rows = len(self.keys)


class Count(Operation):
    """Count the jobs of some functions that have not ended, or all jobs, including all earlier operations.

    Outcome: ``dict[tuple[bytes, int, int], int]``: by function, state and priority, without zeros. Held jobs count as LEASED,
    whether or not they are recorded as running.
    """

    phase = Phase.READ
    reads = True
    functions: Sequence[bytes] | None = None
    """None for all jobs of all functions."""

    def __post_init__(self) -> None:
        self.rows = len(self.functions or ())


LIVE: Final = (int(State.SCHEDULED), int(State.RUNNING))
"""The first and the last state of jobs that have not ended."""
DEAD: Final = (int(State.FAILED), int(State.FAILED))
"""The same of dead letters."""


class ShowCounts(Query["Counted"], frozen=True):
    """Count the live jobs, or the dead letters, of some functions or of a page of all. Callers that keep counts use ``Count``.

    All functions are those that the store has ever seen, in the store's own order. The cost of a page depends on its length
    alone. A page is empty if none of its functions has such a job.
    """

    dead: bool = False
    functions: tuple[bytes, ...] | None = None
    """None: the ``limit`` functions ``after`` a place (empty: the first ones)."""
    after: bytes = b""
    limit: int = 1000

    @property
    def states(self) -> tuple[int, int]:
        """The first and the last state of the counted jobs."""
        return DEAD if self.dead else LIVE


class CountSome(ShowCounts, frozen=True):
    """Count the jobs of some ``functions`` before an answer that depends on them: their few rows are read ahead of long lists.

    No group of commits waits for it, as it would for `Count`: on PostgreSQL, a group with anything else besides new and succeeded
    jobs takes several statements in place of one.
    """

    is_small = True


def numbered(place: bytes) -> int:
    """Return a place as the number that it is in most stores. Clients send places back; an invalid one means the first page."""
    return int(place) if place.isdigit() and len(place) <= 9 else 0


class Counted(NamedTuple):
    """The outcome of ShowCounts."""

    counts: dict[tuple[bytes, int, int], int]
    """By function, state and priority, as that of ``Count``, without zeros."""
    next: bytes | None = None
    """The place ``after`` which the next page begins; None on the last page."""
