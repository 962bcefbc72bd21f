"""Random sequences of packets from several peers, sent to gearmand and Mainspring in step: their answers must be equal.

Deliberate differences are left out or ignored: the choice of the sleeper to wake; jobs that return to the queue, which keep
their place; and jobs whose last client leaves. ``test_differences.py`` covers them.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from .packets import Kind, Packet, packet_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .conftest import Servers
    from .packets import Peer
    from .servers import Server

    Step = tuple[int, Kind, tuple["bytes | int", ...]]
    """The index of the peer, the packet type and its arguments; a number is the handle of the job that this step created."""
    Received = dict[int, list[Packet]]

PEERS = 4
STEPS = 250
FOREGROUND = [Kind.SUBMIT_JOB, Kind.SUBMIT_JOB_HIGH, Kind.SUBMIT_JOB_LOW]
BACKGROUND = [Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB_HIGH_BG, Kind.SUBMIT_JOB_LOW_BG]
GRABS = [Kind.GRAB_JOB, Kind.GRAB_JOB_UNIQ, Kind.GRAB_JOB_ALL]
ASSIGNED = [Kind.JOB_ASSIGN, Kind.JOB_ASSIGN_UNIQ, Kind.JOB_ASSIGN_ALL]
END_KINDS = [Kind.WORK_COMPLETE, Kind.WORK_FAIL, Kind.WORK_EXCEPTION]
UNIQUES = [b"", b"", b"-", b"u1", b"u2", b"u3"]
PAYLOADS = [b"", b"p", b"pay\0load", b"\0", b"\0\0\xff\n", b"z" * 70_000]
NUMBERS = [b"0", b"1", b"100", b"", b"abc", b"-5", b" 7 x", b"4294967295"]
RECONNECT = Kind.RESET_ABILITIES
"""Represents the end of a connection and a new one."""


class Side:
    """One server with its peers. Handles are reported as the number of the step that created them."""

    def __init__(self, server: Server, name: bytes) -> None:
        self._server = server
        self._name = name
        self._handles: dict[int, bytes] = {}
        self._steps: dict[bytes, bytes] = {}
        self._watcher = server.peer()
        self._peers = [self._connect() for _ in range(PEERS)]

    def _connect(self) -> Peer:
        peer = self._server.peer()
        peer.send(Kind.SET_CLIENT_ID, self._name)
        peer.sync()
        return peer

    def play(self, number: int, step: Step) -> Received:
        """Execute a step, and return the packets that each peer has received since the last one."""
        actor, kind, arguments = step
        if kind is RECONNECT:
            self._peers[actor].close()
            while sum(self._name in line for line in self._watcher.table(b"workers")) == PEERS:
                pass  # poll: no event shows that the server detected the end
            self._peers[actor] = self._connect()
        else:
            self._peers[actor].send(kind, *[self._handles[one] if isinstance(one, int) else one for one in arguments])
        received: Received = defaultdict(list)
        # Ask the actor twice: a server with a store may send the actor's own jobs after the answer to its echo.
        for index in [actor, *[other for other in range(PEERS) if other != actor], actor]:
            for packet in self._peers[index].pending():
                if packet.kind is Kind.JOB_CREATED and number not in self._handles:
                    self._handles[number] = packet.arguments[0]
                    self._steps.setdefault(packet.arguments[0], b"%d" % number)
                if packet.kind is not Kind.NOOP:
                    received[index].append(self._normalize(packet))
        return dict(received)

    def _normalize(self, packet: Packet) -> Packet:
        arguments = packet.arguments
        if packet.kind is Kind.WORK_FAIL:
            arguments = (arguments[0].rstrip(b"\0"),)  # gearmand appends a NUL for an exception
        return packet_of(packet.kind, *[self._steps.get(argument, argument) for argument in arguments])

    def tables(self) -> list[bytes]:
        """Return the lines of the tables with this run's functions."""
        lines = self._watcher.table(b"status") + self._watcher.table(b"prioritystatus")
        return sorted(line for line in lines if self._name in line)


