"""A fleet on one store, its clients and workers in one process, under a scheduler that plays every interleaving by chance."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

from mainspring.ids import Handles
from mainspring.jobs.model import State
from mainspring.server.settings import FleetSettings
from mainspring.testing.clock import START, ManualClock
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

HOUR = 3600.0
CALM_SECONDS = 200.0
"""After so long without trouble everything must have ended."""
STEP_SECONDS = 0.3
"""While time passes, all that is not in trouble gets a turn at least so often."""


class FleetWorld:
    """One run."""

    strategies: tuple[str, ...] = ("default", "default", "id_hash", "least_count", "weight")

    def __init__(self, seed: int, start: float = START) -> None:
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
        lease = chance.choice((3.0, 3.0, 6.0, 15.0))
        self._fleet = FleetSettings(
            strategy=chance.choice(self.strategies),
            lease=lease,
            beat=lease * chance.choice((0.2, 0.3)),
        )
        self._options: dict[str, Any] = {
            "round_robin": chance.random() < 0.3,
            "lost_limit": chance.choice((None, None, 3)),
            "wakeup": chance.choice((1, 1, 1, 2, 0)),
        }
        self.trouble = chance.choice((1.0, 1.0, 0.3))
        """How much of it there is."""
        self.promptness = chance.choice((1.0, 1.0, 0.15))
        """How soon groups are committed: where they take long, leases end meanwhile."""
        self.machines = {
            f"n{number}": MachineClock(
                self.clock, chance.choice((1.0, 1.0, 0.95, 1.05)), chance.choice((0.0, 0.0, -HOUR, HOUR, 17.0))
            )
            for number in range(1, chance.randint(2, 4) + 1)
        }
        self.lives: dict[str, FleetLife] = {}
        """The nodes that run, by name."""
        self._owners: dict[int, FleetLife] = {}
        self.removed: set[int] = set()
        """Terms of nodes that were taken out of the fleet, and may not know it yet."""
        self.troubles: dict[str, float] = {}
        """Nodes that are cut off, stopped or down, and until when."""
        self._here: FleetLife
        """The node of which an actor is just shown a packet."""
        self.actors: list[Actor] = self._cast()
        for name in self.machines:
            self._begin(name)

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
        way = Way(
            self.content, self.history, name, clock, self.chance, self._fleet.lease, self._term_ended, self.removed
        )
        self.lives[name] = FleetLife(name, way, clock, self.chance, self._fleet, **self._options)

    # ---- what actors do and see ----

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
        """A background job is acknowledged: it is stored, and is the one that was asked for."""
        job = self._find(handle)
        assert job is not None, f"{handle!r} is acknowledged and not stored"
        assert job.function == function, f"{handle!r} is another job's answer"
        assert job.unique == unique, f"{handle!r} is another job's answer"
        self._acknowledged[job.id] = handle

    def assigned(self, handle: bytes) -> None:
        """A worker is given a job: if it is a stored one, then under a lease that the node may believe in."""
        life = self._here
        if life.service.table.held[handle].stored and life.store.term not in self.removed:
            assert not life.store.is_over(), f"{handle!r} is assigned after the end of the node's lease"
            job = self._find(handle)
            assert job is not None, f"{handle!r} is assigned and not stored"
            assert State(job.state).held, f"{handle!r} is assigned while it is {State(job.state).name}"
            assert job.term == life.store.term, f"{handle!r} is assigned under the lease {job.term}"

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        """A client is told how a job ended: so it is stored, and the result is the one that counts."""
        job = self._find(handle)
        if job is None:
            self._told_of_none(handle, state, result)
            return
        if job.id in self.history.redriven:
            return  # the answer may have waited for others, and the job has begun again meanwhile
        assert state != b"unknown", f"{handle!r} is stored and called unknown"
        assert State(job.state).ended, f"{handle!r} is told as {state!r} while it is {State(job.state).name}"
        if state:
            assert State(job.state).name.lower().encode() == state
        if state == b"succeeded":
            assert result in self._results.get(handle, ()), f"{handle!r} has the result of another job"
            assert result == job.result, f"{handle!r} is told with a result that does not count"

    def _told_of_none(self, handle: bytes, state: bytes, result: bytes) -> None:
        """It was in a node's memory alone, or was dropped because nobody waited: as far as the store could know."""
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
            return  # a plain worker cannot be told that its node has lost the job
        job = self._find(handle)
        assert job is None or State(job.state).ended or job.id in self.history.redriven, f"{handle!r}: {why}"

    def _find(self, handle: bytes) -> Job | None:
        job_id = Handles.parse(handle)
        assert job_id is not None
        return self.content.tables.jobs.get(job_id)

    def _term_ended(self, term: int, by: str) -> None:
        """A term is ended: by its own node, or by another after the node has stopped."""
        self.history.ended_terms.add(term)
        for life in self.lives.values():
            if life.name != by and life.store.term == term and not life.gone:
                assert life.store.is_over(), f"{by} ends {life.name}'s term {term} during its lease"

    # ---- chance ----

    def run(self, steps: int) -> None:
        """Trouble, peace, trouble and peace again."""
        for _ in range(2):
            self.calm = False
            for number in range(steps):
                self.step()
                if number % 8 == 0:
                    self.check()
            self.peace()

    def check(self) -> None:
        """See to what is true at any moment."""
        invariants.always(self)

    def left(self) -> list[str]:
        """Say what has not come to its end yet."""
        return invariants.left(self)

    def step(self) -> None:
        """One thing happens."""
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
            self._deliver_letter()
        elif number < 0.86:
            left = [wire for life in lives for wire in life.wires if wire.left and not wire.over]
            if left:
                self._end(chance.choice(left))
        elif number < 0.97:
            self._pass(chance.choice((0.001, 0.01, 0.1, 0.3, 0.3, 1.1, 2.5)))
        elif number < 0.97 + 0.03 * self.trouble:
            self._make_trouble()

    def _turn(self, life: FleetLife, number: float) -> None:
        """A node does something, or hears something."""
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
                self._bury()
        else:
            ready = [wire for wire in life.wires if wire.can_deliver]
            if ready:
                chance.choice(ready).deliver(chance)

    def _act(self, actor: Actor) -> bool:
        if actor.wire is None:
            return self.can_connect() and actor.act()
        if not self.calm and isinstance(actor, Client) and actor.waits and self.chance.random() < 0.03:
            actor.leave()  # while others wait for the same, at other nodes or at this one
            return True
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

    def _end(self, wire: Wire) -> None:
        if wire.to_server and not wire.paused and self.chance.random() < 0.5:
            wire.deliver()
        wire.end()

    def _deliver_letter(self) -> bool:
        terms = [term for term in self.content.letters if self._hears(term)]
        if terms:
            self.content.deliver(self.chance.choice(terms), None if self.calm else self.chance)
        return bool(terms)

    def _hears(self, term: int) -> bool:
        for life in self.lives.values():
            if term in life.store.deadlines:
                return not life.stopped and not life.store.cut
        return True

    # ---- trouble ----

    def _make_trouble(self) -> None:
        chance = self.chance
        name = chance.choice(list(self.machines))
        life = self.lives.get(name)
        number = chance.random()
        until = self.clock.monotonic() + chance.expovariate(1 / self._fleet.lease)
        if name in self.troubles:
            if number < 0.3:
                self._end_trouble(name)
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
                self._bury()
        elif number < 0.92:
            if life.ready and life.life is None:
                life.leave()
        elif number < 0.95:
            self.machines[name].skew = chance.uniform(-HOUR, HOUR)
        else:
            self._operate(remove=number > 0.985)

    def _operate(self, *, remove: bool) -> None:
        """Somebody asks a node to drain, or no longer, or takes it out of the fleet although it lives."""
        row = self.chance.choice([*self.content.rows.values(), None])
        if row is not None and remove:
            self.removed.add(row.term)
            self.history.ended_terms.add(row.term)
            Errand(SharedMemoryEngine(self.content).end(row.term))
        elif row is not None:
            Errand(
                SharedMemoryEngine(self.content).ask_to_drain(row.term, draining=row.name not in self.content.drains)
            )

    def _end_trouble(self, name: str) -> None:
        del self.troubles[name]
        life = self.lives.get(name)
        if life is None:
            self._begin(name)
        elif life.stopped:
            life.stopped = False
            if self.chance.random() < 0.7:
                # What has come meanwhile is read before timers run, as in a real loop.
                for wire in [wire for wire in life.wires if wire.can_deliver]:
                    wire.deliver()
            life.run_due()
        else:
            life.store.cut = False

    def crash(self, life: FleetLife) -> None:
        """Everything in a node's memory is gone, and what was under way has happened or not."""
        life.crash()
        wires = set(map(id, life.wires))
        for actor in self.actors:
            if actor.wire is not None and id(actor.wire) in wires:
                actor.wire.over = True
                actor.lost()
        del self.lives[life.name]

    def _bury(self) -> None:
        for life in [life for life in self.lives.values() if life.gone]:
            self.crash(life)
            self.troubles.pop(life.name, None)

    # ---- time ----

    def _pass(self, seconds: float) -> None:
        """Let time pass: timers are punctual, and the ways to the store are not much longer than usual."""
        end = self.clock.monotonic() + seconds
        while True:
            now = self.clock.monotonic()
            for name in [name for name, until in self.troubles.items() if until <= now]:
                self._end_trouble(name)
            for life in self.lives.values():
                life.run_due()
            if now >= end:
                return
            for life in list(self.lives.values()):
                for errand in life.errands():
                    if self.chance.random() < 0.8:
                        life.go_on(errand)
            self._bury()
            self.clock.advance(min(max(self._next() - now, 0.0005), end - now, STEP_SECONDS))

    def _next(self) -> float:
        """When a node does something of its own accord."""
        return min((life.next() / life.clock.rate for life in self.lives.values()), default=math.inf)

    # ---- peace ----

    def come_to_rest(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(10_000):
            did = False
            for life in list(self.lives.values()):
                did = life.settle() or did
                for wire in [wire for wire in life.wires if wire.left and not wire.over]:
                    self._end(wire)
                    did = True
                for wire in [wire for wire in life.wires if wire.can_deliver]:
                    wire.deliver()
                    did = True
            self._bury()
            while self._deliver_letter():
                did = True
            for actor in self.actors:
                while self._receive(actor):
                    did = True
                did = self._act(actor) or did
            if not did:
                return
        raise AssertionError("the fleet does not come to rest")

    def peace(self) -> None:
        """No more trouble, and a worker for each function: all ends, and all who wait are told."""
        self._calm_down()
        self._come_to_an_end()

    def _calm_down(self) -> None:
        self.calm = True
        for name in list(self.troubles):
            if name in self.lives or self.chance.random() < 0.5:
                self._end_trouble(name)
        self.troubles.clear()
        self.content.drains.clear()
        able = {function for actor in self.actors for function in actor.functions}
        if able != set(FUNCTIONS):
            self.actors.append(PlainWorker(self, "helper", FUNCTIONS))

    def _come_to_an_end(self) -> None:
        end = self.clock.monotonic() + CALM_SECONDS
        while left := self._go_on_in_peace():
            assert self.clock.monotonic() < end, f"this never ends: {left}"
            self._go_forward()
        for job_id, handle in self._acknowledged.items():
            job = self.content.tables.jobs.get(job_id)
            assert job is not None, f"{handle!r} is lost"
            assert State(job.state).ended

    def _go_on_in_peace(self) -> list[str]:
        """Let everything happen that needs no time; say what is left."""
        if not self.lives:
            self._begin(self.chance.choice(list(self.machines)))
        self.come_to_rest()
        self.check()
        return self.left()

    def _go_forward(self) -> None:
        """Let time pass until a node does something of its own accord."""
        now = self.clock.monotonic()
        self.clock.advance(min(max(self._next() - now, 0.001), 1.0))
        for life in self.lives.values():
            life.run_due()
