"""Nodes on an ensemble in memory, with the handlers only; tests call the master's steps themselves."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tests.conformance.suite.driver import new_job
from tests.conformance.suite.lifecycle import RecordedLifecycle
from tests.conformance.suite.paging import everything
from tests.zookeeper.driving import SLICES
from tests.zookeeper.memory import MemoryContent, MemoryTree

from mainspring.engines.zookeeper import changing, engine, paths, queries, records, recovering, settling, submitting
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.records import leased
from mainspring.engines.zookeeper.schedule_handlers import ZookeeperScheduleSlice
from mainspring.engines.zookeeper.sessions import Completion, LocalMaster, Session, Waiting
from mainspring.engines.zookeeper.tree import Create, Delete, Write
from mainspring.errors import StoreError
from mainspring.ids import NodeId, Term, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.queries import JobFilter, QueryJobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from typing import Self

    import pytest

    from mainspring.jobs.rules import Settlement
    from mainspring.storage.engine import Budget, Operation, Query

T = TypeVar("T")

NOW = 1_700_000_000_000_000
TIMEOUT = 20.0
HANDLERS = {
    **changing.HANDLERS,
    **queries.HANDLERS,
    **settling.HANDLERS,
    **submitting.HANDLERS,
    **recovering.HANDLERS,
}


async def no_claims(requests: object, asked: int) -> bool:
    """Refuse claims: only the nodes of `a_master` have them."""
    raise AssertionError(requests, asked)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, with a time-out."""
    return asyncio.run(asyncio.wait_for(work, TIMEOUT))


