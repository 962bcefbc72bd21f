"""Pending tasks are assigned to nodes that request them, on one node and on several."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tests.zookeeper.memory import Fate

from mainspring.engines.zookeeper import master_index, paths, records
from mainspring.engines.zookeeper.tree import Create, Write
from mainspring.errors import StoreUnavailableError
from mainspring.events import Pending, Settled
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State
from mainspring.jobs.rules import Event, Settlement

from .a_master import Member, eventually, fleet, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from mainspring.engines.zookeeper.tree import Change, Node
    from mainspring.jobs.model import Job


def test_the_masters_own_claims_read_nothing() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            jobs = [node.job() for _ in range(20)]
            reads = node.tree.reads
            await node.submit(*jobs)
            claimed = await node.claim(limit=30)
            assert [job.id for job in claimed] == [job.id for job in jobs]
            assert {job.term for job in claimed} == {node.session.term}
            assert {job.state for job in claimed} == {State.LEASED}
            assert await node.succeed(*claimed) == set()
            await eventually(lambda: nodes.state(jobs[-1]) is State.SUCCEEDED)
            assert node.tree.reads == reads
            assert await node.counts() == {(b"f", State.SUCCEEDED, 1): 20}

    run(check())


def test_a_node_gets_the_job_that_another_submitted() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            await nodes.master()
            first, second = await nodes.join("n2"), await nodes.join("n3")
            job = await first.submitted(unique=b"u", waiter=first.session.term)
            (claimed,) = await second.claim()
            assert (claimed.id, claimed.payload, claimed.term) == (job.id, b"p", second.session.term)
            assert nodes.queue(second) == ["f:u"]
            assert await second.succeed(claimed) == set()
            await eventually(lambda: Settled([job.id]) in first.received)
            assert nodes.state(job, "n2") is State.SUCCEEDED
            assert nodes.tasks(paths.COMPLETED) == nodes.tasks(paths.NAMES) == nodes.tasks(paths.RUNNING) == []
            assert await first.counts() == {(b"f", State.SUCCEEDED, 1): 1}

    run(check())


def test_a_request_stays_open() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            await nodes.master()
            node = await nodes.join("n2")
            assert await node.claim(limit=2) == []
            jobs = [await node.submitted() for _ in range(3)]
            await eventually(lambda: node.master.claims.waiting == 2)
            assert node.arrived
            assert {job.id for job in await node.claim(limit=5)} == {job.id for job in jobs[:2]}

    run(check())


def test_jobs_are_claimed_by_priority_and_age() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            order = [Priority.LOW, Priority.HIGH, Priority.NORMAL, Priority.HIGH]
            jobs = [node.job(priority=priority) for priority in order]
            await node.submit(*jobs)
            claimed = await node.claim()
            assert [job.id for job in claimed] == [jobs[at].id for at in (1, 3, 2, 0)]

    run(check())


def test_nodes_are_notified_of_tasks_without_a_request() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            await nodes.master()
            node, other, draining = [await nodes.join(name) for name in ("n2", "n3", "n4")]
            await draining.serve(b"f", draining=True)
            await node.submitted()
            await eventually(lambda: Pending([b"f"]) in node.received and Pending([b"f"]) in other.received)
            assert draining.received == []

    run(check())


def test_records_that_cannot_be_decoded_are_ignored() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            await nodes.master()
            node = await nodes.join("n2")
            assert await node.claim() == []
            junk = [Create(paths.pending("f:junk"), b"junk"), Create(paths.completed("f:done"), b"{}")]
            junk += [Create(paths.worker("by hand-9"), b"?"), Create(paths.wants("by hand-9"), b"[1]")]
            await node.tree.commit([*junk, Create(paths.queue("by hand-9"))])
            job = await node.submitted()
            await eventually(lambda: node.master.claims.waiting == 1)
            assert [one.id for one in await node.claim()] == [job.id]
            assert nodes.tasks(paths.PENDING) == ["f:junk"]
            assert nodes.tasks(paths.COMPLETED) == ["f:done"]
            assert nodes.members[0].is_master

    run(check())


def test_a_task_whose_name_or_result_cannot_be_decoded_is_ignored() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            node = await nodes.join("n2")
            pending = [await node.submitted(unique=unique) for unique in (b"u", b"v")]
            held = [await node.held(unique=unique) for unique in (b"x", b"y")]
            junk = [Write(path, b"junk") for path in (paths.name("f:u"), paths.result(pending[1].id, "n2"))]
            junk += [Write(path, b"junk") for path in (paths.name("f:x"), paths.result(held[1].id, "n2"))]
            await node.tree.commit(junk)
            await node.succeed(*held)
            job = await node.submitted()
            assert [one.id for one in await until_claimed(node)] == [job.id]
            last = await node.held(unique=b"z")
            await node.succeed(last)
            await eventually(lambda: nodes.state(last, "n2") is State.SUCCEEDED)
            assert nodes.tasks(paths.PENDING) == ["f:u", "f:v"]
            assert nodes.tasks(paths.COMPLETED) == ["f:x", "f:y"]
            assert master.master.leadership is not None
            assert master.master.leadership.version == 1, "it has been the master without a break"

    run(check())


def test_a_defect_in_a_loop_of_the_master_lets_another_node_be_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first, second = await nodes.master(), await nodes.join("n2")

            def defect(_: bytes) -> int:
                raise ValueError("a defect")

            dispatcher = first.master.dispatcher
            assert dispatcher is not None
            monkeypatch.setattr(dispatcher.index, "waiting", defect)
            job = await first.submitted()
            assert [one.id for one in await until_claimed(second)] == [job.id]
            assert second.is_master
            held = await first.held()
            assert await first.succeed(held) == set(), "its term goes on"

    run(check())


def test_a_task_that_was_listed_while_it_was_reserved_is_assigned_again() -> None:
    """The answer to its assignment is lost. Before the outcome is known, its worker releases it, and the master lists it."""

    async def check() -> None:
        async with fleet() as nodes:
            master, node = await nodes.master(), await nodes.join("n2")
            assert await node.claim(limit=1) == []
            dispatcher = master.master.dispatcher
            assert dispatcher is not None
            await eventually(
                lambda: any(request.worker.who == node.session.who for request in dispatcher.workers.requests())
            )
            sync, is_released = master.tree.sync, asyncio.Event()

            async def slow_sync() -> None:  # it goes through the leader, and reads do not
                await is_released.wait()
                await sync()

            def lose_the_answer(changes: Sequence[Change]) -> Fate | None:
                if not any(change.path.startswith(f"{paths.queue(node.session.who)}/") for change in changes):
                    return None
                master.tree.before = None
                return Fate.ANSWER_LOST

            master.tree.before, master.tree.sync = lose_the_answer, slow_sync  # type: ignore[method-assign]
            job = await master.submitted()
            claim = asyncio.create_task(master.claim(b"g", 1))  # it assigns all tasks of the index, beside the loop
            (claimed,) = await until_claimed(node)
            assert claimed.id == job.id
            await node.settle(Settlement(claimed, Event.RELEASE, claimed.attempt))
            await eventually(lambda: not dispatcher.buckets.dirty)
            is_released.set()
            assert [one.id for one in await until_claimed(node)] == [job.id]
            claim.cancel()

    run(check())


def test_a_full_queue_gets_no_more_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_index, "QUEUE_LIMIT", 5)

    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            node = await nodes.join("n2")
            await node.submit(*[node.job() for _ in range(20)])
            for one in (master, node):
                held: list[Job] = []
                await eventually(partial(_claimed, one, held, 5))
                assert await one.claim(limit=9) == []
                await one.succeed(*held[:3])
                more: list[Job] = []
                await eventually(partial(_claimed, one, more, 3))
                assert len(nodes.queue(one)) == 5

    async def _claimed(node: Member, held: list[Job], number: int) -> bool:
        held += await node.claim(limit=9)
        return len(held) >= number

    run(check())


def test_the_connection_is_lost_while_the_master_receives_its_own_assignment() -> None:
    """The master reads the job's term afterwards; the job has a holder, and the leadership goes on."""

    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            job = await (await nodes.join("n2")).submitted()
            get_many = master.tree.get_many
            lost: list[Sequence[str]] = []

            async def losing(paths: Sequence[str]) -> list[Node | None]:
                if paths[0].startswith("/terms/") and not lost:
                    lost.append(paths)
                    raise StoreUnavailableError("the connection was lost")
                return await get_many(paths)

            master.tree.get_many = losing  # type: ignore[method-assign]
            claimed = await until_claimed(master)
            assert [one.id for one in claimed] == [job.id]
            assert lost
            assert not master.running.done()
            assert await master.succeed(*claimed) == set()
            await eventually(lambda: nodes.state(job, "n2") is State.SUCCEEDED)

    run(check())


