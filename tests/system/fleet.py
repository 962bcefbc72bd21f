"""Nodes of one store, each a process of its own: killed, frozen, cut off, and ended in every outcome."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.upgrades.old import with_source

from .extension import ExtensionPeer
from .servers import assert_no_defect, environment, eventually, listening_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEASE = 1.5
"""Seconds of the leases of tests: short, and yet longer than what a busy machine makes a heartbeat wait."""
READY_WITHIN = 30.0
STOP_WITHIN = 30.0


class Nursery:
    """Starts nodes quickly; see `nursery`. What it has started ends with it."""

    def __init__(self, source: Path | None = None) -> None:
        """``source`` is where the nodes' code is, where it is not the one that is tested."""
        program = Path(__file__).with_name("nursery.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment() if source is None else with_source(source, environment()),
        )
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(STOP_WITHIN)
        self._process.stdout.close()

    def start(self, order: Mapping[str, Any]) -> int:
        """Start a process as an order says; returns its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


class FleetNode:
    """One run of a node."""

    def __init__(self, name: str, pid: int, reader: int, log: Path) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self.port = 0
        self._descriptor = os.pidfd_open(pid)
        self._reader = reader
        self._ended = False

    # ---- its life

    def ready(self) -> Self:
        """Wait until it listens."""
        seen = b""
        while b"\n" not in seen:
            readable, _, _ = select.select([self._reader, self._descriptor], [], [], READY_WITHIN)
            assert self._reader in readable, f"{self.name} did not come up: {self.written()[-3000:]}"
            data = os.read(self._reader, 4096)
            assert data, f"{self.name} did not come up: {self.written()[-3000:]}"
            seen += data
        self.port = listening_port(seen.decode())
        return self

    @property
    def lives(self) -> bool:
        """Whether its process has not ended, be it frozen."""
        return not self._ended and not select.select([self._descriptor], [], [], 0)[0]

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; it may have ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does."""
        self.send(signal.SIGSTOP)
        eventually(lambda: self._state() == "T", f"{self.name} is frozen")

    def thaw(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def tell_tasks(self) -> None:
        """Let it log what each of its tasks waits for."""
        self.send(signal.SIGUSR2)
        eventually(lambda: "these are all tasks" in self.written(), f"{self.name} tells its tasks")

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone. To do it again does no harm."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it politely."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._ended:
            return
        self.send(number)
        gone, _, _ = select.select([self._descriptor], [], [], STOP_WITHIN)
        assert gone, f"{self.name} stays: {self.written()[-3000:]}"
        self._ended = True
        os.close(self._descriptor)
        os.close(self._reader)

    # ---- what is said to it

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def peer(self) -> ExtensionPeer:
        """Connect, as client, worker or administrator; the caller closes."""
        return ExtensionPeer(self.port)

    def extended(self) -> ExtensionPeer:
        """Connect a client of the extension."""
        peer = self.peer()
        peer.extend()
        return peer

    def worker(self, *functions: bytes, places: int = 1) -> ExtensionPeer:
        """Connect a worker of the extension."""
        peer = self.extended()
        for function in functions:
            peer.register(function)
        if places:
            peer.ready(places)
        return peer

    def ask(self, method: str, **params: Any) -> Any:
        """Call a method on a connection of its own."""
        with self.extended() as peer:
            return peer.call(method, **params)

    def status(self) -> dict[str, Any]:
        """Return what it says of itself."""
        status: dict[str, Any] = self.ask("node.status")
        return status

    @property
    def term(self) -> int:
        """The number under which it holds jobs at present."""
        return int(self.status()["term"])

    def written(self) -> str:
        """Return what it has logged, over all of its runs."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


class Fleet:
    """The nodes of one store. A context manager: none of them is left afterwards, and none has met a defect of its own."""

    def __init__(self, nursery: Nursery, directory: Path, store: str, *options: str, lease: float = LEASE) -> None:
        self.nursery = nursery
        """What starts the nodes: another one from now on, where the fleet is to get nodes of another version."""
        self._directory = directory
        self._store = store
        self._options = (*options, "--lease", f"{lease * 1000:.0f}ms")
        self.lease = lease
        self.nodes: list[FleetNode] = []
        """All that were started, in this order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for node in self.nodes:
            node.kill()
        if kind is None:
            self.assert_calm()

    def launch(self, name: str, *options: str, store: str | None = None, plant: str | None = None) -> FleetNode:
        """Start a node, and do not wait; ``plant`` names a defect to give it, ``store`` another way to the database."""
        pipe = self._directory / f"{name}.stdout"
        if not pipe.exists():
            os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        log = self._directory / f"{name}.log"
        command = ("serve", "--store", store or self._store, "--name", name, "--gearman", "127.0.0.1:0")
        order = {
            "arguments": [*command, *self._options, *options],
            "directory": str(self._directory),
            "stdout": str(pipe),
            "log": str(log),
            "plant": plant,
        }
        node = FleetNode(name, self.nursery.start(order), reader, log)
        self.nodes.append(node)
        return node

    def start(self, name: str, *options: str, store: str | None = None, plant: str | None = None) -> FleetNode:
        """Start a node that is ready."""
        return self.launch(name, *options, store=store, plant=plant).ready()

    def several(self, *names: str) -> list[FleetNode]:
        """Start some nodes at once, and wait until all are ready."""
        return [node.ready() for node in [self.launch(name) for name in names]]

    def live(self) -> list[FleetNode]:
        """Return the nodes whose processes have not ended."""
        return [node for node in self.nodes if node.lives]

    def assert_calm(self) -> None:
        """Say that no node has met a defect."""
        for node in self.nodes:
            assert_no_defect(node.written())


def addresses(nodes: Iterable[FleetNode]) -> str:
    """Return what ``--server`` takes for several nodes."""
    return ",".join(node.address for node in nodes)
