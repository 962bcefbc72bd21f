"""Outcomes are published once, and waiting nodes are notified."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mainspring.engines.zookeeper import paths, records, recovering
from mainspring.engines.zookeeper.sessions import Completion
from mainspring.engines.zookeeper.tree import Create, Delete, Write
from mainspring.events import Settled
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event, Settlement

from .a_master import NOW, Fleet, Member, eventually, fleet, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.master import Publisher
    from mainspring.engines.zookeeper.tree import Node
    from mainspring.jobs.model import Job


async def wait(node: Member, job: Job) -> None:
    """Subscribe a node's client to a job."""
    operation = ops.Subscribe(node.session.term, [job.id])
    await recovering.HANDLERS[ops.Subscribe](node.session, [operation])


async def end(node: Member, job: Job, error: bytes) -> Completion:
    """Let a job fail for good, and return the completion that this node would report to a local master."""
    assert await node.settle(Settlement(job, Event.FAIL, 1, ended_us=NOW, error=error)) == set()
    record = node.fleet.content.read(paths.completed("f:u"))
    assert record is not None
    return Completion("f:u", records.decode_job(records.decode(record.data)), node.session.handle(job.id), record.data)


def is_published(nodes: Fleet, job: Job, node: Member) -> bool:
    return nodes.state(job, node.session.node) is not None


def is_notified(node: Member, job: Job) -> bool:
    return job.id in settled_ids(node)


def settled_ids(node: Member) -> list[int]:
    return [job_id for message in node.received if isinstance(message, Settled) for job_id in message.ids]


def test_a_publication_writes_the_result_and_deletes_the_task_and_name() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            for node in (master, await nodes.join("n2")):
                job = await node.held(unique=b"u")
                await node.succeed(job, result=b"answer")
                await eventually(partial(is_published, nodes, job, node))
                found = nodes.outcome(job, node.session.node)
                assert (found["state"], found["result"], found["id"]) == ("succeeded", "answer", job.id)
                assert nodes.tasks(paths.COMPLETED) == nodes.tasks(paths.NAMES) == []

    run(check())


def test_all_waiting_nodes_are_notified() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            others = [await nodes.join(name) for name in ("n2", "n3")]
            for holder in (master, others[0]):
                job = await holder.held()
                for node in others:
                    await wait(node, job)
                await holder.succeed(job)
                for node in others:
                    await eventually(partial(is_notified, node, job))
            assert settled_ids(master) == []

    run(check())


def test_a_node_that_subscribes_before_the_publication_is_notified() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master, node = await nodes.master(), await nodes.join("n2")
            job = await master.held()
            handle = master.session.handle(job.id)
            at_last: list[Any] = []

            def subscribe_late(changes: Any) -> None:
                # Between the completion and its publication, a client has started to wait.
                if not at_last and any(one.path.startswith(f"{paths.RESULTS}/") for one in changes):
                    at_last.append(changes)
                    path = f"{paths.block(job.id)}/{handle}"
                    before = nodes.content.read(path)
                    assert before is not None
                    record = {**records.decode(before.data), "waiters": [node.session.term]}
                    nodes.content.apply([Write(path, records.encode(record), before.version)])

            master.tree.before = subscribe_late
            await master.succeed(job)
            await eventually(lambda: settled_ids(node) == [job.id])
            assert at_last
            assert nodes.state(job) is State.SUCCEEDED

    run(check())


def test_a_kept_result_is_kept_with_its_name() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            first = await node.held(unique=b"u", options=Options(keep_unique=60.0))
            await node.succeed(first)
            await eventually(lambda: nodes.state(first) is State.SUCCEEDED)
            next_job = node.job(unique=b"u", options=Options(keep_unique=60.0))
            assert (await node.submit(next_job))[next_job.id].id == first.id
            # A job that does not join it uses the name, and leaves the kept result.
            other = await node.held(unique=b"u")
            await node.succeed(other)
            await eventually(lambda: nodes.state(other) is State.SUCCEEDED)
            next_job = node.job(unique=b"u", options=Options(keep_unique=60.0))
            assert (await node.submit(next_job))[next_job.id].id == first.id

    run(check())


