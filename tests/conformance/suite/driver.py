"""A driver of an engine for tests: it commits one group at a time, and returns the outcomes as values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from mainspring.errors import StoreError
from mainspring.events import Relay
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Counts, Job, Options, Priority, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.nodes.model import MembershipPort, NodeRow
from mainspring.queries import JobFilter, QueryJobs
from mainspring.storage.engine import DEFERRED, Engine
from mainspring.storage.reads import BUDGET
from tests.conformance.suite.lifecycle import RecordedLifecycle
from tests.conformance.suite.paging import answer, everything

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from mainspring.events import Message
    from mainspring.storage.engine import Budget, Opened, Operation, PageQuery, Query

T = TypeVar("T")

Make = Callable[[], Engine]
"""Returns an engine, not yet opened, on the content committed so far."""

GROUP_TIMEOUT = 60.0
"""Seconds after which an unanswered group counts as lost."""

NO_LIMIT = 1_000_000
NOW = 1_700_000_000_000_000
"""The time of day in these tests, in microseconds."""


def deliver_late(late: asyncio.Future[Any], outcome: Any) -> None:
    """Deliver an outcome that the engine reports apart from its group's."""
    if isinstance(outcome, StoreError):
        late.set_exception(outcome)
    else:
        late.set_result(outcome)


def new_job(
    job_id: int,
    term: int,
    function: bytes = b"f",
    payload: bytes = b"p",
    *,
    unique: bytes = NO_UNIQUE,
    priority: Priority = Priority.NORMAL,
    state: State = State.PENDING,
    due_us: int = 0,
    expires_us: int = 0,
    created_us: int = NOW,
    options: Options | None = None,
    foreground: bool = False,
    key: bytes = b"",
) -> Job:
    """Return a job as a node submits it; a leased one is leased to ``term``."""
    return Job(
        job_id,
        function,
        payload,
        unique=unique,
        priority=int(priority),
        state=int(state),
        created_us=created_us,
        due_us=due_us,
        expires_us=expires_us,
        options=options,
        term=term if state is State.LEASED else 0,
        input_size=len(payload),
        foreground=foreground,
        key=key,
    )


class SharedEngine(Engine, Relay, MembershipPort, Protocol):
    """The ports of a store that several nodes have open at once."""


