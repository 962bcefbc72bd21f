"""Wait, Leave and Watchers on ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreFencedError
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Options, State
from mainspring.jobs.rules import succeeded

from .a_session import NOW, Node, falls_behind, fleet, one_node, run

if TYPE_CHECKING:
    from collections.abc import Sequence


async def wait(node: Node, *ids: int) -> dict[int, Job]:
    found: dict[int, Job] = await node.one(ops.Subscribe(node.session.term, list(ids), 2**20))
    return found


async def leave(node: Node, *ids: int) -> set[int]:
    dropped: set[int] = await node.one(ops.Unsubscribe(node.session.term, list(ids)))
    return dropped


async def watchers(node: Node, *ids: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = await node.one(ops.FindSubscribers(node.session.term, list(ids)))
    return found


def test_a_waiting_client_is_recorded_once_and_found_by_the_others() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other, third = [await members.join(name) for name in ("n1", "n2", "n3")]
            job = await node.held()
            found = await wait(other, job.id, 12345, 10**19 - 1)
            assert {job_id: one.state for job_id, one in found.items()} == {job.id: State.LEASED}
            batches = other.session.committer.batches
            await wait(other, job.id)
            assert other.session.committer.batches == batches
            await wait(third, job.id)
            assert await watchers(node, job.id, 12345) == {job.id: [2, 3]}
            assert await watchers(other, job.id) == {job.id: [3]}
            await leave(third, job.id)
            assert await watchers(other, job.id) == {}
            assert await watchers(node, job.id) == {job.id: [2]}

    run(check())


def test_waiting_clients_are_found_though_this_nodes_server_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.held()
            await wait(other, job.id)
            falls_behind(node.tree, monkeypatch)
            assert await watchers(node, job.id) == {job.id: [2]}

    run(check())


def test_nodes_that_begin_to_wait_at_once_are_all_noted() -> None:
    async def check() -> None:
        async with fleet() as members:
            nodes = [await members.join(f"n{number}") for number in range(4)]
            job = await nodes[0].held(foreground=True)
            await asyncio.gather(*(wait(node, job.id) for node in nodes))
            assert await watchers(nodes[0], job.id) == {job.id: [2, 3, 4]}
            assert (await nodes[0].present(job.id)).foreground

    run(check())


def test_no_notification_is_sent_for_an_ended_job() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.held()
            await wait(other, job.id)
            await node.settle(succeeded(job, b"r", NOW, NOW))
            for _ in range(2):
                assert await watchers(node, job.id) == {}
                found = await wait(other, job.id)
                assert (found[job.id].state, found[job.id].result) == (State.SUCCEEDED, b"r")
                await node.publish()

    run(check())


def test_to_begin_to_wait_and_the_end_at_once() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            for _ in range(20):
                job = await node.held()
                result = node.session.result(job.id)
                _, found = await asyncio.gather(node.settle(succeeded(job, b"r", NOW, NOW)), wait(other, job.id))
                data = await node.tree.get(result)
                assert data is not None
                noted = b'"waiters":[2]' in data.data
                assert noted or found[job.id].state == State.SUCCEEDED, "the publication tells it"
                await node.publish()

    run(check())


# ---- foreground jobs ----


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.LEASED])
def test_a_foreground_job_without_waiters_is_dropped(state: State) -> None:
    async def check() -> None:
        async with one_node() as node:
            values = {"foreground": True, "state": state, "due_us": NOW, "expires_us": NOW, "unique": b"u"}
            before = set(node.tree.content.paths())
            job = await node.submitted(waiter=1, **values)
            assert (await node.present(job.id)).foreground
            assert await leave(node, job.id) == {job.id}
            assert await node.find(job.id) is None
            assert await node.counts() == {}
            assert node.session.assignments == {}
            left = set(node.tree.content.paths()) - before
            assert all("f:u" not in path and "H:" not in path for path in left)
            await node.submitted(unique=b"u")

    run(check())


def test_a_foreground_job_with_a_waiter_stays() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.submitted(foreground=True, waiter=1)
            await wait(other, job.id)
            assert await leave(node, job.id) == set()
            assert await leave(node, job.id) == set()
            assert await node.state(job.id) is State.PENDING
            assert await leave(other, job.id) == {job.id}

    run(check())


def test_running_held_and_background_jobs_stay() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            running = await node.held(foreground=True, waiter=1)
            await node.one(ops.Assign([running]))
            elsewhere = await node.submitted(foreground=True, waiter=1)
            await node.assign_to(elsewhere, other)
            background = await node.submitted(waiter=1)
            ended = await node.held(foreground=True, waiter=1)
            await node.settle(succeeded(ended, b"r", NOW, NOW))
            ids = [running.id, elsewhere.id, background.id, ended.id, 12345, 10**19 - 1]
            assert await leave(node, *ids) == set()
            states = [await node.state(job_id) for job_id in ids[:4]]
            assert states == [State.RUNNING, State.LEASED, State.PENDING, State.SUCCEEDED]
            assert await watchers(other, *ids) == {}
            assert await leave(other, elsewhere.id) == {elsewhere.id}, "nobody waits there either"

    run(check())


def test_a_dropped_job_leaves_the_success_before_to_be_joined() -> None:
    async def check() -> None:
        async with one_node() as node:
            keep = Options(keep_unique=10.0)
            kept = await node.held(unique=b"u", options=keep)
            await node.settle(succeeded(kept, b"r", NOW, NOW))
            await node.publish()
            job = await node.submitted(unique=b"u", foreground=True, waiter=1)
            assert await leave(node, job.id) == {job.id}
            repeated = node.job(unique=b"u", options=keep)
            assert (await node.submit(repeated))[repeated.id].id == kept.id

    run(check())


def test_to_leave_and_to_join_at_once() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            for number in range(20):
                unique = b"%d" % number
                job = await node.submitted(unique=unique, foreground=True, waiter=1)
                new = other.job(unique=unique, foreground=True)
                dropped, joined = await asyncio.gather(leave(node, job.id), other.submit(new, waiter=2))
                assert (joined == {}) == bool(dropped)
                live = new.id if dropped else job.id
                assert await leave(other, live) == {live}
            assert await node.counts() == {}

    run(check())


def test_a_client_that_subscribes_while_the_last_one_leaves_keeps_the_job() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.submitted(foreground=True, waiter=1)
            get_many = node.session.get_many

            async def overtaken(places: Sequence[str]) -> object:
                found = await get_many(places)
                node.session.get_many = get_many  # type: ignore[method-assign]
                await wait(other, job.id)
                return found

            node.session.get_many = overtaken  # type: ignore[method-assign, assignment]
            assert await leave(node, job.id) == set()
            assert await watchers(node, job.id) == {job.id: [2]}

    run(check())


def test_a_node_whose_term_has_ended_waits_for_nothing() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.submitted(foreground=True)
            await other.tree.commit([Delete(paths.worker(node.session.who))])
            with pytest.raises(StoreFencedError):
                await wait(node, job.id)
            with pytest.raises(StoreFencedError):
                await leave(node, job.id)
            assert await other.state(job.id) is State.PENDING

    run(check())


def test_there_is_no_inbox() -> None:
    async def check() -> None:
        async with one_node() as node:
            assert await node.one(ops.DrainInbox()) == ({}, 0, False)

    run(check())
