"""A fleet on one ensemble with the server's own nodes, foreground jobs, clients that disconnect, and nodes that drain.

Its workers of plain Gearman have connections, which they end in every way; the others call the node's service.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mainspring.callbacks import CallInProgress
from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreError
from mainspring.ids import Handles
from mainspring.jobs.model import NO_UNIQUE, Job, Options, Priority
from tests.progress import Position
from tests.simulation.actors import Actor, PlainWorker
from tests.simulation.invariants import ends_left
from tests.simulation.wires import Wire

from .loop import OWNER
from .node import FUNCTIONS
from .served import Client, LoopClock, Served
from .world import FAULT_AFTERMATH, UNIQUES, Answer, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.jobs.service import JobService

    from .loop import VirtualLoop
    from .node import Node

TURN_SECONDS = 0.03
"""Mean number of seconds between two turns of the workers that have connections."""


class ServingWorld(World):
    """One run."""

    load = 1.0

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        if self.session < 100 * self.lag:
            self.lag /= 10  # otherwise no lease could be renewed in time
        self.strategy = self.chance.choice(("default", "default", "id_hash", "least_count", "weight"))
        self.joined: set[int] = set()
        """The jobs in the answers to background submissions."""
        self.results: dict[int, set[bytes]] = {}
        """The results that workers have sent for each job."""
        self.clock = LoopClock(loop)
        self._here: Served
        """The node whose packet a worker is inspecting."""
        self.plain = [
            PlainWorker(self, f"plain {number}", tuple(self.chance.sample(FUNCTIONS, self.chance.randint(1, 2))))
            for number in range(self.chance.randint(1, 3))
        ]

    async def run(self, seconds: float) -> None:
        """Run with faults, then without."""
        turns = asyncio.get_running_loop().create_task(self._turns())
        turns.add_done_callback(lambda task: None if task.cancelled() else self.failed(task.exception()))
        await super().run(seconds)
        turns.cancel()

    # ---- workers with connections ----

    async def _turns(self) -> None:
        """Let the workers act and the connections deliver, for ever."""
        chance = self.chance
        while True:
            await asyncio.sleep(chance.expovariate(1 / TURN_SECONDS))
            for node in self.served():
                with _on(node):
                    for wire in [wire for wire in node.wires if wire.can_deliver]:
                        wire.deliver(chance)
                    for wire in [wire for wire in node.wires if wire.ends]:
                        wire.deliver_end(chance)
            for worker in self.plain:
                while worker.wire is not None and worker.wire.to_peer:
                    worker.receive(*worker.wire.to_peer.popleft())
                if worker.wire is not None and worker.wire.over:
                    worker.lost()
                elif worker.wire is not None or self.served():
                    worker.act()

    def connect(self, actor: Actor) -> Wire:
        """Connect a worker to one of the nodes."""
        node = self.chance.choice(self.served())

        def see(kind: int, args: list[bytes]) -> None:
            if actor.wire is wire:
                self._here = node
                actor.see(kind, args)

        with _on(node):
            wire = Wire(node, see)
        node.wires.append(wire)
        return wire

    def result_of(self, handle: bytes, worker: str) -> bytes:
        """Return a result that is unique to this attempt."""
        self._counted += 1
        result = b"%b by %b, %d" % (handle, worker.encode(), self._counted)
        self.results.setdefault(Handles.parse(handle) or 0, set()).add(result)
        return result

    def assigned(self, handle: bytes) -> None:
        """Check that the node holds a job that it has assigned."""
        server = self._here.server
        assert server is not None
        held = server.service.table.held[handle]
        if held.stored and held.job.id not in self.history.dropped:
            self._here.check_held(held.job)

    def acknowledged(self, handle: bytes, function: bytes, unique: bytes) -> None:
        """No client has a connection."""

    def outcome_sent(self, handle: bytes, state: bytes, result: bytes) -> None:
        """No client has a connection."""

    def must_have_ended(self, handle: bytes, why: str) -> None:
        """Plain Gearman cannot notify a worker that its node has lost a job."""

    def _begin(self, name: str) -> None:
        if not self.nodes[name]:
            self.nodes[name] = Served(self, name)

    def served(self) -> list[Served]:
        """Return the serving nodes."""
        return [node for node in self.nodes.values() if isinstance(node, Served) and node.term]

    # ---- actions of clients ----

    def settled(self, token: bytes, service: JobService) -> Callable[[bool], None]:
        """Return the function that receives the answer to a settlement."""
        self.answers[token] = Answer.NOTHING
        term = service.table.term

        def acknowledge(recorded: bool) -> None:
            if not recorded and service.table.term != term:
                return  # its outcome was unknown at the end of the term, so it was repeated, and may conflict with itself
            self.answers[token] = Answer.DONE if recorded else Answer.REFUSED
            if recorded != (token in self.history.tokens):
                self.history.fault(f"the answer to {token!r} is wrong: {self.answers[token]}")

        return acknowledge

    def _act(self) -> None:
        served = self.served()
        if not served:
            return
        chance, node = self.chance, self.chance.choice(served)
        number, stored = chance.random(), list(self.history.stored)
        some = chance.choice(stored) if stored else 0
        if number < 0.35 or not some:
            self._submit(node)
        elif number < 0.65:
            Client(node).submit(self._foreground_job(node))
        elif number < 0.8:
            waiting = [client for client in node.clients if client.waits and not client.gone]
            if waiting:
                chance.choice(waiting).hang_up()
        elif number < 0.88:
            acknowledged = [job_id for job_id, answer in self.submitted.items() if answer is Answer.DONE]
            if acknowledged:
                Client(node).wait(chance.choice(acknowledged))
        elif number < 0.94:
            CallInProgress(self._service(node).clients.cancel(some, "asked"), _ignore, _ignore)
        else:
            CallInProgress(self._service(node).clients.retry(some), _ignore, _ignore)

    @staticmethod
    def _service(node: Served) -> JobService:
        assert node.server is not None
        return node.server.service

    def _submit(self, node: Node) -> None:
        assert isinstance(node, Served)
        assert node.server is not None
        job = self._plain_job(node)
        self.submitted[job.id] = Answer.NOTHING

        def accepted(ids: list[int], _: object) -> None:
            if ids[0] == job.id:
                self.submitted[job.id] = Answer.DONE
            self.joined.update(ids)
            if ids[0] not in self.history.stored:
                self.history.fault(f"job {job.id} is acknowledged as {ids[0]} and not stored")

        node.server.service.intake.submit([job], accepted, _ignore)

    def _plain_job(self, node: Served) -> Job:
        assert node.server is not None
        chance, now_us = self.chance, self.now_us()
        return Job(
            node.server.service.table.next_id(),
            chance.choice(FUNCTIONS),
            b"p",
            unique=chance.choice(UNIQUES),
            priority=int(chance.choice(list(Priority))),
            created_us=now_us,
            due_us=now_us + chance.randrange(6_000_000) if chance.random() < 0.15 else 0,
            expires_us=now_us + chance.randrange(10_000_000) if chance.random() < 0.1 else 0,
            options=Options(keep_unique=2.0) if chance.random() < 0.2 else None,
            input_size=1,
        )

    def _foreground_job(self, node: Served) -> Job:
        assert node.server is not None
        chance = self.chance
        return Job(
            node.server.service.table.next_id(),
            chance.choice(FUNCTIONS),
            b"p",
            unique=chance.choice((NO_UNIQUE, b"u", b"v", b"w", b"x", b"y")),
            priority=int(chance.choice(list(Priority))),
            created_us=self.now_us(),
        )

    async def _check_end(self) -> None:
        await super()._check_end()
        for job_id in self.joined - self.history.ended.keys():
            self.history.fault(f"job {job_id} was acknowledged and has not ended")

    # ---- faults ----

    def _disturb(self) -> None:
        number, served = self.chance.random(), self.served()
        if number < 0.75 or not served:
            super()._disturb()
            return
        node = self.chance.choice(served)
        if number < 0.88:
            node.start(self._drain(node, self.chance.choice(served)))
        else:
            node.start(node.leave())

    async def _drain(self, node: Served, other: Served) -> None:
        """Drain a node, or end its drain."""
        draining = self.content.read(f"{paths.DRAINING}/{other.name}") is None
        try:
            await node.engine.ask_to_drain(other.term, draining=draining)
        except StoreError:
            return

    def ended(self, node: Served) -> None:
        """Restart a node some time after its process has ended by itself."""
        if self.nodes[node.name] is node:
            self.nodes[node.name] = None
            node.kill()
            self.loop.call_later(self.chance.expovariate(1 / self.session), self._begin, node.name)

    # ---- the end ----

    async def _run_without_faults(self) -> None:
        self.loop.call_later(FAULT_AFTERMATH / 2, self._take_part)  # a request to drain may still be in flight
        for node in self.served():
            node.employ(*FUNCTIONS)
        await super()._run_without_faults()

    def _take_part(self) -> None:
        for name in self.nodes:
            self.content.apply([Delete(f"{paths.DRAINING}/{name}")])

    def _left(self) -> dict[str, Position]:
        left = super()._left()
        for node in self.nodes.values():
            if isinstance(node, Served):
                left |= {one: Position(one) for one in node.residue()} | ends_left(node.wires)
        return left


@contextmanager
def _on(node: Served) -> Iterator[None]:
    """Run code of a node: the tasks that it starts end with the node."""
    token = OWNER.set(node)
    try:
        yield
    finally:
        OWNER.reset(token)


class LossyMail(ServingWorld):
    """One run in which half of the messages between nodes are lost: nodes have to read their contents from the store."""

    message_loss = 0.5


def _ignore(_: object) -> None:
    pass
