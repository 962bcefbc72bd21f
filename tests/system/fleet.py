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
from .workflow_accounts import COMMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEASE = 1.5
"""The lease of nodes in tests, in seconds: short, but longer than heartbeats are delayed on a busy machine."""
START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0


class ForkServer:
    """Starts nodes quickly, see `fork_server`. A context manager: the nodes end with it."""

    def __init__(self, source: Path | None = None) -> None:
        """``source`` is the directory of other code to run the nodes with; by default they run the tested code."""
        program = Path(__file__).with_name("fork_server.py")
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
        self._process.wait(STOP_TIMEOUT)
        self._process.stdout.close()

    def start(self, order: Mapping[str, Any]) -> int:
        """Start a process, and return its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


class FleetNode:
    """One run of a node."""

    def __init__(self, name: str, pid: int, reader: int, log: Path, faces: int = 1) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self.port = 0
        self.http = ""
        """The address of its HTTP port, if it has one."""
        self._faces = faces
        self._descriptor = os.pidfd_open(pid)
        self._reader = reader
        self._ended = False

    # ---- its process

    def ready(self) -> Self:
        """Wait until the node listens."""
        seen = b""
        while seen.count(b"\n") < self._faces:
            readable, _, _ = select.select([self._reader, self._descriptor], [], [], START_TIMEOUT)
            assert self._reader in readable, f"{self.name} did not come up: {self.log_text()[-3000:]}"
            data = os.read(self._reader, 4096)
            assert data, f"{self.name} did not come up: {self.log_text()[-3000:]}"
            seen += data
        gearman, *others = seen.decode().splitlines()
        self.port = listening_port(gearman)
        for line in [line for line in others if line.startswith("listening http")]:
            self.http = f"127.0.0.1:{listening_port(line, face='http')}"
        return self

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended; it may be frozen."""
        return not self._ended and not select.select([self._descriptor], [], [], 0)[0]

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal; it may have ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def freeze(self) -> None:
        """Stop the process with SIGSTOP, at an arbitrary point."""
        self.send(signal.SIGSTOP)
        eventually(lambda: self._state() == "T", f"{self.name} is frozen")

    def thaw(self) -> None:
        """Continue the process."""
        self.send(signal.SIGCONT)

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def log_tasks(self) -> None:
        """Let the node log what each of its tasks awaits."""
        self.send(signal.SIGUSR2)
        eventually(lambda: "these are all tasks" in self.log_text(), f"{self.name} has logged its tasks")

    def kill(self) -> None:
        """End the process with SIGKILL, and wait for its end. A second call has no effect."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process with SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._ended:
            return
        self.send(number)
        gone, _, _ = select.select([self._descriptor], [], [], STOP_TIMEOUT)
        assert gone, f"{self.name} has not ended: {self.log_text()[-3000:]}"
        self._ended = True
        os.close(self._descriptor)
        os.close(self._reader)

    # ---- its connections

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def peer(self) -> ExtensionPeer:
        """Connect as client, worker or administrator; the caller closes the connection."""
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
        """Call a method on a new connection."""
        with self.extended() as peer:
            return peer.call(method, **params)

    def status(self) -> dict[str, Any]:
        """Return the node's status."""
        status: dict[str, Any] = self.ask("node.status")
        return status

    @property
    def term(self) -> int:
        """The number of its current term."""
        return int(self.status()["term"])

    def log_text(self) -> str:
        """Return its log, over all of its runs."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


class Fleet:
    """The nodes of one store. A context manager: at its end all nodes are killed, and none may have logged a defect."""

    def __init__(
        self, fork_server: ForkServer, directory: Path, store: str, *options: str, lease: float = LEASE
    ) -> None:
        self.fork_server = fork_server
        """The server that starts further nodes; replace it to start nodes of another version."""
        self._directory = directory
        self._store = store
        self._options = (*options, "--lease", f"{lease * 1000:.0f}ms")
        self.lease = lease
        self.nodes: list[FleetNode] = []
        """All nodes that were started, in this order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for node in self.nodes:
            node.kill()
        if kind is None:
            self.assert_healthy()

    def launch(
        self, name: str, *options: str, store: str | None = None, plant: str | None = None, socket: str = ""
    ) -> FleetNode:
        """Start a node without waiting.

        ``plant`` names a defect to plant, ``store`` another URL of the store, ``socket`` a second address of the node.
        """
        pipe = self._directory / f"{name}.stdout"
        if not pipe.exists():
            os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        log = self._directory / f"{name}.log"
        ports = f"127.0.0.1:0,{socket}" if socket else "127.0.0.1:0"
        command = ("serve", "--store", store or self._store, "--name", name, "--gearman", ports)
        arguments = [*command, *self._options, *options]
        order = {
            "arguments": arguments,
            "directory": str(self._directory),
            "stdout": str(pipe),
            "log": str(log),
            "plant": plant,
            "commits": str(self._directory / COMMITS),
        }
        node = FleetNode(
            name, self.fork_server.start(order), reader, log, faces=1 + ("--http" in arguments) + bool(socket)
        )
        self.nodes.append(node)
        return node

    def start(self, name: str, *options: str, store: str | None = None, plant: str | None = None) -> FleetNode:
        """Start a node, and wait until it is ready."""
        return self.launch(name, *options, store=store, plant=plant).ready()

    def start_many(self, *names: str) -> list[FleetNode]:
        """Start some nodes at the same time, and wait until all are ready."""
        return [node.ready() for node in [self.launch(name) for name in names]]

    def live_nodes(self) -> list[FleetNode]:
        """Return the nodes whose processes have not ended."""
        return [node for node in self.nodes if node.is_alive]

    def assert_healthy(self) -> None:
        """Assert that no node has logged a defect."""
        for node in self.nodes:
            assert_no_defect(node.log_text())


def addresses(nodes: Iterable[FleetNode]) -> str:
    """Return the value of ``--server`` for several nodes."""
    return ",".join(node.address for node in nodes)
