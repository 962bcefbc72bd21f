"""The end of a term that another node has decided on."""

from __future__ import annotations

from mainspring.engines.zookeeper import membership, paths, records
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.master.election import stand
from mainspring.engines.zookeeper.tree import Write
from mainspring.nodes.model import NodeRow

from .a_session import fleet, run


def test_the_end_of_the_masters_term_is_the_end_of_its_reign() -> None:
    # Its session may go on: who hears nothing may still be heard.
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            await stand(one.session, lambda *_: None)
            assert await membership.end(two.tree, one.session.term, None)
            assert nodes.content.read(paths.MASTER) is None
            reign = await stand(two.session, lambda *_: None)
            assert reign.version == 2

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
