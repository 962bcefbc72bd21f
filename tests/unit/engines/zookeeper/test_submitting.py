"""New jobs on ZooKeeper: where they are put, and whom they join."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.engines.zookeeper import paths, queries, records, submitting
from mainspring.engines.zookeeper.tree import Create, Delete
from mainspring.errors import StoreCorruptError, StoreFencedError
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event, Settlement, succeeded

from .a_session import NOW, Node, fleet, one_node, run

SECOND = 1_000_000
KEEP = Options(keep_unique=10.0)
KEPT = {"due_us": NOW + 5}


async def at(node: Node, path: str) -> dict[str, object] | None:
    found = await node.tree.get(path)
    return None if found is None else records.decode(found.data)


def test_a_pending_job_is_where_the_recipe_says() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(unique=b"u", foreground=True, waiter=node.session.term)
            handle = f"H:n1:{job.id}"
            assert await at(node, paths.name("f:u")) == {"handle": handle, "id": job.id}
            assert await at(node, f"/results/1-0/{handle}") == {
                "id": job.id, "task": "f:u", "waiters": [1], "foreground": True,
            }  # fmt: skip
            record = await at(node, paths.pending("f:u"))
            assert record is not None
            assert (record["state"], record["payload"], record["handle"]) == ("pending", "p", handle)
            assert node.hinted == [b"f"]
            ((task, waiting, data),) = node.waiting
            assert (task, waiting, records.decode(data)) == ("f:u", job, record)

    run(check())


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.LEASED])
def test_each_goes_into_the_state_that_it_carries(state: State) -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.submitted(state=state, due_us=NOW if state is State.SCHEDULED else 0)
            assert await node.state(job.id) is state
            assert await node.counts() == {(b"f", state, 1): 1}
            assert (job.id in node.session.assignments) == (state is State.LEASED)

    run(check())


def test_many_jobs_go_in_few_multis_and_in_their_order() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [node.job(payload=b"%d" % number) for number in range(500)]
            before = node.session.committer.batches
            assert await node.submit(*jobs) == {}
            assert node.session.committer.batches - before <= 6
            assert [job.id for job in await node.listed()] == [job.id for job in reversed(jobs)]
            await node.counts()

    run(check())


@pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.LEASED])
def test_a_second_request_joins_a_live_job(state: State) -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            first = await node.submitted(unique=b"u", state=state, due_us=NOW)
            second = other.job(unique=b"u")
            assert await other.submit(second) == {second.id: (first.id, state, 0)}
            assert await other.find(second.id) is None
            await other.counts()

    run(check())


def test_a_join_of_a_job_of_a_later_term_loads_its_handle() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            job = await two.submitted(unique=b"u")
            assert [found.id for found in (await one.submit(one.job(unique=b"u"))).values()] == [job.id]
            assert one.session.handle(job.id) == f"H:n2:{job.id}"

    run(check())


def test_a_running_job_is_joined_as_running() -> None:
    async def check() -> None:
        async with one_node() as node:
            first = await node.held(unique=b"u")
            first.attempt = 2
            await node.one(ops.Assign([first]))
            second = node.job(unique=b"u")
            assert await node.submit(second) == {second.id: (first.id, State.RUNNING, 2)}

    run(check())


def test_jobs_that_joined_cost_the_others_nothing() -> None:
    async def check() -> None:
        async with one_node() as node:
            first = await node.submitted(unique=b"u")
            jobs = [node.job(), node.job(unique=b"u"), node.job(unique=b"v"), node.job(unique=b"u"), node.job()]
            joined = await node.submit(*jobs)
            assert {job_id: found.id for job_id, found in joined.items()} == {
                jobs[1].id: first.id,
                jobs[3].id: first.id,
            }
            assert len(await node.listed()) == 4
            await node.counts()

    run(check())


def test_after_one_conflict_the_rest_reads_first() -> None:
    async def check() -> None:
        async with one_node() as node:
            old = [node.job(unique=b"%d" % number) for number in range(300)]
            await node.submit(*old)
            before = node.session.committer.batches
            new = [node.job(unique=b"%d" % number) for number in range(300)]
            joined = await node.submit(*new)
            assert [joined[one.id].id for one in new] == [one.id for one in old]
            assert node.session.committer.batches - before <= 2

    run(check())


def test_the_first_of_equal_uniques_is_stored() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [node.job(unique=b"u", foreground=at != 1) for at in range(3)]
            first, second = await node.handle(ops.Submit(jobs[:2], 7), ops.Submit(jobs[2:], 8))
            assert first == {jobs[1].id: (jobs[0].id, State.PENDING, 0)}
            assert second == {jobs[2].id: (jobs[0].id, State.PENDING, 0)}
            assert not (await node.present(jobs[0].id)).foreground, "a background one has joined it"
            assert (await at(node, node.session.result(jobs[0].id)) or {})["waiters"] == [7, 8]

    run(check())


def test_one_of_several_jobs_with_equal_uniques_is_stored() -> None:
    async def check() -> None:
        async with fleet() as members:
            nodes = [await members.join("n1"), await members.join("n2")]
            for number in range(10):
                jobs = [[node.job(unique=b"%d %d" % (number, at)) for at in range(20)] for node in nodes]
                outcomes = await asyncio.gather(
                    *(node.submit(*some[::step]) for node, some, step in zip(nodes, jobs, (1, -1), strict=True))
                )
                joined = {**outcomes[0], **outcomes[1]}
                assert len(joined) == 20
                everything = {job.id: job.unique for some in jobs for job in some}
                assert all(everything[job_id] == everything[found.id] for job_id, found in joined.items())
            assert sum((await nodes[0].counts()).values()) == 200

    run(check())


def test_a_background_job_that_joins_keeps_a_foreground_one() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.submitted(unique=b"u", foreground=True, waiter=1)
            same = other.job(unique=b"u", foreground=True)
            assert (await other.submit(same, waiter=2))[same.id].id == job.id
            assert (await node.present(job.id)).foreground
            background = other.job(unique=b"u")
            assert (await other.submit(background))[background.id].id == job.id
            assert not (await node.present(job.id)).foreground
            assert (await at(node, node.session.result(job.id)) or {})["waiters"] == [1, 2]

    run(check())


# ---- what has ended ----


def test_another_node_joins_what_is_completed_and_not_published() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.held(unique=b"u")
            await node.settle(succeeded(job, b"r", NOW, NOW))
            repeated = other.job(unique=b"u")
            async with asyncio.timeout(submitting.PUBLICATION_TIMEOUT / 2):
                assert await other.submit(repeated, waiter=2) == {repeated.id: (job.id, State.SUCCEEDED, 1)}
            result = await at(node, node.session.result(job.id)) or {}
            assert result["waiters"] == [2], "the publication tells it"
            await node.publish()
            assert await other.submit(repeated, waiter=2) == {}

    run(check())


def test_the_node_that_has_completed_it_waits_for_the_publication() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(unique=b"u")
            await node.settle(succeeded(job, b"r", NOW, NOW))
            submitting_it = asyncio.create_task(node.submit(repeated := node.job(unique=b"u")))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not submitting_it.done()
            await node.publish()
            assert await submitting_it == {}
            assert await node.state(repeated.id) is State.PENDING

    run(check())


def test_without_a_master_it_is_joined_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "PUBLICATION_TIMEOUT", 0.2)

    async def check() -> None:
        async with one_node() as node:
            jobs = [await node.held(unique=b"%d" % number) for number in range(20)]
            await node.settle(*[succeeded(job, b"r", NOW, NOW) for job in jobs])
            repeated = [node.job(unique=b"%d" % number) for number in range(20)]
            joined = await node.submit(*repeated)
            assert [joined[one.id].id for one in repeated] == [job.id for job in jobs]
            started = asyncio.get_running_loop().time()
            await node.submit(*[node.job(unique=b"%d" % number) for number in range(20)])
            assert asyncio.get_running_loop().time() - started < 2, "once for all of them"

    run(check())


def test_a_success_is_joined_for_as_long_as_the_request_says() -> None:
    async def check() -> None:
        async with one_node() as node:
            first = await node.held(unique=b"u", options=KEEP)
            await node.settle(succeeded(first, b"r", NOW, NOW))
            await node.publish()
            soon = node.job(unique=b"u", options=KEEP, created_us=NOW + 10 * SECOND - 1)
            assert await node.submit(soon) == {soon.id: (first.id, State.SUCCEEDED, 1)}
            late = node.job(unique=b"u", options=KEEP, created_us=NOW + 10 * SECOND)
            assert await node.submit(late) == {}

    run(check())


def test_a_live_job_comes_before_one_that_succeeded() -> None:
    async def check() -> None:
        async with one_node() as node:
            kept = await node.held(unique=b"u", options=KEEP)
            await node.settle(succeeded(kept, b"r", NOW, NOW))
            await node.publish()
            jobs = [node.job(unique=b"u", options=options) for options in (KEEP, None, KEEP)]
            joined = await node.submit(*jobs)
            assert {job_id: one.id for job_id, one in joined.items()} == {
                jobs[0].id: kept.id,
                jobs[2].id: jobs[1].id,
            }

    run(check())


def test_the_success_before_is_joined_again_once_its_successor_has_failed() -> None:
    async def check() -> None:
        async with one_node() as node:
            kept = await node.held(unique=b"u", options=KEEP)
            await node.settle(succeeded(kept, b"r", NOW, NOW))
            await node.publish()
            failing = await node.held(unique=b"u")
            await node.settle(Settlement(failing, Event.RETRY, 1, due_us=NOW))
            assert await node.state(failing.id) is State.SCHEDULED
            repeated = node.job(unique=b"u", options=KEEP)
            assert (await node.submit(repeated))[repeated.id].id == failing.id
            entry = await node.tree.get(paths.delayed("f:u", NOW, failing.id))
            assert entry is not None

    run(check())


def test_a_join_that_is_overtaken_looks_again() -> None:
    async def check() -> None:
        async with fleet() as members:
            nodes = [await members.join(f"n{number}") for number in range(4)]
            job = await nodes[0].submitted(unique=b"u", foreground=True)
            repeated = [node.job(unique=b"u", foreground=number < 3) for number, node in enumerate(nodes)]
            joined = await asyncio.gather(
                *(node.submit(one, waiter=node.session.term) for node, one in zip(nodes, repeated, strict=True))
            )
            assert [found[one.id].id for found, one in zip(joined, repeated, strict=True)] == [job.id] * 4
            result = await at(nodes[0], nodes[0].session.result(job.id)) or {}
            assert (result["waiters"], result.get("foreground")) == ([1, 2, 3, 4], None), (
                "each has written on what it read"
            )

    run(check())


# ---- what goes wrong ----


def test_a_parent_that_was_swept_is_made_again() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            await node.session.ensure([paths.minute(paths.DELAYED, NOW)])
            await node.session.ensure([paths.block(node.session.term * 10**12)])
            for path in (paths.minute(paths.DELAYED, NOW), paths.block(node.session.term * 10**12)):
                await other.tree.commit([Delete(path)])
            jobs = [node.job(state=State.SCHEDULED, due_us=NOW) for _ in range(3)]
            assert await node.submit(*jobs) == {}
            assert [await node.state(job.id) for job in jobs] == [State.SCHEDULED] * 3

    run(check())


def test_a_node_whose_term_has_ended_stores_nothing() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            await node.submitted()
            await other.tree.commit([Delete(paths.worker(node.session.who))])
            job = node.job()
            with pytest.raises(StoreFencedError):
                await node.submit(job)
            assert await other.find(job.id) is None
            empty, full = await node.handle(ops.Submit([]), ops.Submit([job]))
            assert empty == {}
            assert isinstance(full, StoreFencedError)

    run(check())


def test_a_term_that_ends_in_the_middle_still_answers_for_stored_jobs() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            await other.submitted(unique=b"u")
            good, bad = node.job(), node.job(unique=b"u")
            node.tree.after = lambda changes, _: node.tree.expire() if len(changes) > 3 else None
            outcomes = await node.handle(ops.Submit([good]), ops.Submit([bad]))
            assert outcomes[0] == {} or isinstance(outcomes[0], StoreFencedError)
            assert isinstance(outcomes[1], StoreFencedError)
            assert (await other.state(good.id) is State.PENDING) == (outcomes[0] == {})

    run(check())


def test_a_foreign_hand_in_the_tree_fails_the_operation_alone() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = node.job(unique=b"u")
            await node.tree.commit([Create(paths.pending("f:u"))])
            outcomes = await node.handle(ops.Submit([job]), ops.Submit([node.job()]))
            assert isinstance(outcomes[0], StoreCorruptError)
            assert outcomes[1] == {}

    run(check())


def test_an_operation_whose_jobs_cannot_be_looked_up_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(*_: object) -> dict[str, object]:
        raise StoreCorruptError("nowhere")

    monkeypatch.setattr(queries, "locate", nowhere)

    async def check() -> None:
        async with one_node() as node:
            await node.submitted(unique=b"u")
            good, bad = node.job(), node.job(unique=b"u")
            outcomes = await node.handle(ops.Submit([good]), ops.Submit([bad]))
            assert outcomes[0] == {}
            assert isinstance(outcomes[1], StoreCorruptError)
            assert [one.job.id for one in node.waiting][1:] == [good.id], (
                "the stored jobs get their answer all the same"
            )

    run(check())
