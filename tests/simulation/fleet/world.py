"""A fleet on one store, its clients and workers in one process, under a scheduler that chooses interleavings at random."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

from mainspring.ids import Handles
from mainspring.jobs.model import State
from mainspring.server.settings import FleetSettings
from mainspring.testing.passing_time import WALL_START, ManualClock
from tests.progress import Progress
from tests.shared_memory import SharedMemoryEngine
from tests.simulation.actors import FUNCTIONS, Actor, Client, PlainWorker, StreamWorker
from tests.simulation.wires import Wire

from . import invariants
from .clocks import MachineClock
from .content import Content
from .errand import Errand
from .history import FleetHistory
from .life import FleetLife
from .store import Way

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.progress import Position

HOUR = 3600.0
CALM_SECONDS = 200.0
"""Seconds without faults after which every job must have ended."""
STEP_SECONDS = 0.3
"""Seconds between the turns of everything without a fault, while time passes."""


class FleetWorld:
    """One run."""

    strategies: tuple[str, ...] = ("default", "default", "id_hash", "least_count", "weight")

    def __init__(self, seed: int, start: float = WALL_START) -> None:
        self.seed = seed
        self.chance = chance = Random(seed)
        self.clock = ManualClock(start)
        self.content = Content(self.clock)
        self.history = self._history()
        self.calm = False
        self.load = chance.choice((1.0, 0.3, 0.1))
        self._acknowledged: dict[int, bytes] = {}
        self._results: dict[bytes, set[bytes]] = {}
        self._count = 0
        self._fleet = self._settings()
        self._options: dict[str, Any] = {
            "round_robin": chance.random() < 0.3,
            "lost_limit": chance.choice((None, None, 3)),
            "wakeup": chance.choice((1, 1, 1, 2, 0)),
        }
        self.fault_rate = chance.choice((1.0, 1.0, 0.3))
        """The probability of a fault."""
        self.promptness = chance.choice((1.0, 1.0, 0.15))
        """The probability that a group is committed; with slow groups, leases end in the meantime."""
        self.machines = {
            f"n{number}": MachineClock(
                self.clock, chance.choice((1.0, 1.0, 0.95, 1.05)), chance.choice((0.0, 0.0, -HOUR, HOUR, 17.0))
            )
            for number in range(1, chance.randint(2, 4) + 1)
        }
        self.lives: dict[str, FleetLife] = {}
        """The running nodes, by name."""
        self._owners: dict[int, FleetLife] = {}
        self.removed: set[int] = set()
        """Terms of nodes that were removed from the fleet and may not have detected it yet."""
        self.troubles: dict[str, float] = {}
        """Nodes that are cut off, stopped or down, with the end of that."""
        self._here: FleetLife
        """The node whose packet an actor is inspecting."""
        self.actors: list[Actor] = self._cast()
        for name in self.machines:
            self._begin(name)

    def _settings(self) -> FleetSettings:
        chance = self.chance
        lease = chance.choice((3.0, 3.0, 6.0, 15.0))
        strategy = chance.choice(self.strategies)
        return FleetSettings(strategy=strategy, lease=lease, beat=lease * chance.choice((0.2, 0.3)))

    def _history(self) -> FleetHistory:
        return FleetHistory(self.content.terms)

    def _cast(self) -> list[Actor]:
        chance = self.chance
        actors: list[Actor] = []
        for number in range(chance.randint(1, 4)):
            functions = tuple(chance.sample(FUNCTIONS, chance.randint(1, 3)))
            actors.append(PlainWorker(self, f"plain {number}", functions))
        for number in range(chance.randint(0, 3)):
            functions = tuple(chance.sample(FUNCTIONS, chance.randint(1, 3)))
            actors.append(StreamWorker(self, f"stream {number}", functions, chance.randint(1, 3)))
        clients = range(chance.randint(2, 4))
        return actors + [Client(self, f"client {number}", extended=chance.random() < 0.6) for number in clients]

    def _begin(self, name: str) -> None:
        clock = self.machines[name]
        self.lives[name] = FleetLife(name, self._way(name), clock, self.chance, self._fleet, **self._options)

    def _way(self, name: str) -> Way:
        clock, lease = self.machines[name], self._fleet.lease
        return Way(self.content, self.history, name, clock, self.chance, lease, self._term_ended, self.removed)

    # ---- calls of actors ----

    def can_connect(self) -> bool:
        return any(life.ready and not life.stopped for life in self.lives.values())

    def connect(self, actor: Actor) -> Wire:
        life = self.chance.choice([life for life in self.lives.values() if life.ready and not life.stopped])

        def see(kind: int, args: list[bytes]) -> None:
            if actor.wire is wire:
                self._here = life
                actor.see(kind, args)

        wire = Wire(life, see)
        life.wires.append(wire)
        return wire

    def result_of(self, handle: bytes, worker: str) -> bytes:
        self._count += 1
        result = b"%b by %b, %d" % (handle, worker.encode(), self._count)
        self._results.setdefault(handle, set()).add(result)
        return result

    def acknowledged(self, handle: bytes, function: bytes, unique: bytes) -> None:
        """Check that an acknowledged background job is stored, and is the submitted one."""
        job = self._find(handle)
        assert job is not None, f"{handle!r} is acknowledged and not stored"
        assert job.function == function, f"{handle!r} is another job's answer"
        assert job.unique == unique, f"{handle!r} is another job's answer"
        self._acknowledged[job.id] = handle

    def assigned(self, handle: bytes) -> None:
        """Check that an assigned job, if it is stored, is held under a valid lease of the node."""
        life = self._here
        if life.service.table.held[handle].stored and life.store.term not in self.removed:
            assert not life.store.is_over(), f"{handle!r} is assigned after the end of the node's lease"
            job = self._find(handle)
            assert job is not None, f"{handle!r} is assigned and not stored"
            assert State(job.state).held, f"{handle!r} is assigned while it is {State(job.state).name}"
            assert job.term == life.store.term, f"{handle!r} is assigned under the lease {job.term}"

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        """Check that an outcome is stored, with the result that counts."""
        job = self._find(handle)
        if job is None:
            self._check_unstored(handle, state, result)
            return
        if job.id in self.history.redriven:
            return  # the answer may have waited for others while the job was redriven
        assert state != b"unknown", f"{handle!r} is stored and called unknown"
        assert State(job.state).ended, f"{handle!r} is reported as {state!r} while it is {State(job.state).name}"
        if state:
            assert State(job.state).name.lower().encode() == state
        if state == b"succeeded":
            assert result in self._results.get(handle, ()), f"{handle!r} has the result of another job"
            assert result == job.result, f"{handle!r} is reported with a result that does not count"

    def _check_unstored(self, handle: bytes, state: bytes, result: bytes) -> None:
        """Check the outcome of a job that was only in a node's memory, or was dropped because the store had no waiter for it."""
        job_id = Handles.parse(handle)
        assert job_id is not None
        assert job_id not in self._acknowledged, f"{handle!r} is lost"
        if state == b"unknown":
            return
        if job_id in self.history.dropped:
            assert self._here.fences, f"{handle!r} was dropped although a client waits for it"
        elif state == b"succeeded":
            assert result in self._results.get(handle, ()), f"{handle!r} has the result of another job"

    def must_have_ended(self, handle: bytes, why: str) -> None:
        if self._here.fences and "echo" in why:
            return  # plain Gearman cannot notify a worker that its node has lost the job
        job = self._find(handle)
        assert job is None or State(job.state).ended or job.id in self.history.redriven, f"{handle!r}: {why}"

    def _find(self, handle: bytes) -> Job | None:
        job_id = Handles.parse(handle)
        assert job_id is not None
        return self.content.tables.jobs.get(job_id)

    def _term_ended(self, term: int, by: str) -> None:
        """Check that a term was ended by its own node, or by another one after the node had stopped."""
        self.history.ended_terms.add(term)
        for life in self.lives.values():
            if life.name != by and life.store.term == term and not life.gone:
                assert life.store.is_over(), f"{by} ends {life.name}'s term {term} during its lease"

    # ---- chance ----

    def run(self, steps: int) -> None:
        """Run with faults, without, with faults, and without."""
        for _ in range(2):
            self.calm = False
            for number in range(steps):
                self.step()
                if number % 8 == 0:
                    self.check()
            self.run_without_faults()

    def check(self) -> None:
        """Check the invariants of any moment."""
        invariants.always(self)

    def left(self) -> dict[str, Position]:
        """Return the work that has not ended yet."""
        return invariants.left(self)

    def step(self) -> None:
        """Do one random action."""
        chance = self.chance
        number = chance.random()
        lives = [life for life in self.lives.values() if not life.stopped]
        life = chance.choice(lives) if lives else None
        if number < 0.48:
            if life is not None:
                self._turn(life, number)
        elif number < 0.6:
            self._receive(chance.choice(self.actors))
        elif number < 0.78:
            self._act(chance.choice(self.actors))
        elif number < 0.84:
            self._deliver_message()
        elif number < 0.86:
            left = [wire for life in lives for wire in life.wires if wire.ends]
            if left:
                chance.choice(left).deliver_end(chance)
        elif number < 0.97:
            self._pass(chance.choice((0.001, 0.01, 0.1, 0.3, 0.3, 1.1, 2.5)))
        elif number < 0.97 + 0.03 * self.fault_rate:
            self._begin_fault()

    def _turn(self, life: FleetLife, number: float) -> None:
        """Let a node act or receive a message."""
        chance = self.chance
        if number < 0.14:
            if life.loop.soon:
                life.loop.soon.popleft()()
        elif number < 0.24:
            if life.store.busy and not life.store.cut and chance.random() < self.promptness:
                life.store.finish()
        elif number < 0.36:
            errands = life.errands()
            if errands:
                life.go_on(chance.choice(errands))
                self._remove_dead()
        else:
            ready = [wire for wire in life.wires if wire.can_deliver]
            if ready:
                chance.choice(ready).deliver(chance)

    def _act(self, actor: Actor) -> bool:
        if actor.wire is None:
            return self.can_connect() and actor.act()
        return actor.act()

    def _receive(self, actor: Actor) -> bool:
        wire = actor.wire
        if wire is not None and wire.to_peer:
            actor.receive(*wire.to_peer.popleft())
            return True
        if wire is not None and wire.over:
            actor.lost()
            return True
        return False

    def _deliver_message(self) -> bool:
        terms = [term for term in self.content.messages if self._receives(term)]
        if terms:
            self.content.deliver(self.chance.choice(terms), None if self.calm else self.chance)
        return bool(terms)

    def _receives(self, term: int) -> bool:
        for life in self.lives.values():
            if term in life.store.deadlines:
                return not life.stopped and not life.store.cut
        return True

    # ---- faults ----

    def _begin_fault(self) -> None:
        chance = self.chance
        name = chance.choice(list(self.machines))
        life = self.lives.get(name)
        number = chance.random()
        until = self.clock.monotonic() + chance.expovariate(1 / self._fleet.lease)
        if name in self.troubles:
            if number < 0.3:
                self._end_fault(name)
        elif life is None:
            self._begin(name)
        elif number < 0.2:
            self.crash(life)
            self.troubles[name] = until
        elif number < 0.4:
            life.stopped = True
            self.troubles[name] = until
        elif number < 0.65:
            life.store.cut = True
            self.troubles[name] = until
        elif number < 0.72:
            life.store.break_off()
        elif number < 0.85:
            ways = [errand for errand in life.errands() if errand.moment.way]
            if ways:
                life.go_on(chance.choice(ways), invariants.away())
                self._remove_dead()
        elif number < 0.92:
            if life.ready and life.life is None:
                life.leave()
        elif number < 0.95:
            self.machines[name].skew = chance.uniform(-HOUR, HOUR)
        else:
            self._operate(remove=number > 0.985)

    def _operate(self, *, remove: bool) -> None:
        """Drain a node, end its drain, or remove it from the fleet although it is alive."""
        row = self.chance.choice([*self.content.rows.values(), None])
        if row is not None and remove:
            self.removed.add(row.term)
            self.history.ended_terms.add(row.term)
            Errand(SharedMemoryEngine(self.content).end(row.term))
        elif row is not None:
            Errand(
                SharedMemoryEngine(self.content).ask_to_drain(row.term, draining=row.name not in self.content.drains)
            )

    def _end_fault(self, name: str) -> None:
        del self.troubles[name]
        life = self.lives.get(name)
        if life is None:
            self._begin(name)
        elif life.stopped:
            life.stopped = False
            if self.chance.random() < 0.7:
                # Bytes that have arrived are read before timers run, as in a real loop.
                for wire in [wire for wire in life.wires if wire.can_deliver]:
                    wire.deliver()
            life.run_due()
        else:
            life.store.cut = False

    def crash(self, life: FleetLife) -> None:
        """Crash a node: its memory is lost, and operations in progress are committed or not."""
        life.crash()
        wires = set(map(id, life.wires))
        for actor in self.actors:
            if actor.wire is not None and id(actor.wire) in wires:
                actor.wire.over = True
                actor.lost()
        del self.lives[life.name]

    def _remove_dead(self) -> None:
        for life in [life for life in self.lives.values() if life.gone]:
            self.crash(life)
            self.troubles.pop(life.name, None)

    # ---- time ----

    def _pass(self, seconds: float) -> None:
        """Let time pass, with punctual timers and with ways to the store of about the normal length."""
        end = self.clock.monotonic() + seconds
        while True:
            now = self.clock.monotonic()
            for name in [name for name, until in self.troubles.items() if until <= now]:
                self._end_fault(name)
            for life in self.lives.values():
                life.run_due()
            if now >= end:
                return
            for life in list(self.lives.values()):
                for errand in life.errands():
                    if self.chance.random() < 0.8:
                        life.go_on(errand)
            self._remove_dead()
            self.clock.advance(min(max(self._next() - now, 0.0005), end - now, STEP_SECONDS))

    def _next(self) -> float:
        """Return the time of the next callback of a node."""
        return min((life.next() / life.clock.rate for life in self.lives.values()), default=math.inf)

    # ---- without faults ----

    def come_to_rest(self) -> None:
        """Run everything that needs no time."""
        for _ in range(10_000):
            did = False
            for life in list(self.lives.values()):
                did = life.settle() or did
                for wire in [wire for wire in life.wires if wire.ends]:
                    wire.deliver_end(self.chance)
                    did = True
                for wire in [wire for wire in life.wires if wire.can_deliver]:
                    wire.deliver()
                    did = True
            self._remove_dead()
            while self._deliver_message():
                did = True
            for actor in self.actors:
                while self._receive(actor):
                    did = True
                did = self._act(actor) or did
            if not did:
                return
        raise AssertionError("the fleet does not come to rest")

    def run_without_faults(self) -> None:
        """Run without faults, with a worker for each function, until all jobs have ended and all clients are notified."""
        self._calm_down()
        self._come_to_an_end()

    def _calm_down(self) -> None:
        self.calm = True
        for name in list(self.troubles):
            if name in self.lives or self.chance.random() < 0.5:
                self._end_fault(name)
        self.troubles.clear()
        self.content.drains.clear()
        able = {function for actor in self.actors for function in actor.functions}
        if able != set(FUNCTIONS):
            self.actors.append(PlainWorker(self, "helper", FUNCTIONS))

    def _come_to_an_end(self) -> None:
        end, progress = self.clock.monotonic() + CALM_SECONDS, Progress()
        while left := self._advance_without_faults():
            now = self.clock.monotonic()
            stuck = progress.stuck(left, now)
            assert not stuck, f"this never ends: {stuck}"
            assert now < end, f"this never ends: {left}"
            self._go_forward()
        for job_id, handle in self._acknowledged.items():
            job = self.content.tables.jobs.get(job_id)
            assert job is not None, f"{handle!r} is lost"
            assert State(job.state).ended

    def _advance_without_faults(self) -> dict[str, Position]:
        """Run everything that needs no time. Return the remaining work."""
        if not self.lives:
            self._begin(self.chance.choice(list(self.machines)))
        self.come_to_rest()
        self.check()
        return self.left()

    def _go_forward(self) -> None:
        """Let time pass until the next callback of a node."""
        now = self.clock.monotonic()
        self.clock.advance(min(max(self._next() - now, 0.001), 1.0))
        for life in self.lives.values():
            life.run_due()
