"""Cancel and Redrive on ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.engines.zookeeper import paths, records, submitting
from mainspring.engines.zookeeper.changing import rounds
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreFencedError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Options, State
from mainspring.jobs.rules import Event, Settlement, succeeded

from .a_session import NOW, Node, fleet, one_node, run

UNSUCCESSFUL = [Event.FAIL, Event.CANCEL, Event.EXPIRE]


def cancel(job: Job | int, error: bytes = b"{}") -> ops.Cancel:
    return ops.Cancel(job if isinstance(job, int) else job.id, error, NOW + 1)


def redrive(job: Job | int) -> ops.Redrive:
    return ops.Redrive(job if isinstance(job, int) else job.id)


async def ended(node: Node, event: Event = Event.FAIL, **values: Any) -> Job:
    job = await node.held(**values)
    assert await node.settle(Settlement(job, event, 1, started_us=NOW, ended_us=NOW, error=b"{}")) == set()
    return job


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING])
def test_a_waiting_job_is_cancelled(state: State, published: bool) -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(state=state, due_us=NOW, unique=b"u", expires_us=NOW + 9)
            cancelled, before = await node.one(cancel(job))
            assert before == state
            if published:
                await node.publish()
            for one in (cancelled, await node.present(job.id)):
                assert (one.id, one.state, one.ended_us, one.error) == (job.id, State.CANCELLED, NOW + 1, b"{}")
            assert await node.counts() == {(b"f", State.CANCELLED, 1): 1}
            assert [one.job.id for one in node.completed] == [job.id]
            assert [path for path in node.tree.content.paths() if paths.EXPIRING in path and "." in path] == []

    run(check())


def test_a_job_of_which_nothing_says_when_it_expires_is_cancelled() -> None:
    """It was cancelled and retried by hand so quickly that a master has assigned it as it had read it before."""

    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(expires_us=NOW + 9)
            task = paths.task_name(job.function, job.unique, job.id)
            await node.tree.commit([Delete(paths.expiring(task, job.expires_us, job.id))])
            async with asyncio.timeout(5):
                cancelled, _ = await node.one(cancel(job))
            assert cancelled.state == State.CANCELLED
            assert await node.counts() == {(b"f", State.CANCELLED, 1): 1}

    run(check())


def test_held_ended_and_unknown_jobs_are_not_cancelled() -> None:
    async def check() -> None:
        async with one_node() as node:
            leased, running, done = [await node.held() for _ in range(3)]
            await node.one(ops.Assign([running]))
            await node.settle(succeeded(done, b"r", NOW, NOW))
            ids = [job.id for job in (leased, running, done)]
            for _ in range(2):
                outcomes = await node.handle(*[cancel(job_id) for job_id in (*ids, 12345, 10**19 - 1, -1)])
                states = [State.LEASED, State.RUNNING, State.SUCCEEDED]
                assert [(one.job.state, one.before) for one in outcomes[:3]] == [(state, state) for state in states]
                assert outcomes[3:] == [(None, 0)] * 3
                await node.publish()

    run(check())


def test_the_first_of_two_cancels_in_one_group_counts() -> None:
    async def check() -> None:
        async with one_node() as node:
            job, other = await node.submitted(), await node.submitted()
            first, third, second = await node.handle(cancel(job, b"1"), cancel(other), cancel(job, b"2"))
            assert (first.before, second.before, third.before) == (State.PENDING, State.CANCELLED, State.PENDING)
            assert second.job.error == b"1"

    run(check())


def test_to_cancel_and_to_assign_at_once() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            for _ in range(10):
                job = await node.submitted()
                task = f"f:~{job.id}"
                taken = await other.tree.get(paths.pending(task))
                assert taken is not None
                cancelling = asyncio.create_task(other.one(cancel(job)))
                try:
                    await node.assign_to(job, node)
                except AssertionError:
                    assert (await cancelling).before == State.PENDING
                    assert await node.state(job.id) is State.CANCELLED
                else:
                    assert (await cancelling).before == State.LEASED
                    assert await node.state(job.id) is State.LEASED
            await node.counts()

    run(check())


def test_the_next_job_of_the_same_name_is_not_cancelled_in_its_place() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            first = await node.submitted(unique=b"u")
            look = other.tree.get_many

            async def overtaken(places: list[str]) -> object:
                found = await look(places)
                if paths.pending("f:u") in places:
                    other.tree.get_many = look  # type: ignore[method-assign]
                    claimed = await node.assign_to(first, node)
                    await node.settle(succeeded(claimed, b"r", NOW, NOW))
                    await node.publish()
                    await node.submitted(unique=b"u")
                return found

            other.tree.get_many = overtaken  # type: ignore[method-assign, assignment]
            assert (await other.one(cancel(first))).before == State.SUCCEEDED
            assert [job.state for job in await node.listed()] == [State.PENDING, State.SUCCEEDED]

    run(check())


# ---- Redrive ----


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("event", UNSUCCESSFUL)
def test_an_unsuccessful_job_is_put_back_as_if_new(event: Event, published: bool) -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await ended(node, event, unique=b"u", expires_us=NOW, payload=b"\0again")
            if published:
                await node.publish()
            node.waiting.clear()
            redriven = await node.one(redrive(job))
            assert redriven.redriven
            for one in (redriven.job, await node.present(job.id)):
                assert (one.state, one.attempt, one.suspects, one.term) == (State.PENDING, 0, 0, 0)
                assert (one.started_us, one.ended_us, one.expires_us) == (0, 0, 0)
            assert await node.counts() == {(b"f", State.PENDING, 1): 1}
            assert node.hinted == [b"f"]
            second = node.job(unique=b"u")
            assert (await node.submit(second))[second.id].id == job.id, "it has its unique again"
            claimed = await node.assign_to(job, node)
            assert claimed.payload == b"\0again"
            assert await node.settle(succeeded(claimed, b"r", NOW, NOW)) == set()
            await node.publish()
            assert (await node.present(job.id)).result == b"r"

    run(check())


def test_a_rival_has_the_unique() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await ended(node, unique=b"u")
            await node.publish()
            rival = await node.submitted(unique=b"u")
            redriven = await node.one(redrive(job))
            assert (redriven.redriven, redriven.rival, redriven.job.state) == (False, rival.id, State.FAILED)
            await node.one(cancel(rival))
            redriving = asyncio.create_task(node.one(redrive(job)))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not redriving.done(), "the rival's end waits for its publication"
            await node.publish()
            assert (await redriving).redriven

    run(check())


def test_without_a_master_a_rival_that_has_ended_is_one_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "PUBLICATION_TIMEOUT", 0.05)

    async def check() -> None:
        async with one_node() as node:
            job = await ended(node, unique=b"u")
            await node.publish()
            rival = await node.submitted(unique=b"u")
            await node.one(cancel(rival))
            assert (await node.one(redrive(job))).rival == rival.id

    run(check())


def test_one_of_two_jobs_of_one_name_is_redriven() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = []
            for _ in range(2):
                jobs.append(await ended(node, unique=b"u"))
                await node.publish()
            outcomes = await node.handle(*map(redrive, [*jobs, jobs[0]]))
            assert sorted(one.redriven for one in outcomes) == [False, False, True]
            assert sum((await node.counts()).values()) == 2
            (live,) = [job.id for job in await node.listed(state=State.PENDING)]
            assert {one.rival for one in outcomes} == {None, live}

    run(check())


def test_a_kept_success_stays_with_the_name() -> None:
    async def check() -> None:
        async with one_node() as node:
            dead = await ended(node, unique=b"u")
            await node.publish()
            keep = Options(keep_unique=10.0)
            kept = await node.held(unique=b"u", options=keep)
            await node.settle(succeeded(kept, b"r", NOW, NOW))
            await node.publish()
            assert (await node.one(redrive(dead))).redriven
            name = await node.tree.get(paths.name("f:u"))
            assert name is not None
            assert records.decode(name.data)["kept"]["id"] == kept.id

    run(check())


def test_only_what_ended_without_success_is_redriven() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [
                await node.held(),
                await node.submitted(),
                await node.submitted(state=State.SCHEDULED, due_us=NOW),
                await ended(node, Event.SUCCEED),
            ]
            await node.publish()
            outcomes = await node.handle(*[redrive(job_id) for job_id in (*(job.id for job in jobs), 12345)])
            assert [(one.redriven, one.rival) for one in outcomes] == [(False, None)] * 5
            assert [one.job.state for one in outcomes[:4]] == [await node.state(job.id) for job in jobs]
            assert outcomes[4].job is None

    run(check())


def test_a_node_whose_term_has_ended_does_neither() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job, dead = await node.submitted(), await ended(node)
            await node.publish()
            await other.tree.commit([Delete(paths.worker(node.session.who))])
            for operation in (cancel(job), redrive(dead)):
                with pytest.raises(StoreFencedError):
                    await node.one(operation)
            assert [await other.state(one.id) for one in (job, dead)] == [State.PENDING, State.FAILED]

    run(check())


def test_jobs_without_a_holder_that_can_be_cancelled_are_waiting() -> None:
    waiting = {state for state in rules.sources(Event.CANCEL) if not state.held}
    assert waiting == {State.SCHEDULED, State.PENDING}


def test_each_job_comes_once_in_a_round() -> None:
    assert rounds([5, 6, 5, 5, 6, 7]) == [{5: 0, 6: 1, 7: 5}, {5: 2, 6: 4}, {5: 3}]
