"""The election of the master; other nodes cannot write as one."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.sessions import DeposedError, await_election
from mainspring.engines.zookeeper.tree import Create, Delete, Write
from mainspring.errors import StoreFencedError

from .a_master import Fleet, eventually, fleet, run


def master_in_tree(nodes: Fleet) -> str | None:
    found = nodes.content.read(paths.MASTER)
    return None if found is None else str(records.decode(found.data)["worker"])


def test_one_node_is_elected_and_the_next_follows_at_once() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            members = [await nodes.join(name) for name in ("n1", "n2", "n3")]
            for version in (1, 2, 3):
                await eventually(lambda: any(member.is_master for member in nodes.members))
                (master,) = [member for member in members if member.is_master]
                assert master_in_tree(nodes) == master.session.who
                assert master.master.leadership is not None
                assert master.master.leadership.version == version
                began = asyncio.get_running_loop().time()
                await master.kill()
                members.remove(master)
                if members:
                    await eventually(lambda: any(member.is_master for member in nodes.members))
                    assert asyncio.get_running_loop().time() - began < 5

    run(check())


def test_a_deposed_master_writes_nothing() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            second = await nodes.join("n2")
            leadership = first.master.leadership
            assert leadership is not None
            # As after a long pause: the next one has been elected, and the first has not noticed it.
            await second.tree.commit([Write(paths.MASTER_TERM, b"")])
            with pytest.raises(DeposedError):
                await leadership.commit([Entry([Create("/draining/as-master")])])
            assert "/draining/as-master" not in nodes.content.paths()
            assert await leadership.session.committer.commit([Entry([Create("/draining/as-worker")])]) == [None]

    run(check())


def test_a_master_whose_node_is_deleted_is_elected_again() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            assert first.session.master is not None
            await first.tree.commit([Delete(paths.MASTER)])
            await eventually(
                lambda: first.is_master and first.master.leadership is not None and first.master.leadership.version == 2
            )
            job = await first.submitted()
            assert [one.id for one in await first.claim()] == [job.id]

    run(check())


def test_the_term_ends_even_if_a_leadership_ends_at_the_same_moment() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            (leadership,) = [task for task in asyncio.all_tasks() if task.get_name() == "zookeeper leadership"]
            await first.tree.commit([Delete(paths.MASTER)])
            await asyncio.wait({leadership})
            # Another loop of the master is being ended.
            assert first.is_master
            first.running.cancel()
            async with asyncio.timeout(5):
                await asyncio.gather(first.running, return_exceptions=True)
            assert first.running.cancelled()

    run(check())


def test_the_next_master_serves_the_open_requests_of_the_last_one() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            assert await first.claim() == []
            second = await nodes.join("n2")
            await first.tree.commit([Delete(paths.MASTER), Create(paths.MASTER, b'{"worker": "nobody"}')])
            await eventually(lambda: not first.is_master)
            assert first.session.master is None
            await second.tree.commit([Delete(paths.MASTER)])
            await eventually(lambda: first.is_master or second.is_master)
            job = await second.submitted()
            await eventually(lambda: first.master.claims.waiting == 1)
            assert [one.id for one in await first.claim()] == [job.id]

    run(check())


def test_the_end_of_the_session_ends_the_term() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            second = await nodes.join("n2")
            nodes.content.expire(first.tree.session)
            await asyncio.wait_for(first.running, 5)
            assert not first.is_master
            assert first.session.master is None
            await eventually(lambda: second.is_master)

    run(check())


def test_a_node_deletes_the_leadership_of_its_own_last_term() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.join("n1", is_candidate=False)
            # Its term was ended, and its session goes on.
            last = records.encode({"worker": "n1-0"})
            await first.tree.commit([Create(paths.MASTER, last, ephemeral=True)])
            first.running = asyncio.create_task(first.master.run())
            await eventually(lambda: first.is_master)
            assert master_in_tree(nodes) == "n1-1"

    run(check())


def test_a_fenced_term_does_not_stand_for_election() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.join("n1", is_candidate=False)
            await first.tree.commit([Create(paths.MASTER, records.encode({"worker": "n1-0"}), ephemeral=True)])
            first.session.committer.fence()
            with pytest.raises(StoreFencedError):
                await await_election(first.session, nodes.send)

    run(check())


def test_the_master_waits_while_the_ensemble_is_away() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            first.tree.cut()
            await asyncio.sleep(0.3)
            assert first.is_master
            first.tree.heal()
            job = await first.submitted()
            assert [one.id for one in await first.claim()] == [job.id]
            assert first.is_master

    run(check())
