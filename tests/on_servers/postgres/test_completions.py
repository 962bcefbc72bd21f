"""Three nodes on one PostgreSQL store: any of them takes the answer to a completion token, and any looks at the tokens."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tests.asking_worker import AskingWorker, found, open_completion, submit, until_state

from mainspring.callbacks import awaited
from mainspring.jobs.completion_rules import Answer, Status, digest_of
from mainspring.jobs.completions import Accepted, Refused
from mainspring.jobs.model import State, failure

from .whole_nodes import open_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.server.node import Node

DONE = Answer(result=b'"done"')


async def answer(node: Node, token: str, given: Answer = DONE) -> Accepted | Refused | None:
    return await awaited(node.service.completions.answer(digest_of(token), given, None))


def run(database: str, test: Callable[[list[Node]], Coroutine[None, None, None]]) -> None:
    """Run a test with three nodes within a minute."""

    async def in_time() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            nodes = [await open_whole(database, name, stack) for name in ("n1", "n2", "n3")]
            await test(nodes)

    asyncio.run(in_time())


def test_another_node_takes_the_answer(database: str) -> None:
    async def test(nodes: list[Node]) -> None:
        job_id = await submit(nodes[0])
        _, token = await AskingWorker(nodes[0]).awaiting()
        assert (await found(nodes[2], job_id)).state == State.SCHEDULED
        assert isinstance(await answer(nodes[2], token), Accepted)
        job = await found(nodes[1], job_id)
        assert (job.state, job.result) == (State.SUCCEEDED, b'"done"')
        for node in nodes:
            repeated = await answer(node, token)
            assert isinstance(repeated, Accepted)
            assert repeated.repeated

    run(database, test)


def test_an_answer_before_the_return_ends_the_job_at_its_return(database: str) -> None:
    async def test(nodes: list[Node]) -> None:
        worker = AskingWorker(nodes[0])
        job_id = await submit(nodes[0])
        held = await worker.job()
        token = await worker.ask(held)
        accepted = await answer(nodes[1], token)
        assert isinstance(accepted, Accepted)
        assert accepted.completion.status == Status.KEPT
        assert (await found(nodes[1], job_id)).state in {State.LEASED, State.RUNNING}
        await worker.give_back(held)
        async with asyncio.timeout(3):  # the next look without a cause would come later
            job = await until_state(nodes[2], job_id, State.SUCCEEDED)
        assert job.result == b'"done"'

    run(database, test)


def test_answers_and_returns_at_once_lose_nothing(database: str) -> None:
    async def test(nodes: list[Node]) -> None:
        worker = AskingWorker(nodes[0])
        for number in range(30):
            job_id = await submit(nodes[0])
            held = await worker.job()
            token = await worker.ask(held)
            _, accepted = await asyncio.gather(worker.give_back(held), answer(nodes[1 + number % 2], token))
            assert isinstance(accepted, Accepted)
            async with asyncio.timeout(2.5):  # no look at intervals: they would come later
                await until_state(nodes[2], job_id, State.SUCCEEDED)

    run(database, test)


def test_of_answers_at_three_nodes_one_counts(database: str) -> None:
    async def test(nodes: list[Node]) -> None:
        worker = AskingWorker(nodes[0])
        for _ in range(10):
            job_id = await submit(nodes[0])
            _, token = await worker.awaiting()
            given = [Answer(result=b"%d" % number) for number in range(3)]
            outcomes = await asyncio.gather(*(answer(node, token, one) for node, one in zip(nodes, given, strict=True)))
            (won,) = [number for number, one in enumerate(outcomes) if isinstance(one, Accepted)]
            assert (await found(nodes[0], job_id)).result == b"%d" % won
            assert (await open_completion(nodes[0], job_id)).late == 2

    run(database, test)


def test_an_answer_and_a_cancel_at_once_agree(database: str) -> None:
    async def test(nodes: list[Node]) -> None:
        worker = AskingWorker(nodes[0])
        for _ in range(10):
            job_id = await submit(nodes[0])
            _, token = await worker.awaiting()
            outcome, _ = await asyncio.gather(
                answer(nodes[1], token), awaited(nodes[2].service.clients.cancel(job_id, "enough"))
            )
            job = await found(nodes[0], job_id)
            assert job.state == (State.SUCCEEDED if isinstance(outcome, Accepted) else State.CANCELLED)

    run(database, test)


def test_the_nodes_that_are_left_expire_a_token(database: str) -> None:
    async def test(nodes: list[Node]) -> None:
        worker = AskingWorker(nodes[0])
        job_id = await submit(nodes[0])
        _, token = await worker.awaiting(expires=1.0)
        await nodes[0].close()
        nodes[1].service.completions.fetch()
        nodes[2].service.completions.fetch()
        second = AskingWorker(nodes[1])
        held = await second.job()
        assert held.job.attempt == 1
        assert b"CompletionExpired" in held.job.error
        late = await answer(nodes[2], token)
        assert isinstance(late, Refused)
        other = await second.ask(held)
        await second.give_back(held)
        assert isinstance(await answer(nodes[2], other, Answer(error=failure("E", "why"))), Accepted)
        assert (await found(nodes[2], job_id)).state == State.FAILED

    run(database, test)


def test_a_token_is_void_once_its_function_has_failed(database: str) -> None:
    async def test(nodes: list[Node]) -> None:
        worker = AskingWorker(nodes[0])
        job_id = await submit(nodes[0])
        held = await worker.job()
        token = await worker.ask(held)
        await worker.fail(held)
        refused = await answer(nodes[1], token)
        assert isinstance(refused, Refused)
        assert (await open_completion(nodes[1], job_id)).late == 1

    run(database, test)
