"""A node as a member of a fleet: its row for other nodes, their rows, and its reactions to a lost and a new term.

All nodes of a store share the store's clock, computed from the machine's (`StoreClock`). The row has the workers that are
connected to this node, which the API shows, too (`ConnectedWorkers`).
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec
import structlog

from mainspring.api.handlers.nodes import WatchedJob
from mainspring.clock import to_us
from mainspring.events import Relay
from mainspring.faces.gearman.face import RemoteLoad
from mainspring.faces.web import Measure
from mainspring.jobs.claiming import NO_QUOTA, ClaimQuota
from mainspring.jobs.model import DECISIONS
from mainspring.jobs.sharing import Shared
from mainspring.namespaces import DEFAULT, SEPARATOR, split
from mainspring.nodes.lease_manager import LeaseManager, Recoveries
from mainspring.nodes.model import (
    OBSERVE_INTERVAL,
    WORKERS_LIMIT,
    Decider,
    MembershipPort,
    NodeRow,
    SessionPort,
    WorkerRow,
)
from mainspring.nodes.strategies import IdHash
from mainspring.schedules.service import first_in_line
from mainspring.storage.engine import Engine
from mainspring.version import version
from mainspring.workflows.decider_workers import CacheReport, DeciderRow
from mainspring.workflows.model import decision_function, decisions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mainspring.clock import Clock
    from mainspring.events import AboutWaiters, Direct, FollowLog, Logged, Message
    from mainspring.faces.gearman.peers import Connected, Peers, TaskWorker
    from mainspring.ids import Handles, Term
    from mainspring.jobs.held import FunctionQueue, Worker
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import Recovered
    from mainspring.nodes.strategies import Strategy
    from mainspring.server.settings import FleetSettings, ServerSettings


class SystemClock:
    """Wall and monotonic time from the operating system: see `mainspring.clock.Clock`."""

    # The functions themselves without a wrapper: the node calls them for every job.
    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class StoreClock:
    """The store's wall time, computed from the node's monotonic clock: all nodes agree when something is due.

    A step of the machine's wall clock has no effect. ``offset`` is the store's wall time minus the monotonic time, in
    seconds, as measured last; before the first measurement it uses this machine's wall clock.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.offset = clock.wall() - clock.monotonic()

    def move(self, seconds: float) -> None:
        """Set this clock forward by the seconds by which the store's clock is ahead of it."""
        self.offset += seconds

    def wall(self) -> float:
        """Return the store's time in seconds since 1970-01-01 UTC."""
        return self.monotonic() + self.offset


class ConnectedWorkers:
    """The workers of a node's peers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def _sides(self) -> Iterator[TaskWorker]:
        return (peer.worker_side for peer in self._of_workers())

    def _of_workers(self) -> Iterator[Connected]:
        return (peer for peer in self._peers.connected if peer.workers)

    def rows(self, functions: Sequence[bytes]) -> tuple[WorkerRow, ...]:
        """Return the rows of the first `WORKERS_LIMIT` workers, also with their decisions of these functions."""
        places = {function: place for place, function in enumerate(functions)}
        return tuple(
            _row(peer.worker_side, None if peer.decisions is None else _decider(peer.decisions.row(), places))
            for peer in islice(self._of_workers(), WORKERS_LIMIT)
        )

    def all(self) -> list[WorkerRow]:
        """Return the rows of all workers."""
        return [_row(side) for side in self._sides()]

    def details(self, number: int) -> tuple[list[bytes], dict[bytes, bytes]] | None:
        """Return the functions of a worker, and its running jobs with theirs; None if it is not connected."""
        side = self._find(number)
        if side is None or side.worker is None:
            return None
        functions = [queue.name for queue in side.worker.abilities]
        return functions, {handle: held.job.function for handle, held in side.worker.running.items()}

    def watched(self, number: int) -> list[WatchedJob]:
        """Return the jobs of a worker whose work runs in another system."""
        side = self._find(number)
        if side is None or side.worker is None:
            return []
        found = []
        for handle, held in side.worker.running.items():
            if (work := held.elsewhere) is not None:
                ago = time.monotonic() - work.looked_at if work.looked_at else None
                found.append(
                    WatchedJob(handle, held.job.function, work.problem, None if ago is None else round(ago, 1))
                )
        return found

    def decisions(self, number: int) -> tuple[int, int, int] | None:
        """Return how many decisions of runs a worker has, how many only keep a step, and its places; None if it decides none."""
        for peer in self._peers.connected:
            if peer.workers and peer.worker_side.number == number and peer.decisions is not None:
                return peer.decisions.usage()
        return None

    def _find(self, number: int) -> TaskWorker | None:
        return next((side for side in self._sides() if side.number == number), None)

    def direct(self, number: int, verb: Literal["drain", "undrain", "stop"]) -> bool | None:
        """Pass a request to a worker. Return whether it takes such requests; None if it is not connected."""
        side = self._find(number)
        if side is None:
            return None
        if verb == "stop":
            return side.end()
        side.drain(verb == "drain")
        return True

    def directed(self, message: Direct) -> None:
        """Pass on the request of another node."""
        self.direct(message.worker, message.verb)


def _decider(row: DeciderRow, places: Mapping[bytes, int]) -> Decider:
    """Return a worker's part that decides runs; ``places`` are those of functions in the row of the node."""
    functions = (decision_function(row.namespace, *_parts(version)) for version in row.versions)
    return Decider(
        functions=tuple(places[function] for function in functions if function in places),
        running=row.decisions,
        steps=row.steps,
        places=row.places,
        draining=row.draining,
        cache=row.cache,
    )


