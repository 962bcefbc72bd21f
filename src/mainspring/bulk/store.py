"""The port of operations on many jobs: requests to a store with their outcomes, queries, and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mainspring.access.audit import Acting
from mainspring.bulk.rules import BulkOperation, Outcome, Result, Status, Touched
from mainspring.storage.engine import Operation, PageQuery, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.access.idempotency import KeyedAct
    from mainspring.jobs.model import Job
    from mainspring.queries.filters import JobFilter
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Page

KEPT_STEPS = 500
"""Steps that one ``SweepBulk`` deletes at most."""


class BeginBulk(Acting):
    """Store a new operation, on which the node works under its term. Outcome: ``BulkOperation``; see `Acting`."""

    __slots__ = ("bulk",)

    phase = Phase.SLICES

    def __init__(self, bulk: BulkOperation, act: Act | None = None, keyed_act: KeyedAct | None = None) -> None:
        super().__init__(act, keyed_act)
        self.bulk = bulk


class TakeBulk(Operation):
    """Take over an operation. Guards: it runs, can be read, and the term of its node has ended or is the node's own.

    Outcome: ``BulkOperation | None``.
    """

    __slots__ = ("id",)

    phase = Phase.SLICES

    def __init__(self, bulk_id: int) -> None:
        super().__init__()
        self.id = bulk_id


class StepBulk(Operation):
    """Give some jobs their turn, and move the operation's place on, in one transaction.

    Guards: the operation runs under the node's term, and has this ``revision``. So a step that is repeated, by a node that does
    not know its outcome or by the next node, changes nothing. Each job is looked up in the transaction. ``refused`` has the
    results of jobs that this node cannot change, ``stopped`` the number of held jobs of the step before that have ended at once.
    ``ahead`` is the number of following jobs that it also reads, if it can do so quickly.
    Outcome: ``Stepped``.
    """

    __slots__ = ("after", "ahead", "id", "ids", "is_last", "now_us", "refused", "revision", "stopped")

    phase = Phase.SLICES
    is_request = True

    def __init__(
        self,
        bulk: BulkOperation,
        ids: Sequence[int],
        after: int | None,
        now_us: int,
        *,
        is_last: bool,
        refused: Mapping[int, Result] | None = None,
        stopped: Mapping[Outcome, int] | None = None,
        ahead: int = 0,
    ) -> None:
        super().__init__()
        self.id = bulk.id
        self.revision = bulk.revision
        self.ids = ids
        self.after = after
        self.now_us = now_us
        self.is_last = is_last
        self.refused = refused or {}
        self.stopped = stopped or {}
        self.ahead = ahead
        self.rows = max(len(ids), 1)
        self.size += 64 * len(ids)
        self.urgent = False


class StepBackfill(Operation):
    """Fire the next past fire times of a schedule, and move the backfill's place on, in one transaction.

    Guards: those of `StepBulk`. ``limit`` is the most fire times; ``permits`` returns whether the caller may run a function.
    Outcome: ``Stepped``.
    """

    __slots__ = ("id", "limit", "now_us", "permits", "revision", "schedule")

    phase = Phase.SLICES
    is_request = True

    def __init__(self, bulk: BulkOperation, limit: int, now_us: int, permits: Callable[[str], bool]) -> None:
        super().__init__()
        self.id = bulk.id
        self.revision = bulk.revision
        self.schedule = bulk.spec.schedule
        self.limit = limit
        self.now_us = now_us
        self.permits = permits
        self.rows = limit
        self.urgent = False


class Stepped(NamedTuple):
    """The outcome of StepBulk and StepBackfill."""

    bulk: BulkOperation | None
    """The operation now; None if it does not exist."""
    stepped: bool
    """Whether the guards held."""
    outcomes: Sequence[Any] = ()
    """The outcomes of the jobs' own operations: such as ``jobs.store.Redriven``."""
    seconds: float = 0.0
    """The seconds by which the step has extended its group, without those of reading the following jobs."""
    following: Page[Job] | None = None
    """The jobs behind those of the step, if it has read them."""


class EndBulk(Acting):
    """End an operation early. Guard: it runs, on any node, and can be read. Outcome: ``BulkOperation | None``, as it is then."""

    __slots__ = ("id", "namespace", "now_us", "status", "why")

    phase = Phase.SLICES

    def __init__(
        self, namespace: str, bulk_id: int, status: Status, why: str, now_us: int, act: Act | None = None
    ) -> None:
        super().__init__(act)
        self.namespace = namespace
        self.id = bulk_id
        self.status = status
        self.why = why
        self.now_us = now_us

    def recorded(self, outcome: BulkOperation | None) -> Act | None:
        """Return the act if this has ended the operation."""
        is_mine = outcome is not None and (outcome.status, outcome.ended_us) == (self.status, self.now_us)
        return self.act if is_mine else None


class SweepBulk(Operation):
    """Delete operations that ended before a time, and the lists of their jobs: some of them. Outcome: the number of rows."""

    __slots__ = ("before_us",)

    phase = Phase.SLICES

    def __init__(self, before_us: int) -> None:
        super().__init__()
        self.before_us = before_us
        self.rows = KEPT_STEPS


class ShowBulk(Query[BulkOperation | None], frozen=True):
    """Read an operation."""

    namespace: str
    id: int


class ListBulk(PageQuery[BulkOperation], frozen=True, kw_only=True):
    """List the operations of a namespace, the one with the highest id first. A page continues after an id."""

    namespace: str = "default"


class FindBulk(Query[list[BulkOperation]], frozen=True):
    """Read the running operations of all namespaces that no live node works on, or that this node works on."""

    term: int
    """This node's term."""


class ListTouched(PageQuery[Touched], frozen=True, kw_only=True):
    """List the jobs of an operation, step by step; ``limit`` counts steps. A page continues after the revision of a step."""

    id: int


class BulkTables(Protocol):
    """The tables of a store inside a transaction."""

    @property
    def term(self) -> int:
        """The node's own term."""

    async def load(self, bulk_id: int) -> BulkOperation | None:
        """Read an operation, and lock it where transactions run side by side."""

    async def save(self, bulk: BulkOperation, touched: bytes | None = None) -> None:
        """Write an operation, new or not, and the jobs of its last step."""

    async def is_over(self, term: int) -> bool:
        """Return whether the term has ended, so that its node cannot write any more."""

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        """Read jobs, without payloads and results, and lock them where transactions run side by side."""

    async def near(self, where: JobFilter, after: int, limit: int) -> Page[Job] | None:
        """Return the next jobs by a filter after an id, if ``limit`` of them are found quickly.

        So reads need no other thread, for whose work the groups of this one would wait.
        """

    async def perform(self, operations: Sequence[Operation]) -> Sequence[Any]:
        """Run operations of the jobs slice, all of one kind; return their outcomes."""

    async def backfill(self, step: Backfill) -> Backfilled:
        """Fire past fire times of a schedule; see ``schedules.unit.ScheduleUnit.backfill``."""

    async def sweep(self, before_us: int, limit: int) -> int:
        """Delete operations that ended before a time, after their steps, and at most ``limit`` rows. Return their number."""