def test_a_cancelled_job_is_not_claimed() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            first, second = await node.submitted(), await node.submitted()
            await node.one(ops.Cancel(first.id, b"", 0))
            assert [job.id for job in await node.claim(limit=1)] == [second.id]

    run(check())


def test_a_job_is_not_run_in_place_of_a_replaced_one_of_its_name() -> None:
    """The master has read the first job; the second one's node in the tree has the same path and version."""

    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            other = await nodes.join("n2")
            await master.claim(limit=1)
            first = await other.submitted(payload=b"first", unique=b"u", priority=Priority.LOW)
            (before,) = await until_claimed(master)
            assert before.id == first.id
            assert await master.settle(Settlement(before, Event.RELEASE, 0)) == set()
            assert master.master.dispatcher is not None
            (stale,) = master.master.dispatcher.index.walk(b"f", Priority.LOW)
            assert stale.id == first.id
            await other.one(ops.Cancel(first.id, b"", 0))
            await eventually(lambda: nodes.state(first, "n2") is State.CANCELLED)
            second = await other.submitted(payload=b"second", unique=b"u", priority=Priority.LOW)
            master.master.dispatcher.index.put(stale)  # as if its bucket had not been listed since
            (claimed,) = await until_claimed(master)
            assert (claimed.id, claimed.payload) == (second.id, b"second")

    run(check())


