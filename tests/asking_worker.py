"""A worker for tests of nodes, whose jobs ask for completion tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.callbacks import awaited
from mainspring.jobs.completion_rules import digest_of, new_token
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.model import Job, Retry, failure

if TYPE_CHECKING:
    from mainspring.jobs.completion_rules import Completion
    from mainspring.server.node import Node

ABILITY = Ability(requeue=False, retry=Retry(max_attempts=2, initial=0.01, jitter=0))


class AskingWorker:
    """Takes the jobs of a function of a node. Each asks for a token when the test says so, and returns then."""

    def __init__(self, node: Node, function: bytes = b"review") -> None:
        self.node = node
        self.worker = Worker(self)
        self._assigned: asyncio.Queue[Held] = asyncio.Queue()
        node.service.workers.register(self.worker, function, ABILITY)
        node.service.workers.ready(self.worker, 100)

    def wake(self) -> None: ...

    def no_job(self) -> None: ...

    def name(self) -> str:
        return "asking"

    def stop(self, held: Held, reason: bytes) -> None: ...

    def assign(self, held: Held) -> None:
        self._assigned.put_nowait(held)

    async def job(self) -> Held:
        """Return the next job that it gets."""
        return await self._assigned.get()

    async def ask(self, held: Held, expires: float = 3600.0, heartbeat: float | None = None) -> str:
        """Let a job ask for a token, and return it."""
        token = new_token()
        await awaited(self.node.service.completions.open(held, digest_of(token), expires, heartbeat))
        return token

    async def give_back(self, held: Held) -> None:
        """Let the function of a job return."""
        recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.node.service.completions.returned(held, recorded.set_result)
        assert await recorded

    async def fail(self, held: Held) -> None:
        """Let the function of a job raise an error."""
        recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.node.service.settling.failed(held, failure("E", "why"), acknowledge=recorded.set_result)
        assert await recorded

    async def awaiting(self, expires: float = 3600.0, heartbeat: float | None = None) -> tuple[Held, str]:
        """Return the next job once it awaits its completion, with the token."""
        held = await self.job()
        token = await self.ask(held, expires, heartbeat)
        await self.give_back(held)
        return held, token


async def submit(node: Node, function: bytes = b"review", payload: bytes = b"[1]") -> int:
    """Submit a job, and return its id."""
    job = Job(node.service.table.next_id(), function, payload)
    job.created_us = round(node.service.clock.wall() * 1e6)
    stored: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    node.service.intake.submit([job], lambda ids, _: stored.set_result(ids), stored.set_exception)
    await stored
    return job.id


async def found(node: Node, job_id: int) -> Job:
    """Return a job as it is stored."""
    job: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
    node.service.clients.find(job_id, job.set_result, job.set_exception, room=2**20)
    present = await job
    assert present is not None
    return present


async def open_completion(node: Node, job_id: int) -> Completion:
    """Return the newest token of a job."""
    return max(await awaited(node.service.completions.of_jobs([job_id])), key=lambda one: one.number)


async def until_state(node: Node, job_id: int, state: int) -> Job:
    """Wait until a job is in a state, as the store has it."""
    while (job := await found(node, job_id)).state != state:  # noqa: ASYNC110 - the state of a store has no event
        await asyncio.sleep(0.01)
    return job
