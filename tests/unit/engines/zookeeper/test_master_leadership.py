"""The election of the master, and that no other node writes as one."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.master.leadership import DeposedError
from mainspring.engines.zookeeper.tree import Create, Delete, Write

from .a_master import Fleet, eventually, fleet, run


def who_reigns(nodes: Fleet) -> str | None:
    found = nodes.content.read(paths.MASTER)
    return None if found is None else str(records.decode(found.data)["worker"])


def test_one_is_elected_and_the_next_follows_at_once() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            members = [await nodes.join(name) for name in ("n1", "n2", "n3")]
            for version in (1, 2, 3):
                await eventually(lambda: any(member.reigns for member in nodes.members))
                (master,) = [member for member in members if member.reigns]
                assert who_reigns(nodes) == master.session.who
                assert master.master.leadership is not None
                assert master.master.leadership.version == version
                began = asyncio.get_running_loop().time()
                await master.kill()
                members.remove(master)
                if members:
                    await eventually(lambda: any(member.reigns for member in nodes.members))
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


def test_it_steps_down_when_its_node_is_gone_and_stands_again() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            assert first.session.master is not None
            await first.tree.commit([Delete(paths.MASTER)])
            await eventually(
                lambda: first.reigns and first.master.leadership is not None and first.master.leadership.version == 2
            )
            job = await first.submitted()
            assert [one.id for one in await first.claim()] == [job.id]

    run(check())


def test_the_term_ends_also_where_a_reign_ends_at_the_same_moment() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            (leadership,) = [task for task in asyncio.all_tasks() if task.get_name() == "zookeeper reign"]
            await first.tree.commit([Delete(paths.MASTER)])
            await asyncio.wait({leadership})
            # Something else that the master does is being ended.
            assert first.reigns
            first.running.cancel()
            async with asyncio.timeout(5):
                await asyncio.gather(first.running, return_exceptions=True)
            assert first.running.cancelled()

    run(check())


def test_its_wants_are_the_next_masters_to_fulfil() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            assert await first.claim() == []
            second = await nodes.join("n2")
            await first.tree.commit([Delete(paths.MASTER), Create(paths.MASTER, b'{"worker": "nobody"}')])
            await eventually(lambda: not first.reigns)
            assert first.session.master is None
            await second.tree.commit([Delete(paths.MASTER)])
            await eventually(lambda: first.reigns or second.reigns)
            job = await second.submitted()
            await eventually(lambda: first.master.claims.waiting == 1)
            assert [one.id for one in await first.claim()] == [job.id]

    run(check())


def test_with_its_session_its_term_is_over() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            second = await nodes.join("n2")
            nodes.content.expire(first.tree.session)
            await asyncio.wait_for(first.running, 5)
            assert not first.reigns
            assert first.session.master is None
            await eventually(lambda: second.reigns)

    run(check())


def test_the_last_term_of_this_node_is_not_waited_for() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.join("n1", stands=False)
            # Its term was ended, and its session goes on.
            last = records.encode({"worker": "n1-0"})
            await first.tree.commit([Create(paths.MASTER, last, ephemeral=True)])
            first.running = asyncio.create_task(first.master.run())
            await eventually(lambda: first.reigns)
            assert who_reigns(nodes) == "n1-1"

    run(check())


def test_it_waits_while_the_ensemble_is_away() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master()
            first.tree.cut()
            await asyncio.sleep(0.3)
            assert first.reigns
            first.tree.heal()
            job = await first.submitted()
            assert [one.id for one in await first.claim()] == [job.id]
            assert first.reigns

    run(check())
