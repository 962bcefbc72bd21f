"""Connections to a node in memory, without sockets: packets in, packets out."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

from tests.engines import memory_engine
from tests.simulation.life import Life
from tests.simulation.store import History
from tests.simulation.wires import Wire

from mainspring.faces.gearman.face import GearmanSettings
from mainspring.testing import ManualClock
from mainspring.wire.gearman_protocol import EXTENSION, Type, request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.access.caller import Caller
    from mainspring.engines.memory.engine import MemoryEngine

Packet = tuple[str, list[str]]
F, G = b"f", b"g"


class Node:
    """A node and its connections. Bytes arrive at once; operations wait for ``commit``."""

    def __init__(self, earlier: Node | None = None, **options: Any) -> None:
        self.clock: ManualClock = earlier.clock if earlier else ManualClock()
        self.engine: MemoryEngine = earlier.engine if earlier else memory_engine()
        self.history: History = earlier.history if earlier else History()
        self.life = Life(self.engine, self.history, self.clock, Random(0), **options)
        self.service = self.life.service
        self.face = self.life.face
        self.commit()

    def connect(self, *, extended: bool = False, namespace: str | None = None, caller: Caller | None = None) -> Peer:
        """Connect to a port, which may have a namespace, and a caller for all of its connections."""
        peer = Peer(self, namespace, caller)
        if extended:
            peer.request(Type.OPTION_REQ, EXTENSION)
            assert peer.received() == [("OPTION_RES", ["mainspring/2"])]
        return peer

    def worker(self, *functions: bytes) -> Peer:
        peer = self.connect()
        for function in functions or (F,):
            peer.request(Type.CAN_DO, function)
        return peer

    def stream(self, *functions: bytes, places: int = 1, **options: Any) -> Peer:
        peer = self.connect(extended=True)
        for function in functions or (F,):
            peer.request(Type.REGISTER, function, json.dumps(options).encode())
        peer.request(Type.READY, b"%d" % places)
        return peer

    def commit(self) -> None:
        self.life.settle()
        while not self.life.commits.idle:
            self.life.commits.hurry()
            self.life.settle()

    def fail(self) -> None:
        store = self.life.store
        store.full = store.away = True
        self.commit()
        store.full = store.away = False

    def wait(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while (following := self.life.next()) <= end:
            self.clock.advance(max(following - self.clock.monotonic(), 0))
            self.life.run_due()
            self.commit()
        self.clock.advance(max(end - self.clock.monotonic(), 0))


def configure(node: Node, **settings: object) -> None:
    """Change settings of the Gearman port."""
    for name, value in settings.items():
        assert hasattr(GearmanSettings(), name)
        object.__setattr__(node.face.settings, name, value)


class Peer:
    """One end of a connection."""

    def __init__(self, node: Node, namespace: str | None = None, caller: Caller | None = None) -> None:
        self._node = node
        self._received: list[Packet] = []
        self.wire = Wire(node.life, self._receive, namespace, caller)
        node.life.wires.append(self.wire)

    def _receive(self, kind: int, args: Sequence[bytes]) -> None:
        name = Type(kind).name if kind > 0 else "TEXT"
        self._received.append((name, [arg.decode("utf-8", "backslashreplace") for arg in args]))

    def send(self, data: bytes) -> None:
        self.wire.send(data)
        self.wire.deliver()

    def request(self, kind: int, *args: bytes) -> None:
        self.send(request(kind, *args))

    def received(self) -> list[Packet]:
        """Return the packets received since the last call."""
        packets, self._received = self._received, []
        return packets

    def answer(self) -> Packet:
        """Commit, and return the only received packet."""
        self._node.commit()
        (packets,) = self.received()
        return packets

    def ask(self, kind: int, *args: bytes) -> Packet:
        self.request(kind, *args)
        return self.answer()

    def call(self, method: str, **params: Any) -> Any:
        """Call a method and return its value, or the code of its fault."""
        name, args = self.ask(Type.CALL, b"7", method.encode(), json.dumps(params).encode())
        assert args[0] == "7"
        return json.loads(args[1]) if name == "ANSWER" else args[1]

    def text(self, line: str) -> str:
        """Send a command and return the answer."""
        self.send(line.encode() + b"\n")
        return self.listed()

    def listed(self) -> str:
        """Commit, and return the received text, in one piece or several."""
        self._node.commit()
        self._node.wait(0)
        packets = self.received()
        assert {name for name, _ in packets} == {"TEXT"}
        return "".join(args[0] for _, args in packets)

    def background(self, payload: bytes = b"", function: bytes = F, unique: bytes = b"") -> str:
        """Submit a background job and return its handle."""
        name, args = self.ask(Type.SUBMIT_JOB_BG, function, unique, payload)
        assert name == "JOB_CREATED"
        return args[0]

    def leave(self) -> None:
        self.wire.end()

    @property
    def closed(self) -> bool:
        self._node.life.settle()
        return self.wire.over
