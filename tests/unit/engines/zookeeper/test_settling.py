"""The ends of leases on ZooKeeper."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.engines.zookeeper import paths, records, settling
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreFencedError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Options, State
from mainspring.jobs.rules import Event, Settlement, succeeded

from .a_session import NOW, Node, fleet, one_node, run

ENDS = [event for event in Event if State.LEASED in rules.sources(event) and event is not Event.ASSIGN]


def done(job: Job, result: bytes = b"r") -> Settlement:
    return succeeded(job, result, NOW - 1, NOW)


def as_of(job: Job, term: int) -> Job:
    return msgspec.structs.replace(job, term=term)


@pytest.mark.parametrize("running", [False, True], ids=["leased", "running"])
@pytest.mark.parametrize("event", ENDS)
@pytest.mark.parametrize("unique", [b"", b"u"])
def test_every_end_leads_where_the_table_says(event: Event, running: bool, unique: bytes) -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(unique=unique, expires_us=NOW + 9)
            if running:
                await node.one(ops.Assign([job]))
            job.suspects = 1
            settlement = Settlement(job, event, 3, due_us=NOW + 5, started_us=NOW - 5, ended_us=NOW, error=b"{}")
            assert await node.settle(settlement) == set()
            target = rules.target(event)
            for _ in range(2):
                found = await node.present(job.id)
                assert found.state == target
                assert (found.attempt, found.suspects, found.started_us) == (3, 1, NOW - 5)
                assert (found.due_us, found.ended_us, found.error) == (NOW + 5, NOW, b"{}")
                assert found.term == (job.term if target.ended else 0)
                assert await node.counts() == {(b"f", target, 1): 1}
                assert bool(node.hinted) == (target is State.PENDING)
                assert [one.job.id for one in node.completed] == ([job.id] if target.ended else [])
                assert await node.publish() == ([job.id] if target.ended else [])
                node.completed.clear()
                if target.ended:
                    break
            left = [path for path in node.tree.content.paths() if path.startswith(paths.EXPIRING + "/0")]
            assert bool([path for path in left if "." in path]) == (not target.ended), "what expires is marked"
            assert node.session.assignments == {}
            assert [one.job.id for one in node.waiting] == ([job.id] if target is State.PENDING else [])

    run(check())


def test_a_success_is_one_multi_and_reads_nothing() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [node.job(state=State.LEASED, unique=b"%d" % number) for number in range(100)]
            await node.submit(*jobs)
            batches, reads = node.session.committer.batches, node.tree.reads
            assert await node.settle(*[done(job) for job in jobs]) == set()
            assert (node.session.committer.batches, node.tree.reads) == (batches + 1, reads)
            assert [one.data for one in node.completed] == [
                found.data for one in node.completed if (found := await node.tree.get(paths.completed(one.task)))
            ]

    run(check())


def test_a_success_keeps_the_result_and_drops_payload_and_error() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(payload=b"12345")
            job.error = b"{}"
            await node.settle(done(job, b"\0result\xff"))
            found = await node.present(job.id)
            assert (found.result, found.error, found.payload) == (b"\0result\xff", b"", b"")
            assert "payload" not in records.decode(node.completed[0].data)
            assert (found.input_size, found.output_size) == (5, 8)
            assert job.payload == b"12345", "the caller's own job is as it was"

    run(check())


@pytest.mark.parametrize("event", [Event.FAIL, Event.RELEASE, Event.RETRY])
@pytest.mark.parametrize("bare", [False, True])
def test_a_job_that_may_run_again_keeps_its_payload(event: Event, bare: bool) -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(payload=b"\0again")
            if bare:
                job.payload = b""
            await node.settle(Settlement(job, event, 1, due_us=NOW, error=b"{}"))
            place = {
                Event.FAIL: paths.completed(f"f:~{job.id}"),
                Event.RELEASE: paths.pending(f"f:~{job.id}"),
                Event.RETRY: paths.delayed(f"f:~{job.id}", NOW, job.id),
            }[event]
            found = await node.tree.get(place)
            assert found is not None
            assert records.decode_job(records.decode(found.data)).payload == b"\0again"

    run(check())


def test_an_ended_job_is_not_settled_again() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held()
            assert await node.settle(done(job, b"first")) == set()
            assert await node.settle(done(job, b"second")) == {job.id}
            await node.publish()
            assert await node.settle(done(job, b"third")) == {job.id}
            assert (await node.present(job.id)).result == b"first"

    run(check())


def test_a_late_settlement_does_not_end_the_next_job_of_the_same_name() -> None:
    async def check() -> None:
        async with one_node() as node:
            first = await node.held(unique=b"u")
            await node.settle(done(first))
            await node.publish()
            second = await node.held(unique=b"u")
            assert await node.settle(done(first, b"wrong")) == {first.id}
            assert await node.state(second.id) is State.LEASED
            assert await node.settle(done(second, b"right")) == set()

    run(check())


def test_twice_in_one_group_counts_once() -> None:
    async def check() -> None:
        async with one_node() as node:
            job, other = await node.held(), await node.held()
            outcomes = await node.handle(
                ops.Settle([done(job, b"first"), done(other), done(job, b"second")]),
                ops.Settle([done(job, b"third")]),
            )
            assert outcomes == [{job.id}, {job.id}]
            assert (await node.present(job.id)).result == b"first"
            assert await node.state(other.id) is State.SUCCEEDED

    run(check())


def test_the_term_guards_a_settlement_from_any_node() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.held()
            for term in (other.session.term, 99, 0, -1):
                assert await other.settle(done(as_of(job, term))) == {job.id}
                assert await node.settle(done(as_of(job, term))) == {job.id}
            assert await node.state(job.id) is State.LEASED
            assert await other.settle(done(job)) == set()
            assert await node.settle(done(job)) == {job.id}
            assert await node.state(job.id) is State.SUCCEEDED

    run(check())


def test_stale_settlements_cost_the_others_nothing() -> None:
    async def check() -> None:
        async with one_node() as node:
            jobs = [node.job(state=State.LEASED) for _ in range(40)]
            await node.submit(*jobs)
            for job in jobs[::3]:  # somebody has taken them away
                await node.tree.commit([Delete(paths.assignment(node.session.who, f"f:~{job.id}"))])
            assert await node.settle(*[done(job) for job in jobs]) == {job.id for job in jobs[::3]}
            for number, job in enumerate(jobs):
                found = await node.tree.get(paths.completed(f"f:~{job.id}"))
                assert (found is None) == (number % 3 == 0)

    run(check())


def test_an_assignment_of_another_version_is_looked_at() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held()
            node.session.assignments[job.id] = 7
            assert await node.settle(done(job)) == set()
            marked = await node.held(expires_us=NOW)
            await node.tree.commit([Delete(paths.expiring(f"f:~{marked.id}", NOW, marked.id))])
            assert await node.settle(done(marked)) == set(), "and one whose mark is gone is settled all the same"

    run(check())


def test_putting_off_keeps_what_others_have_written_into_the_name() -> None:
    async def check() -> None:
        async with one_node() as node:
            keep = Options(keep_unique=10.0)
            kept = await node.held(unique=b"u", options=keep)
            await node.settle(done(kept))
            await node.publish()
            job = await node.held(unique=b"u")
            await node.settle(Settlement(job, Event.RETRY, 1, due_us=NOW))
            name = await node.tree.get(paths.name("f:u"))
            assert name is not None
            data = records.decode(name.data)
            assert (data["id"], data["due_us"], data["kept"]["id"]) == (job.id, NOW, kept.id)

    run(check())


def test_a_node_whose_term_has_ended_settles_nothing() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.held()
            await other.tree.commit([Delete(paths.worker(node.session.who))])
            with pytest.raises(StoreFencedError):
                await node.settle(done(job))
            assert await other.state(job.id) is State.LEASED
            with pytest.raises(StoreFencedError):
                await node.one(ops.Assign([job]))
            assert node.completed == []

    run(check())


# ---- Assign ----


async def seen(node: Node, job: Job) -> tuple[State, int]:
    found = await node.present(job.id)
    return State(found.state), found.attempt


def test_an_assigned_job_is_running() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.held()
            job.attempt = 2
            await node.handle(*[ops.Assign([job, job]) for _ in range(2)])
            assert await seen(other, job) == (State.RUNNING, 2)
            await node.one(ops.Assign([job]))
            await other.one(ops.Assign([job]))
            await node.one(ops.Assign([job]))
            assert await seen(other, job) == (State.RUNNING, 2)
            assert await node.settle(done(job)) == set()
            job = await node.held()
            await node.one(ops.Assign([job]))
            reads = node.tree.reads
            assert await node.settle(done(job)) == set()
            assert node.tree.reads == reads, "what it has recorded itself it knows"

    run(check())


def test_assign_leaves_alone_what_is_not_held_under_its_term() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(unique=b"u")
            for term in (job.term + 1, 0, -1):
                await node.one(ops.Assign([as_of(job, term)]))
            assert await node.state(job.id) is State.LEASED
            await node.settle(done(job))
            await node.one(ops.Assign([job]))
            assert await node.state(job.id) is State.SUCCEEDED
            await node.publish()
            second = await node.held(unique=b"u")
            await node.one(ops.Assign([job, node.job()]))
            assert await node.state(second.id) is State.LEASED

    run(check())


# ---- plans ----


def test_the_plan_of_a_success() -> None:
    job = Job(3 * 10**12 + 1, b"f", b"p", unique=b"u", state=2, term=3, expires_us=NOW)
    held = settling.Held(done(job), "H:n1:3000000000001", "f:u", "/queues/n1-3/f:u", 4)
    after = settling.settled(held.settlement)
    entry = settling.settlement_entry(held, after, "n1-3")
    assert [type(change).__name__ + " " + change.path for change in entry.changes] == [
        "Delete /queues/n1-3/f:u",
        f"Delete {paths.running('f:u')}",
        f"Create {paths.completed('f:u')}",
        f"Delete {paths.expiring('f:u', NOW, job.id)}",
    ]
    assert entry.changes[0] == Delete("/queues/n1-3/f:u", 4)
    assert entry.counts == ((b"f", State.LEASED, 1, -1), (b"f", State.SUCCEEDED, 1, 1))
    assert records.decode(held.record)["worker"] == "n1-3"


def test_a_late_record_of_a_run_leaves_a_job_alone_that_is_assigned_again_and_has_not_arrived() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.join()
            job = await node.held()
            assert await node.settle(Settlement(job, Event.RELEASE, 0)) == set()
            await node.assign_to(job, node)
            del node.session.assignments[job.id]  # it is read in a moment
            await node.one(ops.Assign([job]))
            assert await node.state(job.id) is State.LEASED
            assert node.session.assignments == {}

    run(check())
