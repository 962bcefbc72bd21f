"""Nodes with schedules on one store in memory. The test controls time and commits."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeVar

from tests.conformance.suite.paging import everything
from tests.engines import memory_engine
from tests.shared_memory import SharedMemoryEngine, SharedTables
from tests.simulation.clockwork import Clockwork

from mainspring.access.caller import LOCAL
from mainspring.callbacks import CallInProgress
from mainspring.errors import StoreError, StoreFullError
from mainspring.events import Hub
from mainspring.ids import Handles, NodeId
from mainspring.jobs.function_index import nobody
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.service import JobService
from mainspring.jobs.sharing import Shared
from mainspring.queries import ListFires
from mainspring.schedules.model import Every, Fire, FireState, Schedule
from mainspring.schedules.service import ScheduleService, first_in_line
from mainspring.schedules.store import Change, FireSchedules, ListSchedules
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.access.caller import Caller
    from mainspring.callbacks import Ask
    from mainspring.engines.memory.engine import MemoryEngine
    from mainspring.schedules.reconcile import Stored
    from mainspring.storage.engine import Answer, Committed, Operation, PageQuery

T = TypeVar("T")

SECOND = 1_000_000
START_US = 1_700_000_040 * SECOND
"""A full minute."""


class Hands:
    """A worker that records its jobs and their times."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        self.given: list[Held] = []
        self.times: list[float] = []
        self.stopped: list[str] = []

    def wake(self) -> None:
        raise AssertionError("a streaming worker is not woken")

    def no_job(self) -> None:
        raise AssertionError("a streaming worker does not ask")

    def assign(self, held: Held) -> None:
        self.given.append(held)
        self.times.append(self._node.world.now())

    def name(self) -> str:
        return self._name

    def stop(self, held: Held, reason: bytes) -> None:
        self.stopped.append(reason.decode())


class Node:
    """The parts of a node for schedules, connected as in the server."""

    def __init__(self, world: World, name: str, **options: Any) -> None:
        """Start a node; ``options`` are those of its `ScheduleService`."""
        self.world = world
        self.clock = world.clock
        self.name = name
        self.alive = True
        self.full = False
        """Whether its store refuses everything."""
        self.cost: Callable[[Sequence[Operation]], float] = lambda _: 0.0
        """The seconds that its store takes for a group, once it has run."""
        self.groups: list[Sequence[Operation]] = []
        self.loop = Clockwork(world.clock)
        self.engine = SharedMemoryEngine(world.tables) if world.tables is not None else world.engine
        self._next_tick = math.inf
        handles = Handles()
        self.commits = CommitQueue(_Store(self), self.loop.call_soon, self.loop.call_later)
        self.reads = Reads(self.engine, self.loop.call_soon)
        self.service = JobService(
            self.commits,
            self.reads,
            world.clock,
            handles,
            Hub(),
            earlier=self._tick_at,
            shared=Shared(self.engine, lambda: True, nobody) if isinstance(self.engine, SharedMemoryEngine) else None,
        )
        opened = asyncio.run(self.engine.open(NodeId(name), lambda function: function(), self.service.lifecycle))
        handles.use_names(opened.nodes)
        self.service.begin(opened.term)
        self.term = opened.term
        self.is_first: Callable[[str], bool] = lambda one: first_in_line(one, world.terms()) == self.term
        if isinstance(self.engine, SharedMemoryEngine):
            options["first"] = self.is_first
        self.schedules = ScheduleService(
            self.commits, self.reads, world.clock, self.service.timers, lambda: self.service.dispatch.paused, **options
        )
        self.service.startup.run(lambda _: None, _raise)
        self.settle()
        self.schedules.fetch()
        self.settle()
        self._next_tick = world.clock.monotonic()

    # ---- time ----

    def _tick_at(self, at: float) -> None:
        self._next_tick = min(self._next_tick, at)

    def next(self) -> float:
        return min(self._next_tick, self.loop.next() or math.inf) if self.alive else math.inf

    def run_due(self) -> None:
        self.loop.run_due()
        if self._next_tick <= self.clock.monotonic():
            self._next_tick = math.inf
            self.schedules.tick()
            self._next_tick = min(self._next_tick, self.service.tick())
        self.settle()

    def settle(self) -> None:
        for _ in range(100_000):
            if not self.loop.soon:
                return
            self.loop.soon.popleft()()
        raise AssertionError("the node never rests")

    def fires(self) -> list[FireSchedules]:
        """Return the operations with which it tried to fire schedules."""
        return [one for group in self.groups for one in group if isinstance(one, FireSchedules)]

    # ---- requests ----

    def save(self, *changes: Change, caller: Caller = LOCAL) -> dict[str, Stored | None]:
        saved: dict[str, Stored | None] = self.answer(self.schedules.save(changes, caller=caller))
        return saved

    def add(self, name: str = "a", **fields: Any) -> Schedule:
        fields = {"function": b"f", "trigger": None if fields.get("parents") else Every(60 * SECOND)} | fields
        schedule = Schedule(name=name, **fields)
        self.save(Change("put", name, 0, schedule))
        return schedule

    def answer(self, work: Coroutine[Ask, Any, Any]) -> Any:
        """Return the answer of a coroutine of the service; raise its error."""
        answers: list[Any] = []
        CallInProgress(work, answers.append, answers.append)
        self.settle()
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def worker(self, *functions: str, places: int = 1000, name: str = "w", **ability: Any) -> Hands:
        hands = Hands(self, name)
        worker = Worker(hands)
        for function in functions or ("f",):
            self.service.workers.register(worker, function.encode(), Ability(**{"requeue": False, **ability}))
        self.service.workers.ready(worker, places)
        self.settle()
        return hands

    def end(self, held: Held, result: bytes = b"") -> None:
        self.service.settling.succeeded(held, result, lambda recorded: None)
        self.settle()


