"""One life of a node, from its start to its crash."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from mainspring.api.answers.jobs import JobCalls
from mainspring.api.answers.registry import Api
from mainspring.events.hub import Hub
from mainspring.faces.gearman.face import GearmanFace, GearmanSettings
from mainspring.faces.gearman.peers import Peers
from mainspring.ids import Handles, NodeId
from mainspring.jobs.model import State
from mainspring.jobs.service import JobService
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads

from .clockwork import Clockwork
from .store import UNTIMED, SlowStore

if TYPE_CHECKING:
    from random import Random

    from mainspring.errors import StoreError
    from mainspring.jobs.held import Worker
    from mainspring.storage.engine import Engine
    from mainspring.testing import ManualClock

    from .store import History
    from .wires import Wire

QUEUE_BYTES = 20_000
"""Bytes that may wait for the store: few, so that reading pauses sometimes."""


class Life:
    """The node's parts as the server assembles them, without its loop and its sockets."""

    def __init__(self, engine: Engine, history: History, clock: ManualClock, chance: Random, **options: Any) -> None:
        self.clock = clock
        self.loop = Clockwork(clock)
        self.store = SlowStore(engine, history, clock, chance)
        peers = Peers()
        self.commits = CommitQueue(
            self.store, self.loop.call_soon, self.loop.call_later, limit=QUEUE_BYTES, pressure=peers.pause
        )
        self._next_tick = math.inf
        handles = Handles()
        self.reads = Reads(self.store, self.loop.call_soon, budget=UNTIMED)
        self.service = JobService(self.commits, self.reads, clock, handles, Hub(), earlier=self._tick_at, **options)
        opened = asyncio.run(self.store.open(NodeId("n"), self.store.deliveries.put, self.service.lifecycle))
        handles.use_names(opened.nodes)
        self.service.begin(opened.term)
        self.term = opened.term
        self.service.settling._chance = chance.random
        jobs = JobCalls(self.service)
        self.api = Api(jobs.handlers)
        self.face = GearmanFace(
            self.service,
            peers,
            GearmanSettings(queued_jobs=8),
            api=self.api,
            job_calls=jobs,
            shut_down=lambda _: None,
        )
        self.wires: list[Wire] = []
        self.ready = False
        self.service.start(self._is_ready, self._cannot_start)
        while not self.ready:
            self.settle()
        self._next_tick = clock.monotonic()

    def _is_ready(self, recovered: int) -> None:
        del recovered
        self.ready = True

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
        if self._next_tick <= self.clock.monotonic():
            self._next_tick = math.inf
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
        self.service.hand_back()
        for worker in self.workers():
            for held in list(worker.running.values()):
                self.service.settling.released(held)
        while True:
            self.service.hand_back()
            self.service.ends.retry_settlements()
            if self.commits.idle:
                break
            self.commits.hurry()
            self.settle()
        leased = {key: number for key, number in self.store.counts().items() if key[1] == State.LEASED and number}
        assert not leased, f"a graceful stop left {leased} leased"

    # ---- inspection ----

    def workers(self) -> list[Worker]:
        return [wire.peer.worker for wire in self.wires if wire.peer.worker is not None]
