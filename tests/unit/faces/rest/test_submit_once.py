"""Requests with an ``Idempotency-Key`` are done once, and their answers kept, even if the node ends before it answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.api.a_node import Store, opened, run

from mainspring.api.jobs import CancelJob
from mainspring.api.schedules import AddSchedule
from mainspring.api.submitting import RunJob
from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.errors import StoreUnavailableError
from mainspring.faces.rest import app
from mainspring.jobs.model import failure

from .a_client import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.api.a_node import Node

    from mainspring.storage.engine import Answer as Answered
    from mainspring.storage.engine import Committed, Operation

    from .a_client import Answer, Client

JOBS = "/api/v1/namespaces/default/jobs"
ONE = {"function": "f", "args": [1]}
BATCH = [ONE, {"function": ""}, {"function": "g", "unique": "u"}, {"function": "g", "unique": "u"}]


class EndingStore(Store):
    """A store whose node ends between the commit of a request with a key and the answer."""

    def __init__(self) -> None:
        super().__init__([MemoryBulkSlice(), MemoryScheduleSlice()])
        self.ended = asyncio.Event()

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answered) -> None:
        if any(operation.keyed and operation.keyed_act is not None for operation in group):  # type: ignore[attr-defined]
            super().commit(group, lambda _: self.ended.set(), answer)
        else:
            super().commit(group, committed, answer)


async def post(
    client: Client, body: Any = ONE, path: str = "", key: str = "k", prefer: str = "", **options: Any
) -> Answer:
    headers = [("idempotency-key", key), *([("prefer", prefer)] if prefer else [])]
    return await client.send("POST", JOBS + path, body, headers=headers, **options)


async def handles(client: Client) -> list[str]:
    """Return the handles of all jobs, oldest first."""
    listed = (await client.get(f"{JOBS}?limit=100")).json["items"]
    return [job["handle"] for job in reversed(listed)]


def counted(node: Node, function: bytes = b"f") -> tuple[int, int, int]:
    """Return the numbers of jobs of a function that the node has in memory."""
    queue = node.service.dispatch.queues.get(function)
    assert queue is not None
    return queue.inflight, sum(queue.backlog), queue.away


@pytest.mark.parametrize("batch", [False, True])
def test_a_submission_whose_answer_was_lost_is_answered_by_the_next_node(batch: bool) -> None:
    body, path = (BATCH, "/batch") if batch else (ONE, "")

    async def test() -> None:
        store = EndingStore()
        async with serving(store=store) as (client, _):
            lost = asyncio.ensure_future(post(client, body, path))
            await store.ended.wait()
            lost.cancel()
        store.__class__ = Store  # type: ignore[assignment]
        async with serving(store=store) as (client, node):
            stored = await handles(client)
            repeated = await post(client, body, path)
            assert repeated.headers["idempotency-replayed"] == "true"
            if batch:
                first, refused, second, joined = repeated.json["items"]
                assert [first["handle"], second["handle"]] == stored
                assert refused["problem"]["status"] == 422
                assert joined == second | {"joined": True}
            else:
                assert (repeated.status, repeated.json) == (201, {"handle": stored[0], "joined": False})
                assert repeated.headers["location"] == f"{JOBS}/{stored[0]}"
            assert await handles(client) == stored
            other = await post(client, [ONE] if batch else {"function": "g"}, path)
            assert (other.status, other.problem) == (422, "key-reused")
            await node.committed()

    run(test())


@pytest.mark.parametrize("what", ["retry", "trigger"])
def test_an_act_whose_answer_was_lost_is_answered_by_the_next_node(what: str) -> None:
    namespace = "/api/v1/namespaces/default"

    async def test() -> None:
        store = EndingStore()
        async with serving(store=store) as (client, node):
            handle = await node.submit()
            await node.api.call(CancelJob(handle))
            await node.api.call(AddSchedule(name="nightly", every=86_400.0, function="g"))
            path = f"{namespace}/jobs/{handle}/retry" if what == "retry" else f"{namespace}/schedules/nightly/trigger"
            headers = [("idempotency-key", "k")]
            lost = asyncio.ensure_future(client.send("POST", path, {}, headers=headers))
            await store.ended.wait()
            lost.cancel()
        store.__class__ = Store  # type: ignore[assignment]
        async with serving(store=store) as (client, _):
            acts = store.tables.acts.copy()
            for _ in range(2):
                repeated = await client.send("POST", path, {}, headers=headers)
                assert (repeated.status, repeated.headers["idempotency-replayed"]) == (200, "true")
            assert repeated.json["handle"] in await handles(client)
            assert len(await handles(client)) == (1 if what == "retry" else 2)
            assert store.tables.acts == acts

    run(test())


def test_concurrent_retries_with_a_key_are_one() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            handle = await node.submit()
            await node.api.call(CancelJob(handle))
            answers = await asyncio.gather(*(post(client, {}, f"/{handle}/retry") for _ in range(4)))
            assert {(answer.status, answer.json["state"]) for answer in answers} == {(200, "pending")}
            assert (await post(client, {}, f"/{handle}/retry", "other")).status == 409
            assert (await post(client, {}, f"/{handle}/retry", "other")).status == 409
            assert counted(node) == (0, 1, 0)

    run(test())


def test_concurrent_submissions_with_a_key_are_one() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            answers = await asyncio.gather(*(post(client) for _ in range(5)), post(client, {"function": "g"}))
            *same, other = answers
            assert {answer.json["handle"] for answer in same} == set(await handles(client))
            assert ["idempotency-replayed" in answer.headers for answer in same] == [False] + [True] * 4
            assert (other.status, other.problem) == (422, "key-reused")
            assert counted(node) == (0, 1, 0)

    run(test())


def test_a_repeated_submission_is_answered_where_a_new_one_is_refused() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            first = await post(client)
            node.service.dispatch.limit_queue(b"f", (1, 1, 1))
            assert (await post(client, key="new")).status == 429
            repeated = await post(client)
            assert (repeated.status, repeated.json) == (201, first.json)
            node.service.dispatch.limit_queue(b"f", (0, 0, 0))
            assert (await post(client, key="new")).status == 201
            node.store.error = StoreUnavailableError("away")
            assert (await post(client, key="newer")).status == 503
            node.store.error = None
            assert (await post(client, key="newer")).status == 201
            assert len(await handles(client)) == 3

    run(test())


def test_a_worker_gets_the_job_of_repeated_submissions_once() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            side = node.worker(places=5)
            for _ in range(3):
                await post(client)
            await node.committed()
            assert len(side.given) == 1
            assert counted(node) == (0, 0, 0)

    run(test())


def test_a_submission_that_joins_a_foreground_job_is_answered_with_that() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            foreground = asyncio.ensure_future(node.api.call(RunJob(b"f", b"1", b"u")))
            other = asyncio.ensure_future(node.api.call(RunJob(b"f", b"1", b"v")))
            await asyncio.sleep(0)
            body = {"function": "f", "unique": "u"}
            single, batch = await asyncio.gather(
                post(client, body), post(client, [ONE, body, {"function": "f", "unique": "v"}, body], "/batch")
            )
            assert (single.status, single.json["joined"]) == (200, True)
            new, joined, second, third = batch.json["items"]
            assert joined == third == single.json
            assert (new["joined"], second["joined"]) == (False, True)
            assert (await post(client, body)).json == single.json
            assert len(await handles(client)) == 3
            side = node.worker(places=3)
            await node.committed()
            assert len(side.given) == 3
            for held in side.given:
                node.service.settling.succeeded(held, b"")
            ends = await asyncio.gather(foreground, other)
            assert [end.handle for end in ends] == [single.json["handle"], second["handle"]]

    run(test())


def test_a_clone_with_a_key_is_made_once() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            original = (await post(client)).json["handle"]
            first, second = [await post(client, {}, f"/{original}/clone", "c") for _ in range(2)]
            assert first.json == second.json
            assert (first.status, second.status) == (201, 201)
            assert await handles(client) == [original, first.json["handle"]]

    run(test())


def test_a_repeated_submission_waits_for_the_outcome_again() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            side = node.worker()
            waiting = asyncio.ensure_future(post(client, prefer="wait=30"))
            while not side.given:  # noqa: ASYNC110 - a worker has no event for it
                await asyncio.sleep(0)
            meanwhile = await post(client)
            assert (meanwhile.status, list(meanwhile.json)) == (201, ["handle", "joined"])
            await asyncio.sleep(0)
            node.service.settling.failed(side.given[0], failure("E", "why"), final=True)
            first = await waiting
            assert (first.status, first.json["outcome"]["state"]) == (200, "failed")
            repeated = await post(client, prefer="wait=30")
            assert (repeated.status, repeated.json) == (200, first.json)
            assert len(await handles(client)) == 1

    run(test())


def test_a_batch_without_a_valid_job_may_be_sent_again() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            assert (await post(client, [{"function": ""}], "/batch")).json["items"][0]["problem"]["status"] == 422
            assert (await post(client, [ONE], "/batch")).status == 200
            assert len(await handles(client)) == 1

    run(test())


def test_a_store_beside_the_jobs_reserves_keys() -> None:
    async def test() -> None:
        async with opened() as apart, serving(apart=apart) as (client, node):
            first, second = await post(client), await post(client)
            assert first.json == second.json
            assert not node.store.tables.replies
            assert apart.store.tables.replies

    run(test())


def test_a_request_that_the_store_does_not_answer_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(app, "WATCH_AFTER", 0.05)
    monkeypatch.setattr(app, "ANSWER_LIMIT", 0.05)

    async def test() -> None:
        store = EndingStore()
        async with serving(store=store) as (client, _):
            answer = await post(client, ONE)
            assert (answer.status, answer.problem) == (503, "outcome-unknown")
            assert "Idempotency-Key" in answer.json["detail"]
            assert store.ended.is_set()

    run(test())
