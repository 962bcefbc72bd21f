"""Starts of runs by requests with a key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.faces.gearman.a_face import Node

from mainspring.access.idempotency import IdempotencyKey, KeptReply, KeyedAct, RepeatedError, RequestKey, Reservation
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.submitting import SubmitCalls
from mainspring.api.request import write
from mainspring.api.submitting import NewJob, Submissions, SubmitJobs
from mainspring.callbacks import CallInProgress
from mainspring.errors import UsageError
from mainspring.jobs.model import Job
from mainspring.jobs.roots import Stored
from mainspring.resources.rules import paused as pause
from mainspring.workflows.model import Definition
from mainspring.workflows.store import Start

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mainspring.callbacks import Ask

KEY = RequestKey(b"k", b"r", 100, 0)


@pytest.fixture
def node() -> Node:
    node = Node(workflows=True)
    assert node.life.workflows is not None
    CallInProgress(node.life.workflows.definitions.define([Definition("order")]), lambda _: None, unexpected)
    node.commit()
    return node


def unexpected(error: Exception) -> None:
    raise error


def reply(stored: Stored) -> KeptReply:
    for why in stored.refused.values():
        raise UsageError(why)
    return KeptReply(200, {}, repr(stored.joined).encode())


KEPT = Reservation(b"r", 100, KeptReply(200, {}, b"{}"))


def job(node: Node, function: bytes = b"order") -> Job:
    return Job(node.service.table.next_id(), function, b"[1]", created_us=1)


def keyed(key: RequestKey = KEY) -> KeyedAct:
    return KeyedAct(key, lambda outcomes: reply(outcomes[0]))


def outcome_of(node: Node, work: Coroutine[Ask, Any, Any]) -> Any:
    """Return what a coroutine returns, or the earlier reservation of its key."""

    async def outcome() -> Any:
        try:
            return await work
        except RepeatedError as repeated:
            return repeated.earlier

    outcomes: list[Any] = []
    CallInProgress(outcome(), outcomes.append, unexpected)
    node.commit()
    (found,) = outcomes
    return found


def start(node: Node, version: str = "", key: RequestKey = KEY) -> Any:
    """Start a run with a key; return the outcome."""
    assert node.life.workflows is not None
    return outcome_of(node, node.life.workflows.start_once(Start(job(node), version), keyed(key)))


def submit(node: Node, *jobs: Job) -> Any:
    """Submit jobs with a key; return the outcome."""
    return outcome_of(node, node.service.keyed_intake.submit(list(jobs), keyed()))


def runs(node: Node) -> int:
    queue = node.service.dispatch.queues.get(b"order")
    return 0 if queue is None else queue.live


@pytest.mark.parametrize("paused", [False, True])
def test_a_start_is_repeated_once(node: Node, paused: bool) -> None:
    if paused:
        CallInProgress(node.service.functions.change(b"order", pause), lambda _: None, unexpected)
        node.commit()
    assert start(node) == Stored({}, {})
    assert start(node) == KEPT
    assert runs(node) == 1


def test_a_refused_start_leaves_its_key_free(node: Node) -> None:
    assert list(start(node, "9").refused.values())
    assert start(node) == Stored({}, {})
    assert runs(node) == 1


def test_a_refused_job_of_a_batch_has_a_problem_and_the_others_are_stored(node: Node) -> None:
    async def post(once: IdempotencyKey) -> Submissions:
        wrong = NewJob(function="order", version="9")
        request = SubmitJobs([NewJob(function="f"), wrong, NewJob(function="order")])
        answers = asyncio.ensure_future(api.call(request, once=once))
        await asyncio.sleep(0)
        node.commit()
        return await answers

    def kept(answer: Submissions) -> KeptReply:
        return KeptReply(200, {}, write(answer))

    api = Api(SubmitCalls(node.service, largest=1000).handlers)
    answer = asyncio.run(post(IdempotencyKey(KEY, kept)))
    assert [item.problem is None for item in answer.items] == [True, False, True]
    assert runs(node) == 1
    with pytest.raises(RepeatedError) as repeated:
        asyncio.run(post(IdempotencyKey(KEY, kept)))
    assert repeated.value.earlier.reply == kept(answer)
    assert runs(node) == 1


def test_a_batch_with_runs_and_other_jobs_is_one_request(node: Node) -> None:
    batch = [job(node, b"f"), job(node), job(node, b"f")]
    assert submit(node, *batch) == Stored({}, {})
    assert submit(node, job(node, b"f"), job(node)) == KEPT
    other = node.service.dispatch.queues.get(b"f")
    assert other is not None
    assert (runs(node), other.live, sum(other.backlog)) == (1, 2, 2)