def falls_behind(tree: MemoryTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node's member of the ensemble return no nodes, until a sync."""
    get_many, sync = tree.get_many, tree.sync
    behind = True

    async def not_yet(at: Sequence[str]) -> list[Any]:
        return [None for _ in at] if behind else await get_many(at)

    async def caught_up() -> None:
        nonlocal behind
        await sync()
        behind = False

    monkeypatch.setattr(tree, "get_many", not_yet)
    monkeypatch.setattr(tree, "sync", caught_up)


READERS = {**queries.READERS, **ZookeeperScheduleSlice.readers}


class Node:
    """One term of a node."""

    def __init__(self, tree: MemoryTree, session: Session, noted: RecordedLifecycle) -> None:
        self.tree = tree
        self.session = session
        self.noted = noted
        self.new_id = noted.next_id
        self.completed: list[Completion] = []
        self.waiting: list[Waiting] = []

    def note(self) -> Self:
        """Record the reports of this node to a local master."""
        self.session.elect(LocalMaster(self.completed.extend, self.waiting.extend, no_claims))
        return self

    @property
    def hinted(self) -> list[bytes]:
        """The functions of the tasks that were reported to the master as pending."""
        return list(dict.fromkeys(one.job.function for one in self.waiting))

    async def handle(self, *operations: Operation) -> list[Any]:
        """Run the handler of some operations of one kind; returns their outcomes."""
        outcomes = await HANDLERS[type(operations[0])](self.session, operations)
        assert len(outcomes) == len(operations)
        return list(outcomes)

    async def one(self, operation: Operation) -> Any:
        """Run one operation, and return its outcome or raise its error."""
        (outcome,) = await self.handle(operation)
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def job(self, *values: Any, **fields: Any) -> Job:
        """Return a new job; a leased one is leased to this term."""
        return new_job(self.new_id(), self.session.term, *values, **fields)

    async def submit(self, *jobs: Job, waiter: int = 0) -> dict[int, ops.Found]:
        found: dict[int, ops.Found] = await self.one(ops.Submit(list(jobs), waiter))
        return found

    async def submitted(self, *, waiter: int = 0, **values: Any) -> Job:
        job = self.job(**values)
        assert await self.submit(job, waiter=waiter) == {}
        return job

    async def held(self, **values: Any) -> Job:
        """Submit a job that this node holds."""
        return await self.submitted(state=State.LEASED, **values)

    async def settle(self, *settlements: Settlement) -> set[int]:
        stale: set[int] = await self.one(ops.Settle(list(settlements)))
        return stale

    async def find(self, job_id: int) -> Job | None:
        found: dict[int, Job] = await self.one(ops.Find([job_id], 2**30))
        return found.get(job_id)

    async def present(self, job_id: int) -> Job:
        job = await self.find(job_id)
        assert job is not None
        return job

    async def state(self, job_id: int) -> State | None:
        job = await self.find(job_id)
        return None if job is None else State(job.state)

    async def listed(
        self, state: State | None = None, *, limit: int = 10**6, after: int | None = None, **criteria: Any
    ) -> list[Job]:
        where = JobFilter(states=() if state is None else (state,), **criteria)
        return await everything(self, QueryJobs(where=where, limit=limit, after=after))

    def read(self, query: Query[Any], budget: Budget, answered: Callable[[Any], None]) -> None:
        """Answer a query, as the engine does."""
        reading = queries.answer(READERS[type(query)], self.session, query, budget)
        asyncio.ensure_future(reading).add_done_callback(lambda task: answered(task.exception() or task.result()))

    async def counts(self) -> dict[tuple[bytes, int, int], int]:
        """Return the counts, after a comparison with the listed jobs."""
        counts: dict[tuple[bytes, int, int], int] = await self.one(ops.Count())
        counted: dict[tuple[bytes, int, int], int] = {}
        for job in await self.listed():
            key = (job.function, min(job.state, State.LEASED) if State(job.state).held else job.state, job.priority)
            counted[key] = counted.get(key, 0) + 1
        assert counts == counted
        return counts

    # ---- steps of the master ----

    async def assign_to(self, job: Job, holder: Node) -> Job:
        """Assign a pending task to a node, as the master does, and return the job as the node has it."""
        task = paths.task_name(job.function, job.unique, job.id)
        node = await self.tree.get(paths.pending(task))
        assert node is not None
        claimed = records.decode_job(records.decode(node.data))
        claimed.state, claimed.term = int(State.LEASED), holder.session.term
        await self.session.meet([job.id])
        handle = self.session.handle(job.id)
        entry = Entry(
            [
                Delete(paths.pending(task), node.version),
                Create(paths.running(task), records.encode_job(claimed, handle)),
                Create(paths.assignment(holder.session.who, task), leased(job.id, handle, claimed.attempt)),
            ],
            [(job.function, State.PENDING, job.priority, -1), (job.function, State.LEASED, job.priority, 1)],
        )
        assert await self.session.committer.commit([entry]) == [None]
        holder.session.assignments[job.id] = 0
        return claimed

    async def publish(self) -> list[int]:
        """Publish all completed tasks, and return their ids."""
        published = []
        for bucket in paths.BUCKETS:
            for task in await self.tree.children(f"{paths.COMPLETED}/{bucket}") or ():
                node, name = await self.tree.get_many([paths.completed(task), paths.name(task)])
                assert node is not None
                assert name is not None
                job = records.decode_job(records.decode(node.data))
                await self.session.meet([job.id])
                after = queries.name_after(queries.name_of(name), job, self.session.handle(job.id))
                entry = Entry(
                    [
                        Write(self.session.result(job.id), node.data),
                        Delete(paths.completed(task), node.version),
                        Delete(paths.name(task), name.version)
                        if after is None
                        else Write(paths.name(task), after, name.version),
                    ]
                )
                assert await self.session.committer.commit([entry]) == [None]
                published.append(job.id)
        return published


class Fleet:
    """Nodes on one content."""

    def __init__(self) -> None:
        self.content = MemoryContent()
        self.nodes: dict[int, str] = {}
        self._open: list[Node] = []

    async def join(self, name: str = "n1", **more: Any) -> Node:
        """Start a node's next term."""
        tree = MemoryTree(self.content)
        await tree.open()
        await engine.prepare_tree(tree)
        term = await engine.next_term(tree, NodeId(name))
        noted = RecordedLifecycle(job_ids(Term(term)))
        session = Session(tree, name, term, {term: name}, lifecycle=noted, slices=SLICES, **more)
        node = Node(tree, session, noted).note()
        self._open.append(node)
        return node

    async def close(self) -> None:
        for node in self._open:
            await node.session.committer.close()
            await node.tree.close()


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    """Give a test nodes, and end them."""
    nodes = Fleet()
    try:
        yield nodes
    finally:
        await nodes.close()


@asynccontextmanager
async def one_node() -> AsyncIterator[Node]:
    """Give a test one node."""
    async with fleet() as nodes:
        yield await nodes.join()
