"""Wake and Sweep on ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.zookeeper import changing, paths, transaction
from mainspring.engines.zookeeper.changing import Swept
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreError, StoreFencedError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, Priority, State
from mainspring.jobs.rules import Event, Settlement, succeeded

from .a_session import NOW, Node, fleet, one_node, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.sessions import Session

ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE]
KEEP = Options(keep_unique=10.0)
MINUTE = paths.MINUTE_US


async def wake(node: Node, now_us: int, limit: int = 1000) -> ops.Woken:
    woken: ops.Woken = await node.one(ops.Wake(now_us, limit))
    return woken


async def sweep(node: Node, ended_before_us: int, dead_before_us: int, limit: int = 1000) -> int:
    number: int = await node.one(ops.Sweep(ended_before_us, dead_before_us, limit))
    return number


def test_jobs_become_pending_when_their_time_has_come() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [
                node.job(name, state=State.SCHEDULED, due_us=NOW + at * MINUTE, priority=priority)
                for name, at, priority in (
                    (b"f", 3, Priority.HIGH),
                    (b"f", 1, Priority.HIGH),
                    (b"f", 2, Priority.LOW),
                    (b"g", 2, Priority.LOW),
                    (b"f", 2, Priority.LOW),
                )
            ]
            await node.submit(*jobs)
            assert await wake(node, NOW) == ({}, [], NOW + MINUTE)
            woken = await wake(node, NOW + 2 * MINUTE)
            assert woken.due == {(b"f", Priority.HIGH): 1, (b"f", Priority.LOW): 2, (b"g", Priority.LOW): 1}
            assert woken.next_us == NOW + 3 * MINUTE
            assert sorted(node.hinted) == [b"f", b"g"]
            assert await wake(node, NOW + 3 * MINUTE) == ({(b"f", Priority.HIGH): 1}, [], 0)
            assert [await node.state(job.id) for job in jobs] == [State.PENDING] * 5
            await node.counts()

    run(check())


def test_a_woken_task_is_whole() -> None:
    async def check() -> None:
        async with one_node() as node:
            options = Options(timeout=3.0)
            job = await node.submitted(
                payload=b"\0p", state=State.SCHEDULED, due_us=NOW, expires_us=NOW + 9, options=options, unique=b"u"
            )
            await wake(node, NOW)
            claimed = await node.assign_to(job, node)
            job.state, job.term = int(State.LEASED), node.session.term
            assert claimed == job

    run(check())


def test_a_wake_is_limited_and_starts_with_the_first() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [node.job(state=State.SCHEDULED, due_us=NOW + at // 2) for at in range(10)]
            await node.submit(*jobs)
            assert await wake(node, NOW + 9, limit=3) == ({(b"f", Priority.NORMAL): 3}, [], NOW + 1)
            assert sorted(job.id for job in await node.listed(state=State.PENDING)) == [job.id for job in jobs[:3]]
            assert await wake(node, NOW + 9, limit=30) == ({(b"f", Priority.NORMAL): 7}, [], 0)

    run(check())


def test_more_than_a_portion() -> None:
    async def check() -> None:
        async with one_node() as node:
            await node.submit(
                *[node.job(state=State.SCHEDULED, due_us=NOW) for _ in range(250)],
                *[node.job(b"g", expires_us=NOW) for _ in range(150)],
            )
            woken = await wake(node, NOW)
            assert (woken.due, len(woken.expired), woken.next_us) == ({(b"f", Priority.NORMAL): 250}, 150, 0)
            await node.counts()

    run(check())


def test_nodes_that_wake_at_once_share_the_work() -> None:
    async def check() -> None:
        async with fleet() as members:
            nodes = [await members.join("n1"), await members.join("n2")]
            await nodes[0].submit(
                *[nodes[0].job(state=State.SCHEDULED, due_us=NOW) for _ in range(300)],
                *[nodes[0].job(b"g", expires_us=NOW) for _ in range(30)],
            )
            woken = await asyncio.gather(*(wake(node, NOW) for node in nodes))
            assert sum(sum(one.due.values()) for one in woken) == 300
            assert sum(len(one.expired) for one in woken) == 30
            assert await nodes[0].counts() == {(b"f", State.PENDING, 1): 300, (b"g", State.EXPIRED, 1): 30}

    run(check())


def test_minutes_that_are_over_and_empty_go() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(state=State.SCHEDULED, due_us=NOW, expires_us=NOW)
            repeated = await node.submitted(state=State.SCHEDULED, due_us=NOW)
            await wake(node, NOW + 5 * MINUTE)
            for root in (paths.DELAYED, paths.EXPIRING):
                assert await node.tree.children(root) == []
            assert await node.state(job.id) is State.EXPIRED
            claimed = await node.assign_to(repeated, node)
            await node.settle(Settlement(claimed, Event.RETRY, 1, due_us=NOW))
            assert await node.state(repeated.id) is State.SCHEDULED

    run(check())


def test_minutes_that_may_be_used_again_stay() -> None:
    async def check() -> None:
        async with one_node() as node:
            for minute in (-1, 0, 1):
                await node.session.ensure([paths.minute(paths.DELAYED, NOW + minute * MINUTE)])
            await wake(node, NOW)
            assert len(await node.tree.children(paths.DELAYED) or ()) == 3
            await wake(node, NOW + MINUTE)
            assert len(await node.tree.children(paths.DELAYED) or ()) == 2

    run(check())


# ---- expiring ----


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING])
def test_a_job_that_was_not_started_in_time_expires(state: State) -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(state=state, due_us=NOW, expires_us=NOW + 1, unique=b"u")
            if state is State.PENDING:
                woken = await wake(node, NOW)
                assert (woken.expired, woken.next_us) == ([], NOW + 1)
            woken = await wake(node, NOW + 1)
            ((expired, before),) = woken.expired
            assert (before, woken.due) == (state, {})
            for one in (expired, await node.present(job.id)):
                assert (one.id, one.state, one.ended_us) == (job.id, State.EXPIRED, NOW + 1)
            assert await wake(node, NOW + 9) == ({}, [], 0)
            assert [one.job.id for one in node.completed] == [job.id]
            assert await node.counts() == {(b"f", State.EXPIRED, 1): 1}

    run(check())


def test_a_held_job_does_not_expire_until_it_is_given_back() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(expires_us=NOW)
            assert await wake(node, NOW) == ({}, [], 0)
            await node.settle(Settlement(job, Event.RELEASE, 1))
            assert (await wake(node, NOW)).expired == [], "the delivery was counted"
            claimed = await node.assign_to(job, node)
            await node.settle(Settlement(claimed, Event.RELEASE, 0))
            assert [one.id for one, _ in (await wake(node, NOW)).expired] == [job.id]

    run(check())


def test_a_job_returned_by_another_node_expires_soon() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.held(expires_us=NOW)
            assert (await wake(other, NOW)).expired == []
            await node.settle(Settlement(job, Event.RELEASE, 0))
            assert (await wake(other, NOW + changing.LATE_US - 1)).expired == []
            assert [one.id for one, _ in (await wake(other, NOW + changing.LATE_US)).expired] == [job.id]

    run(check())


def test_a_mark_that_is_left_over_goes() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(expires_us=NOW, unique=b"u")
            mark = paths.expiring("f:u", NOW, job.id)
            await node.settle(succeeded(job, b"r", NOW, NOW))
            await node.publish()
            await node.session.ensure([mark])
            assert (await node.one(ops.ReadBacklog())).next_us == NOW
            assert await wake(node, NOW) == ({}, [], 0)
            assert await node.tree.get(mark) is None

    run(check())


def test_a_job_that_cannot_expire_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [await node.submitted(expires_us=NOW + at) for at in range(3)]
            commit = transaction.commit

            async def refuse(session: Session, some: Sequence[transaction.Happening]) -> list[Verdict | StoreError]:
                refused = [one.job is not None and one.job.id == jobs[0].id for one in some]
                written = await commit(session, [one for one, no in zip(some, refused, strict=True) if not no])
                return [StoreError("no") if no else written.pop(0) for no in refused]

            monkeypatch.setattr(transaction, "commit", refuse)
            woken = await wake(node, NOW + 2, limit=2)
            assert [job.id for job, _ in woken.expired] == [job.id for job in jobs[1:]]
            monkeypatch.undo()
            woken = await wake(node, NOW + 2 + changing.LATE_US)
            assert [job.id for job, _ in woken.expired] == [jobs[0].id], "it is tried again later"

    run(check())


# ---- Sweep ----


async def end(node: Node, event: Event = Event.SUCCEED, **values: Any) -> int:
    job = await node.held(**values)
    await node.settle(Settlement(job, event, 1, ended_us=NOW))
    await node.publish()
    return job.id


@pytest.mark.parametrize("event", ENDS)
def test_dead_letters_have_a_time_of_their_own(event: Event) -> None:
    async def check() -> None:
        async with one_node() as node:
            job_id = await end(node, event)
            dead = event is Event.FAIL
            assert await sweep(node, NOW if not dead else NOW + 1, NOW if dead else NOW + 1) == 0
            assert await node.state(job_id) is rules.target(event)
            assert await sweep(node, NOW if dead else NOW + 1, NOW + 1 if dead else NOW) == 1
            assert await node.find(job_id) is None
            assert await node.counts() == {}

    run(check())


def test_jobs_that_have_not_ended_stay() -> None:
    async def check() -> None:
        async with one_node() as node:
            await node.held()
            await node.submit(node.job(), node.job(state=State.SCHEDULED, due_us=1))
            completed = await node.held()
            await node.settle(succeeded(completed, b"r", 1, 1))
            assert await sweep(node, NOW * 2, NOW * 2) == 0, "it is published first"
            await node.publish()
            assert await sweep(node, NOW * 2, NOW * 2) == 1
            assert len(await node.listed()) == 3

    run(check())


def test_sweeping_takes_at_most_so_many() -> None:
    async def check() -> None:
        async with one_node() as node:
            for event in ENDS * 2:
                await end(node, event)
            assert [await sweep(node, NOW + 1, NOW + 1, limit=3) for _ in range(4)] == [3, 3, 2, 0]
            assert await node.listed() == []

    run(check())


def test_blocks_of_terms_that_are_over_go_with_their_last_job() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            await end(node)
            await end(other)
            await other.tree.commit([Delete(paths.worker(other.session.who))])
            assert await sweep(node, NOW + 1, NOW + 1) == 2
            assert await node.tree.children(paths.RESULTS) == ["1-0"], "the newest of a node that lives is used again"

    run(check())


def test_blocks_are_not_read_again_before_their_retention_is_over() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            dead = await end(other, Event.FAIL)
            await other.tree.commit([Delete(paths.worker(other.session.who))])
            for _ in range(2):
                assert await sweep(node, NOW + 1, NOW) == 0
            reads = node.tree.reads
            await sweep(node, NOW + 1, NOW)
            assert node.tree.reads - reads == 2, "only the blocks are listed, and who lives"
            assert (await node.one(ops.Redrive(dead))).redriven
            job = await node.present(dead)
            claimed = await node.assign_to(job, node)
            await node.settle(Settlement(claimed, Event.FAIL, 1, ended_us=NOW - 9))
            await node.publish()
            assert await sweep(node, NOW, NOW) == 1, "it was put back here, and has ended again"

    run(check())


def test_the_cache_of_blocks_is_cleared_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "SWEEPS_REMEMBERED", 3)

    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            await end(other)
            await other.tree.commit([Delete(paths.worker(other.session.who))])
            remembered = []
            for _ in range(4):
                await sweep(node, NOW, NOW)
                remembered.append(len(node.session.memory(Swept).blocks))
            assert remembered == [1, 1, 0, 1]

    run(check())


def test_a_sweep_reads_so_many_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "MAX_READ", 1)

    async def check() -> None:
        async with fleet() as members:
            nodes = [await members.join(f"n{number}") for number in range(4)]
            for node in nodes:
                await end(node)
            assert [await sweep(nodes[0], NOW + 1, NOW + 1) for _ in range(5)] == [1, 1, 1, 1, 0]

    run(check())


def test_the_next_sweep_goes_on_where_the_last_one_had_read_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "MAX_READ", 1)

    async def check() -> None:
        async with fleet() as members:
            nodes = [await members.join(f"n{number}") for number in range(3)]
            for node in nodes[:2]:
                await end(node, Event.FAIL)
            over = await end(nodes[2])
            assert [await sweep(nodes[0], NOW + 1, NOW) for _ in range(3)] == [0, 0, 1]
            assert await nodes[0].find(over) is None
            await end(nodes[0])
            assert [await sweep(nodes[0], NOW + 1, NOW) for _ in range(2)] == [1, 0], "and then from the beginning"

    run(check())


def test_a_block_with_live_jobs_is_read_again() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await other.submitted()
            await end(other, Event.FAIL)
            await other.tree.commit([Delete(paths.worker(other.session.who))])
            assert await sweep(node, NOW + 1, NOW) == 0
            claimed = await node.assign_to(job, node)
            await node.settle(succeeded(claimed, b"r", NOW, NOW))
            await node.publish()
            assert await sweep(node, NOW + 1, NOW) == 1

    run(check())


def test_a_block_in_which_some_are_over_and_were_left_is_read_again() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            for _ in range(3):
                await end(other)
            await other.tree.commit([Delete(paths.worker(other.session.who))])
            assert [await sweep(node, NOW + 1, NOW, limit=2) for _ in range(3)] == [2, 1, 0]

    run(check())


def test_a_kept_success_that_was_swept_is_forgotten() -> None:
    async def check() -> None:
        async with one_node() as node:
            await end(node, unique=b"u", options=KEEP)
            await end(node, unique=b"v", options=KEEP)
            live = await node.submitted(unique=b"v", state=State.SCHEDULED, due_us=NOW)
            assert await sweep(node, NOW + 1, 0) == 2
            assert await node.submit(node.job(unique=b"u", options=KEEP)) == {}
            repeated = node.job(unique=b"v", options=KEEP)
            assert await node.submit(repeated) == {repeated.id: (live.id, State.SCHEDULED, 0)}

    run(check())


def test_the_later_of_two_kept_successes_stays() -> None:
    async def check() -> None:
        async with one_node() as node:
            first = await node.held(unique=b"u", options=KEEP)
            await node.settle(succeeded(first, b"r", NOW, NOW + 1_000_000))
            await node.publish()
            late = NOW + 20_000_000
            second = await node.held(unique=b"u", options=KEEP, created_us=late)
            await node.settle(succeeded(second, b"r", NOW, NOW))
            await node.publish()
            job = node.job(unique=b"u", options=KEEP)
            assert (await node.submit(job))[job.id].id == first.id
            assert await sweep(node, NOW + 1, 0) == 1
            assert await node.find(second.id) is None
            assert (await node.submit(job))[job.id].id == first.id

    run(check())


def test_nodes_that_sweep_at_once_share_the_work() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            for _ in range(30):
                await end(node)
            numbers = await asyncio.gather(*(sweep(one, NOW + 1, NOW + 1) for one in (node, other)))
            assert sum(numbers) + await sweep(node, NOW + 1, NOW + 1) == 30
            assert await node.counts() == {}

    run(check())


def test_a_node_whose_term_has_ended_does_neither() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            due, over = await node.submitted(state=State.SCHEDULED, due_us=NOW), await end(node)
            await other.tree.commit([Delete(paths.worker(node.session.who))])
            with pytest.raises(StoreFencedError):
                await wake(node, NOW)
            with pytest.raises(StoreFencedError):
                await sweep(node, NOW + 1, NOW + 1)
            assert [await other.state(job_id) for job_id in (due.id, over)] == [State.SCHEDULED, State.SUCCEEDED]

    run(check())
