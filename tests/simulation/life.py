"""One life of a node, from its start to its crash."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from mainspring.api.handlers.jobs import JobCalls, JobChangeCalls
from mainspring.api.handlers.logs import LogCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.streams import StreamCalls
from mainspring.api.handlers.submitting import SubmitCalls
from mainspring.api.handlers.values import ValueCalls
from mainspring.api.handlers.workflows import VersionCalls, WorkflowCalls
from mainspring.events import Hub
from mainspring.faces.gearman.face import GearmanFace, GearmanSettings
from mainspring.faces.gearman.peers import Peers
from mainspring.features import Feature
from mainspring.ids import Handles, NodeId
from mainspring.job_logs.service import SWEEP_INTERVAL as LOG_SWEEP_INTERVAL
from mainspring.job_logs.service import LogReaders, LogService
from mainspring.jobs.model import State
from mainspring.jobs.service import JobService
from mainspring.server.engines import run_slice
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.streams.service import StreamService
from mainspring.values.service import ValueService, Waiters
from mainspring.workflows.model import Limits
from mainspring.workflows.service import RootRuns, WorkflowService

from .clockwork import Clockwork
from .store import UNTIMED, History, SlowStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from mainspring.errors import StoreError
    from mainspring.jobs.held import Worker
    from mainspring.storage.engine import Engine, Operation
    from mainspring.testing import ManualClock

    from .wires import Wire

SWEEP_INTERVAL = 1.0
"""Seconds between two looks of the node for peers that are silent or end."""
LOG_RETENTION = 100.0
QUEUE_BYTES = 20_000
"""Bytes that may wait for the store: few, so that reading pauses sometimes."""


class NoHistory(History):
    """A history that follows no jobs: those of runs are stored by operations of the workflows."""

    def note(self, operation: Operation, outcome: Any) -> None: ...


class Life:
    """The node's parts as the server assembles them, without its loop and its sockets; ``workflows``: it runs them."""

    def __init__(
        self,
        engine: Engine,
        history: History,
        clock: ManualClock,
        chance: Random,
        *,
        workflows: bool = False,
        store: Callable[..., SlowStore] = SlowStore,
        **options: Any,
    ) -> None:
        self.clock = clock
        self.loop = Clockwork(clock)
        self.store = store(engine, NoHistory() if workflows else history, clock, chance)
        peers = Peers()
        self.commits = CommitQueue(
            self.store, self.loop.call_soon, self.loop.call_later, limit=QUEUE_BYTES, pressure=peers.pause
        )
        self._next_tick = math.inf
        handles = Handles()
        self.reads = Reads(self.store, self.loop.call_soon, budget=UNTIMED)
        self.workflows: WorkflowService | None = None
        of_runs: dict[str, Callable[[int], Any]] = {}
        if workflows:
            runs = run_slice(engine)
            assert runs is not None
            cache = runs.cache
            of_runs = {"root_of": cache.root_of, "type_of": cache.type_of}
            roots = RootRuns(self.commits, clock, failed_builds=cache.failed_builds)
            options |= {"roots": roots, "prefers": roots.prefers}
        self.service = JobService(self.commits, self.reads, clock, handles, Hub(), earlier=self._tick_at, **options)
        if workflows:
            assert runs is not None
            self.workflows = WorkflowService(self.commits, self.reads, clock, self.service, roots, tail=cache.tail)
            runs.subscribe(self.workflows)
        opened = asyncio.run(self.store.open(NodeId("n"), self.store.deliveries.put, self.service.lifecycle))
        handles.use_names(opened.nodes)
        self.service.begin(opened.term)
        self.term = opened.term
        self.service.settling._chance = chance.random
        jobs = JobCalls(self.service)
        submits = SubmitCalls(self.service, largest=engine.max_value)
        changes = JobChangeCalls(self.service, submits, largest=engine.max_value)
        logs = None
        if Feature.LOGS not in engine.lacks:
            logs = LogService(
                self.commits,
                self.reads,
                clock,
                self.service.later,
                LogReaders(clock.monotonic),
                lambda: self.service.term,
                retention=LOG_RETENTION,
                sweep_interval=LOG_SWEEP_INTERVAL,
                is_held=lambda job_id: self.service.table.find(job_id) is not None,
                **of_runs,
            )
        streams = None
        if Feature.STREAMS not in engine.lacks:
            streams = StreamService(
                self.commits,
                self.reads,
                clock,
                Waiters(clock.monotonic, lambda: self.service.term, None, None),
                lambda: self.service.term,
                root_of=of_runs.get("root_of", lambda run: run),
            )
        values = None
        if Feature.VALUES not in engine.lacks:
            values = ValueService(
                self.commits,
                self.reads,
                clock,
                self.service.later,
                Waiters(clock.monotonic, lambda: self.service.term, None, None),
                lambda: self.service.term,
                is_shared=False,
                root_of=of_runs.get("root_of", lambda run: run),
            )
        handlers = [
            jobs.handlers,
            changes.handlers,
            LogCalls(logs, self.service).handlers,
            ValueCalls(values, self.service).handlers,
            StreamCalls(streams, self.service).handlers,
        ]
        if self.workflows is not None:
            limits = Limits(largest=engine.max_value)
            handlers.append(WorkflowCalls(self.workflows, self.service, jobs, submits, limits).handlers)
            deciders = self.workflows.workers.rows
            calls = VersionCalls(
                self.workflows.versions, lambda namespace: [("n1", one) for one in deciders(namespace)]
            )
            handlers.append(calls.handlers)
        self.api = Api(*handlers, enter=self.service.namespace_gate.enter, lacks=engine.lacks)
        self.face = GearmanFace(
            self.service,
            peers,
            GearmanSettings(queued_jobs=8),
            api=self.api,
            job_calls=jobs,
            shut_down=lambda _: None,
            workflows=self.workflows,
            logs=logs,
            values=values,
            streams=streams,
        )
        self.logs, self.values = logs, values
        self.wires: list[Wire] = []
        self.ready = False
        if self.workflows is None:
            self._start()
        else:
            self.workflows.load(self._start, self._cannot_start)
        while not self.ready:
            self.settle()
        self._next_tick = self._next_sweep = clock.monotonic()

    def _start(self) -> None:
        self.service.startup.run(self._is_ready, self._cannot_start)

    def _is_ready(self, recovered: int) -> None:
        del recovered
        self.ready = True
        if self.workflows is not None:
            self.workflows.fetch()

    def _cannot_start(self, error: StoreError) -> None:
        raise error

    def _tick_at(self, at: float) -> None:
        self._next_tick = min(self._next_tick, at)

    # ---- time ----

    def next(self) -> float:
        """Return the time of the node's next callback."""
        return min(self._next_tick, self.loop.next() or math.inf)

    def run_due(self) -> None:
        self.loop.run_due()
        if self._next_sweep <= self.clock.monotonic():
            self._next_sweep = self.clock.monotonic() + SWEEP_INTERVAL
            self.face.end_silent()
        if self._next_tick <= self.clock.monotonic():
            self._next_tick = math.inf
            if self.workflows is not None:
                self.workflows.tick()
            self._next_tick = min(self._next_tick, self.service.tick())

    def settle(self) -> bool:
        """Do everything that needs no time and no peer. Return whether there was anything to do."""
        did, groups = False, self.commits.groups
        while self.loop.soon or self.store.busy:
            assert not did or self.commits.groups < groups + 1000, "the node commits for ever"
            did = True
            if self.loop.soon:
                self.loop.soon.popleft()()
            else:
                self.store.finish()
        return did

    def end(self) -> None:
        """Stop gracefully, as the server does: held jobs are released, and no worker is suspected."""
        while True:
            self.service.hand_back()
            for worker in self.workers():
                for held in list(worker.running.values()):
                    self.service.settling.released(held)
            self.service.ends.retry_settlements()
            if self.commits.idle:
                break
            self.commits.hurry()
            self.settle()
        roots = () if self.workflows is None else self.workflows.definitions.functions()
        counts = self.store.counts().items()
        leased = {key: number for key, number in counts if key[1] == State.LEASED and number and key[0] not in roots}
        assert not leased, f"a graceful stop left {leased} leased"

    # ---- inspection ----

    def workers(self) -> list[Worker]:
        return [worker for wire in self.wires for worker in wire.peer.workers]
