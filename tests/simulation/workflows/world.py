"""A node with runs of workflows, their deciders, plain workers and clients, under a scheduler that chooses interleavings."""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.ids import Handles
from mainspring.jobs.model import State
from mainspring.testing import ManualClock
from mainspring.workflows import history
from mainspring.workflows.model import Key, Status
from mainspring.workflows.store import ShowRun
from tests.simulation import invariants
from tests.simulation.actors import Actor, PlainWorker
from tests.simulation.life import Life
from tests.simulation.store import UNTIMED, History
from tests.simulation.wires import Wire

from . import program
from .accounts import Accounts
from .clients import Closer, RunClient
from .deciders import DeciderHost
from .program import APPS
from .results import check_replay, check_result
from .store import FlowStore
from .virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

    from .store import Make

_json = msgspec.json.decode
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


class FlowWorld:
    """One run of the simulation. ``make`` returns the engine of each life of the node, all on the same content."""

    def __init__(self, seed: int, make: Make) -> None:
        self.chance = chance = Random(seed)
        self.clock = ManualClock()
        self.calm = False
        self.accounts = Accounts(self.clock)
        self.load = chance.choice((1.0, 0.3))
        self.most_runs = chance.choice((3, 6, 12))
        self.kinds = chance.sample(program.KINDS, chance.choice((2, 3, len(program.KINDS))))
        self.crashes = chance.random() < 0.5
        self.pauses = chance.random() < 0.3
        """Whether workers stand still at times."""
        self.deadly = chance.random() < 0.1
        """Whether decisions often kill their workers."""
        self.slow_activations = chance.random() < 0.2
        self.brief_steps = chance.random() < 0.5
        self._make = make
        self._number = 0
        self._dead: set[VirtualLoop] = set()
        self.violations: list[AssertionError] = []
        """The errors of checks inside the code of users."""
        self._started: dict[int, dict[str, Any]] = {}
        """Acknowledged starts."""
        self._submitted: dict[int, str] = {}
        """Acknowledged jobs of workflows, whose runs may begin later, with the names of their workflows."""
        self._requests: list[tuple[int, dict[str, Any]]] = []
        """Acknowledged signals and requests to cancel."""
        self.may_be_cancelled: set[str] = set()
        """Handles of the runs and jobs that clients have asked to cancel."""
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
            registry = APPS[build].registry
            if chance.random() < 0.3:
                registry = registry.subset(program.KINDS)  # it only decides
            skew = chance.choice((0.0, 0.0, chance.uniform(-5, 5)))
            hosts.append(DeciderHost(self, f"decider {number}", registry, build, skew))
        return hosts

    def _begin(self) -> Life:
        def store(*args: Any) -> FlowStore:
            self._store = FlowStore(*args)
            self.accounts.read = self._store.look
            return self._store

        engine = self._make(self.accounts, self._cache)
        return Life(engine, History(), self.clock, self.chance, workflows=True, store=store)

    # ---- calls of actors ----

    def connect(self, actor: Actor) -> Wire:
        def see(kind: int, args: list[bytes]) -> None:
            if actor.wire is wire:
                actor.see(kind, args)

        wire = Wire(self.life, see)
        self.life.wires.append(wire)
        return wire

    def died(self, loop: VirtualLoop) -> None:
        """Ignore everything that the process of a loop does from now on."""
        self._dead.add(loop)

    def handle_of(self, run: int) -> str:
        return f"H:n:{run}"

    def some_job(self) -> str:
        """Return the handle of a job that does something for a run, or did: operators may cancel it by hand."""
        accounts = list(self.accounts.runs.values())
        account = self.chance.choice(accounts) if accounts else None
        if account is None:
            return self.handle_of(7_000_000_000_001)
        jobs = [account.decision, *(activity.job for activity in account.activities.values())]
        return self.handle_of(self.chance.choice(jobs))

    def signal_value(self) -> int:
        self._number += 1
        return self._number

    def next_number(self, run: int, label: str) -> int:
        self._number += 1
        self.accounts.executed[self._number] = run, label
        return self._number

    async def execute(self, run: int, label: str, *, step: bool) -> int:
        """See `program.Stage`."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if loop in self._dead:
            await loop.create_future()  # until it is cancelled
        if step and not loop.owner.stood_still:
            try:
                self.accounts.step_begins(run, label)
            except AssertionError as error:  # it would be the step's failure
                self.violations.append(error)
        number = 0.0 if self.calm else self.chance.random()
        if number > (0.8 if self.brief_steps else 0.4):
            await asyncio.sleep(self.chance.choice((0.01, 0.2, 1.0, 4.0)))
        if 0 < number < 0.08:
            raise ValueError(label)
        return self.next_number(run, label)

    def side(self, run: int) -> int:
        """See `program.Stage`."""
        return self.next_number(run, "side")

    def activation_time(self) -> float:
        """Return a time for the beginning or the end of an activation."""
        self._number += 1
        return self.clock.monotonic() + (self.chance.choice((0.0, 0.03)) if self.slow_activations else 0.0)

    # ---- calls of plain workers ----

    def result_of(self, handle: bytes, worker: str) -> bytes:
        del worker
        job_id = _id(handle)
        for account in self.accounts.runs.values():
            for scheduled in account.activities.values():
                if scheduled.job == job_id:
                    label = str(_json(scheduled.input)[1])
                    return b"%d" % self.next_number(account.run, label)
        return b"%d" % self.next_number(0, "late")

    def assigned(self, handle: bytes) -> None:
        """Check that an assigned job is leased to this life of the node."""
        job = self.life.store.find(_id(handle))
        assert job is not None, f"{handle!r} is assigned and not stored"
        assert State(job.state).held, f"{handle!r} is assigned while it is {State(job.state).name}"
        assert job.term == self.life.term, f"{handle!r} is assigned under an old lease"

    def must_have_ended(self, handle: bytes, why: str) -> None:
        job = self.life.store.find(_id(handle))
        assert job is None or State(job.state).ended, f"{handle!r}: {why}"

    def acknowledged(self, handle: bytes, function: bytes, unique: bytes) -> None:
        """Check that a job of a workflow is stored: its run begins at once if a worker has registered the workflow."""
        del unique
        job = self.life.store.find(_id(handle))
        assert job is not None, f"{handle!r} is acknowledged and not stored"
        assert job.function == function, f"{handle!r} is another job's answer"
        self._submitted[job.id] = function.decode()

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        """Check that an outcome is that of a run, and committed."""
        account = self.accounts.runs.get(_id(handle))
        if account is None:
            assert state == b"cancelled", f"{handle!r} is reported as {state!r}, and has not begun"
            return
        assert account.close is not None, f"{handle!r} is reported as {state!r}, and its run is open"
        if state == b"succeeded":
            assert account.close.result == result, f"{handle!r} has the result of another run"

    # ---- acknowledgements ----

    def start_acknowledged(self, run: int, params: dict[str, Any]) -> None:
        if run in self.accounts.runs:
            self._started[run] = params
        else:  # it has joined a job that waits
            job = self.life.store.find(run)
            assert job is not None, f"{run} is acknowledged and not begun"
            assert not State(job.state).ended, f"{run} is acknowledged and not begun"
            self._submitted[run] = params["function"]

    def request_acknowledged(self, run: int, params: dict[str, Any]) -> None:
        self._requests.append((run, params))
        if run in self.accounts.runs:
            self._check_request(run, params)

    def _check_request(self, run: int, params: dict[str, Any]) -> None:
        account = self.accounts.runs.get(run)
        if account is None:
            assert not self._waiting_job(run), f"{params} is acknowledged, and its run has not begun"
        elif "input" in params:
            values = [_json(event.input) for event in account.of(history.WorkflowExecutionSignaled)]
            assert values.count(params["input"]) == 1, f"signal {params} is {values.count(params['input'])} times there"
        else:
            assert account.of(history.WorkflowExecutionCancelRequested), f"{params} is acknowledged and not recorded"

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
        while self.accounts.closed:
            account = self.accounts.closed.pop()
            for job_id in (account.decision, *(activity.job for activity in account.activities.values())):
                found = self.life.store.find(job_id)
                assert found is None, f"run {account.run} is closed, and its job {found} is left"

    def _check_memory(self) -> None:
        """Check the node's memory."""
        invariants.always(self.life)
        assert self.life.workflows is not None
        cached = self.life.workflows.deciders.cached
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
        left = [wire for wire in self.life.wires if wire.left and not wire.over]
        if left:
            self._end(self.chance.choice(left))

    def _end(self, wire: Wire) -> None:
        if wire.to_server and not wire.paused and self.chance.random() < 0.5:
            wire.deliver()
        wire.end()

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
            for wire in [wire for wire in life.wires if wire.left and not wire.over]:
                self._end(wire)
                did = True
            for wire in life.wires:
                if wire.can_deliver:
                    wire.deliver()
                    did = True
            for actor in self.actors:
                while self._receive(actor):
                    did = True
                did = actor.run_ready() if isinstance(actor, DeciderHost) and actor.running else actor.act() or did
            if not did:
                if life.commits.idle and not life.service.serving.pending_grabs.since:
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
        begun, end = self.clock.monotonic(), 0.0
        while True:
            self._keep_out(self.clock.monotonic() - begun)
            self.come_to_rest()
            waits = [client.name for client in (*self.clients, self.closer) if client.asks or client.results]
            live = [account for account in self.accounts.runs.values() if account.close is None]
            unbegun = self._unbegun()
            if not (live or unbegun or waits or self.life.service.table.held):
                break
            seconds = self.clock.monotonic() - begun
            if seconds >= end and not any(client.asks for client in self.clients):
                end = seconds + END_INTERVAL
                self.closer.close()
            shown = [(account.run, account.kind, account.events[-3:], account.changed) for account in live]
            assert seconds < CALM_SECONDS, f"after {seconds} s: {shown}, {unbegun}, {waits}"
            following = min(self.life.next(), *(host.loop.next() or math.inf for host in self.hosts if host.running))
            self._advance(min(max(following - self.clock.monotonic(), 0.001), 1.0))
        self._check_end()

    def _unbegun(self) -> list[int]:
        """Return the acknowledged jobs whose runs have not begun."""
        return [run for run in self._submitted if run not in self.accounts.runs and self._waiting_job(run)]

    def _waiting_job(self, run: int) -> Job | None:
        """Return the job of a run that has not begun; None if it was cancelled, and perhaps deleted since."""
        job = self.life.store.find(run)
        if job is None or State(job.state).ended:
            assert self.handle_of(run) in self.may_be_cancelled, f"{job or run} has ended, and nobody has cancelled it"
            return None
        return job

    def _keep_out(self, seconds: float) -> None:
        """Let the builds take turns, so that each makes the decisions that only it can make."""
        both = {host.build for host in self.hosts} >= {"a", "b"}
        turn = "ab"[int(seconds / 12) % 2]
        for host in self.hosts:
            host.kept_out = both and host.build != turn

    def _check_end(self) -> None:
        life = self.life
        self.accounts.whole()
        for run, params in self._requests:
            self._check_request(run, params)
        for run, params in self._started.items():
            assert self.accounts.runs[run].kind == params["function"]
        for run, kind in self._submitted.items():
            assert run not in self.accounts.runs or self.accounts.runs[run].kind == kind
        for account in self.accounts.runs.values():
            self._check_run(account)
        live = {key: number for key, number in life.store.counts().items() if not State(key[1]).ended and number}
        assert not live, f"jobs are left: {live}"
        ended = {key: number for key, number in life.store.counts().items() if key[0].decode() not in program.KINDS}
        assert not any(ended.values()), f"ended jobs of runs are left: {ended}"
        workflows = life.workflows
        assert workflows is not None
        assert not workflows.deciders._goes_on
        assert not workflows.deciders.cached._runs

    def _check_run(self, account: Any) -> None:
        shown: list[Any] = []
        self._store.look(ShowRun(Key(run=account.run)), UNTIMED, shown.append)
        row, state = shown[0]
        assert state == account.state, "the state is not the fold of all events"
        assert (row.decision, row.due_us, row.parked) == (0, 0, None)
        job = self.life.store.find(account.run)
        assert job is not None
        assert State(job.state) is OUTCOMES[row.status], f"the root job is {job.state}, the run {row.status}"
        if row.status is Status.COMPLETED:
            assert job.result == account.close.result
        check_result(account)
        check_replay(account)


def _id(handle: bytes) -> int:
    job_id = Handles.parse(handle)
    assert job_id is not None
    return job_id
