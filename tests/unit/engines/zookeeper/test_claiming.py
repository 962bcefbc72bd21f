"""The requests of a node and their answers: with a master elsewhere, here, and nowhere."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.zookeeper import claiming, committer, paths, records
from mainspring.engines.zookeeper.records import (
    Notice,
    decode_notice,
    decode_wants,
    encode_notice,
    encode_wants,
    ranges,
)
from mainspring.engines.zookeeper.tree import Create, Write
from mainspring.errors import StoreFencedError
from mainspring.ids import SLOTS, slot_of
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.store import ClaimRequest

from .a_master import Fleet, Member, eventually, fleet, run

# ---- the records ----


@given(st.sets(st.integers(0, SLOTS - 1)))
def test_ranges_are_the_numbers(numbers: set[int]) -> None:
    pairs = ranges(numbers)
    assert {number for first, last in pairs for number in range(first, last + 1)} == numbers
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(pairs))


@given(
    st.integers(0, 9),
    st.dictionaries(
        st.binary(max_size=9),
        st.lists(
            st.tuples(st.integers(0, 99), st.none() | st.frozensets(st.integers(0, SLOTS - 1)), st.integers(0, 2**50)),
            min_size=1,
            max_size=2,
        ),
    ),
)
def test_wants_are_read_as_they_were_written(asked: int, requests: dict[bytes, Any]) -> None:
    wants = {function: [ClaimRequest(function, *one) for one in some] for function, some in requests.items()}
    assert decode_wants(encode_wants(asked, wants)) == (asked, wants)


def test_an_empty_record_wants_nothing() -> None:
    assert decode_wants(b"") == (0, {})


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        (Notice(3, 0, 5, ["e"]), Notice(3, 1, 7, ["e", "f", "g"]), ["f", "g"]),
        (Notice(3, 0, 7, ["g"]), Notice(3, 1, 7, ["e", "f", "g"]), []),
        (Notice(3, 0, 3, []), Notice(3, 1, 7, ["e", "f", "g"]), None),
        (Notice(2, 0, 7, []), Notice(3, 1, 7, ["e", "f", "g"]), None),
        (Notice(), Notice(1, 0, 0, []), None),
    ],
)
def test_a_notice_tells_what_is_new_or_that_the_queue_has_to_be_listed(
    before: Notice, after: Notice, new: list[str] | None
) -> None:
    assert decode_notice(encode_notice(after)).since(before) == new


# ---- with a master elsewhere ----


async def elsewhere(nodes: Fleet) -> Member:
    """Add a node beside a master."""
    await nodes.master("m")
    return await nodes.join("n")


def test_a_claim_that_finds_nothing_is_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "PATIENCE", 10.0)

    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            began = asyncio.get_running_loop().time()
            assert await node.claim_all(ClaimRequest(b"f", 1), ClaimRequest(b"g", 1)) == [[], []]
            assert asyncio.get_running_loop().time() - began < claiming.PATIENCE / 2

    run(check())


def test_of_two_wants_each_has_its_jobs() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            jobs = {function: await node.submitted(function=function) for function in (b"f", b"g", b"h")}
            first, second = await node.claim_all(ClaimRequest(b"f", 1), ClaimRequest(b"g", 1))
            found = [job.id for job in first + second]
            while len(found) < 2:  # both came, one after the other
                found += [
                    job.id
                    for some in await node.claim_all(ClaimRequest(b"f", 1), ClaimRequest(b"g", 1))
                    for job in some
                ]
            assert set(found) == {jobs[b"f"].id, jobs[b"g"].id}
            assert await node.state(jobs[b"h"].id) is State.PENDING

    run(check())


def test_slots_and_overdue_tasks() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            jobs = [node.job(created_us=1000 if number < 5 else 2000) for number in range(40)]
            await node.submit(*jobs)
            half = frozenset(range(SLOTS // 2))
            mine = {job.id for job in jobs if slot_of("default", b"f", b"", job.id) in half}
            claimed: set[int] = set()
            await eventually(lambda: _more(node, claimed, ClaimRequest(b"f", 40, half)))
            assert claimed == mine
            await eventually(lambda: _more(node, claimed, ClaimRequest(b"f", 40, frozenset(), 2000)))
            assert claimed == mine | {job.id for job in jobs[:5]}

    async def _more(node: Member, claimed: set[int], want: ClaimRequest) -> bool:
        (some,) = await node.claim_all(want)
        claimed.update(job.id for job in some)
        return not some

    run(check())


def test_what_this_node_leases_as_it_submits_it_does_not_arrive() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            held = [await node.held() for _ in range(3)]
            job = await node.submitted()
            assert [one.id for one in await node.claim()] == [job.id]
            assert await node.claim() == []
            assert node.master.claims.waiting == 0
            assert len(nodes.queue(node)) == len(held) + 1

    run(check())


def test_what_nobody_here_claims_is_given_back() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            assert await node.claim() == []
            job = await node.submitted()
            await eventually(lambda: node.master.claims.waiting == 1)
            assert node.arrived == [b"f"]
            other = await nodes.join("other")
            await eventually(lambda: nodes.tasks(paths.PENDING) == [f"f:~{job.id}"])
            assert nodes.queue(node) == []
            assert [one.id for one in await other.claim()] == [job.id]
            assert await other.counts() == {(b"f", State.LEASED, 1): 1}

    run(check())


def test_a_claim_of_the_master_itself_brings_what_has_arrived_and_what_else_there_is() -> None:
    """Fewer jobs than requested would mean that none is left, and the node would not ask again for a while."""

    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            assert await node.claim(limit=3) == []
            jobs = [await node.submitted() for _ in range(8)]
            await eventually(lambda: node.master.claims.waiting == 3)
            assert [job.id for job in await node.claim(limit=5)] == [job.id for job in jobs[:5]]
            assert [job.id for job in await node.claim(limit=5)] == [job.id for job in jobs[5:]]

    run(check())


async def drop_what_has_arrived(node: Member) -> int:
    """Leave a foreground job that has arrived and was not claimed, as its only client does; returns its id."""
    assert await node.claim() == []
    dropped = await node.submitted(unique=b"u", foreground=True, waiter=node.session.term)
    await eventually(lambda: node.master.claims.waiting == 1)
    assert await node.one(ops.Unsubscribe(node.session.term, [dropped.id])) == {dropped.id}
    return dropped.id


def test_what_was_dropped_before_anybody_here_claimed_it_is_not_claimed() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            await drop_what_has_arrived(node)
            assert await node.claim() == []

    run(check())


def test_what_was_dropped_is_not_given_back_in_place_of_another_job_of_its_name() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            await drop_what_has_arrived(node)
            (arrived,) = [one for some in node.master.claims._arrived.values() for one in some]  # noqa: SLF001 - what was dropped is to be named
            other = await node.submitted(unique=b"u")
            await node.assign_to(other, node)
            await node.master.claims._give_back(arrived.at)  # noqa: SLF001 - the moment at which it happens
            assert await node.state(other.id) is State.LEASED
            assert nodes.tasks(paths.PENDING) == []

    run(check())


# ---- the queue is read while something happens to it ----


def test_what_has_arrived_does_not_arrive_again() -> None:
    # A node reads its queue while it becomes the master, and assigns to itself what it is about to read.
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            job = await node.submitted()
            (claimed,) = await node.claim()
            assert claimed.id == job.id
            node.master.claims.arrive([(paths.task_name(b"f", b"", job.id), job, (1, 1))])
            assert node.master.claims.waiting == 0

    run(check())


def test_what_ends_while_the_queue_is_read_does_not_arrive_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            jobs = [await node.submitted() for _ in range(3)]
            claimed = await node.claim()
            assert len(claimed) == len(jobs)
            get_many, is_read = node.tree.get_many, asyncio.Event()

            async def late(places: Any) -> Any:
                found = await get_many(places)
                if places[0].startswith(paths.RUNNING) and not is_read.is_set():
                    is_read.set()
                    assert await node.succeed(*claimed) == set()
                return found

            monkeypatch.setattr(node.tree, "get_many", late)
            # Another master appears, and the whole queue is listed.
            other = Notice(99, 0, 0, [])
            await node.tree.commit([Write(paths.queue(node.session.who), encode_notice(other))])
            await asyncio.wait_for(is_read.wait(), 5)
            await eventually(lambda: node.master.claims._notice == other)  # noqa: SLF001 - when the notice was read shows nowhere else
            assert node.master.claims.waiting == 0

    run(check())


def test_what_is_given_back_and_assigned_again_while_the_queue_is_read_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    # A master of an older version does not number its assignments.
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            job = await node.submitted()
            (claimed,) = await node.claim()
            get_many, is_read = node.tree.get_many, asyncio.Event()

            async def late(places: Any) -> Any:
                if places[0].startswith(paths.RUNNING) and not is_read.is_set():
                    is_read.set()
                    # As if it had been given back before this was read, and assigned to this node once more.
                    del node.session.assignments[claimed.id]
                return await get_many(places)

            monkeypatch.setattr(node.tree, "get_many", late)
            running = paths.running(paths.task_name(b"f", b"", job.id))
            node_there = await node.tree.get(running)
            assert node_there is not None
            record = records.decode(node_there.data)
            del record["assignment"]
            other = Notice(99, 0, 0, [])
            await node.tree.commit(
                [
                    Write(running, records.encode(record)),
                    Write(paths.queue(node.session.who), encode_notice(other)),
                ]
            )
            await asyncio.wait_for(is_read.wait(), 5)
            await eventually(lambda: node.master.claims.waiting == 1)
            assert [one.id for one in await node.claim()] == [job.id]

    run(check())


@pytest.mark.parametrize("leased", ["by the master", "as it was submitted"])
def test_what_is_assigned_again_before_it_is_known_to_be_given_back_arrives(
    monkeypatch: pytest.MonkeyPatch, leased: str
) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            if leased == "by the master":
                job = await node.submitted()
                await node.claim()
            else:
                job = node.job(state=State.LEASED)
                await node.submit(job)
            get_many, is_read = node.tree.get_many, asyncio.Event()

            async def early(places: Any) -> Any:
                found = await get_many(places)
                if places[0].startswith(paths.RUNNING) and not is_read.is_set():
                    is_read.set()
                    # Only now its holder learns that it was given back.
                    asyncio.get_running_loop().call_soon(node.session.assignments.pop, job.id)
                return found

            monkeypatch.setattr(node.tree, "get_many", early)
            task, queue = paths.task_name(b"f", b"", job.id), paths.queue(node.session.who)
            running, written = await node.tree.get(paths.running(task)), await node.tree.get(queue)
            assert running is not None
            assert written is not None
            record = records.decode(running.data)
            record.update(master=record.get("master", 1), assignment=record.get("assignment", 0) + 1)
            notice = decode_notice(written.data) if written.data else Notice(1)
            notice = notice._replace(number=notice.number + 1, tasks=[*notice.tasks, task])
            await node.tree.commit(
                [Write(paths.running(task), records.encode(record)), Write(queue, encode_notice(notice))]
            )
            await asyncio.wait_for(is_read.wait(), 5)
            await eventually(lambda: node.master.claims.waiting == 1)
            assert [one.id for one in await node.claim()] == [job.id]

    run(check())


def test_what_the_last_master_assigned_arrives_where_this_node_is_the_next() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            job = await node.submitted()
            claimed = await node.assign_to(job, node)
            node.session.assignments.clear()
            task = paths.task_name(b"f", b"", job.id)
            running = await node.tree.get(paths.running(task))
            assert running is not None
            record = {**records.decode(running.data), "master": 0}
            notice = Notice(0, 0, 1, [task])
            # Both as the last one would have written them; the watch tells of it only now.
            await node.tree.commit(
                [
                    Write(paths.running(task), records.encode(record)),
                    Write(paths.queue(node.session.who), encode_notice(notice)),
                ]
            )
            await eventually(lambda: node.master.claims.waiting == 1)
            assert [one.id for one in await node.claim()] == [claimed.id]

    run(check())


# ---- masters that come and go ----


def test_without_a_master_a_claim_is_answered_after_a_while() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            holder = await nodes.join("holder", stands=False)
            await holder.tree.commit([Create(paths.MASTER, records.encode({"worker": "holder-1"}), ephemeral=True)])
            node = await nodes.join("n")
            began = asyncio.get_running_loop().time()
            assert await node.claim() == []
            assert claiming.PATIENCE * 0.9 < asyncio.get_running_loop().time() - began < claiming.PATIENCE * 6

    run(check())


@pytest.mark.parametrize("itself", [True, False], ids=["itself", "another"])
def test_the_next_master_finds_assignments_without_a_notice(monkeypatch: pytest.MonkeyPatch, *, itself: bool) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master("m")
            node = await nodes.join("n", stands=itself)
            if not itself:
                node.running = asyncio.create_task(node.master.claims.run())
                await nodes.join("other")
            assert await node.claim(limit=30) == []
            path = paths.queue(node.session.who)
            unnotified = False
            died = asyncio.Event()

            def silenced(changes: Any) -> None:
                # Some of many tasks are assigned in an earlier batch than the one with the notice.
                nonlocal unnotified
                notified = any(isinstance(one, Write) and one.path == path for one in changes)
                if unnotified and notified:
                    master.tree.kill()
                    nodes.content.expire(master.tree.session)
                    died.set()
                unnotified = not notified and any(one.path.startswith(f"{path}/") for one in changes)

            master.tree.before = silenced
            monkeypatch.setattr(committer, "MOST_CHANGES", 3)
            jobs = [node.job() for _ in range(30)]
            await node.submit(*jobs)
            await asyncio.wait_for(died.wait(), 5)
            master.running.cancel()
            nodes.members.remove(master)
            await eventually(lambda: node.master.claims.waiting == 30)
            assert {job.id for job in await node.claim(limit=30)} == {job.id for job in jobs}
            assert node.reigns == itself

    run(check())


def test_a_claim_under_a_term_that_has_ended_fails() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            nodes.content.expire(node.tree.session)
            with pytest.raises(StoreFencedError):
                await node.claim()
            await node.running
            with pytest.raises(StoreFencedError):
                await node.claim()

    run(check())


def test_what_arrives_is_in_its_order() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            jobs = [node.job(unique=b"%d" % number) for number in range(20)]
            await node.submit(*jobs)
            claimed = await node.claim(limit=20)
            assert [job.id for job in claimed] == [job.id for job in jobs]

    run(check())


def test_many_tasks_for_one_claim() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await elsewhere(nodes)
            jobs = [node.job() for _ in range(1200)]
            await node.submit(*jobs)
            claimed: list[int] = []

            async def all_of_them() -> bool:
                claimed.extend(job.id for job in await node.claim(limit=300))
                return len(claimed) >= len(jobs)

            await eventually(all_of_them)
            assert sorted(claimed) == [job.id for job in jobs]

    run(check())
