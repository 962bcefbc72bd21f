"""Engines of a fleet's nodes on a real PostgreSQL server: they open, commit groups and leave."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
from tests.engines import postgres_engine

from mainspring.errors import StoreError
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import succeeded
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from mainspring.engines.postgres.engine import PostgresEngine
    from mainspring.events import Message
    from mainspring.jobs.lateness import DueRow
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.store import Rescheduled, Withdrawn
    from mainspring.storage.engine import Operation

T = TypeVar("T")
TIMEOUT = 60.0
NOW = 1_700_000_000_000_000


def apart(place: int, outcome: Any) -> None:
    raise AssertionError(f"operation {place} is answered apart from its group: {outcome}")


class Part:
    """The lifecycle of the jobs that a node's groups create."""

    def __init__(self, next_id: Callable[[], int]) -> None:
        self.next_id = next_id
        self.live = Counter[int]()
        self.committed: list[int] = []

    def reserve(self, job: Job, term: int) -> bool:
        self.live[job.id] += 1
        return True

    def add_times(self, job: Job) -> None:
        """Add none."""

    def stored(self, jobs: Sequence[Job]) -> None:
        self.committed += [job.id for job in jobs]

    def waits(self, jobs: Sequence[Job], filled: Sequence[tuple[bytes, Sequence[bytes], Filled]]) -> None:
        raise AssertionError(jobs, filled)

    def dropped(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.live[job.id] -= 1

    def cancel(self, ids: Sequence[int], why: str) -> None:
        raise AssertionError(ids)

    def stop(self, ids: Collection[int], why: str) -> None:
        raise AssertionError(ids)

    def dated(self, rows: Sequence[DueRow]) -> None:
        raise AssertionError(rows)

    def rescheduled(self, outcomes: Sequence[Rescheduled]) -> None:
        raise AssertionError(outcomes)

    def begun(self, new: Sequence[Job], taken: Sequence[Job] = ()) -> None:
        raise AssertionError(new, taken)

    def ended(self, jobs: Sequence[Job]) -> None:
        raise AssertionError(jobs)

    def withdrawn(self, jobs: Sequence[Withdrawn], *, stop: bool = True) -> None:
        raise AssertionError(jobs, stop)

    def check(self) -> None:
        """Check that the notified jobs are those that were committed."""
        assert sorted(job_id for job_id, number in self.live.items() if number) == sorted(self.committed)
        assert set(self.live.values()) <= {0, 1}


class Node:
    """An open engine."""

    def __init__(self, engine: PostgresEngine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.received: list[Message] = []
        self._arrived = asyncio.Event()
        self.part = Part(self.new_id)
        engine.listen(self._receive)

    def _receive(self, message: Message) -> None:
        self.received.append(message)
        self._arrived.set()

    async def wait_for(self, wanted: Callable[[list[Message]], bool]) -> None:
        """Wait until the received messages suffice."""
        async with asyncio.timeout(TIMEOUT):
            while not wanted(self.received):
                self._arrived.clear()
                await self._arrived.wait()

    async def open(self) -> None:
        opened = await self.engine.open(NodeId(self.name), lambda function: function(), self.part)
        self.term = opened.term
        self.nodes = opened.nodes
        self._ids = job_ids(self.term)

    def new_id(self) -> int:
        return self._ids()

    def begin(self, *operations: Operation) -> asyncio.Future[list[Any]]:
        """Give a group to the engine, and return a future of its outcomes."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def answer(outcomes: Sequence[Any] | StoreError) -> None:
            assert not future.done(), "a group is answered once"
            if isinstance(outcomes, StoreError):
                future.set_exception(outcomes)
            else:
                future.set_result(list(outcomes))

        self.engine.commit(operations, answer, apart)
        return future

    async def group(self, *operations: Operation) -> list[Any]:
        """Commit a group; raises its StoreError."""
        return await asyncio.wait_for(self.begin(*operations), TIMEOUT)

    def job(self, function: bytes = b"f", *, state: State = State.PENDING, **values: Any) -> Job:
        term = self.term if state is State.LEASED else 0
        return Job(self.new_id(), function, b"p", state=int(state), term=term, created_us=NOW, input_size=1, **values)

    def submit(self, *jobs: Job) -> ops.Submit:
        return ops.Submit(list(jobs))

    def settle(self, *jobs: Job) -> ops.Settle:
        return ops.Settle([succeeded(job, b"r", NOW, NOW) for job in jobs])

    def claim(self, limit: int = 1000, function: bytes = b"f") -> ops.Claim:
        return ops.Claim(self.term, [ops.ClaimRequest(function, limit)])

    async def submitted(self, number: int = 1, **values: Any) -> list[Job]:
        jobs = [self.job(**values) for _ in range(number)]
        assert await self.group(self.submit(*jobs)) == [{}]
        return jobs

    async def find(self, *ids: int) -> dict[int, Job]:
        (found,) = await self.group(ops.Find(list(ids), 2**30))
        assert isinstance(found, dict)
        return found

    async def states(self, *jobs: Job) -> list[State | None]:
        found = await self.find(*(job.id for job in jobs))
        return [State(found[job.id].state) if job.id in found else None for job in jobs]

    async def counts(self) -> dict[tuple[bytes, int, int], int]:
        (counts,) = await self.group(ops.Count())
        assert isinstance(counts, dict)
        return counts

    def row(self, counter: int, **values: Any) -> NodeRow:
        reads: dict[str, Any] = {"mail": True, "runs": True, "pauses": True, "payloads": True}
        return NodeRow(term=self.term, name=self.name, counter=counter, **reads, **values)


@contextlib.asynccontextmanager
async def node(url: str, name: str = "n1", **options: Any) -> AsyncIterator[Node]:
    """Open a node; close it afterwards in every case."""
    one = Node(postgres_engine(url, **options), name)
    try:
        await one.open()
        yield one
    finally:
        await one.engine.close()


@contextlib.asynccontextmanager
async def session(dsn: str, **settings: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Open a session that reads the store's tables."""
    connection = await asyncpg.connect(dsn, timeout=TIMEOUT, server_settings={"search_path": "mainspring", **settings})
    try:
        yield connection
    finally:
        connection.terminate()


async def eventually(look: Callable[[], Awaitable[T]], what: str) -> T:
    """Query the server until the answer is true: it sends no notification of these changes."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.01)
