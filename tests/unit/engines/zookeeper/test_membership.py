"""The end of a term that another node has decided on."""

from __future__ import annotations

from mainspring.engines.zookeeper import cluster, paths, records, recovering
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.master_index import Workers
from mainspring.engines.zookeeper.sessions import await_election
from mainspring.engines.zookeeper.tree import Create, Done, Write
from mainspring.nodes.model import NodeRow

from .a_session import Fleet, fleet, run


def test_the_end_of_the_masters_term_ends_its_leadership() -> None:
    # Its session may go on: a node that receives nothing may still be sending heartbeats.
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await await_election(one.session, lambda *_: None)
            assert await cluster.end(two.tree, one.session.term, None)
            assert nodes.content.read(paths.MASTER) is None
            leadership = await await_election(two.session, lambda *_: None)
            assert leadership.version == 2

    run(check())


def test_the_end_of_another_term_does_not_affect_the_master() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await await_election(one.session, lambda *_: None)
            assert await cluster.end(one.tree, two.session.term, None)
            assert nodes.content.read(paths.MASTER) is not None

    run(check())


def test_a_node_with_a_newer_heartbeat_is_not_ended() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await await_election(one.session, lambda *_: None)
            row = NodeRow(term=one.session.term, name="n1", counter=7)
            await one.session.committer.commit([Entry([Write(paths.worker(one.session.who), records.encode(row))])])
            assert not await cluster.end(two.tree, one.session.term, 6)
            assert nodes.content.read(paths.MASTER) is not None
            assert await cluster.end(two.tree, one.session.term, 7)

    run(check())


FOREIGN_NAMES = ("strange", "pending_tasks", "-", "-7", "w-x", "odd-³")


async def add_foreign_nodes(nodes: Fleet) -> None:
    """Create nodes among those of workers that Mainspring has not written."""
    for number, root in enumerate((paths.WORKERS, paths.QUEUES, paths.WANTS, paths.MAIL)):
        for name in FOREIGN_NAMES:
            assert isinstance(nodes.content.apply([Create(f"{root}/{name}{'x' * number}", b"?")]), Done)
    assert isinstance(nodes.content.apply([Create(paths.worker("none-99"), b"?")]), Done)


def test_foreign_nodes_among_the_workers_are_ignored() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await add_foreign_nodes(nodes)
            row = NodeRow(term=one.session.term, name="n1", counter=1)
            terms = {one.session.term, two.session.term}
            assert {found.term for found in await cluster.beat(one.tree, one.session.who, row)} == terms
            assert set(await recovering.living(one.tree)) == terms | {99}
            assert await recovering.abandoned(one.tree) == []
            assert await cluster.ask_to_drain(one.tree, two.session.term, draining=True)
            assert {found.name for found in await cluster.rows(one.tree) if found.draining} == {"n2"}
            assert not await cluster.end(one.tree, 99, 0)
            assert await cluster.end(one.tree, two.session.term, None)
            assert [found.name for found in await cluster.rows(one.tree)] == ["n1"]

    run(check())


def test_the_master_ignores_foreign_nodes_among_the_workers() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one = await nodes.join("n1")
            await add_foreign_nodes(nodes)
            await await_election(one.session, lambda *_: None)
            workers = Workers(one.session, lambda: None)
            await workers.refresh()
            assert workers.living.keys() == {one.session.who, "none-99"}

    run(check())