def test_a_task_that_was_written_since_it_was_read_is_assigned_as_it_is_now() -> None:
    """No watch reports the write, because the master watches only the names of the tasks."""

    async def check() -> None:
        async with fleet() as nodes:
            master, other = await nodes.master(), await nodes.join("n2")
            job = await master.submitted(payload=b"before")
            task = paths.task_name(job.function, job.unique, job.id)
            job.payload = b"now"
            now = records.encode_job(job, master.session.handle(job.id))
            await other.tree.commit([Write(paths.pending(task), now)])
            (claimed,) = await until_claimed(master)
            assert (claimed.id, claimed.payload) == (job.id, b"now")

    run(check())


def test_a_worker_that_has_ended_gets_no_task_although_its_master_was_not_notified() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master, node = await nodes.master(), await nodes.join("n2")
            who = node.session.who
            assert await node.claim(limit=1) == []
            dispatcher = master.master.dispatcher
            assert dispatcher is not None
            await eventually(lambda: any(request.worker.who == who for request in dispatcher.workers.requests()))
            master.tree.loses = lambda path: path.startswith(paths.WORKERS)
            await node.kill()
            job = await master.submitted()
            await eventually(lambda: who not in dispatcher.workers.living or nodes.queue(node) != [])
            assert nodes.queue(node) == []
            assert [one.id for one in await until_claimed(master)] == [job.id]

    run(check())


async def until_claimed(member: Member) -> list[Job]:
    """Claim until a job is assigned."""
    claimed: list[Job] = []

    async def claims() -> bool:
        claimed.extend(await member.claim(limit=1))
        return bool(claimed)

    await eventually(claims)
    return claimed
