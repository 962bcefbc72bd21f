"""A fleet whose nodes are disturbed at random while clients submit and workers work, and what they found afterwards."""

from __future__ import annotations

import contextlib
import json
import random
import select
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.packets import Kind, encode
from tests.postgres.proxy import Direction

from .extension import ExtensionPeer, More
from .fleet import Fleet, FleetNode, Nursery
from .fleet_ledger import FleetLedger, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.postgres.proxy import Proxy

FUNCTIONS = (b"alpha", b"beta")
UNIQUES = 6
LEAVES = 0.01
RESULT = b"result"
GONE = (ConnectionError, TimeoutError)
PATIENCE = 40.0
"""Seconds in which everything is over that was begun, whatever was done to the fleet."""
ACTORS_END = 20.0


class Addresses:
    """Where the nodes are at the moment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ports: dict[str, int] = {}
        self.ending = False
        """Clients submit no more."""
        self.over = False

    def put(self, name: str, port: int) -> None:
        """A node listens."""
        with self._changed:
            self._ports[name] = port
            self._changed.notify_all()

    def drop(self, name: str) -> None:
        """A node does not listen any more."""
        with self._changed:
            self._ports.pop(name, None)

    def end(self) -> None:
        """Nobody is needed any more."""
        with self._changed:
            self.over = self.ending = True
            self._changed.notify_all()

    def connect(self, chance: random.Random) -> ExtensionPeer:
        """Connect to one of the nodes; raises ConnectionError."""
        with self._changed:
            self._changed.wait_for(lambda: self._ports or self.over, PATIENCE)
            if not self._ports:
                raise ConnectionError("nobody listens")
            port = chance.choice(sorted(self._ports.values()))
        return ExtensionPeer(port)


class Actor(threading.Thread):
    """Somebody who connects again, to any node, whenever a connection has ended."""

    def __init__(self, name: str, addresses: Addresses, ledger: FleetLedger, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.addresses = addresses
        self.ledger = ledger
        self.random = random.Random(f"{seed} {name}")
        self.defect: BaseException | None = None
        self.peer: ExtensionPeer | None = None

    def run(self) -> None:
        try:
            while not self.finished():
                try:
                    with self.addresses.connect(self.random) as self.peer:
                        self.peer.socket.settimeout(PATIENCE)
                        self.act(self.peer)
                except GONE:
                    time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.defect = error

    def finished(self) -> bool:
        """Say whether to end."""
        return self.addresses.over

    def stays(self) -> bool:
        """Say whether to go on with this connection, which is left now and then in the middle of anything."""
        return not self.finished() and self.random.random() > LEAVES

    def act(self, peer: ExtensionPeer) -> None:
        """Do what is to be done until the connection ends, or it leaves."""
        raise NotImplementedError


class Client(Actor):
    """Somebody who submits until the end begins."""

    def finished(self) -> bool:
        return self.addresses.ending

    def unique(self, function: bytes) -> bytes:
        """Choose a unique, few enough to be chosen by others too, or none."""
        return b"%b-%d" % (function, self.random.randrange(UNIQUES)) if self.random.random() < 0.5 else b""


class ForegroundClient(Client):
    """Waits for its jobs, which others join, and leaves before they end now and then."""

    def act(self, peer: ExtensionPeer) -> None:
        while self.stays():
            function = self.random.choice(FUNCTIONS)
            peer.send(Kind.SUBMIT_JOB, function, self.unique(function), b"payload")
            if not self.stays():
                return
            kind, arguments = peer.next()
            if kind is Kind.ERROR:
                self.ledger.note("refused")
                continue
            assert kind is Kind.JOB_CREATED, (kind, arguments)
            handle = arguments[0]
            kind, arguments = peer.next()
            if kind is Kind.WORK_COMPLETE:
                if arguments != (handle, RESULT):
                    self.ledger.break_promise(f"the result of {handle!r} is {arguments!r}")
                self.ledger.note("served")
            else:  # its node was cut off from the store, and the job dropped
                assert kind is Kind.WORK_FAIL, (kind, arguments)
                self.ledger.note("let down")


class Submitter(Client):
    """Sends background jobs, many before it reads, in both protocols."""

    def act(self, peer: ExtensionPeer) -> None:
        peer.extend()
        chance = self.random
        while self.stays():
            sent: list[bytes] = []
            packets: list[bytes] = []
            for _ in range(chance.choice([1, 1, 2, 8])):
                function = chance.choice(FUNCTIONS)
                unique = self.unique(function)
                sent.append(unique)
                if chance.random() < 0.5:
                    packets.append(encode(Kind.SUBMIT_JOB_BG, function, unique, b"payload"))
                else:
                    packets.append(encode(More.SUBMIT, function, unique, self._options(), b"payload"))
            peer.write(b"".join(packets))
            for unique in sent:
                answer = peer.next()
                if answer.kind is Kind.ERROR:  # refused while its node was cut off: not acknowledged
                    self.ledger.note("refused")
                    continue
                assert answer.kind in {Kind.JOB_CREATED, More.SUBMITTED}, answer
                self.ledger.accept(answer.arguments[0], unique)
            time.sleep(chance.choice([0.0, 0.005, 0.02]))

    def _options(self) -> bytes:
        retry = {"max_attempts": 1000, "initial": 0.005, "jitter": 0.5, "maximum": 0.02}
        return json.dumps(self.random.choice([{}, {"priority": "high"}, {"delay": 0.01}, {"retry": retry}])).encode()


class PlainWorker(Actor):
    """Asks for jobs one by one, and asks for an echo to learn that a completion is on disk."""

    def act(self, peer: ExtensionPeer) -> None:
        for function in FUNCTIONS:
            peer.send(Kind.CAN_DO, function)
        while self.stays():
            peer.send(Kind.GRAB_JOB_UNIQ)
            packet = peer.next()
            while packet.kind is Kind.NOOP:
                packet = peer.next()
            if packet.kind is Kind.NO_JOB:
                peer.send(Kind.PRE_SLEEP)
                assert peer.next().kind is Kind.NOOP
                continue
            assert packet.kind is Kind.JOB_ASSIGN_UNIQ, packet
            handle, function, unique, _ = packet.arguments
            run = self.ledger.begin(handle, function, unique)
            try:
                if not self.stays():
                    return
                peer.write(encode(Kind.WORK_COMPLETE, handle, RESULT) + encode(Kind.ECHO_REQ, handle))
                self.ledger.end(run)
                while (packet := peer.next()).kind is Kind.NOOP:
                    pass
            finally:
                self.ledger.end(run)
            assert packet.kind is Kind.ECHO_RES, packet
            self.ledger.confirm(handle)


class StreamingWorker(Actor):
    """Has several jobs at a time, each for a while, and ends some of them otherwise than with success."""

    def act(self, peer: ExtensionPeer) -> None:
        peer.extend()
        for function in FUNCTIONS:
            peer.register(function)
        peer.ready(3)
        working: dict[bytes, tuple[float, Run, bytes]] = {}
        succeeded: set[bytes] = set()
        try:
            while self.stays():
                now = time.monotonic()
                for lease, (until, run, outcome) in [*working.items()]:
                    if until <= now:
                        del working[lease]
                        self.ledger.end(run)
                        settle = encode(More.SETTLE, run.handle, lease, outcome, b"", RESULT)
                        peer.write(settle + encode(More.READY, b"1"))
                        if outcome == b"succeeded":
                            succeeded.add(lease)
                first = min((until for until, _, _ in working.values()), default=now + 1)
                if arrives(peer, first - now):
                    self._hear(peer, working, succeeded)
        finally:
            for _, run, _ in working.values():
                self.ledger.end(run)

    def _hear(self, peer: ExtensionPeer, working: dict[bytes, tuple[float, Run, bytes]], succeeded: set[bytes]) -> None:
        packet = peer.next()
        if packet.kind is More.ASSIGN:
            handle, lease, function, unique, info, _ = packet.arguments
            run = self.ledger.begin(handle, function, unique)
            outcome = b"succeeded"
            if self.random.random() < 0.2:
                outcome = self.random.choice([b"released", b"snoozed"])
            elif self.random.random() < 0.3 and b"max_attempts" in info:
                outcome = b"failed"
            working[lease] = (run.began + self.random.choice([0.0, 0.0, 0.01, 0.05, 0.3]), run, outcome)
        elif packet.kind is More.STOP:
            handle, lease, reason = packet.arguments
            assert reason == b"lost", packet
            self.ledger.note("stopped")
            if lease in working:
                self.ledger.end(working.pop(lease)[1])
                peer.ready()
        else:
            assert packet.kind is More.SETTLED, packet
            handle, lease, verdict = packet.arguments
            if verdict == b"recorded":
                if lease in succeeded:
                    self.ledger.confirm(handle)
            else:
                assert verdict == b"stale", packet
                self.ledger.note("stale")
            succeeded.discard(lease)


def arrives(peer: ExtensionPeer, seconds: float) -> bool:
    """Say whether something comes within so many seconds; what began to come before counts."""
    return bool(peer._buffer) or bool(select.select([peer.socket], [], [], max(0.0, seconds))[0])


ACTORS: Sequence[tuple[type[Actor], int]] = (
    (Submitter, 2),
    (ForegroundClient, 1),
    (PlainWorker, 2),
    (StreamingWorker, 2),
)


class Seat:
    """A name, under which one node after the other runs, and its way to the database."""

    def __init__(self, fleet: Fleet, addresses: Addresses, name: str, store: str, proxy: Proxy | None) -> None:
        self._fleet = fleet
        self._addresses = addresses
        self._store = store
        self.name = name
        self.proxy = proxy
        self.node: FleetNode | None = None

    def launch(self, plant: str | None = None) -> None:
        """Start a node."""
        self.node = self._fleet.launch(self.name, store=self._store, plant=plant)

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


class Chaos:
    """One run: a fleet, those who use it, and those who disturb it."""

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        stores: Sequence[tuple[str, Proxy | None]],
        seed: int,
        *,
        lease: float,
        plant: str | None = None,
    ) -> None:
        """``stores`` are the ways to the database, one for each node."""
        self.random = random.Random(seed)
        self._seed = seed
        self._plant = plant
        self.ledger = FleetLedger()
        self.addresses = Addresses()
        self.fleet = Fleet(nursery, directory, "", lease=lease)
        self.seats = [
            Seat(self.fleet, self.addresses, f"n{number}", store, proxy)
            for number, (store, proxy) in enumerate(stores, 1)
        ]
        self._actors = [
            kind(f"{kind.__name__} {number}", self.addresses, self.ledger, str(seed))
            for kind, count in ACTORS
            for number in range(count)
        ]

    def run(self, disturb: Callable[[Chaos], None], rounds: int) -> Findings:
        """Disturb some times, mend everything, let the fleet finish, and ask what became of each job."""
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
                self.ledger.await_events(self.random.randrange(200), patience=2.0)
                disturb(self)
            self.addresses.ending = True
            self.launch(*(seat for seat in self.seats if seat.node is None))
            nodes = [seat.ready() for seat in self.seats]
            states = dict(_fates(self.random.choice(nodes), self.ledger.acknowledged))
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


def _fates(node: FleetNode, handles: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Wait for the end of each job; gives handles and states. What does not end is ``alive``."""
    left = set(handles)
    with node.extended() as peer:
        peer.socket.settimeout(PATIENCE)
        peer.write(b"".join(encode(More.WAIT, handle) for handle in handles))
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


