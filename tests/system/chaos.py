"""A server that is killed at random points while clients submit and workers work, and what they found afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.packets import Kind, encode

from .extension import ExtensionPeer, More
from .ledger import Ledger
from .servers import assert_no_defect, environment, listening_port

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTIONS = (b"alpha", b"beta")
UNIQUES = 6
LEAVES = 0.01
RESULT = b"result"
GONE = (ConnectionError, TimeoutError)
READY_WITHIN = 20.0


class Nursery:
    """Starts servers quickly; see `nursery`."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("nursery.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._lock = threading.Lock()

    def close(self) -> None:
        """End all servers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def start(self, directory: Path, plant: str | None = None) -> Life:
        """Start a server on the store of a directory; ``plant`` names a defect to give it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pipe = directory / "stdout"
        if not pipe.exists():
            os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        arguments = ["serve", "--store", "sqlite:///jobs.db", "--gearman", "127.0.0.1:0", "--name", "n1"]
        order = {
            "arguments": arguments,
            "directory": str(directory),
            "stdout": str(pipe),
            "log": str(directory / "log"),
            "plant": plant,
        }
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            pid = int(self._process.stdout.readline())
        return Life(pid, reader)


class Life:
    """One server process, from its start to its kill."""

    def __init__(self, pid: int, reader: int) -> None:
        self._descriptor = os.pidfd_open(pid)
        self._reader = reader

    def ready(self) -> int:
        """Wait until it listens; returns the port."""
        seen = b""
        while b"\n" not in seen:
            readable, _, _ = select.select([self._reader, self._descriptor], [], [], READY_WITHIN)
            assert self._reader in readable, "the server did not come up"
            seen += os.read(self._reader, 4096)
        return listening_port(seen.decode())

    def kill(self, after: float = 0.0) -> None:
        """Wait a moment, kill it, and wait until it is gone."""
        select.select([self._descriptor], [], [], after)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        gone, _, _ = select.select([self._descriptor], [], [], READY_WITHIN)
        assert gone, "a killed process stays"
        os.close(self._descriptor)
        os.close(self._reader)


