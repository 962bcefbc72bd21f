"""Workers with workflows: the real code of workers, on a simulated loop and simulated connections."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mainspring.wire.gearman_protocol import Connection, Type, response
from mainspring.worker.runtime import Worker
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.workflows import decider as decider_module
from mainspring.workflows.messages import decode_decide, decode_decided
from tests.simulation.actors import Actor
from tests.simulation.wires import End

from .virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.worker.registry import Registry
    from mainspring.workflows.messages import DecideMessage
    from tests.simulation.wires import Wire

    from .stage import FlowStage


class _Socket:
    family = socket.AF_UNIX

    def fileno(self) -> int:
        return -1


class _Transport(asyncio.Transport):
    """The worker's end of a wire."""

    def __init__(self, host: DeciderHost, wire: Wire, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._host = host
        self.wire = wire
        self.protocol = protocol
        self._closing = False
        self._sent = Connection("server")
        self._sent.extended = True
        self.reports: dict[bytes, list[DecideMessage]] = {}
        """The reports of each DECIDE."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self.wire.send(bytes(data))
        for kind, args in self._sent.receive(bytes(data)):
            if kind == Type.DECIDE:
                self.reports[args[0]] = decode_decide(args[1])

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.wire.leave(End.CLOSE)
            self._host.loop.call_soon(self._host.disconnect, self, None)

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket() if name == "socket" else default


class DeciderHost(Actor):
    """The process of a worker, which may be killed. Its wall clock differs from the node's by ``skew`` seconds."""

    world: FlowStage

    def __init__(self, world: FlowStage, name: str, registry: Registry, build: str, skew: float) -> None:
        super().__init__(world, name)
        self.registry = registry
        self.build = build
        self.functions = tuple(function.name.encode() for function in registry)
        self._skew = skew
        self._transport: _Transport | None = None
        self.running: asyncio.Task[Any] | None = None
        self.kept_out = False
        """Whether the worker must not run: the simulation lets only other builds run for a time."""
        self._paused_until = 0.0
        """The monotonic time until which the process stands still."""
        self.stood_still = False
        """Whether it ever did: then it may execute what was assigned to another worker meanwhile, until it reads that."""

    # ---- the process ----

    def begin(self) -> None:
        """Start the process."""
        world = self.world
        self.stood_still = False
        self.loop = VirtualLoop(world.clock, self)  # type: ignore[abstract] # it has what workers use
        settings = WorkerSettings(
            concurrency=world.chance.choice((1, 2, 4)),
            name=self.name,
            workflow_cache=world.chance.choice((0, 7_000, 20_000, 2**20, 2**20)),
        )

        def monotonic() -> float:
            return world.clock.monotonic() + self._skew

        with self.loop.running():
            with patch.object(decider_module, "code_digest", lambda _: self.build):
                decider = decider_module.WorkflowDecider(
                    self.registry.workflows,
                    settings,
                    selector=None,
                    task_process=(),
                    monotonic=monotonic,
                    clock=world.activation_time,
                )
            self.worker = Worker(self.registry, {"node": self._connect}, settings, decider=decider, monotonic=monotonic)
            self.running = self.loop.create_task(self.worker.run())

    def kill(self) -> None:
        """End the process: nothing of it reaches anybody from now on."""
        running, self.running = self.running, None
        if running is None:
            return
        transport, self._transport = self._transport, None
        if transport is not None:
            transport._closing = True
            transport.wire.leave(End.RESET)
        self.wire = None
        loop = self.loop
        self.world.died(loop)
        if transport is not None:
            with loop.running():
                transport.protocol.connection_lost(None)
        running.cancel()
        loop.finish(running)  # a process would just vanish; this ends its coroutines in order

    def stop(self) -> None:
        """Ask the worker to end gracefully."""
        if self.running is not None:
            with self.loop.running():
                self.worker.stop()

    def _ended(self) -> None:
        running, self.running = self.running, None
        assert running is not None
        running.result()

    # ---- connections ----

    async def _connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        if self.kept_out or (not self.world.calm and self.chance.random() < 0.1):
            raise ConnectionRefusedError
        protocol = factory()
        self.wire = self.world.connect(self)
        self._transport = _Transport(self, self.wire, protocol)
        protocol.connection_made(self._transport)

    def disconnect(self, transport: _Transport, error: Exception | None) -> None:
        """End the connection at the worker."""
        if transport is self._transport:
            self._transport = self.wire = None
            transport._closing = True
            transport.protocol.connection_lost(error)

    def leave(self) -> None:
        """Cut the connection."""
        if self.wire is not None:
            self.wire.leave(self.chance.choice((End.RESET, End.CLOSE)))
            self.lost()

    def lost(self) -> None:
        transport = self._transport
        if transport is None or self.running is None:
            super().lost()
            return
        with self.loop.running():
            self.disconnect(transport, ConnectionResetError())

    # ---- the simulation ----

    def act(self) -> bool:
        """Run a callback, or the process."""
        if self.paused:
            return False
        if self.running is None:
            if self.kept_out:
                return False
            self.begin()
            return True
        if self.kept_out:
            self.kill()
            return True
        did = bool(self.loop.ready)
        if did:
            self.loop.run_one()
            assert not self.loop.errors, f"{self.name}: {self.loop.errors}"
        if self.running.done():
            self._ended()
            return True
        return did

    def pause(self, seconds: float) -> None:
        """Let the process stand still for a time."""
        self.stood_still = True
        self._paused_until = self.world.clock.monotonic() + seconds

    @property
    def paused(self) -> bool:
        return not self.world.calm and self.world.clock.monotonic() < self._paused_until

    def run_ready(self) -> bool:
        """Run all callbacks."""
        did = False
        while self.running is not None and self.loop.ready and not self.paused:
            did = True
            self.act()
        return did

    def receive(self, kind: int, args: list[bytes]) -> None:
        assert self._transport is not None
        if kind == Type.ASSIGN and self.world.deadly and not self.world.calm and self.chance.random() < 0.5:
            self.kill()
            return
        data = response(kind, *args)
        with self.loop.running():
            self._transport.protocol.data_received(data)

    def see(self, kind: int, args: list[bytes]) -> None:
        if kind == Type.DECIDED:
            assert self._transport is not None
            reports = self._transport.reports.pop(args[0])
            for report, verdict in zip(reports, decode_decided(args[1]), strict=True):
                if verdict.verdict == "recorded":
                    self.world.accounts.acknowledged(report, verdict)
        elif kind == Type.ASSIGN:
            self.world.assigned(args[0])