class Generator:
    """Generates steps, and tracks which jobs each peer holds."""

    def __init__(self, seed: int, name: bytes) -> None:
        self._random = random.Random(seed)
        self._functions = [name + b"-%d" % number for number in range(3)]
        self._created: list[int] = []
        self._held: dict[int, list[int]] = defaultdict(list)
        self._awaited: dict[int, set[bytes]] = defaultdict(set)
        self._excepted: set[int] = set()
        kinds: dict[Callable[[int], Step], int] = {
            self._submit: 27,
            self._abilities: 12,
            self._grab: 24,
            self._report: 20,
            self._query: 10,
            self._unusual: 5,
            self._close: 2,
        }
        self._kinds, self._weights = list(kinds), list(kinds.values())

    def step(self) -> Step:
        """Return the next step."""
        (kind,) = self._random.choices(self._kinds, self._weights)
        return kind(self._random.randrange(PEERS))

    def track(self, number: int, step: Step, received: Received) -> None:
        """Record the effects of a step."""
        actor, kind, arguments = step
        for index, packets in received.items():
            for packet in packets:
                if packet.kind is Kind.JOB_CREATED:
                    if packet.arguments[0] == b"%d" % number:  # it joined no other job
                        self._created.append(number)
                    if kind in [*FOREGROUND, Kind.SUBMIT_REDUCE_JOB]:
                        self._awaited[actor].add(packet.arguments[0])
                elif packet.kind in ASSIGNED:
                    self._held[index].append(int(packet.arguments[0]))
                elif packet.kind in END_KINDS:
                    self._awaited[index].discard(packet.arguments[0])
        if kind in END_KINDS and isinstance(arguments[0], int):
            self._held[actor] = [job for job in self._held[actor] if job != arguments[0]]
            if kind is Kind.WORK_EXCEPTION:
                self._excepted.add(arguments[0])

    def _submit(self, actor: int) -> Step:
        choice = self._random.choice
        kind = choice([*FOREGROUND, *BACKGROUND, *FOREGROUND, *BACKGROUND, *SPECIAL])
        function = choice(self._functions)
        unique = choice(UNIQUES)
        if len(unique) > 1:
            unique += function  # lookups of uniques ignore the function
        between: tuple[bytes, ...] = ()
        if kind is Kind.SUBMIT_JOB_EPOCH:
            between = (choice([b"0", b"1000000000"]),)
        elif kind in REDUCE:
            between = (choice([b"", b"one", b"two"]), b"")
        return actor, kind, (function, unique, *between, choice(PAYLOADS))

    def _abilities(self, actor: int) -> Step:
        function = self._random.choice(self._functions)
        kind = self._random.choice([Kind.CAN_DO, Kind.CAN_DO, Kind.CAN_DO_TIMEOUT, Kind.CANT_DO])
        if kind is Kind.CANT_DO and self._held[actor]:
            kind = Kind.CAN_DO  # CANT_DO would return its jobs to the queue
        return actor, kind, (function, b"100000") if kind is Kind.CAN_DO_TIMEOUT else (function,)

    def _grab(self, actor: int) -> Step:
        return actor, self._random.choice([*GRABS, *GRABS, Kind.PRE_SLEEP]), ()

    def _report(self, actor: int) -> Step:
        choice = self._random.choice
        if not self._created:
            return self._submit(actor)
        job = choice(self._held[actor] or self._created) if self._random.random() < 0.8 else choice(self._created)
        kind = choice(
            [Kind.WORK_COMPLETE, *END_KINDS, Kind.WORK_DATA, Kind.WORK_WARNING, Kind.WORK_STATUS, Kind.WORK_STATUS]
        )
        if kind is Kind.WORK_FAIL:
            return (actor, kind, (job,)) if job not in self._excepted else (actor, Kind.WORK_DATA, (job, b"no more"))
        return (
            actor,
            kind,
            (job, choice(NUMBERS), choice(NUMBERS)) if kind is Kind.WORK_STATUS else (job, choice(PAYLOADS)),
        )

    def _query(self, actor: int) -> Step:
        choice = self._random.choice
        unique = choice([b"u1", b"u2", b"u3"]) + choice(self._functions)
        queries: list[Step] = [
            (actor, Kind.GET_STATUS_UNIQUE, (unique,)),
            (actor, Kind.GET_STATUS, (b"H:nowhere:1",)),
        ]
        if self._created:
            queries += [(actor, Kind.GET_STATUS, (choice(self._created),))] * 3
        return choice(queries)

    def _unusual(self, actor: int) -> Step:
        unusual: list[tuple[Kind, tuple[bytes, ...]]] = [
            (Kind.OPTION_REQ, (b"exceptions",)),
            (Kind.OPTION_REQ, (b"nonsense",)),
            (Kind.ECHO_REQ, (b"e\0cho",)),
            (Kind.GRAB_JOB, (b"a body",)),
            (Kind.NOOP, ()),
            (Kind.STATUS_RES, (b"x",) * 5),
            (Kind.SUBMIT_JOB, (self._functions[0], b"u" * 65, b"")),
        ]
        return (actor, *self._random.choice(unusual))

    def _close(self, actor: int) -> Step:
        if self._held[actor] or self._awaited[actor]:
            return self._grab(actor)
        return actor, RECONNECT, ()


REDUCE = [Kind.SUBMIT_REDUCE_JOB, Kind.SUBMIT_REDUCE_JOB_BG]
SPECIAL = [*REDUCE, Kind.SUBMIT_JOB_EPOCH]


@pytest.fixture(params=["mainspring", "durable"])
def pair(request: pytest.FixtureRequest, servers: Servers) -> Iterator[tuple[Server, Server]]:
    """Return gearmand and one Mainspring."""
    pair = servers.shared("gearmand"), servers.shared(request.param)
    yield pair
    for server in pair:
        server.disconnect()


@pytest.mark.parametrize("seed", range(4))
def test_a_random_sequence_of_packets_is_answered_equally(pair: tuple[Server, Server], seed: int) -> None:
    name = uuid.uuid4().hex[:12].encode()
    gearmand, mainspring = [Side(server, name) for server in pair]
    generator = Generator(seed, name)
    played: list[Step] = []
    for number in range(1, STEPS + 1):
        step = generator.step()
        played.append(step)
        received = gearmand.play(number, step)
        assert mainspring.play(number, step) == received, f"step {number} of {played}"
        generator.track(number, step, received)
        if number % 10 == 0:
            assert mainspring.tables() == gearmand.tables(), f"after step {number} of {played}"
