"""A node, its store, its clients and its workers in one process, under a scheduler that chooses interleavings at random."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from mainspring.ids import TERM_SPAN, Handles
from mainspring.jobs.model import State
from mainspring.testing import ManualClock
from tests.progress import Progress

from . import invariants
from .actors import FUNCTIONS, Actor, Client, PlainWorker, StreamWorker
from .life import Life
from .store import History
from .wires import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.storage.engine import Engine
    from tests.progress import Position

CALM_SECONDS = 120.0
"""Seconds without faults after which every job must have ended."""


class World:
    """One run. ``make`` returns the engine of each life of the node, all on the same content."""

    def __init__(self, seed: int, make: Callable[[], Engine]) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.clock = ManualClock()
        self.history = History()
        self.calm = False
        self._make = make
        self._acknowledged: dict[int, bytes] = {}
        self._results: dict[bytes, set[bytes]] = {}
        self._count = 0
        self._options: dict[str, Any] = {
            "round_robin": self.chance.random() < 0.3,
            "lost_limit": self.chance.choice((None, None, 3)),
            "wakeup": self.chance.choice((1, 1, 1, 2, 0)),
        }
        self.crashes = self.chance.random() < 0.5
        """Whether the node crashes in this run; half of the runs have longer lives instead."""
        self.load = self.chance.choice((1.0, 0.3, 0.1))
        """The probability that a client acts when it is chosen; with less to do, workers sleep."""
        self.actors = self._cast()
        self.life = self._begin()

    def _cast(self) -> list[Actor]:
        chance = self.chance
        actors: list[Actor] = []
        for number in range(chance.randint(1, 5)):
            functions = tuple(chance.sample(FUNCTIONS, chance.randint(1, 3)))
            actors.append(PlainWorker(self, f"plain {number}", functions))
        for number in range(chance.randint(0, 2)):
            functions = tuple(chance.sample(FUNCTIONS, chance.randint(1, 3)))
            actors.append(StreamWorker(self, f"stream {number}", functions, chance.randint(1, 3)))
        clients = range(chance.randint(1, 3))
        return actors + [Client(self, f"client {number}", extended=chance.random() < 0.6) for number in clients]

    def _begin(self) -> Life:
        return Life(self._make(), self.history, self.clock, self.chance, **self._options)

    # ---- calls of actors ----

    def connect(self, actor: Actor) -> Wire:
        def see(kind: int, args: list[bytes]) -> None:
            if actor.wire is wire:
                actor.see(kind, args)

        wire = Wire(self.life, see)
        self.life.wires.append(wire)
        return wire

    def result_of(self, handle: bytes, worker: str) -> bytes:
        self._count += 1
        result = b"%b by %b, %d" % (handle, worker.encode(), self._count)
        self._results.setdefault(handle, set()).add(result)
        return result

    def acknowledged(self, handle: bytes, function: bytes, unique: bytes) -> None:
        """Check that an acknowledged background job is committed, and is the submitted one."""
        job_id = _id(handle)
        job = self.life.store.find(job_id)
        assert job is not None, f"{handle!r} is acknowledged and not stored"
        assert job.function == function, f"{handle!r} is another job's answer"
        assert job.unique == unique, f"{handle!r} is another job's answer"
        self._acknowledged[job_id] = handle

    def assigned(self, handle: bytes) -> None:
        """Check that an assigned job is leased to this life of the node, if it is stored."""
        job = self.life.store.find(_id(handle))
        if job is not None:
            assert State(job.state).held, f"{handle!r} is assigned while it is {State(job.state).name}"
            assert job.term == self.life.term, f"{handle!r} is assigned under an old lease"

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        """Check that an outcome is committed, and that its result is a worker's."""
        job_id = _id(handle)
        job = self.life.store.find(job_id)
        if state == b"unknown":
            assert job is None, f"{handle!r} is stored and called unknown"
            return
        if job is not None:
            if job_id in self.history.redriven:
                return  # the answer may have waited for others while the job was redriven
            assert State(job.state).ended, f"{handle!r} is reported as {state!r} while it is {State(job.state).name}"
            if state:
                assert State(job.state).name.lower().encode() == state
        if state == b"succeeded":
            assert result in self._results.get(handle, ()), f"{handle!r} has the result of another job"

    def must_have_ended(self, handle: bytes, why: str) -> None:
        job = self.life.store.find(_id(handle))
        assert job is None or State(job.state).ended or _id(handle) in self.history.redriven, f"{handle!r}: {why}"

    # ---- chance ----

    def run(self, steps: int) -> None:
        """Run with faults, without, with faults, and without."""
        for _ in range(2):
            self.calm = False
            for number in range(steps):
                self.step()
                if number % 4 == 0:
                    invariants.always(self.life)
                if number % 100 == 99:
                    self.come_to_rest()
            self.run_without_faults()

    def step(self) -> None:
        """Do one random action."""
        life, chance = self.life, self.chance
        number = chance.random()
        if number < 0.25:
            if life.loop.soon:
                life.loop.soon.popleft()()
        elif number < 0.4:
            if life.store.busy:
                life.store.finish()
        elif number < 0.6:
            ready = [wire for wire in life.wires if wire.can_deliver]
            if ready:
                chance.choice(ready).deliver(chance)
        elif number < 0.75:
            self._receive(chance.choice(self.actors))
        elif number < 0.93:
            chance.choice(self.actors).act()
        elif number < 0.96:
            left = [wire for wire in life.wires if wire.ends]
            if left:
                chance.choice(left).deliver_end(chance)
        elif number < 0.99:
            self.clock.advance(chance.choice((0.001, 0.01, 0.1, 0.3, 1.1)))
            life.run_due()
        elif number < 0.995:
            life.store.full = not life.store.full
        elif number < 0.998:
            self.clock.step(chance.choice((-3.0, 3.0)))
        elif self.crashes:
            if chance.random() < 0.3 and not life.store.full:
                life.end()
            self.crash()

    def _receive(self, actor: Actor) -> bool:
        wire = actor.wire
        if wire is not None and wire.to_peer:
            actor.receive(*wire.to_peer.popleft())
            return True
        if wire is not None and wire.over:
            actor.lost()
            return True
        return False

    def crash(self) -> None:
        """Lose everything in memory; operations in progress are committed or not."""
        for actor in self.actors:
            if actor.wire is not None:
                actor.wire.over = True
                actor.lost()
        asyncio.run(self.life.store.engine.close())
        self.life = self._begin()

    # ---- without faults ----

    def come_to_rest(self) -> None:
        """Run everything that needs no time: deliveries, commits, and the reactions of actors."""
        life = self.life
        for _ in range(10_000):
            did = life.settle()
            for wire in [wire for wire in life.wires if wire.ends]:
                wire.deliver_end(self.chance)
                did = True
            for wire in life.wires:
                if wire.can_deliver:
                    wire.deliver()
                    did = True
            for actor in self.actors:
                while self._receive(actor):
                    did = True
                if self.calm:
                    did = actor.act() or did
            if not did:
                # Operations without a waiting caller are committed after a delay, and a worker's grab may be pending for one.
                if life.commits.idle and not life.service.assigner.pending_grabs.since:
                    break
                self.clock.advance(0.01)
                life.run_due()
        else:
            raise AssertionError("the node does not come to rest")
        invariants.always(life)
        invariants.idle(life)
        invariants.rest(life)

    def run_without_faults(self) -> None:
        """Run without faults, with a worker for each function, until all jobs have ended and all clients are notified."""
        self.calm = True
        self.life.store.full = False
        able = {function for actor in self.actors for function in actor.functions}
        if able != set(FUNCTIONS):
            self.actors.append(PlainWorker(self, "helper", FUNCTIONS))
        end, progress = self.clock.monotonic() + CALM_SECONDS, Progress()
        while True:
            self.come_to_rest()
            left = self._left()
            service = self.life.service
            if not (left or service.table.held or len(service.listeners)):
                break
            now = self.clock.monotonic()
            stuck = progress.stuck(left, now)
            assert not stuck, f"this never ends: {stuck}"
            assert now < end, f"this never ends: {left}"
            self.clock.advance(min(max(self.life.next() - now, 0.001), 1.0))
            self.life.run_due()
        self._all_is_done()

    def _left(self) -> dict[str, Position]:
        """Return what has not ended."""
        live = [job for job_id in self.history.live if (job := self.life.store.find(job_id)) is not None]
        jobs = invariants.jobs_left(live, self.clock.wall())
        return jobs | invariants.clients_left(self.actors) | invariants.ends_left(self.life.wires)

    def _all_is_done(self) -> None:
        service = self.life.service
        for job_id, handle in self._acknowledged.items():
            job = self.life.store.find(job_id)
            assert job is not None, f"{handle!r} is lost"
            assert State(job.state).ended
        assert len(service.listeners) == 0
        assert not service.ends.unsettled
        for queue in service.dispatch.queues.values():
            assert (queue.live, queue.backlog, queue.foreground, queue.running) == (0, [0, 0, 0], 0, 0)


def _id(handle: bytes) -> int:
    job_id = Handles.parse(handle)
    assert job_id is not None
    assert job_id // TERM_SPAN
    return job_id
