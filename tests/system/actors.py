"""Clients and workers that keep reconnecting while the servers fail, and record their observations in a ledger."""

from __future__ import annotations

import contextlib
import json
import random
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.packets import Kind, encode

from .extension import ExtensionKind, ExtensionPeer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .ledger import Ledger, Run

FUNCTIONS = (b"alpha", b"beta")
TASKS = (b"work", b"look", b"count")
"""The tasks of `accounted_workflows`."""
UNIQUE_COUNT = 6
LEAVE_PROBABILITY = 0.01
HOP_PROBABILITY = 0.05
RESULT = b"result"
DISCONNECTS = (ConnectionError, TimeoutError)
ACTOR_TIMEOUT = 40.0
"""Seconds within which every request ends, including the time for which a server was disturbed."""


class Addresses:
    """The addresses of the servers that currently listen."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ports: dict[str, int] = {}
        self.ending = False
        """True once clients must stop submitting."""
        self.over = False

    def add(self, name: str, port: int) -> None:
        """Add a server that listens."""
        with self._changed:
            self._ports[name] = port
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        """Remove a server that no longer listens."""
        with self._changed:
            self._ports.pop(name, None)

    def end(self) -> None:
        """End all actors."""
        with self._changed:
            self.over = self.ending = True
            self._changed.notify_all()

    def connect(self, chance: random.Random) -> ExtensionPeer:
        """Connect to one of the servers; raises ConnectionError."""
        with self._changed:
            self._changed.wait_for(lambda: self._ports or self.over, ACTOR_TIMEOUT)
            if not self._ports:
                raise ConnectionError("no server listens")
            port = chance.choice(sorted(self._ports.values()))
        return ExtensionPeer(port)


class Pace(NamedTuple):
    """The pauses of the actors, in seconds; an actor picks one at random each time."""

    rests: Sequence[float] = (0.0,)
    """Of a submitter, after each batch."""
    works: Sequence[float] = (0.0,)
    """Of a streaming worker, for each job."""
    hops: float = HOP_PROBABILITY
    """The probability that a plain worker ends its connection right after its next request for a job."""


class Actor(threading.Thread):
    """A peer that reconnects, to any server, whenever its connection ends."""

    def __init__(self, name: str, addresses: Addresses, ledger: Ledger, pace: Pace, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.addresses = addresses
        self.ledger = ledger
        self.pace = pace
        self.random = random.Random(f"{seed} {name}")
        self.defect: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.finished():
                try:
                    with self.addresses.connect(self.random) as peer:
                        peer.socket.settimeout(ACTOR_TIMEOUT)
                        self.act(peer)
                except DISCONNECTS:
                    time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001 - the test raises it again
            self.defect = error

    def finished(self) -> bool:
        """Return whether to end."""
        return self.addresses.over

    def stays(self) -> bool:
        """Return whether to keep the connection: an actor leaves it now and then, at an arbitrary moment."""
        return not self.finished() and self.random.random() > LEAVE_PROBABILITY

    def act(self, peer: ExtensionPeer) -> None:
        """Work until the connection ends, or until this actor leaves it."""
        raise NotImplementedError


class Client(Actor):
    """An actor that submits until the test ends submissions."""

    def finished(self) -> bool:
        return self.addresses.ending

    def unique(self, function: bytes) -> bytes:
        """Choose one of a few uniques, so that submissions join, or the empty one."""
        return b"%b-%d" % (function, self.random.randrange(UNIQUE_COUNT)) if self.random.random() < 0.5 else b""


class ForegroundClient(Client):
    """Waits for its jobs, which other clients may join, and sometimes leaves before they end."""

    def act(self, peer: ExtensionPeer) -> None:
        while self.stays():
            function = self.random.choice(FUNCTIONS)
            peer.send(Kind.SUBMIT_JOB, function, self.unique(function), b"payload")
            if not self.stays():
                return
            kind, arguments = peer.next()
            if kind is Kind.ERROR:
                self.ledger.disturbed("refused")
                continue
            assert kind is Kind.JOB_CREATED, (kind, arguments)
            handle = arguments[0]
            kind, arguments = peer.next()
            if kind is Kind.WORK_COMPLETE:
                if arguments != (handle, RESULT):
                    self.ledger.break_promise(f"the result of {handle!r} is {arguments!r}")
                self.ledger.note("served")
            else:  # its node lost the store and dropped the job
                assert kind is Kind.WORK_FAIL, (kind, arguments)
                self.ledger.disturbed("let down")


class Submitter(Client):
    """Sends batches of background jobs in both protocols, and reads the answers afterwards."""

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
                    packets.append(encode(ExtensionKind.SUBMIT, function, unique, self._options(), b"payload"))
            peer.write(b"".join(packets))
            for unique in sent:
                answer = peer.next()
                if answer.kind is Kind.ERROR:  # its node is cut off: the job is not acknowledged
                    self.ledger.disturbed("refused")
                    continue
                assert answer.kind in {Kind.JOB_CREATED, ExtensionKind.SUBMITTED}, answer
                self.ledger.accept(answer.arguments[0], unique)
            time.sleep(chance.choice(self.pace.rests))

    def _options(self) -> bytes:
        retry = {"max_attempts": 1000, "initial": 0.005, "jitter": 0.5, "maximum": 0.02}
        return json.dumps(self.random.choice([{}, {"priority": "high"}, {"delay": 0.01}, {"retry": retry}])).encode()


class PlainWorker(Actor):
    """Grabs one job at a time, and sends an echo after each completion: the answer proves that the completion is on disk."""

    def act(self, peer: ExtensionPeer) -> None:
        for function in FUNCTIONS:
            peer.send(Kind.CAN_DO, function)
        while self.stays():
            peer.send(Kind.GRAB_JOB_UNIQ)
            if self.random.random() < self.pace.hops / 2:
                self._hop(peer)
                return
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
                if self.random.random() < self.pace.hops:
                    peer.write(encode(Kind.WORK_COMPLETE, handle, RESULT) + encode(Kind.GRAB_JOB_UNIQ))
                    self._hop(peer)
                    return
                peer.write(encode(Kind.WORK_COMPLETE, handle, RESULT) + encode(Kind.ECHO_REQ, handle))
                self.ledger.end(run)
                while (packet := peer.next()).kind is Kind.NOOP:
                    pass
            finally:
                self.ledger.end(run)
            assert packet.kind is Kind.ECHO_RES, packet
            self.ledger.confirm(handle)

    def _hop(self, peer: ExtensionPeer) -> None:
        """End the connection while a request for a job is unanswered, as libraries, killed programs and scripts do."""
        self.ledger.note("hops")
        how = self.random.choice(["close", "half", "reset"])
        if how == "reset":
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "half":
            with contextlib.suppress(OSError):  # the server may have been killed: then there is no connection to end
                peer.socket.shutdown(socket.SHUT_WR)
            try:
                while peer.socket.recv(65536):
                    pass
            except TimeoutError:
                if not self.finished():
                    self.ledger.break_promise(f"{self.name} ended its side, and its node has not in {ACTOR_TIMEOUT} s")


class StreamingWorker(Actor):
    """Holds several jobs at a time, each for a while, and ends some of them with another outcome than success."""

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
                for token, (until, run, outcome) in [*working.items()]:
                    if until <= now:
                        del working[token]
                        self.ledger.end(run)
                        settle = encode(ExtensionKind.SETTLE, run.handle, token, outcome, b"", RESULT)
                        peer.write(settle + encode(ExtensionKind.READY, b"1"))
                        if outcome == b"succeeded":
                            succeeded.add(token)
                first = min((until for until, _, _ in working.values()), default=now + 1)
                if arrives(peer, first - now):
                    self._receive(peer, working, succeeded)
        finally:
            for _, run, _ in working.values():
                self.ledger.end(run)

    def _receive(
        self, peer: ExtensionPeer, working: dict[bytes, tuple[float, Run, bytes]], succeeded: set[bytes]
    ) -> None:
        packet = peer.next()
        if packet.kind is ExtensionKind.ASSIGN:
            handle, token, function, unique, info, _ = packet.arguments
            run = self.ledger.begin(handle, function, unique)
            outcome = b"succeeded"
            if self.random.random() < 0.2:
                outcome = self.random.choice([b"released", b"snoozed"])
            elif self.random.random() < 0.3 and b"max_attempts" in info:
                outcome = b"failed"
            working[token] = (run.began + self.random.choice(self.pace.works), run, outcome)
        elif packet.kind is ExtensionKind.STOP:
            handle, token, reason = packet.arguments
            assert reason == b"lost", packet
            self.ledger.disturbed("stopped")
            if token in working:
                self.ledger.end(working.pop(token)[1])
                peer.ready()
        else:
            assert packet.kind is ExtensionKind.SETTLED, packet
            handle, token, verdict = packet.arguments
            if verdict == b"recorded":
                if token in succeeded:
                    self.ledger.confirm(handle)
            else:
                assert verdict == b"stale", packet
                self.ledger.disturbed("stale")
            succeeded.discard(token)


class TaskClient(Client):
    """Submits jobs for the tasks of worker processes, and waits for some of them: see `accounted_workflows`."""

    def act(self, peer: ExtensionPeer) -> None:
        peer.extend()
        chance = self.random
        while self.stays():
            self._number += 1
            function, name = chance.choice(TASKS), f"{self.name} {self._number}"
            unique = self.unique(function)
            peer.request(function, json.dumps([name, "0", ""]).encode(), unique, {})
            answer = peer.next()
            if answer.kind is Kind.ERROR:
                self.ledger.disturbed("refused")
                continue
            assert answer.kind is ExtensionKind.SUBMITTED, answer
            handle, joined = answer.arguments
            self.ledger.accept(handle, unique)
            if joined == b"0":
                self.ledger.tasks[handle] = name
            if chance.random() < 0.5:
                result = peer.outcome(handle)
                if result.state == b"succeeded":
                    self.ledger.ended(handle, json.loads(result.data), time.monotonic())
            time.sleep(chance.choice(self.pace.rests))

    _number = 0


def arrives(peer: ExtensionPeer, seconds: float) -> bool:
    """Return whether a packet arrives within some seconds; a partly received one counts."""
    return bool(peer._buffer) or bool(select.select([peer.socket], [], [], max(0.0, seconds))[0])
