"""A fleet on one ensemble with the server's own nodes, foreground jobs, clients that disconnect, and nodes that drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreError
from mainspring.jobs.model import NO_UNIQUE, Job, Options, Priority

from .node import FUNCTIONS
from .served import Client, Served
from .world import FAULT_AFTERMATH, UNIQUES, Answer, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.service import JobService

    from .loop import VirtualLoop
    from .node import Node


class ServingWorld(World):
    """One run."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        if self.session < 100 * self.lag:
            self.lag /= 10  # otherwise no lease could be renewed in time
        self.strategy = self.chance.choice(("default", "default", "id_hash", "least_count", "weight"))
        self.joined: set[int] = set()
        """The jobs in the answers to background submissions."""
        self.results: dict[int, set[bytes]] = {}
        """The results that workers have sent for each job."""

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
            self._service(node).clients.cancel(some, "asked", _ignore, _ignore)
        else:
            self._service(node).clients.retry(some, _ignore, _ignore)

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
            node.server.service.next_id(),
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
            node.server.service.next_id(),
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

    def _left(self) -> list[str]:
        left = super()._left()
        for node in self.nodes.values():
            if isinstance(node, Served):
                left += node.residue()
        return left


class LossyMail(ServingWorld):
    """One run in which half of the messages between nodes are lost: nodes have to read their contents from the store."""

    message_loss = 0.5


def _ignore(_: object) -> None:
    pass
