"""Jobs that follow from each other reach a waiting worker without a claim: the group that ends one leases the next."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.events import Hub
from mainspring.ids import Handles, NodeId
from mainspring.jobs import store as ops
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.service import JobService
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.testing import ManualClock

from .tallies import InMemory, InPostgres, InSqlite, Want

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mainspring.jobs.held import Held
    from mainspring.storage.engine import Answer, Committed, Engine, Operation

LENGTH = 5


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    match request.param:
        case "memory":
            return MemoryEngine(slices=[InMemory()])
        case "sqlite":
            return SqliteEngine(tmp_path / "jobs.db", slices=[InSqlite()])
        case _:
            return PostgresEngine(request.getfixturevalue("database"), slices=[InPostgres()])


class Side:
    """A worker's end: ends what it is given at once."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._worker = Worker(self)
        self._ended = 0
        self.done = asyncio.Event()

    def begin(self) -> None:
        self._service.workers.register(self._worker, b"f", Ability())
        self._service.workers.ready(self._worker, 1)

    def assign(self, held: Held) -> None:
        self._service.settling.succeeded(held, b"r", self._settled)
        self._service.workers.ready(self._worker, 1)

    def _settled(self, recorded: bool) -> None:
        assert recorded
        self._ended += 1
        if self._ended == LENGTH:
            self.done.set()

    def name(self) -> str:
        return "w"

    def wake(self) -> None:
        raise AssertionError

    def no_job(self) -> None:
        raise AssertionError

    def stop(self, held: Held, reason: bytes) -> None:
        raise AssertionError


async def chain(engine: Engine) -> list[Sequence[Operation]]:
    """Run a chain of jobs on one worker; returns the groups that it took."""
    loop = asyncio.get_running_loop()
    groups: list[Sequence[Operation]] = []
    commit = engine.commit

    def note(group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        groups.append(list(group))
        commit(group, committed, answer)

    engine.commit = note  # type: ignore[method-assign]
    commits = CommitQueue(engine, loop.call_soon, loop.call_later)
    reads = Reads(engine, loop.call_soon)
    service = JobService(commits, reads, ManualClock(), Handles(), Hub(), earlier=lambda _: None)
    opened = await engine.open(NodeId("n"), loop.call_soon_threadsafe, service.lifecycle)
    service.handles.use_names(opened.nodes)
    service.begin(opened.term)
    side = Side(service)
    side.begin()
    try:
        commits.put(Want("k", LENGTH))
        async with asyncio.timeout(30):
            await side.done.wait()
        idle = asyncio.Event()
        commits.when_idle(idle.set)
        await idle.wait()
        queue = service.dispatch.queues.get(b"f")
        assert queue is not None
        assert (queue.live, queue.size) == (0, 0)
    finally:
        await engine.close()
    return groups


def test_a_chain_takes_a_group_for_each_of_its_ends_and_no_claim(engine: Engine) -> None:
    groups = asyncio.run(chain(engine))
    kinds: Counter[Any] = Counter(type(operation) for group in groups for operation in group)
    assert kinds == {Want: 1, ops.Settle: LENGTH}
    assert len(groups) == 1 + LENGTH
