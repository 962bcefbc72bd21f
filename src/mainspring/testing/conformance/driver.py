"""Driving an engine as a node does, one group at a time, with the outcomes as values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from mainspring.errors import StoreError
from mainspring.events.relay import Relay
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.counts import Counts
from mainspring.jobs.model import NO_UNIQUE, Job, Options, Priority, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.nodes.model import NodeRow
from mainspring.nodes.store import MembershipPort
from mainspring.queries.jobs import ListJobs
from mainspring.storage.engine import Engine
from mainspring.storage.operation import DEFERRED
from mainspring.storage.reads import BUDGET
from mainspring.testing.conformance.noted import Noted
from mainspring.testing.conformance.paging import answer, everything

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from mainspring.events.relay import Message
    from mainspring.storage.engine import Opened
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Budget, PageQuery, Query

T = TypeVar("T")

Make = Callable[[], Engine]
"""Returns an engine, not yet opened, on what was committed so far."""

PATIENCE = 60.0
"""Seconds after which a group that was not answered counts as lost."""

EVERYTHING = 1_000_000
NOW = 1_700_000_000_000_000
"""The time of day in these tests, in microseconds."""


def give(late: asyncio.Future[Any], outcome: Any) -> None:
    """Take an outcome that comes apart from its group's."""
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
    """What a store that several nodes have open at once offers."""