def _parts(version: str) -> tuple[str, str]:
    """Return the name and the version in a text such as ``order@2``."""
    name, _, number = version.rpartition("@")
    return name, number


def deciders_of(row: NodeRow, namespace: str) -> Iterator[DeciderRow]:
    """Return the workers in the row of another node that decide runs of a namespace."""
    for worker in row.workers:
        if (decider := worker.decider) is None:
            continue
        found = filter(None, (decisions_of(row.functions[place]) for place in decider.functions))
        versions = [f"{name}@{version}" for of, name, version in found if of == namespace]
        if versions:
            cache = None if decider.cache is None else CacheReport(*decider.cache)
            numbers = (decider.running, decider.steps, decider.places)
            yield DeciderRow(namespace, worker.name, versions, *numbers, decider.draining, cache)


def _row(side: TaskWorker, decider: Decider | None = None) -> WorkerRow:
    worker = side.worker
    assert worker is not None, "a side without a worker is not listed"
    functions = [queue.name for queue in worker.abilities]
    namespaces = {split(name)[0] for name in functions if not name.startswith(SEPARATOR)}
    return WorkerRow(
        number=side.number,
        name=side.name(),
        slots=worker.slots,
        running=len(worker.running),
        extended=worker.streams,
        draining=side.draining,
        stops=side.about.stops,
        connected_us=side.connected_us,
        version=side.about.version,
        namespaces=tuple(sorted(namespaces)) or (DEFAULT,),
        silent_us=side.silent_us,
        pace=side.pace,
        decider=decider,
    )


log = structlog.get_logger("mainspring.nodes")

DECISION_OVERDUE: Final = 0.1
"""Seconds after which any node takes a decision whose own node has not: it is busy, or has ended."""
ROW_MAX_AGE = 0.02
"""Seconds for which the node's own row is cached for its shares, which are computed for each job."""


class SharedEngine(Engine, Relay, MembershipPort, Protocol):
    """The ports of a store that several nodes share."""

    sessions: SessionPort | None
    """The open sessions of nodes; None: the store does not list them, or the end of one does not show in time."""


def node_row(settings: ServerSettings, service: JobService, counter: int, *, address: str, started_us: int) -> NodeRow:
    """Return the current row of a node. ``started_us`` is the wall time of its start in microseconds."""
    workers = [worker for worker in service.dispatch.workers if worker.abilities]
    served = sorted((queue.name, queue) for queue in service.dispatch.queues.values() if queue.workers)
    return NodeRow(
        term=service.term,
        name=settings.name,
        address=address,
        started_us=started_us,
        counter=counter,
        lease=settings.fleet.lease,
        weight=settings.fleet.weight,
        strategy=settings.fleet.strategy,
        capacity=sum(map(_places, workers)),
        slots=sum(_slots(worker) for worker in workers),
        running=sum(queue.running + queue.size for queue in service.dispatch.queues.values()),
        functions=tuple(name for name, _ in served),
        loads=tuple((sum(queue.workers.values()), queue.running) for _, queue in served),
        foreground=tuple(queue.foreground for _, queue in served),
        version=version(),
        runs=True,
        pauses=True,
        payloads=True,
    )


