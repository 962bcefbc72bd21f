"""A node with runs of workflows, their deciders, plain workers and clients, under a scheduler that chooses interleavings."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from mainspring.clock import to_us
from mainspring.jobs.model import State
from mainspring.resources.hold_store import FindHolds
from mainspring.resources.holds import counted
from mainspring.workflows.model import Key, Status
from mainspring.workflows.store import ShowRun
from tests.progress import Position, Progress
from tests.simulation import invariants
from tests.simulation.actors import Actor, PlainWorker
from tests.simulation.life import Life
from tests.simulation.store import UNTIMED, History

from . import program
from .clients import Closer, RunClient
from .deciders import DeciderHost
from .program import APPS, RELAY, SHARED, SHARING, SLOTS, WITH_HOLDS
from .results import check_relay, check_replay, check_result
from .stage import FlowStage
from .store import FlowStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .store import Make

CALM_SECONDS = 150.0
"""Seconds without faults after which every run must have ended."""
END_INTERVAL = 3.0
"""Seconds between two attempts to let all runs end."""
OUTCOMES = {
    Status.COMPLETED: State.SUCCEEDED,
    Status.CANCELED: State.CANCELLED,
    Status.FAILED: State.FAILED,
    Status.TERMINATED: State.FAILED,
    Status.TIMED_OUT: State.FAILED,
}


class FlowWorld(FlowStage):
    """One run of the simulation. ``make`` returns the engine of each life of the node, all on the same content."""

    def __init__(self, seed: int, make: Make, kinds: Sequence[str] = (), *, chains: bool = False) -> None:
        super().__init__(seed, kinds, chains=chains)
        self._chains = chains
        self._shares = tuple(self.kinds) == WITH_HOLDS
        chance = self.chance
        self.crashes = chance.random() < 0.5
        self.pauses = chance.random() < 0.3
        """Whether workers stand still at times."""
        self._make = make
        self._cache = chance.choice((2**20, 2**20, 3_000, 0))
        program.enter(self)
        self.hosts = self._hosts()
        self.clients = [RunClient(self, f"client {number}") for number in range(chance.randint(1, 2))]
        self.closer = Closer(self)
        plain = [PlainWorker(self, f"plain {number}", (b"work",)) for number in range(chance.randint(0, 2))]
        self.actors: list[Actor] = [*self.hosts, *plain, *self.clients, self.closer]
        self.life = self._begin()

    def _hosts(self) -> list[DeciderHost]:
        chance = self.chance
        other = chance.choice("aaaabbc")
        hosts = []
        for number in range(chance.randint(1, 3)):
            build = other if number == 1 else "a"
            app = RELAY if self._chains else SHARING if self._shares else APPS[build]
            registry = app.registry
            if chance.random() < 0.3:
                registry = registry.subset({name for name, _ in registry.workflows})  # it only decides
            skew = chance.choice((0.0, 0.0, chance.uniform(-5, 5)))
            hosts.append(DeciderHost(self, f"decider {number}", registry, build, skew))
        return hosts

    def _begin(self) -> Life:
        def store(*args: Any) -> FlowStore:
            self._store = FlowStore(*args)
            self.accounts.read = self._store.look
            return self._store

        engine = self._make(self.accounts, self._cache)
        life = Life(engine, History(), self.clock, self.chance, workflows=True, store=store)
        if self._shares:
            life.service.resources.declare(SHARED, counted(SLOTS))
        return life

    # ---- chance ----

    def run(self, steps: int) -> None:
        """Run with faults, and without until all runs have ended."""
        for number in range(steps):
            self.step()
            self._check()
            if number % 16 == 0:
                self._check_memory()
            if number % 150 == 149:
                self.accounts.whole()
        self.run_without_faults()

    def _check(self) -> None:
        """Check that closed runs have left no jobs, and that no check has failed where the node's or the users' code runs."""
        if self.violations:
            raise self.violations[0]
        if self._shares:
            self._check_holds()
        while self.accounts.closed:
            account = self.accounts.closed.pop()
            for job_id in (account.decision, *(activity.job for activity in account.activities.values())):
                found = self.life.store.find(job_id)
                assert found is None, f"run {account.run} is closed, and its job {found} is left"

    def _check_holds(self) -> None:
        """Check that the runs that have slots are open, and have no more than there are."""
        found: list[Any] = []
        self._store.look(FindHolds((SHARED,), to_us(self.clock.wall())), UNTIMED, found.append)
        ((_, holds, _),) = found[-1]
        assert sum(hold.units for hold in holds) <= SLOTS, f"more is held than there is: {holds}"
        for hold in holds:
            account = self.accounts.runs.get(hold.holder.id)
            assert account is None or account.close is None, f"the run {hold.holder.id} is closed, and holds a slot"

    def _check_memory(self) -> None:
        """Check the node's memory."""
        invariants.always(self.life)
        assert self.life.workflows is not None
        cached = self.life.workflows.cached
        for run, at in cached._runs.items():
            assert at.worker in cached._connections, f"run {run} counts as cached by a worker that has gone"

    def step(self) -> None:
        """Do one random action."""
        life, chance = self.life, self.chance
        number = chance.random()
        if number < 0.1:
            if life.loop.soon:
                life.loop.soon.popleft()()
        elif number < 0.2:
            if life.store.busy:
                life.store.finish()
        elif number < 0.32:
            ready = [wire for wire in life.wires if wire.can_deliver]
            if ready:
                chance.choice(ready).deliver(chance)
        elif number < 0.42:
            self._receive(chance.choice(self.actors))
        elif number < 0.56:
            chance.choice(self.actors).act()
        elif number < 0.72:
            self._some()
        elif number < 0.8:
            host = chance.choice(self.hosts)
            while self._receive(host):
                pass
            host.run_ready()
        elif number < 0.9:
            self._advance(chance.choice((0.001, 0.02, 0.1, 0.3, 0.3, 1.1)))
        elif number < 0.94:
            self._end_left()
        elif number < 0.98:
            self._fault(chance.random())
        elif self.pauses:
            self._pause()

    def _some(self) -> None:
        """Let the node and all others do everything that they can at once."""
        life = self.life
        if self.chance.random() < 0.7:
            life.settle()  # else the packets come while a group is in progress
        for wire in [wire for wire in life.wires if wire.can_deliver]:
            wire.deliver()
        for actor in self.actors:
            self._receive(actor)
            actor.act()

    def _pause(self) -> None:
        """Let a worker do nothing for a while, although its connection stays."""
        chance = self.chance
        chance.choice(self.hosts).pause(11)
        for _ in range(12):
            self._advance(1.0)
            for _ in range(chance.choice((1, 3))):
                self._some()

    def _fault(self, number: float) -> None:
        life, chance = self.life, self.chance
        if number < 0.15:
            chance.choice(self.hosts).leave()
            self._end_left()
        elif number < 0.3:
            chance.choice(self.hosts).kill()
            self._end_left()
        elif number < 0.35:
            chance.choice(self.hosts).stop()
        elif number < 0.45:
            self._store.fails = True
        elif number < 0.5:
            life.store.full = not life.store.full
        elif number < 0.53:
            life.store.away = not life.store.away
        elif number < 0.6:
            seconds = chance.choice((-3.0, 3.0))
            self.accounts.step(seconds)
            self.clock.step(seconds)
        elif number < 0.75 and self.crashes:
            self.crash()
        elif number < 0.8 and self.crashes and not life.store.full:
            self._store.fails = self._store.away = False
            life.end()
            self.crash()

    def _receive(self, actor: Actor) -> bool:
        wire = actor.wire
        if isinstance(actor, DeciderHost) and actor.paused:
            return False
        if wire is not None and wire.to_peer:
            actor.receive(*wire.to_peer.popleft())
            return True
        if wire is not None and wire.over:
            actor.lost()
            return True
        return False

    def _end_left(self) -> None:
        left = [wire for wire in self.life.wires if wire.ends]
        if left:
            self.chance.choice(left).deliver_end(self.chance)

    def crash(self) -> None:
        """Lose everything in the node's memory; the group in progress is committed or not."""
        for wire in self.life.wires:
            wire.over = True
        self._store.crash()
        asyncio.run(self._store.engine.close())
        for actor in self.actors:
            if actor.wire is not None:
                actor.lost()
        self.life = self._begin()

    def _advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.life.run_due()
        for host in self.hosts:
            if host.running is not None:
                host.loop.run_due()

    # ---- without faults ----

    def come_to_rest(self) -> None:
        """Run everything that needs no time."""
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
                if isinstance(actor, DeciderHost) and actor.running is not None:
                    did = actor.run_ready() or did
                else:
                    did = actor.act() or did
            if not did:
                if life.commits.idle and not life.service.assigner.pending_grabs.since:
                    break
                self._advance(0.01)
        else:
            raise AssertionError("the node does not come to rest")
        self._check()
        self._check_memory()
        if not life.service.ends.unsettled and self.clock.monotonic() - self._store.failed > 1.0:  # else it is repeated
            invariants.idle(life)
            invariants.rest(life)

    def run_without_faults(self) -> None:
        """Run without faults until all runs have ended, and check what is left."""
        self.calm = True
        self._store.full = self._store.fails = self._store.away = False
        if not any(host.functions for host in self.hosts) and not any(
            isinstance(one, PlainWorker) for one in self.actors
        ):
            self.actors.append(PlainWorker(self, "helper", (b"work",)))
        begun, end, progress = self.clock.monotonic(), 0.0, Progress()
        while True:
            self._keep_out(self.clock.monotonic() - begun)
            self.come_to_rest()
            waits = [client.name for client in (*self.clients, self.closer) if client.asks or client.results]
            live = [account for account in self.accounts.runs.values() if account.close is None]
            unbegun = self._unbegun()
            positions = invariants.ends_left(self.life.wires)
            positions |= {f"run {account.run}": Position(len(account.events)) for account in live}
            positions |= {f"submitted run {run}": Position("not begun") for run in unbegun}
            if not (positions or waits or self.life.service.table.held):
                break
            seconds = self.clock.monotonic() - begun
            if seconds >= end and not any(client.asks for client in self.clients):
                end = seconds + END_INTERVAL
                self.closer.close()
            shown = [(account.run, account.kind, account.events[-3:], account.changed) for account in live]
            stuck = progress.stuck(positions, self.clock.monotonic())
            assert not stuck, f"after {seconds} s: {stuck}, {shown}"
            assert seconds < CALM_SECONDS, f"after {seconds} s: {shown}, {unbegun}, {waits}"
            following = min(self.life.next(), *(host.loop.next() or math.inf for host in self.hosts if host.running))
            self._advance(min(max(following - self.clock.monotonic(), 0.001), 1.0))
        self._check_end()

    def _unbegun(self) -> list[int]:
        """Return the acknowledged jobs whose runs have not begun."""
        return [run for run in self.submitted if run not in self.accounts.runs and self.waiting_job(run)]

    def _keep_out(self, seconds: float) -> None:
        """Let the builds take turns, so that each makes the decisions that only it can make."""
        both = {host.build for host in self.hosts} >= {"a", "b"}
        turn = "ab"[int(seconds / 12) % 2]
        for host in self.hosts:
            host.kept_out = both and host.build != turn

    def _check_end(self) -> None:
        life = self.life
        self.accounts.whole()
        for run, params in self.requests:
            self.check_request(run, params)
        for run, params in self.started.items():
            assert self.accounts.runs[run].kind == params["function"]
        for run, kind in self.submitted.items():
            assert run not in self.accounts.runs or self.accounts.runs[run].kind == kind
        for account in self.accounts.runs.values():
            self._check_run(account)
        live = {key: number for key, number in life.store.counts().items() if not State(key[1]).ended and number}
        assert not live, f"jobs are left: {live}"
        ended = {key: number for key, number in life.store.counts().items() if key[0].decode() not in self._names()}
        assert not any(ended.values()), f"ended jobs of runs are left: {ended}"
        workflows = life.workflows
        assert workflows is not None
        assert not workflows.cached._goes_on
        assert not workflows.cached._runs

    def _names(self) -> set[str]:
        return {"relay"} if self._chains else {*WITH_HOLDS} if self._shares else {*program.KINDS, *self.kinds}

    def _check_run(self, account: Any) -> None:
        shown: list[Any] = []
        self._store.look(ShowRun(Key(run=account.run)), UNTIMED, shown.append)
        row, state, *_ = shown[0]
        assert state == account.state, "the state is not the fold of all events"
        assert (row.decision, row.due_us, row.parked) == (0, 0, None)
        check_replay(account)
        if row.status is Status.CONTINUED_AS_NEW:
            assert self.accounts.runs[account.close.new_run].root == account.root
            return
        job = self.life.store.find(account.root)
        assert job is not None
        assert State(job.state) is OUTCOMES[row.status], f"the root job is {job.state}, the run {row.status}"
        if row.status is Status.COMPLETED:
            assert job.result == account.close.result
        if account.kind == "relay":
            check_relay(self.accounts.chain(account.root))
        else:
            check_result(account)
