"""The seam for slices that make jobs and follow what becomes of them.

A slice has operations of its own, and a part in each group: what its operations and the notices of the group lead to is gathered
in one unit of work, and written once. So what a settlement causes and what an operation of the same group does can meet. Slices
are registered where an engine is made, which is ``server.build`` alone; an engine calls what is registered, and knows none of
them. Each brings its tables for each kind of engine, on what that engine gives it (``Ground``).

Order, in each group: locks; what may end jobs; then slice by slice, in the order of their registration, what follows from the
notices, its operations, its writes; then submissions, claims and the rest (``storage.phases``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mainspring.jobs.owners import owner
from mainspring.jobs.store import Settle
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice, Notices
    from mainspring.jobs.store import Found
    from mainspring.storage.operation import Operation
    from mainspring.storage.plan import Plan
    from mainspring.storage.query import Query

T_contra = TypeVar("T_contra", contravariant=True)
T = TypeVar("T")
Op = TypeVar("Op", bound="Operation")


class JobLifecycle(Protocol):
    """What a node does for the jobs that a store makes by itself in a transaction, because others have ended or a time has come.

    All methods are called on the node's thread.
    """

    def next_id(self) -> int:
        """Return the id of a new job."""

    def reserve(self, job: Job, term: int) -> bool:
        """Hear of a new job before it is written; False where it may not be: a job in this node's memory has its unique.

        Where a worker of the node waits for it, a pending job becomes one that is leased to the node under ``term``, which is
        ``Ground.term``; it is to be written as it is then. After True exactly one of the following two is called with it.
        """

    def stored(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs are committed, before the outcomes of their group are."""

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs were not written after all: they joined others, or their transaction failed."""

    def stop(self, ids: Sequence[int], why: str) -> None:
        """Cancel jobs, as after a commit that has replaced them; ``why`` is for people."""


class Ground(Protocol):
    """What each engine gives a slice inside a transaction.

    Methods are coroutines for engines behind a network; others never suspend (``storage.synchronous``).
    """

    @property
    def lifecycle(self) -> JobLifecycle:
        """The node's own."""

    @property
    def term(self) -> int:
        """The term under which new jobs may be leased to this node in the transaction; 0 where none may be."""

    def node(self, term: int) -> str:
        """Return the name of the node that has or had a term; empty where it is not known."""

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function on the node's thread once the transaction is committed, before its outcomes are told."""

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function on the node's thread where the transaction is not committed."""

    async def submit(self, jobs: list[Job]) -> dict[int, Found]:
        """Store new jobs, as ``jobs.store.Submit`` does."""


class Unit(Protocol):
    """A slice's side of one transaction. It may be attempted more than once: each attempt has a unit of its own."""

    async def lock(self, plan: Plan) -> None:
        """Take the locks that a group will need, as far as its operations tell: before anything else happens in it.

        Only where transactions run side by side under locks.
        """

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Do what follows from what has happened to jobs that this slice owns."""

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run one of its operations; returns what gives its outcome once all is written."""

    async def flush(self) -> None:
        """Write what the rest has led to. It may make jobs, and end them."""


class Slice(Protocol[T_contra]):
    """A slice on one kind of engine, which hands it its own kind of transaction."""

    @property
    def kind(self) -> str:
        """The kind of the owners of its jobs."""

    @property
    def follows(self) -> Collection[type[Notice]]:
        """What it is told of."""

    @property
    def writes(self) -> Collection[type[Operation]]:
        """Its operations that write: of ``Phase.SLICES``, each run by a unit."""

    @property
    def handlers(self) -> Mapping[type[Operation], Callable[..., Any]]:
        """Handlers of its other operations, as the engine's own are."""

    @property
    def readers(self) -> Mapping[type[Query[Any]], Callable[..., Any]]:
        """What answers its queries, as the engine's own readers do."""

    def unit(self, tx: T_contra) -> Unit:
        """Begin a unit of work."""


async def run_alone(unit: Unit, operation: Operation) -> Any:
    """Run one operation as all that a unit does; returns its outcome."""
    outcome = await unit.run(operation)
    await unit.flush()
    return outcome()


def of_kind(plan: Plan, kind: type[Op]) -> Iterator[Op]:
    """Return a group's operations of one kind."""
    for _, operation in plan.get(kind, ()):
        assert isinstance(operation, kind)
        yield operation


def settled_keys(plan: Plan, kind: str) -> set[Any]:
    """Return the keys of the owners of one kind whose jobs a group settles: what it may have to be locked for."""
    settlements = (one for operation in of_kind(plan, Settle) for one in operation.settlements)
    owners = (owner(one.job.options) for one in settlements if one.job.options is not None)
    return {one.key for one in owners if one is not None and one.kind == kind}


def concerns(plan: Plan, notices: Notices) -> bool:
    """Return whether a group has anything to do with slices; most have not."""
    return bool(notices) or any(kind.phase is Phase.SLICES for kind in plan)


class Units(Generic[T]):
    """The slices' side of one transaction."""

    def __init__(self, slices: Sequence[Slice[T]], tx: T) -> None:
        self._slices = slices
        self._tx = tx
        self._units: dict[str, Unit] = {}

    def _unit(self, one: Slice[T]) -> Unit:
        unit = self._units.get(one.kind)
        if unit is None:
            unit = self._units[one.kind] = one.unit(self._tx)
        return unit

    async def lock(self, plan: Plan) -> None:
        """Take the locks of all slices, in their order."""
        for one in self._slices:
            await self._unit(one).lock(plan)

    async def run(self, plan: Plan, notices: Notices, outcomes: list[Any]) -> None:
        """Follow the notices, run the operations of all slices, and write. What is written may lead to further notices."""
        if not concerns(plan, notices):
            return
        for one in self._slices:
            placed = [entry for kind, some in plan.items() if kind in one.writes for entry in some]
            await self._step(one, notices.pop(one.kind, ()), placed, outcomes)
        while notices:
            kind, left = notices.popitem()
            for one in self._slices:
                if one.kind == kind:
                    await self._step(one, left, (), outcomes)

    async def _step(
        self, one: Slice[T], notices: Iterable[Notice], placed: Sequence[tuple[int, Operation]], outcomes: list[Any]
    ) -> None:
        followed = [notice for notice in notices if type(notice) in one.follows]
        if not followed and not placed:
            return
        unit = self._unit(one)
        if followed:
            await unit.follow(followed)
        answers = [(place, await unit.run(operation)) for place, operation in placed]
        await unit.flush()
        for place, answer in answers:
            outcomes[place] = answer()
