"""What nodes do in a store because of each other: take back what others held, and note who waits where."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from mainspring.jobs.rules import Outcome
from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement


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


def tally(jobs: Iterable[Job]) -> dict[tuple[bytes, int], int]:
    """Count jobs by function and priority."""
    return dict(Counter([(job.function, job.priority) for job in jobs]))


def lost_attempts(settlements: Iterable[Settlement]) -> frozenset[LostAttempt]:
    """Return the attempts among what was recovered; see ``rules.recovered``."""
    return frozenset(
        LostAttempt(one.job.id, one.job.function, one.counted) for one in settlements if one.outcome is Outcome.LOST
    )


class Subscribe(Operation):
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


class Unsubscribe(Operation):
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


class FindSubscribers(Operation):
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


class ReadBacklog(Operation):
    """Look at what waits in a shared store: other nodes put it there, or take it. Outcome: ``Backlog``.

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


class Backlog(NamedTuple):
    """The outcome of Look, as it was at some moment of the last seconds."""

    pending: dict[tuple[bytes, int], int]
    """By function and priority."""
    live: dict[bytes, int]
    """How many jobs of each function have not ended."""
    next_us: int
    """When the next job becomes due or expires: 0 where nothing waits for a time."""
    inbox: bool = False
    """Whether users' own transactions have submitted jobs that nobody has moved on."""


class DrainInbox(Operation):
    """Move jobs on that users' own transactions have submitted and committed, as many as the limit says.

    Jobs whose unique is taken join, as in ``Submit``; their ids lead to the job that they have joined, wherever one is looked up.
    Outcome: ``DrainedInbox``.
    """

    __slots__ = ()

    phase = Phase.INBOX

    def __init__(self, limit: int = 1000) -> None:
        super().__init__()
        self.rows = limit


class DrainedInbox(NamedTuple):
    """The outcome of TakeInbox."""

    pending: dict[tuple[bytes, int], int]
    """How many jobs of each function and priority are pending now."""
    next_us: int
    """When the first of those that are not due yet will be: 0 where there is none."""
    more: bool
    """Whether the limit was reached."""