class Store:
    """An engine that is open for a node."""

    def __init__(self, make: Make, node: str = "n1", loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Open an engine for a node; with a ``loop``, in the event loop of another store, which owns it."""
        self._make = make
        self._loop = loop
        self._borrows_loop = loop is not None
        self._others: list[Store] = []
        self.messages: list[Message] = []
        """The messages from the relay of a shared store to this node."""
        self._arrived = asyncio.Event()
        self.engine: Engine
        self.opened: Opened
        self.open(node)

    def beside(self, node: str = "n2") -> Store:
        """Open another engine on the same content, for another node; it is closed with this one."""
        other = Store(self._make, node, self._loop)
        self._others.append(other)
        return other

    # ---- the engine ----

    def open(self, node: str = "n1") -> None:
        """Open an engine on the content committed so far."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self.engine = self._make()
        self.messages = []
        self.lifecycle = RecordedLifecycle(self.new_id)
        if self.engine.shared:
            self.fleet.listen(self._receive)
        try:
            opening = self.engine.open(NodeId(node), self._loop.call_soon_threadsafe, self.lifecycle)
            self.opened = self._run(opening)
        except BaseException:
            if not self._borrows_loop:
                self._loop.close()
            self._loop = None
            raise
        self.term = self.opened.term
        self._ids = job_ids(self.term)

    def new_id(self) -> int:
        """Return the id of a new job."""
        return self._ids()

    def reopen(self, node: str = "n1") -> None:
        """Close the engine and open the next one, under the next term."""
        self.close_engine()
        self.open(node)

    def close_engine(self) -> None:
        """Close the engine; further calls close it again."""
        self._run(self.engine.close())

    def close(self) -> None:
        """Close the engine and the stores opened beside it."""
        while self._others:
            self._others.pop().close()
        if self._loop is not None:
            self.close_engine()
            if not self._borrows_loop:
                self._loop.close()
            self._loop = None

    def run(self, work: Coroutine[Any, Any, T], timeout: float = GROUP_TIMEOUT) -> T:
        """Do work in the loop of this store, within some seconds."""
        assert self._loop is not None, "the store is closed"
        return self._loop.run_until_complete(asyncio.wait_for(work, timeout))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run(work)

    def group(self, *operations: Operation) -> list[Any]:
        """Commit a group and return its outcomes; raises the StoreError if it failed."""
        return self._run(self.committed(operations))

    def groups(self, *groups: tuple[Store, Sequence[Operation]]) -> list[list[Any] | StoreError]:
        """Commit groups of several stores concurrently; return the outcomes of each, or its StoreError."""

        async def outcome(store: Store, group: Sequence[Operation]) -> list[Any] | StoreError:
            try:
                return await store.committed(group)
            except StoreError as error:
                return error

        async def outcomes() -> list[list[Any] | StoreError]:
            return list(await asyncio.gather(*(outcome(*group) for group in groups)))

        return self._run(outcomes())

    async def committed(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit a group and return its outcomes; raises the StoreError if it failed."""
        answers: list[Sequence[Any] | StoreError] = []
        answered = asyncio.Event()

        def answer(outcomes: Sequence[Any] | StoreError) -> None:
            answers.append(outcomes)
            answered.set()

        loop = asyncio.get_running_loop()
        later: list[asyncio.Future[Any]] = [loop.create_future() for _ in operations]
        self.engine.commit(operations, answer, lambda place, outcome: deliver_late(later[place], outcome))
        await answered.wait()
        assert len(answers) == 1, "a group is answered once"
        outcomes = answers[0]
        if isinstance(outcomes, StoreError):
            raise outcomes
        assert len(outcomes) == len(operations), "each operation has its outcome"
        for outcome in outcomes:
            if isinstance(outcome, StoreError):
                raise outcome
        return [await late if outcome is DEFERRED else outcome for outcome, late in zip(outcomes, later, strict=True)]

    def read(self, query: Query[T], budget: Budget = BUDGET) -> T:
        """Run a query once; raises the StoreError if it failed."""
        return self._run(answer(self.engine, query, budget))

    def all_of(self, query: PageQuery[T], budget: Budget = BUDGET) -> list[T]:
        """Return all items of a query, up to its limit, in as many reads as needed."""
        return self._run(everything(self.engine, query, budget))

    # ---- shared stores ----

    @property
    def fleet(self) -> SharedEngine:
        """The engine, with the ports of a shared one."""
        assert self.engine.shared
        return cast("SharedEngine", self.engine)

    def end_term(self, term: int) -> None:
        """End a term, the first step of recovering a dead node."""
        assert self._run(self.fleet.end(term))

    def beat(self) -> list[str]:
        """Write this node's heartbeat; return the names of the draining nodes."""
        rows = self._run(self.fleet.beat(NodeRow(term=self.term, name=self.opened.nodes[self.term], counter=1)))
        return [row.name for row in rows if row.draining]

    def members(self) -> list[str]:
        """Return the names of the nodes whose terms have not ended, in the order of their terms."""
        return [row.name for row in sorted(self._run(self.fleet.rows()), key=lambda row: row.term)]

    def drain(self, term: int, *, draining: bool = True) -> bool:
        """Set or clear a node's request to drain."""
        return self._run(self.fleet.ask_to_drain(term, draining=draining))

    def draining(self) -> list[str]:
        """Return the names of the nodes that are to drain, as their rows show."""
        return [row.name for row in self._run(self.fleet.rows()) if row.draining]

    def abandoned(self) -> list[int]:
        """Return the ended terms that still have jobs or waiters."""
        return [*self._run(self.fleet.abandoned())]

    def wait_for(self, wanted: Callable[[list[Message]], bool]) -> None:
        """Wait until the messages to this node satisfy a condition."""

        async def listen() -> None:
            while not wanted(self.messages):
                self._arrived.clear()
                await self._arrived.wait()

        self._run(listen())

    def _receive(self, message: Message) -> None:
        self.messages.append(message)
        self._arrived.set()

    # ---- values ----

    def job(self, *values: Any, **fields: Any) -> Job:
        """Return a new job, see `new_job`; a leased one is leased to this term."""
        return new_job(self.new_id(), self.term, *values, **fields)

    # ---- operations, each in its own group ----

    def submit(self, *jobs: Job) -> dict[int, ops.Found]:
        """Submit jobs in one operation."""
        (joined,) = self.group(ops.Submit(list(jobs)))
        assert isinstance(joined, dict)
        return joined

    def submitted(self, **values: Any) -> Job:
        """Create a job, submit it, and return it."""
        job = self.job(**values)
        assert self.submit(job) == {}
        return job

    def claim(self, function: bytes = b"f", limit: int = NO_LIMIT) -> list[Job]:
        """Claim jobs of one function."""
        ((claimed,),) = self.group(ops.Claim(self.term, [ops.ClaimRequest(function, limit)]))
        return list(claimed)

    def leased(self, **values: Any) -> Job:
        """Submit a job and claim it."""
        job = self.submitted(**values)
        (claimed,) = [one for one in self.claim(job.function) if one.id == job.id]
        return claimed

    def settle(self, *settlements: Settlement) -> set[int]:
        """Settle jobs in one operation."""
        (stale,) = self.group(ops.Settle(list(settlements)))
        assert isinstance(stale, set)
        return stale

    def end(self, job: Job, event: Event = Event.SUCCEED, *, at: int = NOW, **values: Any) -> None:
        """Settle a held job, counting the attempt."""
        assert self.settle(Settlement(job, event, job.attempt + 1, ended_us=at, **values)) == set()

    def assign(self, *jobs: Job) -> None:
        """Record that jobs run."""
        assert self.group(ops.Assign(list(jobs))) == [None]

    def cancel(self, job_id: int, error: bytes = b"", now_us: int = NOW) -> ops.Cancelled:
        """Cancel a job."""
        (cancelled,) = self.group(ops.Cancel(job_id, error, now_us))
        assert isinstance(cancelled, ops.Cancelled)
        return cancelled

    def redrive(self, job_id: int) -> ops.Redriven:
        """Redrive a job."""
        (redriven,) = self.group(ops.Redrive(job_id))
        assert isinstance(redriven, ops.Redriven)
        return redriven

    def wake(self, now_us: int, limit: int = 1000) -> ops.Woken:
        """Wake due jobs."""
        (woken,) = self.group(ops.Wake(now_us, limit))
        assert isinstance(woken, ops.Woken)
        return woken

    def sweep(self, ended_before_us: int, dead_before_us: int, limit: int = 1000) -> int:
        """Forget ended jobs."""
        (forgotten,) = self.group(ops.Sweep(ended_before_us, dead_before_us, limit))
        assert isinstance(forgotten, int)
        return forgotten

    def recover(self) -> int:
        """Recover the jobs of other terms; return their number."""
        (recovered,) = self.group(ops.Recover(self.term))
        assert isinstance(recovered, ops.Recovered)
        assert sum(recovered.pending.values()) == recovered.number
        return recovered.number

    def find(self, job_id: int) -> Job | None:
        """Return a job, or None."""
        (found,) = self.group(ops.Find([job_id], room=2**40))
        assert set(found) <= {job_id}
        job = found.get(job_id)
        assert job is None or isinstance(job, Job)
        return job

    def present(self, job_id: int) -> Job:
        """Return a job that must be present."""
        job = self.find(job_id)
        assert job is not None
        return job

    def state(self, job_id: int) -> State | None:
        """Return a job's state, or None."""
        job = self.find(job_id)
        return None if job is None else State(job.state)

    def find_unique(self, *keys: tuple[bytes | ops.InNamespace, bytes]) -> list[ops.Found | None]:
        """Return live jobs by their uniques."""
        (found,) = self.group(ops.FindUnique(list(keys)))
        assert isinstance(found, list)
        return found

    def list(
        self, state: State | None = None, *, after: int | None = None, limit: int = NO_LIMIT, **criteria: Any
    ) -> list[Job]:
        """List jobs; without a limit all that match."""
        where = JobFilter(states=() if state is None else (state,), **criteria)
        return self.all_of(QueryJobs(where=where, after=after, limit=limit))

    def counts(self) -> dict[tuple[bytes, int, int], int]:
        """Return the counts, and check them against the jobs.

        These are several reads. A master on ZooKeeper may wake a job between them, so they are repeated if the counts changed.
        """
        counts = None
        while counts != (counts := self.group(ops.Count())[0]):
            live = self.read(ops.ShowCounts(limit=NO_LIMIT))
            recount = Counts()
            for job in self.list():
                recount.add(job.function, job.state, job.priority)
        assert counts == recount, "the counts are those of the jobs"
        assert live.counts == {key: number for key, number in counts.items() if not State(key[1]).ended}
        assert live.next is None
        dead = ops.Counted({key: number for key, number in counts.items() if key[1] == State.FAILED})
        assert self.read(ops.ShowCounts(dead=True, functions=tuple({function for function, _, _ in counts}))) == dead
        assert self.read(ops.ShowCounts(dead=True, limit=NO_LIMIT)) == dead
        assert isinstance(counts, dict)
        return counts


def released(job: Job) -> Settlement:
    """Return the settlement that releases a held job without counting the delivery."""
    return Settlement(job, Event.RELEASE, job.attempt)


def done(job: Job, result: bytes = b"r", now_us: int = NOW) -> Settlement:
    """Return the settlement of a held job that succeeded."""
    return rules.succeeded(job, result, now_us - 1, now_us)
