"""The end of a term that another node has decided on."""

from __future__ import annotations

from mainspring.engines.zookeeper import membership, paths, records, recovering
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.master.leadership import stand
from mainspring.engines.zookeeper.master.workers import Workers
from mainspring.engines.zookeeper.tree import Create, Done, Write
from mainspring.nodes.model import NodeRow

from .a_session import Fleet, fleet, run


def test_the_end_of_the_masters_term_is_the_end_of_its_reign() -> None:
    # Its session may continue: a node that receives nothing may still send.
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await stand(one.session, lambda *_: None)
            assert await membership.end(two.tree, one.session.term, None)
            assert nodes.content.read(paths.MASTER) is None
            leadership = await stand(two.session, lambda *_: None)
            assert leadership.version == 2

    run(check())


def test_the_end_of_anothers_term_leaves_the_master_alone() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await stand(one.session, lambda *_: None)
            assert await membership.end(one.tree, two.session.term, None)
            assert nodes.content.read(paths.MASTER) is not None

    run(check())


def test_a_node_that_has_beaten_since_is_not_ended() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await stand(one.session, lambda *_: None)
            row = NodeRow(term=one.session.term, name="n1", counter=7)
            await one.session.committer.commit([Entry([Write(paths.worker(one.session.who), records.encode(row))])])
            assert not await membership.end(two.tree, one.session.term, 6)
            assert nodes.content.read(paths.MASTER) is not None
            assert await membership.end(two.tree, one.session.term, 7)

    run(check())


STRANGERS = ("strange", "pending_tasks", "-", "-7", "w-x", "odd-³")


async def intrude(nodes: Fleet) -> None:
    """Put among the nodes of workers what none of ours has written."""
    for number, root in enumerate((paths.WORKERS, paths.QUEUES, paths.WANTS, paths.MAIL)):
        for name in STRANGERS:
            assert isinstance(nodes.content.apply([Create(f"{root}/{name}{'x' * number}", b"?")]), Done)
    assert isinstance(nodes.content.apply([Create(paths.worker("none-99"), b"?")]), Done)


def test_what_somebody_else_has_put_among_the_workers_stops_nobody() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await intrude(nodes)
            row = NodeRow(term=one.session.term, name="n1", counter=1)
            terms = {one.session.term, two.session.term}
            assert {found.term for found in await membership.beat(one.tree, one.session.who, row)} == terms
            assert set(await recovering.living(one.tree)) == terms | {99}
            assert await recovering.abandoned(one.tree) == []
            assert await membership.ask_to_drain(one.tree, two.session.term, draining=True)
            assert {found.name for found in await membership.rows(one.tree) if found.draining} == {"n2"}
            assert not await membership.end(one.tree, 99, 0)
            assert await membership.end(one.tree, two.session.term, None)
            assert [found.name for found in await membership.rows(one.tree)] == ["n1"]

    run(check())


def test_the_master_leaves_it_alone() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one = await nodes.join("n1")
            await intrude(nodes)
            await stand(one.session, lambda *_: None)
            workers = Workers(one.session, lambda: None)
            await workers.look()
            assert workers.known.keys() == {one.session.who, "none-99"}

    run(check())
