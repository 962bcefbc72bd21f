"""Runs in which the servers of one store are disturbed at random under load, and the findings of such runs."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.packets import encode

from .actors import ACTOR_TIMEOUT, Actor, Addresses, ForegroundClient, Pace, PlainWorker, StreamingWorker, Submitter
from .extension import ExtensionKind, FaultError
from .fleet import LEASE, Fleet, FleetNode, ForkServer
from .ledger import Ledger, SingleServerLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .stores import StoreRoute

ACTORS_END = 20.0


class NodeSlot:
    """A node's name and its route to the store; nodes run in the slot one after another."""

    def __init__(self, fleet: Fleet, addresses: Addresses, name: str, route: StoreRoute) -> None:
        self._fleet = fleet
        self._addresses = addresses
        self.name = name
        self.route = route
        self.node: FleetNode | None = None

    def launch(self, plant: str | None = None) -> None:
        """Start a node."""
        self.node = self._fleet.launch(self.name, store=self.route.url, plant=plant)

    def ready(self) -> FleetNode:
        """Wait until the node listens."""
        assert self.node is not None
        if not self.node.port:
            self.node.ready()
            self._addresses.add(self.name, self.node.port)
        return self.node

    def kill(self) -> None:
        """Kill the node with SIGKILL."""
        if self.node is not None:
            self._addresses.remove(self.name)
            self.node.kill()
            self.node = None


class Scenario(NamedTuple):
    """The clients and workers of a run, and the load between two disturbances."""

    actors: Sequence[tuple[type[Actor], int]]
    pace: Pace
    ledger: type[Ledger]
    events: int
    """The most ledger events between two disturbances."""


SINGLE_SERVER = Scenario(
    ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 2), (StreamingWorker, 1)),
    Pace(),
    SingleServerLedger,
    events=90,
)
"""For a single server."""
FLEET = Scenario(
    ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 2), (StreamingWorker, 2)),
    Pace(rests=(0.0, 0.005, 0.02), works=(0.0, 0.0, 0.01, 0.05, 0.3)),
    Ledger,
    events=200,
)
"""For a fleet."""


class Chaos:
    """One run: servers, actors and disturbances."""

    def __init__(
        self,
        fork_server: ForkServer,
        directory: Path,
        routes: Sequence[StoreRoute],
        seed: int,
        *,
        scenario: Scenario = FLEET,
        lease: float = LEASE,
        plant: str | None = None,
    ) -> None:
        """``routes`` lead to the store, one for each node; ``plant`` names a defect to plant in every node."""
        self.random = random.Random(seed)
        self._plant = plant
        self._events = scenario.events
        self.ledger = scenario.ledger()
        self.addresses = Addresses()
        self.fleet = Fleet(fork_server, directory, "", lease=lease)
        self.slots = [
            NodeSlot(self.fleet, self.addresses, f"n{number}", route) for number, route in enumerate(routes, 1)
        ]
        self._actors = [
            kind(f"{kind.__name__} {number}", self.addresses, self.ledger, scenario.pace, str(seed))
            for kind, count in scenario.actors
            for number in range(count)
        ]

    def run(self, disturb: Callable[[Chaos], None], rounds: int) -> Findings:
        """Disturb some times, repair everything, let the servers finish, and read the outcome of each job."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.fleet)
            stack.callback(self._join)
            self.launch(*self.slots)
            for slot in self.slots:
                slot.ready()
            for actor in self._actors:
                actor.start()
            for _ in range(rounds):
                # Wait for a random number of events, but not for long: disturbances must hit different moments under load.
                self.ledger.await_events(self.random.randrange(self._events), timeout=2.0)
                disturb(self)
            self.addresses.ending = True
            self.launch(*(slot for slot in self.slots if slot.node is None))
            nodes = [slot.ready() for slot in self.slots]
            witness = self.random.choice(nodes)
            states = dict(_outcomes(witness, self.ledger.acknowledged))
            alive = [handle for handle, state in states.items() if state == b"alive"]
            statuses = _statuses(nodes, alive) if alive else ""
            self.addresses.end()
        lost = sorted(handle for handle, state in states.items() if state != b"succeeded")
        written = "".join(node.log.read_text() for node in {node.name: node for node in self.fleet.nodes}.values())
        return Findings(
            len(states),
            lost,
            self.ledger.violations,
            max(self.ledger.overlaps, default=0.0),
            Counter(states.values()),
            self.ledger.counts,
            written.count("given up its jobs"),
            f"{written}asked: {witness.name}\n{statuses}",
        )

    def launch(self, *slots: NodeSlot) -> None:
        """Start nodes in these slots."""
        for slot in slots:
            slot.launch(self._plant)

    def _join(self) -> None:
        self.addresses.end()
        for node in self.fleet.live_nodes():
            node.thaw()
            node.kill()
        for actor in self._actors:
            if actor.ident is None:
                continue
            actor.join(ACTORS_END)
            assert not actor.is_alive(), f"{actor.name} hangs"
            if actor.defect is not None:
                raise actor.defect


class Findings(NamedTuple):
    """The findings of a run."""

    acknowledged: int
    lost: list[bytes]
    violations: list[str]
    overlap: float
    """The longest time for which two workers ran one job, in seconds."""
    states: Counter[bytes]
    counts: Counter[str]
    fenced: int
    """How many leases nodes gave up."""
    logs: str
    """The nodes' logs, and the nodes' views of jobs that did not end."""

    def __str__(self) -> str:
        lost = f"{len(self.lost)} lost {self.lost[:3]}"
        return (
            f"{lost}, {self.violations}, overlap {self.overlap:.3f} s, {self.acknowledged} acknowledged, {dict(self.states)}, "
            f"{dict(self.counts)}, fenced {self.fenced} times\n{self.logs}"
        )


def _outcomes(node: FleetNode, handles: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Wait for the end of each job, and yield its handle and state; ``alive`` if it does not end."""
    left = set(handles)  # a copy: actors may still acknowledge jobs
    with node.extended() as peer:
        peer.socket.settimeout(ACTOR_TIMEOUT)
        peer.write(b"".join(encode(ExtensionKind.WAIT, handle) for handle in sorted(left)))
        try:
            while left:
                packet = peer.next()
                if packet.kind is not ExtensionKind.RESULT:
                    continue
                left.discard(packet.arguments[0])
                yield packet.arguments[0], packet.arguments[1]
        except TimeoutError:
            for handle in left:
                yield handle, b"alive"


def _statuses(nodes: Sequence[FleetNode], alive: Sequence[bytes]) -> str:
    """Return the nodes' status, and their views of the first jobs that have not ended."""
    lines = []
    for node in nodes:
        try:
            jobs = [node.ask("jobs.show", handle=handle.decode()) for handle in alive[:3]]
            lines.append(f"{node.name}: {jobs} {node.ask('functions.list')} {node.status()}\n")
            node.log_tasks()
        except (OSError, AssertionError, FaultError) as error:
            lines.append(f"{node.name} does not answer: {error!r}\n")
    return "".join(lines)


def crash(chaos: Chaos) -> None:
    """SIGKILL the server at a random moment and start it again; with probability 0.15 kill it again before it is ready."""
    chance = chaos.random
    (slot,) = chaos.slots
    time.sleep(chance.uniform(0, 0.01))
    slot.kill()
    chaos.launch(slot)
    while chance.random() < 0.15:
        time.sleep(chance.uniform(0, 0.1))
        slot.kill()
        chaos.launch(slot)
    slot.ready()
