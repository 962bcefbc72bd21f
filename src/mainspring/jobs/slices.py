"""The interface of slices that create jobs and process their changes of state.

A slice has operations of its own, and a part in each group: the consequences of its operations and of the group's notices are
gathered in one unit of work (`SliceWork`), and written once. So a settlement and an operation of the same group can affect the
same rows. ``server.engines`` alone registers slices when it creates an engine; an engine calls the registered slices, and depends
on none of them. Each slice has its tables for each kind of engine, and uses the engine's services for slices
(`SliceTransaction`).

Order, in each group: locks; operations that may end jobs; then slice by slice, in the order of registration, the notices, the
slice's operations, its writes; then submissions, claims and the rest (``storage.phases``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from mainspring.jobs.owners import owner
from mainspring.jobs.store import Settle
from mainspring.storage.engine import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mainspring.event_log.interests import NewEvents
    from mainspring.jobs.lateness import DueRow
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.owners import Notice, Notices
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.store import Found, Rescheduled, Withdrawn
    from mainspring.resources.hold_store import AskHolds
    from mainspring.storage.engine import Operation, Plan, Query

T_contra = TypeVar("T_contra", contravariant=True)
T = TypeVar("T")
Op = TypeVar("Op", bound="Operation")


class JobLifecycle(Protocol):
    """A node's handling of jobs that a store creates in a transaction, because other jobs have ended or a time has come.

    All methods are called on the node's thread.
    """

    def next_id(self) -> int:
        """Return the id of a new job."""

    def reserve(self, job: Job, term: int) -> bool:
        """Reserve a new job before it is written; return False if it may not be: a job in this node's memory has its unique.

        If a worker of the node waits for it, a pending job is leased to the node under ``term``, which is ``Ground.term``; the
        engine writes it as it is afterwards. After True exactly one of ``stored`` and ``dropped`` is called with it.
        """

    def add_times(self, job: Job) -> None:
        """Add the times of its function to a new root job, which is not reserved, where it has none of its own."""

    def stored(self, jobs: Sequence[Job]) -> None:
        """Process committed jobs, before the outcomes of their group are delivered."""

    def waits(self, jobs: Sequence[Job], filled: Sequence[tuple[bytes, Sequence[bytes], Filled]]) -> None:
        """Process committed new jobs whose runs wait for places, and for which their transaction has filled these.

        ``filled`` has the functions and the keys of those at which the node has to look again, with what became of the places.
        """

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Release jobs that were not written after all: they joined others, or their transaction failed."""

    def cancel(self, ids: Sequence[int], why: str) -> None:
        """Cancel jobs, as after a commit that has replaced them; ``why`` is a text for users."""

    def stop(self, ids: Collection[int], why: str) -> None:
        """Ask the workers of held jobs to stop, after the commit of a request for it; ``why`` is a text for users."""

    def begun(self, new: Sequence[Job], taken: Sequence[Job] = ()) -> None:
        """Process committed root jobs: new ones, and those that waited before, as they were then."""

    def rescheduled(self, outcomes: Sequence[Rescheduled]) -> None:
        """Process committed changes of the due times of waiting jobs."""

    def ended(self, jobs: Sequence[Job]) -> None:
        """Process the committed ends of root jobs: count them, and notify their clients and watchers."""

    def dated(self, rows: Sequence[DueRow]) -> None:
        """Process committed times by which jobs should have begun and ended."""

    def withdrawn(self, jobs: Sequence[Withdrawn], *, stop: bool = True) -> None:
        """Process the committed deletion of live jobs: forget those that this node holds, without settling them.

        Their workers are asked to stop, unless ``stop`` is False, because they have reported the end themselves. A settlement
        that comes later is stale.
        """


class SliceTransaction(Protocol):
    """The services of an engine for a slice inside a transaction.

    Methods are coroutines for engines behind a network; others never suspend (``storage.synchronous``).
    """

    @property
    def lifecycle(self) -> JobLifecycle:
        """The node's lifecycle."""

    @property
    def term(self) -> int:
        """The term under which new jobs may be leased to this node in the transaction; 0 if none may be."""

    @property
    def events(self) -> NewEvents:
        """The events of the transaction, to which a slice adds its own."""

    def node(self, term: int) -> str:
        """Return the name of the node that has or had a term; empty if it is unknown."""

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function on the node's thread once the transaction is committed, before its outcomes are delivered."""

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function on the node's thread if the transaction is not committed."""

    async def submit(self, jobs: list[Job]) -> dict[int, Found]:
        """Store new jobs, as ``jobs.store.Submit`` does."""


async def submit_new(tables: SliceTransaction, jobs: list[Job]) -> None:
    """Store new jobs, which have no unique. They are leased to this node if its workers wait for them."""
    lifecycle = tables.lifecycle
    for job in jobs:
        reserved = lifecycle.reserve(job, tables.term)
        assert reserved, "a job without a unique joins none"
    tables.after_rollback(lambda: lifecycle.dropped(jobs))
    await tables.submit(jobs)
    tables.after_commit(lambda: lifecycle.stored(jobs))