def _raise(error: StoreError) -> None:
    raise error


class _Store:
    """A proxy of the engine that records its groups and may refuse them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.whole = True
        self.durable, self.max_value, self.shared, self.limits, self.lines = False, 2**32 - 1, False, True, True
        self.workflows = True
        self.open, self.close = node.engine.open, node.engine.close

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        node = self._node
        node.groups.append(group)
        if not node.alive:
            return  # a dead node gets no answer
        if node.full:
            committed(StoreFullError("the disk of the test is full"))
            return

        def answered(outcomes: Sequence[Any] | StoreError) -> None:
            seconds = node.cost(group)
            if seconds:
                node.loop.call_later(seconds, lambda: committed(outcomes))
            else:
                committed(outcomes)

        node.engine.commit(group, answered, answer)


class World:
    """A clock, a store, and the nodes on it."""

    def __init__(self, engine: MemoryEngine | None = None, *, shared: bool = False) -> None:
        self.clock = ManualClock(START_US / SECOND - 30)
        self.tables = SharedTables(self.clock.wall) if shared else None
        self.engine = engine or memory_engine()
        self.nodes: list[Node] = []

    def node(self, name: str = "n1", **options: Any) -> Node:
        node = Node(self, name, **options)
        self.nodes.append(node)
        return node

    def terms(self) -> tuple[int, ...]:
        """Return the terms that all nodes treat as live: a dead node is detected late."""
        return tuple(node.term for node in self.nodes)

    def now(self) -> float:
        """Return the seconds since `START_US`."""
        return round(self.clock.wall() - START_US / SECOND, 6)

    def until(self, seconds: float) -> None:
        """Advance the clock to ``seconds`` after `START_US`."""
        end = self.clock.monotonic() + seconds - self.now()
        while True:
            following = min((node.next() for node in self.nodes), default=math.inf)
            if following > end:
                break
            self.clock.advance(max(following - self.clock.monotonic(), 0))
            for node in self.nodes:
                if node.alive:
                    node.run_due()
        self.clock.advance(max(end - self.clock.monotonic(), 0))

    def rows(self, name: str = "a") -> list[Fire]:
        """Return the rows of a schedule, the oldest first."""
        return self._read(ListFires(name, limit=1_000_000))[::-1]

    def results(self, name: str = "a") -> list[str]:
        return [
            str(row.reason) if row.state is FireState.SKIPPED else row.outcome or row.state.value
            for row in self.rows(name)
        ]

    def stored(self, name: str = "a") -> Stored:
        (stored,) = self._read(ListSchedules(names=(name,)))
        return stored

    def _read(self, query: PageQuery[T]) -> list[T]:
        engine = self.nodes[0].engine if self.tables is not None else self.engine
        return asyncio.run(everything(engine, query))
