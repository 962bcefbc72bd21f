"""A node in memory without any face: its services, and their API."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.api.handlers.fires import FireCalls
from mainspring.api.handlers.functions import DeadLetters, FunctionCalls
from mainspring.api.handlers.grants import FunctionGrants, ScheduleGrants
from mainspring.api.handlers.job_records import JobDataCalls, RecordCalls
from mainspring.api.handlers.jobs import JobCalls, JobChangeCalls, JobStreams
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.api.handlers.submitting import SubmitCalls
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import Submit
from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.events import Hub
from mainspring.ids import Handles, NodeId
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.service import JobService
from mainspring.schedules.service import ScheduleService
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from mainspring.access.caller import Act
    from mainspring.api.request import Request
    from mainspring.errors import StoreError
    from mainspring.jobs.held import Held
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query

PAYLOAD_LIMIT = 1000
"""The store's limit for payloads, in bytes."""
UNKNOWN_HANDLE = "H:n:1000000999999"


class Store(MemoryEngine):
    """A store that refuses everything while ``error`` is set."""

    error: StoreError | None = None
    groups = 0
    """The number of groups so far."""

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        self.groups += 1
        if self.error is not None:
            committed(self.error)
        else:
            super().commit(group, committed, answer)

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        if self.error is not None:
            answered(self.error)
        else:
            super().read(query, budget, answered)


class Side:
    """A streaming worker's end of its connection."""

    def __init__(self) -> None:
        self.given: list[Held] = []
        self.stopped: list[bytes] = []

    def name(self) -> str:
        return "w"

    def wake(self) -> None:
        raise AssertionError

    def assign(self, held: Held) -> None:
        self.given.append(held)

    def no_job(self) -> None:
        raise AssertionError

    def stop(self, held: Held, reason: bytes) -> None:
        del held
        self.stopped.append(reason)


class Node:
    def __init__(self, store: Store, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        self.store = store
        self.clock = ManualClock()
        self.commits = CommitQueue(store, loop.call_soon, loop.call_later)
        self.reads = Reads(store, loop.call_soon)
        self.service = JobService(
            self.commits,
            self.reads,
            self.clock,
            Handles(),
            Hub(),
            earlier=lambda _: None,
            **options,
        )
        self.schedules = ScheduleService(self.commits, self.reads, self.clock, self.service.timers)
        self.dead = DeadLetters(self.service)
        self.jobs = JobCalls(self.service)
        self.refused: list[Act] = []
        self.submits = SubmitCalls(self.service, largest=PAYLOAD_LIMIT)
        schedule_calls = ScheduleGrants(
            ScheduleCalls(self.schedules, self.reads, self.service.handles, self.clock).handlers
        )
        self.api = Api(
            self.jobs.handlers,
            JobChangeCalls(self.service, self.submits, largest=PAYLOAD_LIMIT).handlers,
            JobDataCalls(self.service, largest=PAYLOAD_LIMIT).handlers,
            RecordCalls(self.service).handlers,
            FunctionGrants(FunctionCalls(self.service, self.dead).handlers).handlers,
            FireCalls(self.schedules, self.reads, self.service.handles, self.clock).handlers,
            schedule_calls.handlers,
            self.submits.handlers,
            refused=self.refused.append,
            enter=self.service.namespace_gate.enter,
            lacks=self.service.lacks,
        )

        self.api.add_objects({**self.jobs.objects, **schedule_calls.objects})
        self.api.add_streams(JobStreams(self.service).followers)

    async def submit(self, function: bytes = b"f", payload: bytes = b"", unique: bytes = b"") -> str:
        return (await self.api.call(Submit(function, payload, unique))).handle

    def worker(self, *functions: bytes, places: int = 1) -> Side:
        side = Side()
        worker = Worker(side)
        for function in functions or (b"f",):
            self.service.workers.register(worker, function, Ability())
        self.service.workers.ready(worker, places)
        return side

    async def code(self, request: Request[Any]) -> Code:
        """Return the code of the problem with a request."""
        with pytest.raises(ApiError, match=r"\w") as caught:
            await self.api.call(request)
        return caught.value.problem.code

    async def committed(self) -> None:
        """Wait until everything is committed."""
        idle = asyncio.Event()
        self.commits.when_idle(idle.set)
        await idle.wait()


@asynccontextmanager
async def opened(store: Store | None = None, **options: Any) -> AsyncIterator[Node]:
    """Yield a node in the next life of a store, by default of an empty one."""
    store = Store([MemoryBulkSlice(), MemoryScheduleSlice()]) if store is None else store
    node = Node(store, **options)
    begun = await store.open(NodeId("n"), lambda function: function(), node.service.lifecycle)
    node.service.handles.use_names(begun.nodes)
    node.service.begin(begun.term)
    started = asyncio.get_running_loop().create_future()
    node.service.startup.run(started.set_result, started.set_exception)
    await started
    yield node


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 5))