def _slots(worker: Worker) -> int:
    """Return how many jobs a worker runs at a time. Decisions of runs are no jobs."""
    if worker.beside is not None:
        return 0
    return _places(worker) if worker.slots is None else worker.slots


def _places(worker: Worker) -> int:
    """Return how many jobs a worker holds and would accept now; a plain worker counts as one."""
    return worker.credit + len(worker.running) if worker.streams else 1


class Fleet:
    """One node's part in a fleet, from `start` on. The node runs `run` in a task until it ends."""

    def __init__(
        self,
        engine: SharedEngine,
        handles: Handles,
        clock: StoreClock,
        settings: ServerSettings,
        strategy: Strategy,
        address: str = "",
        workers: ConnectedWorkers | None = None,
        logs: Callable[[FollowLog | Logged], None] = lambda _: None,
        waiters: Callable[[AboutWaiters], None] = lambda _: None,
        interests_changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._workers = workers
        self._engine = engine
        self._handles = handles
        self._clock = clock
        self._settings = settings
        self._strategy = strategy
        self._strategy_of_runs = IdHash(overdue=DECISION_OVERDUE)
        self._live: tuple[NodeRow, ...] = ()
        self._in_line: tuple[int, ...] = ()
        """Their terms, but of those that drain."""
        self._elsewhere: frozenset[bytes] | None = None
        """The functions of the other nodes in ``_live``; computed when first needed, None before."""
        self._address = address
        self.draining = False
        fleet: FleetSettings = settings.fleet
        self._fleet = fleet
        self.port: MembershipPort = engine
        self.lease_manager = LeaseManager(
            engine,
            self,
            clock,
            self._begin,
            lease=fleet.lease,
            beat=fleet.beat,
            sessions=engine.sessions,
            look=0.0 if fleet.rest else fleet.look,
            interval=max(OBSERVE_INTERVAL, fleet.rest),
        )
        self._recoveries = Recoveries(handles.node)
        self._me: NodeRow | None = None
        self._started_us = 0
        self._row_at = -1.0
        # The default strategy lets each node claim everything; calling it for each job would be a waste.
        self.shared = Shared(
            engine,
            self.lease_manager.may_hand_out,
            self.registered_elsewhere,
            self._share,
            **({} if workers is None else {"direct": workers.directed}),
            logs=logs,
            waiters=waiters,
            recovered=self._recovered,
            interests_changed=interests_changed,
        )
        """The fleet as the jobs slice uses it."""

    # ---- life ----

    async def start(self, service: JobService, term: Term, sent_at: float) -> None:
        """Begin the first term, which was requested at the monotonic time ``sent_at``."""
        self._service = service
        self._started_us = to_us(self._clock.wall())
        await self.lease_manager.start(term, sent_at)

    async def run(self) -> None:
        """Renew the lease and observe the other nodes until cancelled. Raises the error of a loop that has ended: a defect."""
        loops = [asyncio.create_task(self._renew()), asyncio.create_task(self._watch_the_lease())]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()

    async def _renew(self) -> None:
        while True:  # noqa: ASYNC110 - no event: the passing of time is awaited
            await asyncio.sleep(await self.lease_manager.step())

    async def _watch_the_lease(self) -> None:
        """End the lease in time, also while a step waits for a silent store."""
        while True:  # noqa: ASYNC110
            await asyncio.sleep(self.lease_manager.check())

    async def _begin(self) -> Term:
        opened = await self._engine.open(
            self._settings.name, asyncio.get_running_loop().call_soon_threadsafe, self._service.lifecycle
        )
        self._handles.use_names(opened.nodes)
        return opened.term

    # ---- callbacks of the lease manager ----

    def row(self, counter: int) -> NodeRow:
        """Return this node's row for its next heartbeat."""
        row = node_row(self._settings, self._service, counter, address=self._address, started_us=self._started_us)
        row = msgspec.structs.replace(row, term=self.lease_manager.term)
        if not counter:
            return row  # shares are computed often, with the counter 0, and need neither workers nor recoveries
        workers = self._workers.rows(row.functions) if self._workers is not None else ()
        return msgspec.structs.replace(row, workers=workers, recoveries=self._recoveries.rows())

    def fenced(self) -> None:
        """Drop the stored jobs: the term has ended."""
        self._service.assigner.fenced()

    def recover(self, terms: Sequence[int]) -> None:
        """Return the jobs of ended terms to their queues."""
        self._service.recover(terms)

    def _recovered(self, terms: Sequence[int], outcome: Recovered) -> None:
        self._recoveries.add(terms, outcome.number, to_us(self._clock.wall()))

    def begin_term(self, term: Term) -> None:
        """Begin a new term after the end of the last one."""
        self._service.begin(term)
        if not self.draining:
            self._service.resume()

    def members(self, live: tuple[NodeRow, ...]) -> None:
        """Store the rows of the live nodes, from which shares follow, and the times of looks at the backlog."""
        if live is not self._live:
            self._live, self._elsewhere = live, None
            self._in_line = tuple(sorted(row.term for row in live if not row.draining))
        place = next((place for place, row in enumerate(live) if row.term == self.lease_manager.term), 0)
        self._service.set_place(place, len(live) or 1)

    def drain(self, draining: bool) -> None:
        """Stop or resume claiming, as an operator requested."""
        log.info("the node drains" if draining else "the node takes part again")
        self.draining = draining
        if draining:
            self._service.hand_back()
        else:
            self._service.resume()

    def adjust_clock(self, offset: float) -> None:
        """Set the store's clock forward by ``offset`` seconds."""
        self._clock.move(offset)

    def session_is_back(self) -> None:
        """Hand out jobs that have waited while the node had no session with the store."""
        self._service.assigner.serve_all()

    def others(self) -> list[NodeRow]:
        """Return the rows of the other live nodes."""
        return [row for row in self._live if row.term != self.lease_manager.term]

    def tell_others(self, message: Message) -> None:
        """Send a message to all other live nodes."""
        for row in self.others():
            self._engine.send(row.term, message)

    def direct(self, term: int, message: Direct) -> None:
        """Send a request to a worker of another node."""
        self._engine.send(term, message)

    def remote_load(self, function: bytes) -> RemoteLoad:
        """Return the other nodes' jobs and workers of a function."""
        running = workers = foreground = 0
        for row in self._live:
            if row.term != self.lease_manager.term and function in row.functions:
                at = row.functions.index(function)
                more_workers, more_running = row.loads[at]
                running, workers = running + more_running, workers + more_workers
                foreground += row.foreground[at] if row.foreground else 0
        return RemoteLoad(running, workers, foreground)

    def registered_elsewhere(self) -> frozenset[bytes] | None:
        """Return the functions with workers at other nodes; None while this node cannot reach the store."""
        if not self._live or not self.lease_manager.lease_valid():
            return None
        if self._elsewhere is None:
            others = (row.functions for row in self._live if row.term != self.lease_manager.term)
            self._elsewhere = frozenset().union(*others)
        return self._elsewhere

    def metrics(self) -> Iterable[Measure]:
        """Return the current measures of the fleet, as this node sees it."""
        draining = sum(row.draining for row in self._live)
        numbers = {"live": len(self._live) - draining, "draining": draining, "dead": len(self.lease_manager.dead())}
        states = [({"state": state}, float(number)) for state, number in numbers.items()]
        yield Measure("mainspring_nodes", "gauge", "Nodes that share the store.", states)
        left = self.lease_manager.lease.remaining(self._clock.monotonic())
        yield Measure("mainspring_lease_seconds", "gauge", "Remaining seconds of this node's lease.", [({}, left)])

    # ---- shares ----

    def first_in_line(self, name: str) -> bool:
        """Return whether this node is the first that should fire a schedule; the others fire it if this one does not."""
        return first_in_line(name, self._in_line) == self.lease_manager.term

    def _share(self, queue: FunctionQueue) -> ClaimQuota:
        """Return how many and which jobs of a function this node may claim now."""
        is_decision = queue.name[:1] == DECISIONS
        if not is_decision and self._fleet.strategy == "default":
            return NO_QUOTA
        now = self._clock.monotonic()
        if self._me is None or now - self._row_at > ROW_MAX_AGE or queue.name not in self._me.functions:
            self._row_at = now
            self._me = msgspec.structs.replace(self.row(0), draining=self.draining)
        strategy = self._strategy_of_runs if is_decision else self._strategy
        share = strategy.share(queue.name, self._me, self._live)
        return ClaimQuota(share.limit, share.slots, share.overdue)