def test_a_stale_completion_does_no_harm_to_the_next_of_its_name() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            first = await node.held(unique=b"u")
            await node.succeed(first)
            await eventually(lambda: nodes.state(first) is State.SUCCEEDED)
            data = nodes.content.read(paths.result(first.id, "n1"))
            assert data is not None
            publisher: Publisher | None = node.master.publisher
            assert publisher is not None
            second = await node.held(unique=b"u")
            assert node.session.master is not None
            node.session.elect(
                node.session.master._replace(completions=lambda _: None)
            )  # the second one is not reported to the master in memory
            await node.succeed(second)
            assert nodes.tasks(paths.COMPLETED) == ["f:u"]
            first.state = int(State.SUCCEEDED)
            publisher.completions([Completion("f:u", first, node.session.handle(first.id), data.data)])
            await eventually(lambda: nodes.tasks(paths.COMPLETED) == [])
            assert nodes.state(second) is State.SUCCEEDED
            assert nodes.content.read(paths.result(first.id, "n1")) == data
            assert publisher.published == 2

    run(check())


def test_an_undone_end_is_not_published_in_place_of_the_next_one() -> None:
    """The master has the first end in memory; in the tree, the second one has the same path and version."""

    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            master, publisher = node.session.master, node.master.publisher
            assert master is not None
            assert publisher is not None
            node.session.elect(master._replace(completions=lambda _: None))  # the test reports it below
            job = await node.held(unique=b"u")
            first = await end(node, job, b"first")
            assert (await node.one(ops.Redrive(job.id))).redriven
            (next_job,) = await node.claim()
            await end(node, next_job, b"second")
            publisher.completions([first])
            await eventually(lambda: nodes.tasks(paths.COMPLETED) == [])
            assert nodes.outcome(job, "n1")["error"] == "second"

    run(check())


def test_an_end_undone_while_it_is_read_is_not_published_in_place_of_the_next_one() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master, node = await nodes.master(), await nodes.join("n2")
            get_many = master.session.get_many

            async def undone(places: Sequence[str]) -> list[Node | None]:
                found = await get_many(places)
                if places[0] == paths.completed("f:u"):
                    master.session.get_many = get_many  # type: ignore[method-assign]
                    assert (await node.one(ops.Redrive(job.id))).redriven
                    (next_job,) = await node.claim()
                    await end(node, next_job, b"second")
                return found

            master.session.get_many = undone  # type: ignore[method-assign, assignment]
            job = await node.held(unique=b"u")
            await end(node, job, b"first")
            await eventually(partial(is_published, nodes, job, node))
            assert nodes.outcome(job, "n2")["error"] == "second"

    run(check())


def test_a_completion_without_a_result_node_is_published() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            job = node.job(unique=b"u")
            job.state = int(State.SUCCEEDED)
            data = records.encode_job(job, node.session.handle(job.id))
            await node.tree.commit([Create(paths.completed("f:u"), data)])
            publisher = node.master.publisher
            assert publisher is not None
            publisher.completions([Completion("f:u", job, node.session.handle(job.id), data)])
            await eventually(lambda: nodes.tasks(paths.COMPLETED) == [])
            assert nodes.state(job) is State.SUCCEEDED

    run(check())


def test_a_completion_whose_block_of_results_was_deleted_is_published() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            job = await node.held(unique=b"u")  # from now on the block is in the node's cache
            await node.tree.commit([Delete(paths.result(job.id, "n1")), Delete(paths.block(job.id))])
            await node.succeed(job)
            await eventually(lambda: nodes.tasks(paths.COMPLETED) == [])
            assert nodes.state(job) is State.SUCCEEDED

    run(check())


def test_many_completions_are_published() -> None:
    async def check(nodes: Fleet) -> None:
        master, node = await nodes.master(), await nodes.join("n2")
        for holder in (master, node):
            jobs = [holder.job(state=State.LEASED) for _ in range(700)]
            await holder.submit(*jobs)
            await holder.succeed(*jobs)
            await eventually(lambda: nodes.tasks(paths.COMPLETED) == nodes.tasks(paths.NAMES) == [])
        assert await node.counts() == {(b"f", State.SUCCEEDED, 1): 1400}

    async def run_on_fleet() -> None:
        async with fleet() as nodes:
            await check(nodes)

    run(run_on_fleet())