class RunTransaction(SliceTransaction, Protocol):
    """The further services of an engine that keeps runs of workflows (``storage.engine.Engine.workflows``).

    A *root job* stands for a run: it is RUNNING under the term ``model.RUNS`` and has no payload. It is found, listed, counted,
    joined and awaited as any running job, but no node holds it, and no operation of the jobs slice ends or deletes it.
    """

    async def begin_roots(self, jobs: list[Job]) -> dict[int, Found]:
        """Store new jobs as root jobs, which began at ``started_us``. They keep ``input_size``, and lose their payloads.

        Guard and outcome are those of ``jobs.store.Submit``. The jobs themselves do not change. After the commit
        ``JobLifecycle.begun`` has to be called with those that were stored.
        """

    async def take_pending(self, function: bytes, limit: int, now_us: int) -> list[Job]:
        """Turn pending jobs of a function into root jobs, in the order of a claim; return them whole, as they were before.

        After the commit ``JobLifecycle.begun`` has to be called with them.
        """

    async def take_waiting(self, ids: Iterable[int], now_us: int) -> list[Job]:
        """Do the same with those of some jobs that are PENDING or SCHEDULED."""

    async def end_roots(self, jobs: Iterable[Job]) -> list[Job]:
        """End live root jobs, each with ``state``, ``ended_us``, ``result`` and ``error`` of the job given, and one attempt.

        Return those that ended, complete but for the payload: after the commit ``JobLifecycle.ended`` has to be called with them.
        The others were no live root jobs. The owners of the jobs get the notice ``Ended``. The rows keep their term, and stay
        until ``forget_roots`` unless the options say otherwise.
        """

    async def forget_roots(self, ids: Iterable[int]) -> int:
        """Delete ended root jobs; return how many there were."""

    async def withdraw(self, ids: Iterable[int]) -> list[Withdrawn]:
        """Delete jobs that have not ended, whatever holds them, without notices; return those that there were.

        After the commit ``JobLifecycle.withdrawn`` has to be called with them.
        """

    async def request_stop(self, jobs: Sequence[tuple[int, int | None]], request: StopRequest) -> set[int]:
        """Store a request to cancel held jobs, as ``jobs.store.RequestStop`` does.

        After the commit ``JobLifecycle.stop`` has to be called with the jobs returned.
        """

    async def is_held(self, job_id: int, term: int) -> bool:
        """Return whether a job is held under a term."""

    def ask_holds(self, ask: AskHolds) -> None:
        """Ask for slots of resources, and give some back, with the questions of the group (``Phase.HOLDS``).

        Answers to runs become errands.
        """


class SliceWork(Protocol):
    """A slice's side of one transaction. It may be attempted more than once: each attempt has a unit of its own."""

    async def lock(self, plan: Plan) -> None:
        """Acquire the locks that a group will need by its operations, before anything else happens in it.

        Only where transactions run side by side under locks.
        """

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Process the notices about jobs that this slice owns."""

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run one of its operations; return a function that returns the outcome once all is written."""

    async def flush(self) -> None:
        """Write all changes of the unit. It may create and end jobs."""


@runtime_checkable
class TakesErrands(Protocol):
    """A slice whose errands other parts of a group may store."""

    def errands_stored(self) -> None:
        """Do them soon. It is called on the node's thread, after the commit."""


class Slice(Protocol[T_contra]):
    """A slice on one kind of engine, which hands it its own kind of transaction."""

    @property
    def kind(self) -> str:
        """The kind of the owners of its jobs."""

    @property
    def follows(self) -> Collection[type[Notice]]:
        """The kinds of notices that it processes."""

    @property
    def writes(self) -> Collection[type[Operation]]:
        """Its operations that write: of ``Phase.SLICES``, each run by a unit."""

    @property
    def handlers(self) -> Mapping[type[Operation], Callable[..., Any]]:
        """Handlers of its other operations, as the engine's own are."""

    @property
    def readers(self) -> Mapping[type[Query[Any]], Callable[..., Any]]:
        """Readers of its queries, as the engine's own are."""

    def unit(self, tx: T_contra) -> SliceWork:
        """Begin a unit of work."""


async def run_alone(unit: SliceWork, operation: Operation) -> Any:
    """Run one operation as the only work of a unit; return its outcome."""
    outcome = await unit.run(operation)
    await unit.flush()
    return outcome()


def of_kind(plan: Plan, kind: type[Op]) -> Iterator[Op]:
    """Return a group's operations of one kind."""
    for _, operation in plan.get(kind, ()):
        assert isinstance(operation, kind)
        yield operation


def settled_keys(plan: Plan, kind: str) -> set[Any]:
    """Return the keys of the owners of one kind whose jobs a group settles: these may have to be locked."""
    settlements = (one for operation in of_kind(plan, Settle) for one in operation.settlements)
    owners = (owner(one.job.options) for one in settlements if one.job.options is not None)
    return {one.key for one in owners if one is not None and one.kind == kind}


def concerns(plan: Plan, notices: Notices) -> bool:
    """Return whether a group concerns slices; most do not."""
    return bool(notices) or any(kind.phase is Phase.SLICES for kind in plan)


class Units(Generic[T]):
    """The slices' side of one transaction."""

    def __init__(self, slices: Sequence[Slice[T]], tx: T) -> None:
        self._slices = slices
        self._tx = tx
        self._units: dict[str, SliceWork] = {}

    def _unit(self, one: Slice[T]) -> SliceWork:
        unit = self._units.get(one.kind)
        if unit is None:
            unit = self._units[one.kind] = one.unit(self._tx)
        return unit

    async def lock(self, plan: Plan) -> None:
        """Acquire the locks of all slices, in their order."""
        for one in self._slices:
            await self._unit(one).lock(plan)

    async def run(self, plan: Plan, notices: Notices, outcomes: list[Any]) -> None:
        """Process the notices, run the operations of all slices, and write. The writes may cause further notices."""
        if not concerns(plan, notices):
            return
        for one in self._slices:
            placed = [entry for kind, some in plan.items() if kind in one.writes for entry in some]
            own = notices.pop(one.kind, ())
            if own or placed:  # most groups concern one slice
                await self._step(one, own, placed, outcomes)
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
