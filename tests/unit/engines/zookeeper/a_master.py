"""Nodes that claim and may be the master, on an ensemble in memory."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.conformance.suite.lifecycle import RecordedLifecycle
from tests.zookeeper.driving import SLICES
from tests.zookeeper.memory import MemoryContent, MemoryTree

from mainspring.engines.zookeeper import claiming, engine, paths, records, recovering
from mainspring.engines.zookeeper.claiming import OpenClaim
from mainspring.engines.zookeeper.master import Master
from mainspring.engines.zookeeper.sessions import Session
from mainspring.engines.zookeeper.tree import Write
from mainspring.errors import StoreError
from mainspring.events import Abandoned
from mainspring.ids import NodeId, Term, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import succeeded
from mainspring.nodes.model import NodeRow

from .a_session import NOW, Node, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mainspring.events import Message
    from mainspring.storage.engine import Operation

__all__ = ["NOW", "Fleet", "Member", "eventually", "fleet", "run"]

HANDLERS: dict[type[Operation], Any] = {**claiming.HANDLERS, **recovering.HANDLERS}


async def eventually(true: Callable[[], Awaitable[bool] | bool], why: str = "") -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(10):
        while True:
            answer = true()
            if not isinstance(answer, bool):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(0.001)
    raise AssertionError(why)


class Member(Node):
    """A node that takes part in the recipe."""

    def __init__(
        self, fleet: Fleet, tree: MemoryTree, session: Session, arrived: list[bytes], *, is_candidate: bool
    ) -> None:
        super().__init__(tree, session, RecordedLifecycle(job_ids(Term(session.term))))
        self.fleet = fleet
        self.received: list[Message] = []
        self.arrived = arrived
        self.master = Master(session, fleet.send)
        self._work: list[asyncio.Task[None]] = []
        self.running = asyncio.create_task(self.master.run() if is_candidate else asyncio.sleep(0))

    async def claim(self, function: bytes = b"f", limit: int = 10, **more: Any) -> list[Job]:
        """Claim, and wait for the answer."""
        return (await self.claim_all(ops.ClaimRequest(function, limit, **more)))[0]

    async def claim_all(self, *requests: ops.ClaimRequest) -> list[list[Job]]:
        operation = ops.Claim(self.session.term, list(requests))
        (outcome,) = await HANDLERS[ops.Claim](self.session, [operation])
        if isinstance(outcome, OpenClaim):
            answered = asyncio.Event()
            answers: list[Any] = []

            def answer(outcome: Any) -> None:  # not a future, which a test may cancel before the claim is answered
                answers.append(outcome)
                answered.set()

            outcome.then(answer)
            await answered.wait()
            (outcome,) = answers
        if isinstance(outcome, StoreError):
            raise outcome
        jobs: list[list[Job]] = outcome
        return jobs

    async def recover(self, *terms: int, limit: int = 1000) -> ops.Recovered:
        operation = ops.Recover(self.session.term, list(terms), limit)
        (outcome,) = await HANDLERS[ops.Recover](self.session, [operation])
        assert isinstance(outcome, ops.Recovered)
        return outcome

    def give_back(self, terms: Sequence[int]) -> None:
        """Recover ended terms, as a node does after a notification."""

        async def give_back() -> None:
            with contextlib.suppress(StoreError):  # the notification is repeated
                await self.recover(*terms)

        self._work.append(asyncio.create_task(give_back()))

    async def succeed(self, *jobs: Job, result: bytes = b"r") -> set[int]:
        return await self.settle(*(succeeded(job, result, NOW, NOW + 1) for job in jobs))

    async def serve(self, *functions: bytes, draining: bool = False) -> None:
        """Write the functions that this node serves into its row."""
        row = NodeRow(term=self.session.term, name=self.session.node, counter=1, functions=functions, draining=draining)

        await self.tree.commit([Write(paths.worker(self.session.who), records.encode(row))])

    @property
    def is_master(self) -> bool:
        return self.master.leadership is not None

    @property
    def is_quiet(self) -> bool:
        """Whether this node is the master, and has listed all buckets."""
        dispatcher, publisher = self.master.dispatcher, self.master.publisher
        if dispatcher is None or publisher is None:
            return False
        return not dispatcher.buckets.fresh and not publisher.buckets.fresh

    async def kill(self) -> None:
        """End as SIGKILL does; the ensemble finds out at once."""
        self.tree.kill()
        session = self.tree.session
        self.running.cancel()
        self.fleet.members.remove(self)
        self.fleet.content.expire(session)
        await asyncio.sleep(0)

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, *self._work, return_exceptions=True)
        await self.session.committer.close()
        await self.tree.close()


class Fleet:
    """Nodes on one content."""

    def __init__(self) -> None:
        self.content = MemoryContent()
        self.members: list[Member] = []

    def send(self, term: int, message: Message) -> None:
        for member in self.members:
            if member.session.term == term:
                member.received.append(message)
                if isinstance(message, Abandoned):
                    member.give_back(message.terms)

    async def join(self, name: str = "n1", *, is_candidate: bool = True) -> Member:
        """Start a node's next term; with ``is_candidate`` it claims, and may be elected."""
        tree = MemoryTree(self.content)
        await tree.open()
        await engine.prepare_tree(tree)
        term = await engine.next_term(tree, NodeId(name))
        arrived: list[bytes] = []
        session = Session(tree, name, term, {term: name}, arrived=arrived.append, slices=SLICES)
        member = Member(self, tree, session, arrived, is_candidate=is_candidate)
        self.members.append(member)
        return member

    async def master(self, name: str = "n1", **more: Any) -> Member:
        """Add a node that is the master."""
        member = await self.join(name, **more)
        await eventually(lambda: member.is_quiet)
        return member

    # ---- the content of the tree ----

    def tasks(self, root: str) -> list[str]:
        return sorted(
            path.split("/", 3)[3]
            for path in self.content.paths()
            if path.startswith(f"{root}/") and path.count("/") == 3
        )

    def queue(self, member: Member) -> list[str]:
        return sorted(self.content.names(paths.queue(member.session.who)) or ())

    def outcome(self, job: Job, node: str) -> dict[str, Any]:
        found = self.content.read(paths.result(job.id, node))
        assert found is not None
        return records.decode(found.data)

    def state(self, job: Job, node: str = "n1") -> State | None:
        """Return the state in which a job was published; None if it was not."""
        name = self.outcome(job, node).get("state")
        return None if name is None else State[name.upper()]


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    """Give a test nodes, and end them."""
    nodes = Fleet()
    try:
        yield nodes
    finally:
        for member in list(nodes.members):
            await member.end()
