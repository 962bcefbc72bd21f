"""One life of a node of a fleet, from its start to its end or its crash."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mainspring.api.handlers.jobs import JobCalls, JobChangeCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.submitting import SubmitCalls
from mainspring.errors import StoreError
from mainspring.events import Hub
from mainspring.faces.gearman.face import GearmanFace, GearmanSettings
from mainspring.faces.gearman.peers import Peers
from mainspring.ids import Handles, NodeId, Term
from mainspring.jobs.service import JobService
from mainspring.nodes.strategies import strategy
from mainspring.server.fleet import Fleet, StoreClock
from mainspring.server.settings import FleetSettings, ServerSettings, parse_store
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from tests.simulation.clockwork import Clockwork
from tests.simulation.life import SWEEP_INTERVAL
from tests.simulation.store import UNTIMED

from .errand import Errand, Moment

if TYPE_CHECKING:
    from random import Random

    from mainspring.jobs.held import Worker
    from mainspring.workflows.service import WorkflowService
    from tests.simulation.wires import Wire

    from .clocks import MachineClock
    from .store import Way

QUEUE_BYTES = 20_000


class _Fleet(Fleet):
    """A fleet port that begins terms without a running loop."""

    async def _begin(self) -> Term:
        opened = await self._engine.open(self._settings.name, lambda function: function(), self._service.lifecycle)
        self._handles.use_names(opened.nodes)
        return opened.term


class FleetLife:
    """The node's parts as the server assembles them, without its loop and its sockets.

    It performs one errand at a time: it starts, keeps its lease, and leaves at the end.
    """

    workflows: WorkflowService | None = None

    def __init__(self, name: str, way: Way, clock: MachineClock, chance: Random, fleet: FleetSettings, **options: Any):
        self.name = name
        self.clock = clock
        self.store = way
        self.chance = chance
        self.loop = Clockwork(clock)
        self.wires: list[Wire] = []
        self.ready = False
        """Whether it accepts connections."""
        self.stopped = False
        """Whether its process is stopped while time passes."""
        self.closed = False
        """Whether it has no connections any more and only has to end its term."""
        self.gone = False
        """Whether its process has ended by itself."""
        self.fences = 0
        """Number of times that it has lost its jobs."""
        self._settings = ServerSettings(name=NodeId(name), store=parse_store("memory://"), fleet=fleet)
        self._options = options
        self._ticks = False
        self._next_tick = self._next_check = self._next_step = math.inf
        self._next_sweep = 0.0
        self.keeping: Errand | None = None
        self.life: Errand | None = None
        """The errand of its start, later that of its end."""
        self.life = Errand(self._start())

    # ---- starting, in the order of the server's node ----

    async def _start(self) -> None:
        clock, way = self.clock, self.store
        sent_at = clock.monotonic()
        handles = Handles()
        self.store_clock = store_clock = StoreClock(clock)
        peers = Peers()
        self.commits = CommitQueue(
            way, self.loop.call_soon, self.loop.call_later, limit=QUEUE_BYTES, pressure=peers.pause
        )
        self.fleet = _Fleet(way, handles, store_clock, self._settings, strategy(self._settings.fleet.strategy))
        self.reads = Reads(way, self.loop.call_soon, budget=UNTIMED)
        self.service = JobService(
            self.commits,
            self.reads,
            store_clock,
            handles,
            Hub(),
            earlier=self._tick_at,
            shared=self.fleet.shared,
            **self._options,
            **self._run_options(),
        )
        opened = await way.open(self._settings.name, lambda function: function(), self.service.lifecycle)
        handles.use_names(opened.nodes)
        self.service.begin(opened.term)
        self.service.settling._chance = self.chance.random
        self._add()
        jobs = JobCalls(self.service)
        submits = SubmitCalls(self.service, largest=way.max_value)
        changes = JobChangeCalls(self.service, submits, largest=way.max_value)
        self.api = Api(jobs.handlers, changes.handlers, *self._handlers(jobs, submits))
        self.face = GearmanFace(
            self.service,
            peers,
            GearmanSettings(queued_jobs=8),
            api=self.api,
            job_calls=jobs,
            shut_down=lambda _: None,
            workflows=self.workflows,
        )
        fenced = self.service.assigner.fenced

        def count() -> None:
            self.fences += 1
            fenced()

        self.service.assigner.fenced = count  # type: ignore[method-assign] # the fences are counted
        await self.fleet.start(self.service, opened.term, sent_at)
        self._next_step = clock.monotonic()
        looked = list[object]()
        self._look(looked)
        self._check()
        await Moment(lambda: bool(looked))
        if isinstance(looked[0], StoreError):
            raise looked[0]
        self._begin()
        self.ready = self._ticks = True
        self._next_tick = clock.monotonic()

    def _run_options(self) -> dict[str, Any]:
        """Return the options of the jobs of a node with workflows."""
        return {}

    def _add(self) -> None:
        """Create other slices of the node."""

    def _handlers(self, jobs: JobCalls, submits: SubmitCalls) -> list[Any]:
        """Return the calls of other slices."""
        del jobs, submits
        return []

    def _look(self, looked: list[object]) -> None:
        """Read what the node needs before it serves; at the end append something to the list."""
        self.service.startup.run(looked.append, looked.append)

    def _begin(self) -> None:
        """Start the other slices, before the node accepts connections."""

    def _tick(self) -> float:
        return self.service.tick()

    def _tick_at(self, at: float) -> None:
        self._next_tick = min(self._next_tick, at)

    # ---- time ----

    def next(self) -> float:
        """Return the time of the node's next callback, by its own clock."""
        if self.stopped or self.closed:
            return math.inf
        step = self._next_step if self.keeping is None else math.inf
        tick = self._next_tick if self._ticks else math.inf
        return min(tick, self._next_check, step, self.loop.next() or math.inf)

    def run_due(self) -> None:
        if self.stopped or self.closed:
            return
        self.loop.run_due()
        now = self.clock.monotonic()
        if self.ready and self._next_sweep <= now:
            self._next_sweep = now + SWEEP_INTERVAL
            self.face.end_silent()
        if self._next_check <= now:
            self._check()
        if self._ticks and self._next_tick <= now:
            self._next_tick = math.inf
            self._next_tick = min(self._next_tick, self._tick())
        if self._next_step <= now and self.keeping is None:
            self._next_step = math.inf
            self.keeping = Errand(self.fleet.lease_manager.step())

    def _check(self) -> None:
        self._next_check = self.clock.monotonic() + max(self.fleet.lease_manager.check(), 0.001)

    # ---- errands ----

    def errands(self) -> list[Errand]:
        """Return the errands that can continue."""
        errands = [errand for errand in (self.keeping, self.life) if errand is not None and not self.stopped]
        return [errand for errand in errands if errand.moment.ready() and not (errand.moment.way and self.store.cut)]

    def go_on(self, errand: Errand, error: StoreError | None = None) -> None:
        """Resume an errand; with an error, the store did not answer it, whether or not it has executed the request."""
        errand.go_on(error)
        if errand.ended and errand is self.keeping:
            self.keeping = None
            self._next_step = self.clock.monotonic() + errand.value
        elif errand.ended and errand is self.life:
            self.life = None
            self.gone = self.closed or errand.failed

    def settle(self) -> bool:
        """Do everything that needs no time and no peer. Return whether there was anything to do."""
        did = False
        for _ in range(2000):
            if self.stopped or self.gone:
                return did
            errands = self.errands()
            if self.loop.soon:
                self.loop.soon.popleft()()
            elif self.store.busy and not self.store.cut:
                self.store.finish()
            elif errands:
                self.go_on(errands[0])
            else:
                return did
            did = True
        raise AssertionError(f"{self.name} is busy for ever")

    # ---- leaving ----

    def leave(self) -> None:
        """Stop gracefully: held jobs are released, and no worker is suspected."""
        assert self.life is None
        self.ready = False
        self.life = Errand(self._leave())

    async def _leave(self) -> None:
        service = self.service
        service.end()
        await Moment()
        for worker in self.workers():
            for held in list(worker.running.values()):
                service.settling.released(held)
        while True:
            service.hand_back()
            service.ends.retry_settlements()
            if self.commits.idle:
                break
            self.commits.hurry()
            await Moment(lambda: self.commits.idle)
        if not self.store.is_over():
            self.store.holds_nothing()
        self.closed = True
        for wire in list(self.wires):
            wire.end()
        if self.keeping is not None:
            self.keeping.end()
            self.keeping = None
        await self.store.close()

    def crash(self) -> None:
        """End the process and lose everything in its memory."""
        for errand in (self.keeping, self.life):
            if errand is not None:
                errand.end()
        self.store.crash()

    # ---- inspection ----

    def workers(self) -> list[Worker]:
        return [worker for wire in self.wires for worker in wire.peer.workers]