class Store:
    """An engine that is open for a node."""

    def __init__(self, make: Make, node: str = "n1", loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Open an engine for a node; with a ``loop``, in that of another store, which is its owner."""
        self._make = make
        self._loop = loop
        self._borrows = loop is not None
        self._others: list[Store] = []
        self.heard: list[Message] = []
        """What the relay of a shared store has told this node."""
        self._told = asyncio.Event()
        self.engine: Engine
        self.opened: Opened
        self.open(node)

    def beside(self, node: str = "n2") -> Store:
        """Open another engine on the same content, for another node, as long as this one is open."""
        other = Store(self._make, node, self._loop)
        self._others.append(other)
        return other

    # ---- the engine ----

    def open(self, node: str = "n1") -> None:
        """Open an engine on what was committed so far."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self.engine = self._make()
        self.heard = []
        self.noted = Noted(self.new_id)
        if self.engine.shared:
            self.fleet.listen(self._hear)
        try:
            opening = self.engine.open(NodeId(node), self._loop.call_soon_threadsafe, self.noted)
            self.opened = self._run(opening)
        except BaseException:
            if not self._borrows:
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
        """Close the engine, and go on to another one, or close it again."""
        self._run(self.engine.close())

    def close(self) -> None:
        """Close the engine and be done with it, unless it is opened again."""
        while self._others:
            self._others.pop().close()
        if self._loop is not None:
            self.close_engine()
            if not self._borrows:
                self._loop.close()
            self._loop = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "the store is closed"
        return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def group(self, *operations: Operation) -> list[Any]:
        """Commit a group and return its outcomes; raises the StoreError where it failed."""
        return self._run(self.committed(operations))

    def groups(self, *groups: tuple[Store, Sequence[Operation]]) -> list[list[Any] | StoreError]:
        """Commit groups of stores beside each other at once; returns the outcomes of each, or why it failed."""

        async def outcome(store: Store, group: Sequence[Operation]) -> list[Any] | StoreError:
            try:
                return await store.committed(group)
            except StoreError as error:
                return error

        async def outcomes() -> list[list[Any] | StoreError]:
            return list(await asyncio.gather(*(outcome(*group) for group in groups)))

        return self._run(outcomes())

    async def committed(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit a group and return its outcomes; raises the StoreError where it failed."""
        answers: list[Sequence[Any] | StoreError] = []
        answered = asyncio.Event()

        def answer(outcomes: Sequence[Any] | StoreError) -> None:
            answers.append(outcomes)
            answered.set()

        loop = asyncio.get_running_loop()
        later: list[asyncio.Future[Any]] = [loop.create_future() for _ in operations]
        self.engine.commit(operations, answer, lambda place, outcome: give(later[place], outcome))
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
        """Ask a query once; raises the StoreError where it failed."""
        return self._run(answer(self.engine, query, budget))

    def all_of(self, query: PageQuery[T], budget: Budget = BUDGET) -> list[T]:
        """Return what a query finds, up to its limit, however many reads it takes."""
        return self._run(everything(self.engine, query, budget))

    # ---- what a shared store has beyond that ----

    @property
    def fleet(self) -> SharedEngine:
        """The engine, as one that several nodes share."""
        assert self.engine.shared
        return cast("SharedEngine", self.engine)

    def end_term(self, term: int) -> None:
        """End a term, as whoever recovers a dead node does first."""
        assert self._run(self.fleet.end(term))

    def beat(self) -> list[str]:
        """Beat for this node; returns the names of those that drain."""
        rows = self._run(self.fleet.beat(NodeRow(term=self.term, name=self.opened.nodes[self.term], counter=1)))
        return [row.name for row in rows if row.draining]

    def members(self) -> list[str]:
        """Return the names of the nodes whose terms have not ended, in the order of their terms."""
        return [row.name for row in sorted(self._run(self.fleet.rows()), key=lambda row: row.term)]

    def drain(self, term: int, *, draining: bool = True) -> bool:
        """Ask a node to drain, or no longer."""
        return self._run(self.fleet.ask_to_drain(term, draining=draining))

    def draining(self) -> list[str]:
        """Return the names of the nodes that were asked to drain, as they are read."""
        return [row.name for row in self._run(self.fleet.rows()) if row.draining]

    def abandoned(self) -> list[int]:
        """Return the ended terms that something is left of."""
        return [*self._run(self.fleet.abandoned())]

    def hears(self, wanted: Callable[[list[Message]], bool]) -> None:
        """Wait until what this node was told is enough."""

        async def listen() -> None:
            while not wanted(self.heard):
                self._told.clear()
                await self._told.wait()

        self._run(listen())

    def _hear(self, message: Message) -> None:
        self.heard.append(message)
        self._told.set()

    # ---- values ----

    def job(self, *values: Any, **fields: Any) -> Job:
        """Return a new job, see `new_job`; a leased one is leased to this term."""
        return new_job(self.new_id(), self.term, *values, **fields)

    # ---- operations, alone in a group ----

    def submit(self, *jobs: Job) -> dict[int, ops.Found]:
        """Submit in one operation."""
        (joined,) = self.group(ops.Submit(list(jobs)))
        assert isinstance(joined, dict)
        return joined

    def submitted(self, **values: Any) -> Job:
        """Make a job, submit it, and return it."""
        job = self.job(**values)
        assert self.submit(job) == {}
        return job

    def claim(self, function: bytes = b"f", limit: int = EVERYTHING) -> list[Job]:
        """Claim jobs of one function."""
        ((claimed,),) = self.group(ops.Claim(self.term, [ops.ClaimRequest(function, limit)]))
        return list(claimed)

    def leased(self, **values: Any) -> Job:
        """Submit a job and claim it."""
        job = self.submitted(**values)
        (claimed,) = [one for one in self.claim(job.function) if one.id == job.id]
        return claimed

    def settle(self, *settlements: Settlement) -> set[int]:
        """Settle in one operation."""
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
        """Wake what is due."""
        (woken,) = self.group(ops.Wake(now_us, limit))
        assert isinstance(woken, ops.Woken)
        return woken

    def sweep(self, ended_before_us: int, dead_before_us: int, limit: int = 1000) -> int:
        """Forget ended jobs."""
        (forgotten,) = self.group(ops.Sweep(ended_before_us, dead_before_us, limit))
        assert isinstance(forgotten, int)
        return forgotten

    def recover(self) -> int:
        """Give back what other terms hold."""
        (recovered,) = self.group(ops.Recover(self.term))
        assert isinstance(recovered, ops.Recovered)
        assert sum(recovered.pending.values()) == recovered.number
        return recovered.number

    def find(self, job_id: int) -> Job | None:
        """Look a job up."""
        (found,) = self.group(ops.Find([job_id], room=2**40))
        assert set(found) <= {job_id}
        job = found.get(job_id)
        assert job is None or isinstance(job, Job)
        return job

    def present(self, job_id: int) -> Job:
        """Look a job up that has to be there."""
        job = self.find(job_id)
        assert job is not None
        return job

    def state(self, job_id: int) -> State | None:
        """Look a job's state up."""
        job = self.find(job_id)
        return None if job is None else State(job.state)

    def find_unique(self, *keys: tuple[bytes | None, bytes]) -> list[ops.Found | None]:
        """Look live jobs up."""
        (found,) = self.group(ops.FindUnique(list(keys)))
        assert isinstance(found, list)
        return found

    def list(self, **which: Any) -> list[Job]:
        """List jobs; without a limit all that match."""
        return self.all_of(ListJobs(**{"limit": EVERYTHING, **which}))

    def counts(self) -> dict[tuple[bytes, int, int], int]:
        """Read the counts, and check that they are what counting finds."""
        (counts,) = self.group(ops.Count())
        live = self.read(ops.ShowLive(limit=EVERYTHING))
        recount = Counts()
        for job in self.list():
            recount.add(job.function, job.state, job.priority)
        assert counts == recount, "the counts are those of the jobs"
        assert live.counts == {key: number for key, number in counts.items() if not State(key[1]).ended}
        assert live.next is None
        assert isinstance(counts, dict)
        return counts


def again(job: Job) -> Settlement:
    """Give a held job back without counting the delivery."""
    return Settlement(job, Event.RELEASE, job.attempt)


def done(job: Job, result: bytes = b"r", now_us: int = NOW) -> Settlement:
    """Settle a held job as succeeded."""
    return rules.succeeded(job, result, now_us - 1, now_us)