# ---- what is done to a fleet


def kill(chaos: Chaos) -> None:
    """SIGKILL a node; bring it back now or later."""
    chance = chaos.random
    running = [seat for seat in chaos.seats if seat.node is not None]
    away = [seat for seat in chaos.seats if seat.node is None]
    if away and (len(running) == 1 or chance.random() < 0.5):
        seat = chance.choice(away)
        chaos.launch(seat)
        if chance.random() < 0.15:
            time.sleep(chance.uniform(0, 0.2))
            seat.kill()  # perhaps before it is ready
        else:
            seat.ready()
        return
    seat = chance.choice(running)
    seat.kill()
    if chance.random() < 0.5:
        chaos.launch(seat)
        seat.ready()


def freeze(chaos: Chaos) -> None:
    """SIGSTOP a node, for up to twice its lease and a second."""
    seat = chaos.random.choice(chaos.seats)
    assert seat.node is not None
    seat.node.freeze()
    time.sleep(chaos.random.uniform(0, 2 * chaos.fleet.lease + 1))
    seat.node.thaw()


def part(chaos: Chaos) -> None:
    """Part a node from the database in one of the ways in which that happens, for as long."""
    chance = chaos.random
    seat = chance.choice(chaos.seats)
    proxy = seat.proxy
    assert proxy is not None
    how = chance.choice(["hold", "unanswered", "unheard", "refuse", "cut", "forget", "lose answer", "lose request"])
    match how:
        case "hold":
            proxy.freeze()
        case "unanswered":
            proxy.freeze(Direction.TO_CLIENT)
        case "unheard":
            proxy.freeze(Direction.TO_SERVER)
        case "refuse":
            proxy.refuse()
        case "cut":
            proxy.cut()
        case "forget":
            proxy.forget()
        case "lose answer":
            proxy.lose_answer(chance.choice([b"COMMIT", b""]))
        case _:
            proxy.lose_request(chance.choice([b"COMMIT", b""]))
    time.sleep(chance.uniform(0, 2 * chaos.fleet.lease + 1))
    proxy.heal()