class Address:
    """Where the server is at the moment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._port = 0
        self.ending = False
        """Clients submit no more."""
        self.over = False

    def move(self, port: int) -> None:
        """A server listens."""
        with self._changed:
            self._port = port
            self._changed.notify_all()

    def end(self) -> None:
        """Nobody is needed any more."""
        with self._changed:
            self.over = self.ending = True
            self._changed.notify_all()

    def connect(self, left: int) -> tuple[ExtensionPeer, int]:
        """Connect to the server that comes after the one on port ``left``; raises ConnectionError."""
        with self._changed:
            self._changed.wait_for(lambda: self._port not in {0, left} or self.over, READY_WITHIN)
            port = self._port
        peer = ExtensionPeer(port)
        peer.socket.settimeout(READY_WITHIN)
        return peer, port


class Actor(threading.Thread):
    """Somebody who connects again whenever the server is back."""

    def __init__(self, name: str, address: Address, ledger: Ledger, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.address = address
        self.ledger = ledger
        self.random = random.Random(f"{seed} {name}")
        self.defect: BaseException | None = None

    def run(self) -> None:
        left = 0
        try:
            while not self.finished():
                try:
                    peer, port = self.address.connect(left)
                except GONE:
                    continue
                left = port
                with peer, contextlib.suppress(*GONE):
                    self.act(peer)
                    left = 0  # it has left of its own accord
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.defect = error

    def finished(self) -> bool:
        """Say whether to end."""
        return self.address.over

    def stays(self) -> bool:
        """Say whether to go on with this connection, which is left now and then in the middle of anything."""
        return not self.finished() and self.random.random() > LEAVES

    def act(self, peer: ExtensionPeer) -> None:
        """Do what is to be done until the connection ends, or it leaves."""
        raise NotImplementedError


class Client(Actor):
    """Somebody who submits until the end begins."""

    def finished(self) -> bool:
        return self.address.ending

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
            (handle,) = peer.hear(Kind.JOB_CREATED)
            assert peer.hear(Kind.WORK_COMPLETE) == (handle, RESULT)


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
                assert answer.kind in {Kind.JOB_CREATED, More.SUBMITTED}, answer
                self.ledger.accept(answer.arguments[0], unique)

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
            handle, _, unique, _ = packet.arguments
            self.ledger.assign(handle, unique)
            if not self.stays():
                return
            peer.write(encode(Kind.WORK_COMPLETE, handle, RESULT) + encode(Kind.ECHO_REQ, handle))
            while (packet := peer.next()).kind is Kind.NOOP:
                pass
            assert packet.kind is Kind.ECHO_RES, packet
            self.ledger.confirm(handle)


class StreamingWorker(Actor):
    """Takes several jobs at a time, and ends some of them otherwise than with success."""

    def act(self, peer: ExtensionPeer) -> None:
        peer.extend()
        for function in FUNCTIONS:
            peer.register(function)
        peer.ready(3)
        succeeded: set[bytes] = set()
        while self.stays():
            packet = peer.next()
            if packet.kind is More.ASSIGN:
                handle, lease, _, unique, info, _ = packet.arguments
                self.ledger.assign(handle, unique)
                outcome = b"succeeded"
                if self.random.random() < 0.2:
                    outcome = self.random.choice([b"released", b"snoozed"])
                elif self.random.random() < 0.3 and b"max_attempts" in info:
                    outcome = b"failed"
                if outcome == b"succeeded":
                    succeeded.add(lease)
                peer.write(encode(More.SETTLE, handle, lease, outcome, b"", RESULT) + encode(More.READY, b"1"))
            else:
                assert packet.kind is More.SETTLED, packet
                handle, lease, verdict = packet.arguments
                assert verdict == b"recorded", packet
                if lease in succeeded:
                    succeeded.discard(lease)
                    self.ledger.confirm(handle)


class Findings(NamedTuple):
    """What a run has shown."""

    acknowledged: int
    lost: list[bytes]
    violations: list[str]
    states: Counter[bytes]


def run(nursery: Nursery, directory: Path, seed: int, *, kills: int, plant: str | None = None) -> Findings:
    """Kill a server some times on one store, let the last one finish everything, and ask what became of each job."""
    chance = random.Random(seed)
    address, ledger = Address(), Ledger()
    actors: list[Actor] = []
    for kind, count in ((Submitter, 2), (ForegroundClient, 1), (PlainWorker, 2), (StreamingWorker, 1)):
        actors += [kind(f"{kind.__name__} {number}", address, ledger, str(seed)) for number in range(count)]
    with contextlib.ExitStack() as stack:
        stack.callback(_join, address, actors)
        for actor in actors:
            actor.start()
        for _ in range(kills):
            life = nursery.start(directory, plant)
            if chance.random() < 0.15:
                life.kill(after=chance.uniform(0.0, 0.1))  # perhaps before it is ready
                continue
            address.move(life.ready())
            # Never long before something has happened, and never at the same distance from it.
            ledger.await_events(ledger.events + chance.randrange(60), patience=2.0)
            life.kill(after=chance.uniform(0.0, 0.01))
        address.ending = True
        last = nursery.start(directory, plant)
        stack.callback(last.kill)
        port = last.ready()
        address.move(port)
        states = dict(_fates(port, ledger.acknowledged))
    assert_no_defect((directory / "log").read_text())
    lost = sorted(handle for handle, state in states.items() if state != b"succeeded")
    return Findings(len(states), lost, ledger.violations, Counter(states.values()))


def _join(address: Address, actors: list[Actor]) -> None:
    """Stop the actors: the server is gone by now, which ends their connections."""
    address.end()
    for actor in actors:
        actor.join(READY_WITHIN)
        assert not actor.is_alive(), f"{actor.name} hangs"
        if actor.defect is not None:
            raise actor.defect


def _fates(port: int, handles: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Wait for the end of each job; gives handles and states."""
    with ExtensionPeer(port) as peer:
        peer.extend()
        peer.write(b"".join(encode(More.WAIT, handle) for handle in handles))
        for _ in handles:
            result = peer.result()
            yield result.handle, result.state
