"""A fleet with runs of workflows: nodes start, stop and are cut off, and each changes the runs of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mainspring.api.handlers.workflows import VersionCalls, WorkflowCalls
from mainspring.engines.memory.engine import Runner
from mainspring.errors import StoreError, StoreFencedError
from mainspring.ids import TERM_SPAN
from mainspring.jobs.model import State
from mainspring.wire.gearman_protocol import Type
from mainspring.workflows.model import Limits, Status
from mainspring.workflows.reading import RunCache
from mainspring.workflows.service import RootRuns, WorkflowService
from tests.progress import Position
from tests.shared_memory import SharedMemoryEngine
from tests.shared_runs import SharedWorkflowSlice
from tests.simulation.actors import Actor, PlainWorker
from tests.simulation.fleet.attended import Attended
from tests.simulation.fleet.history import FleetHistory
from tests.simulation.fleet.life import FleetLife
from tests.simulation.fleet.store import Way
from tests.simulation.fleet.world import FleetWorld

from . import program
from .accounts import Account, Accounts
from .clients import Closer, RunClient
from .deciders import DeciderHost
from .program import APPS, RELAY, WITH_CHILDREN
from .results import check_relay, check_replay, check_result
from .stage import FlowStage
from .world import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.api.handlers.jobs import JobCalls
    from mainspring.api.handlers.submitting import SubmitCalls
    from mainspring.ids import NodeId
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.storage.engine import Committed, Opened, Operation
    from mainspring.workflows.observers import Changed
    from mainspring.workflows.reading import Unread
    from tests.simulation.wires import Wire


class NoHistory(FleetHistory):
    """It follows the terms and no jobs: those of runs are stored by operations of the workflows."""

    def note(self, node: str, group: Sequence[Operation], outcomes: Sequence[Any]) -> None: ...


class FleetAccounts(Accounts):
    """The accounts of a fleet, whose nodes know the time of the store about."""

    def began(self, at_us: int) -> float:
        del at_us
        return float("-inf")

    def chain(self, root: int) -> list[Account]:
        """Return the runs of a root job in their order, which is not that of their ids."""
        found = []
        account = self.runs.get(root)
        while account is not None:
            found.append(account)
            account = self.runs.get(getattr(account.close, "new_run", 0))
        return found

    def step_begins(self, run: int, label: str) -> None:
        """Check nothing: a worker of a node that is cut off may go on with what another one has done."""


class _Late:
    """Passes the notes about runs to a node when it is notified of the group."""

    def __init__(self, following: WorkflowService, attended: Attended) -> None:
        self._following = following
        self._attended = attended

    def appended(self, runs: Sequence[Changed]) -> None:
        self._attended.later(lambda: self._following.appended(runs))

    def errands_stored(self) -> None:
        self._attended.later(self._following.errands_stored)

    def holds_asked(self) -> None:
        self._attended.later(self._following.holds_asked)

    def not_read(self, runs: Sequence[Unread]) -> None:
        raise AssertionError(runs)


class FlowWay(Way):
    """A way to a store with runs."""

    lacks = frozenset()
    accounts: Accounts

    def __init__(self, *values: Any, cache: int, accounts: Accounts) -> None:
        super().__init__(*values)
        self.runs = SharedWorkflowSlice(cache=RunCache(cache))
        self.runs.subscribe(accounts)
        self._engine = SharedMemoryEngine(self._content, self.runs)

    async def open(self, node: NodeId, deliver: Any, lifecycle: JobLifecycle | None = None) -> Opened:
        assert lifecycle is not None
        self.attended = Attended(lifecycle)
        return await super().open(node, deliver, self.attended)

    def _answer(self, committed: Committed, outcomes: Sequence[Any] | StoreError) -> None:
        if (
            self._of in self._history.ended_terms
            and not isinstance(outcomes, StoreError)
            and self._chance.random() < 0.5
        ):
            outcomes = StoreFencedError(f"term {self._of} was ended by another node")  # as of ``ScheduleWay``
        self.attended.notify(committed=not isinstance(outcomes, StoreError))
        committed(outcomes)


class FlowFleetLife(FleetLife):
    """A `FleetLife` with the slice of workflows, as in the server."""

    store: FlowWay
    workflows: WorkflowService

    def _run_options(self) -> dict[str, Any]:
        cache = self.store.runs.cache
        self._roots = RootRuns(self.commits, self.store_clock, failed_builds=cache.failed_builds)
        return {"roots": self._roots, "prefers": self._roots.prefers}

    def _add(self) -> None:
        self.workflows = WorkflowService(
            self.commits,
            self.reads,
            self.store_clock,
            self.service,
            self._roots,
            tail=self.store.runs.cache.tail,
            first=self.fleet.first_in_line,
            workers_elsewhere=lambda function: self.fleet.remote_load(function).workers,
        )
        self.store.runs.subscribe(_Late(self.workflows, self.store.attended))

    def _handlers(self, jobs: JobCalls, submits: SubmitCalls) -> list[Any]:
        calls = WorkflowCalls(self.workflows, self.service, jobs, submits, Limits(largest=self.store.max_value))
        deciders = self.workflows.workers.rows
        versions = VersionCalls(
            self.workflows.versions, lambda namespace: [(self.name, one) for one in deciders(namespace)]
        )
        return [calls.handlers, versions.handlers]

    def _look(self, looked: list[object]) -> None:
        self.workflows.load(lambda: FleetLife._look(self, looked), looked.append)

    def _begin(self) -> None:
        self.workflows.fetch()

    def _tick(self) -> float:
        self.workflows.tick()
        return super()._tick()


RETRY_DELAY = 0.3
"""Seconds after which a client repeats a request for which the store was not available to the node."""


class _Patient(RunClient):
    """A client that waits before it repeats a request: its node may need time to take part again."""

    _waits_until = 0.0

    def act(self) -> bool:
        return self.world.clock.monotonic() >= self._waits_until and super().act()

    def receive(self, kind: int, args: list[bytes]) -> None:
        super().receive(kind, args)
        if kind == Type.FAULT and args[1] == b"unavailable":
            self._waits_until = self.world.clock.monotonic() + RETRY_DELAY


class _PatientCloser(_Patient, Closer):
    pass


class FlowFleetWorld(FleetWorld, FlowStage):
    """One run. Each seed chooses its kinds of workflows."""

    of_kinds: tuple[str, ...] = ()
    has_chains = False

    def _history(self) -> FleetHistory:
        return NoHistory(self.content.terms)

    def _cast(self) -> list[Actor]:
        chance = self.chance
        self.prepare(self.of_kinds, chains=self.has_chains)
        self.most_runs = chance.choice((6, 12, 20))
        self.accounts = FleetAccounts(self.clock)
        runner = Runner([SharedWorkflowSlice()])
        self.accounts.read = lambda query, budget, answered: answered(runner.read(query, budget, self.content.tables))
        self.life = SimpleNamespace(store=SimpleNamespace(find=self.content.tables.jobs.get))  # type: ignore[assignment]
        self._cache_bytes = chance.choice((2**20, 2**20, 3_000, 0))
        self._options.pop("lost_limit")
        program.enter(self)
        self.hosts = []
        for number in range(chance.randint(1, 3)):
            registry = RELAY.registry if self.has_chains else APPS["a"].registry
            if chance.random() < 0.3:
                registry = registry.subset({name for name, _ in registry.workflows})
            self.hosts.append(DeciderHost(self, f"decider {number}", registry, "a", 0.0))
        self.clients = [_Patient(self, f"client {number}") for number in range(chance.randint(1, 2))]
        self.closer = _PatientCloser(self)
        plain = [PlainWorker(self, f"plain {number}", (b"work",)) for number in range(chance.randint(0, 2))]
        return [*self.hosts, *plain, *self.clients, self.closer]

    def _begin(self, name: str) -> None:
        clock = self.machines[name]
        way = FlowWay(
            self.content, self.history, name, clock, self.chance, self._fleet.lease, self._term_ended, self.removed,
            cache=self._cache_bytes, accounts=self.accounts,
        )  # fmt: skip
        self.lives[name] = FlowFleetLife(name, way, clock, self.chance, self._fleet, **self._options)

    # ---- calls of actors ----

    def handle_of(self, run: int) -> str:
        return f"H:{self.content.terms.get(run // TERM_SPAN, 'n')}:{run}"

    def connect(self, actor: Actor) -> Wire:
        if not self.can_connect():
            raise ConnectionRefusedError
        return super().connect(actor)

    def assigned(self, handle: bytes) -> None:
        """Check an assigned job as for all fleets, unless another node has deleted it since: it may not be known here yet."""
        if self._find(handle) is not None:
            super().assigned(handle)

    def acknowledged(self, handle: bytes, function: bytes, unique: bytes) -> None:
        FlowStage.acknowledged(self, handle, function, unique)

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        FlowStage.outcome_sent(self, handle, state, result)

    def result_of(self, handle: bytes, worker: str) -> bytes:
        return FlowStage.result_of(self, handle, worker)

    def must_have_ended(self, handle: bytes, why: str) -> None:
        del handle, why

    # ---- the scheduler ----

    def check(self) -> None:
        if self.violations:
            raise self.violations[0]

    def step(self) -> None:
        """Do one random action; sometimes a node and all others do everything that they can."""
        super().step()
        self.check()
        able = [life for life in self.lives.values() if life.ready and not life.stopped]
        if able and self.chance.random() < 0.25:
            life = self.chance.choice(able)
            life.settle()
            for wire in [wire for wire in life.wires if wire.can_deliver]:
                wire.deliver()
            for actor in self.actors:
                self._receive(actor)
                self._act(actor)
            self._remove_dead()

    def _act(self, actor: Actor) -> bool:
        if isinstance(actor, DeciderHost):
            if actor.running is None and not self.can_connect():
                return False
            return actor.run_ready() or actor.act()
        return super()._act(actor)

    def _receive(self, actor: Actor) -> bool:
        if isinstance(actor, DeciderHost) and actor.running is None:
            return False
        return super()._receive(actor)

    def _pass(self, seconds: float) -> None:
        super()._pass(seconds)
        self._run_hosts()

    def _go_forward(self) -> None:
        super()._go_forward()
        self._run_hosts()

    def _run_hosts(self) -> None:
        for host in self.hosts:
            if host.running is not None:
                host.loop.run_due()

    def left(self) -> dict[str, Position]:
        live = [account for account in self.accounts.runs.values() if account.close is None]
        if live and self.can_connect():
            self.closer.close()
        left = {f"run {account.run}": Position(len(account.events)) for account in live}
        waits = [client.name for client in (*self.clients, self.closer) if client.asks or client.results]
        left |= {f"errand {number}": Position("stored") for number in self.content.tables.errands}
        return left | {name: Position("waits") for name in waits}

    def _come_to_an_end(self) -> None:
        super()._come_to_an_end()
        self.accounts.whole()
        for run, params in self.requests:
            self.check_request(run, params)
        for run, params in self.started.items():
            assert self.accounts.runs[run].kind == params["function"]
        for account in self.accounts.runs.values():
            self._check_run(account)
        tables = self.content.tables
        held = [job for job in tables.jobs.values() if job.options is not None and job.options.run is not None]
        assert not held, f"jobs of runs are left: {held}"

    def _check_run(self, account: Account) -> None:
        row = self.content.tables.workflows[account.run]
        assert (row.decision, row.due_us, row.parked) == (0, 0, None)
        check_replay(account)
        if row.status is Status.CONTINUED_AS_NEW:
            return
        job = self.content.tables.jobs[account.root]
        assert State(job.state) is OUTCOMES[row.status], f"the root job is {job.state}, the run {row.status}"
        if row.status is Status.COMPLETED:
            assert job.result == account.close.result
        if account.kind == "relay":
            check_relay(self.accounts.chain(account.root))
        else:
            check_result(account)

    def _calm_down(self) -> None:
        super()._calm_down()
        if not any(host.functions for host in self.hosts):
            self.actors.append(PlainWorker(self, "helper", (b"work",)))


class ChainFleetWorld(FlowFleetWorld):
    """Runs that continue as new."""

    has_chains = True


class ChildFleetWorld(FlowFleetWorld):
    """Runs with children."""

    of_kinds = tuple(WITH_CHILDREN)
