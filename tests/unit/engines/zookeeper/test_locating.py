"""Where a task is, however it moves while it is looked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.engines.zookeeper import paths, queries, records
from mainspring.engines.zookeeper import sessions as session_module
from mainspring.engines.zookeeper.queries import Name, name_after, name_data, name_of
from mainspring.engines.zookeeper.tree import Delete, Write
from mainspring.engines.zookeeper.tree import Node as TreeNode
from mainspring.errors import StoreCorruptError, StoreFencedError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Options, State
from mainspring.jobs.rules import Event, Settlement, succeeded

from .a_session import NOW, Node, fleet, one_node, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence


async def life(node: Node, job: Job) -> AsyncIterator[State]:
    """Lead a job with a unique through all of its places, and then another one of the same name."""
    yield State.PENDING
    claimed = await node.assign_to(job, node)
    yield State.LEASED
    await node.one(ops.Assign([claimed]))
    yield State.RUNNING
    await node.settle(Settlement(claimed, Event.RETRY, 1, due_us=NOW))
    yield State.SCHEDULED
    await node.one(ops.Wake(NOW))
    yield State.PENDING
    claimed = await node.assign_to(job, node)
    yield State.LEASED
    await node.settle(Settlement(claimed, Event.RELEASE, 1))
    yield State.PENDING
    claimed = await node.assign_to(job, node)
    await node.settle(succeeded(claimed, b"r", NOW, NOW))
    yield State.SUCCEEDED
    await node.publish()
    yield State.SUCCEEDED
    await node.held(unique=b"u")
    yield State.SUCCEEDED


def one_by_one(node: Node, between: Callable[[], Awaitable[None]]) -> None:
    """Let something happen before each node that is read, as it can at a real ensemble."""
    get = node.tree.get

    async def get_many(places: Sequence[str]) -> list[TreeNode | None]:
        found = []
        for path in places:
            await between()
            found.append(await get(path))
        return found

    node.tree.get_many = get_many  # type: ignore[method-assign, assignment]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 3), max_size=30))
def test_a_job_that_moves_is_found_where_it_was_at_some_moment(steps: list[int]) -> None:
    async def check() -> None:
        async with fleet() as members:
            node, looker = await members.join("n1"), await members.join("n2")
            job = await node.submitted(unique=b"u")
            living = life(node, job)
            states = [await anext(living)]
            left = list(steps)

            async def between() -> None:
                for _ in range(left.pop(0) if left else 0):
                    state = await anext(living, None)
                    if state is not None:
                        states.append(state)

            one_by_one(looker, between)
            while left:
                del states[:-1]
                found = await looker.present(job.id)
                assert found.id == job.id
                assert found.state in states
                assert (found.result == b"r") == (found.state == State.SUCCEEDED)
                left = left[1:]

    run(check())


def test_a_task_that_is_nowhere_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "RETRY_DELAY", 0.0)

    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(unique=b"u")
            await node.tree.commit([Delete(paths.pending("f:u"))])
            with pytest.raises(StoreCorruptError):
                await node.find(job.id)
            (outcome,) = await node.handle(ops.Submit([node.job(unique=b"u")]))
            assert isinstance(outcome, StoreCorruptError), "a repeated submit fails with the reason"

    run(check())


def test_an_assignment_of_another_job_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "RETRY_DELAY", 0.0)

    async def check() -> None:
        async with one_node() as node:
            job = await node.held(unique=b"u")
            other = records.encode({"handle": "H:n1:7", "id": 7, "state": "running", "attempt": 9})
            path = paths.assignment(node.session.who, "f:u")
            mine = await node.tree.get(path)
            assert mine is not None
            await node.tree.commit([Write(path, other)])
            looking = asyncio.create_task(node.present(job.id))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not looking.done()
            await node.tree.commit([Write(path, mine.data)])
            assert (await looking).state == State.LEASED

    run(check())


def test_reading_waits_for_the_ensemble_until_the_term_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RETRY_DELAY", 0.001)

    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted()
            node.tree.cut()
            looking = asyncio.create_task(node.state(job.id))
            await asyncio.sleep(0.01)
            assert not looking.done()
            node.tree.heal()
            assert await looking is State.PENDING
            node.tree.cut()
            looking = asyncio.create_task(node.state(job.id))
            await node.session.committer.close()
            with pytest.raises(StoreFencedError):
                await looking
            node.tree.heal()
            node.tree.expire()
            with pytest.raises(StoreFencedError):
                await node.session.get_many(["/names"])

    run(check())


def test_terms_are_asked_for_again_where_the_ensemble_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RETRY_DELAY", 0.001)

    async def check() -> None:
        async with fleet() as nodes:
            node, other = await nodes.join("n1"), await nodes.join("n2")
            node.tree.cut()
            meeting = asyncio.create_task(node.session.meet(iter([other.session.term * TERM_SPAN])))
            await asyncio.sleep(0.01)
            assert not meeting.done()
            node.tree.heal()
            await meeting
            assert node.session.worker_of(other.session.term) == other.session.who

    run(check())


# ---- names ----


def kept_by(job_id: int, ended_us: int, *, keep: float | None = 5.0, state: State = State.SUCCEEDED) -> Job:
    options = Options(keep_unique=keep)
    return Job(job_id, b"f", b"", unique=b"u", state=int(state), ended_us=ended_us, attempt=2, options=options)


def test_a_name_comes_back_as_it_was_written() -> None:
    kept = {"handle": "H:n1:3", "id": 3, "ended_us": 9, "attempt": 1}
    for name in (Name(0, 5, "H:n1:5", 0, None), Name(0, 5, "H:n1:5", NOW, kept)):
        data = name_data(name.id, name.handle, name.kept, name.due_us)
        assert name_of(_node(data)) == name


@pytest.mark.parametrize(
    ("before", "job", "stays"),
    [
        (None, kept_by(5, NOW), 5),
        (None, kept_by(5, NOW, keep=None), None),
        (None, kept_by(5, NOW, state=State.FAILED), None),
        (3, kept_by(5, NOW + 1), 5),
        (3, kept_by(5, NOW), 5),
        (7, kept_by(5, NOW), 7),
        (3, kept_by(5, NOW - 1), 3),
        (3, kept_by(5, NOW, state=State.FAILED), 3),
        (3, kept_by(5, NOW, keep=None), 3),
    ],
)
def test_the_name_keeps_the_last_of_two_successes(before: int | None, job: Job, stays: int | None) -> None:
    kept = None if before is None else {"handle": f"H:n1:{before}", "id": before, "ended_us": NOW, "attempt": 1}
    data = name_after(Name(0, job.id, "", 0, kept), job, f"H:n1:{job.id}")
    if stays is None:
        assert data is None
    else:
        assert data is not None
        name = name_of(_node(data))
        assert (name.id, (name.kept or {})["id"]) == (0, stays)


def _node(data: bytes) -> TreeNode:
    return TreeNode(data, 0, 0, 0, 0)
