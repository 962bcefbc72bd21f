"""Servers of one store that are disturbed at random while clients submit and workers work, and what they found afterwards."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.packets import encode

from .actors import PATIENCE, Actor, Addresses, ForegroundClient, Pace, PlainWorker, StreamingWorker, Submitter
from .extension import FaultError, More
from .fleet import LEASE, Fleet, FleetNode, Nursery
from .ledger import Ledger, LonersLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .stores import Way

ACTORS_END = 20.0


class Seat:
    """A name, under which one node after the other runs, and its way to the store."""

    def __init__(self, fleet: Fleet, addresses: Addresses, name: str, way: Way) -> None:
        self._fleet = fleet
        self._addresses = addresses
        self.name = name
        self.way = way
        self.node: FleetNode | None = None

    def launch(self, plant: str | None = None) -> None:
        """Start a node."""
        self.node = self._fleet.launch(self.name, store=self.way.url, plant=plant)

    def ready(self) -> FleetNode:
        """Wait until it listens."""
        assert self.node is not None
        if not self.node.port:
            self.node.ready()
            self._addresses.put(self.name, self.node.port)
        return self.node

    def kill(self) -> None:
        """End it."""
        if self.node is not None:
            self._addresses.drop(self.name)
            self.node.kill()
            self.node = None


class Play(NamedTuple):
    """Who uses the servers, and how much happens until somebody disturbs them."""

    cast: Sequence[tuple[type[Actor], int]]
    pace: Pace
    ledger: type[Ledger]
    events: int
    """At most so many things."""


ALONE = Play(
    ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 2), (StreamingWorker, 1)), Pace(), LonersLedger, events=90
)
"""With a server that is alone with its store."""
TOGETHER = Play(
    ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 2), (StreamingWorker, 2)),
    Pace(rests=(0.0, 0.005, 0.02), works=(0.0, 0.0, 0.01, 0.05, 0.3)),
    Ledger,
    events=200,
)
"""With a fleet."""


class Chaos:
    """One run: servers, those who use them, and those who disturb them."""

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        ways: Sequence[Way],
        seed: int,
        *,
        play: Play = TOGETHER,
        lease: float = LEASE,
        plant: str | None = None,
    ) -> None:
        """``ways`` are the ways to the store, one for each node; ``plant`` names a defect to give them all."""
        self.random = random.Random(seed)
        self._plant = plant
        self._events = play.events
        self.ledger = play.ledger()
        self.addresses = Addresses()
        self.fleet = Fleet(nursery, directory, "", lease=lease)
        self.seats = [Seat(self.fleet, self.addresses, f"n{number}", way) for number, way in enumerate(ways, 1)]
        self._actors = [
            kind(f"{kind.__name__} {number}", self.addresses, self.ledger, play.pace, str(seed))
            for kind, count in play.cast
            for number in range(count)
        ]

    def run(self, disturb: Callable[[Chaos], None], rounds: int) -> Findings:
        """Disturb some times, mend everything, let the servers finish, and ask what became of each job."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.fleet)
            stack.callback(self._join)
            self.launch(*self.seats)
            for seat in self.seats:
                seat.ready()
            for actor in self._actors:
                actor.start()
            for _ in range(rounds):
                # Never long before something has happened, and never at the same distance from it.
                self.ledger.await_events(self.random.randrange(self._events), patience=2.0)
                disturb(self)
            self.addresses.ending = True
            self.launch(*(seat for seat in self.seats if seat.node is None))
            nodes = [seat.ready() for seat in self.seats]
            asked = self.random.choice(nodes)
            states = dict(_fates(asked, self.ledger.acknowledged))
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
            f"{written}{asked.name} was asked\n{statuses}",
        )

    def launch(self, *seats: Seat) -> None:
        """Start nodes of these seats."""
        for seat in seats:
            seat.launch(self._plant)

    def _join(self) -> None:
        self.addresses.end()
        for node in self.fleet.live():
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
    """What a run has shown."""

    acknowledged: int
    lost: list[bytes]
    violations: list[str]
    overlap: float
    """The longest time for which two workers had one job, in seconds."""
    states: Counter[bytes]
    counts: Counter[str]
    fenced: int
    """How often a node has given up its lease."""
    story: str
    """What the nodes have logged, and what they knew where jobs did not end."""

    def __str__(self) -> str:
        lost = f"{len(self.lost)} lost {self.lost[:3]}"
        return (
            f"{lost}, {self.violations}, overlap {self.overlap:.3f} s, {self.acknowledged} acknowledged, {dict(self.states)}, "
            f"{dict(self.counts)}, fenced {self.fenced} times\n{self.story}"
        )


def _fates(node: FleetNode, handles: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Wait for the end of each job; gives handles and states. What does not end is ``alive``."""
    left = set(handles)  # what comes to them from now on, is not looked at
    with node.extended() as peer:
        peer.socket.settimeout(PATIENCE)
        peer.write(b"".join(encode(More.WAIT, handle) for handle in sorted(left)))
        try:
            while left:
                packet = peer.next()
                if packet.kind is not More.RESULT:
                    continue
                left.discard(packet.arguments[0])
                yield packet.arguments[0], packet.arguments[1]
        except TimeoutError:
            for handle in left:
                yield handle, b"alive"


def _statuses(nodes: Sequence[FleetNode], alive: Sequence[bytes]) -> str:
    """Return what nodes know of themselves, and of the first jobs that have not ended."""
    lines = []
    for node in nodes:
        try:
            jobs = [node.ask("jobs.show", handle=handle.decode()) for handle in alive[:3]]
            lines.append(f"{node.name}: {jobs} {node.ask('functions.list')} {node.status()}\n")
            node.tell_tasks()
        except (OSError, AssertionError, FaultError) as error:
            lines.append(f"{node.name} does not answer: {error!r}\n")
    return "".join(lines)


def crash(chaos: Chaos) -> None:
    """SIGKILL the one server at any moment, and start it again; now and then it dies again before it is ready."""
    chance = chaos.random
    (seat,) = chaos.seats
    time.sleep(chance.uniform(0, 0.01))
    seat.kill()
    chaos.launch(seat)
    while chance.random() < 0.15:
        time.sleep(chance.uniform(0, 0.1))
        seat.kill()
        chaos.launch(seat)
    seat.ready()
