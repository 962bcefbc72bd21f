"""Claims of a node: with a master on another node, on this one, and without a master."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.zookeeper import claiming, committer, engine, paths, records, settling
from mainspring.engines.zookeeper.engine import HANDLERS
from mainspring.engines.zookeeper.records import (
    Notice,
    decode_notice,
    decode_requests,
    encode_notice,
    encode_requests,
    ranges,
)
from mainspring.engines.zookeeper.sessions import LocalMaster
from mainspring.engines.zookeeper.tree import Create, Write
from mainspring.errors import StoreFencedError
from mainspring.ids import SLOTS, slot_of
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event, Settlement
from mainspring.jobs.store import ClaimRequest

from .a_master import Fleet, Member, eventually, fleet, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Operation

# ---- the records ----


@given(st.sets(st.integers(0, SLOTS - 1)))
def test_ranges_are_the_numbers(numbers: set[int]) -> None:
    runs = ranges(numbers)
    assert {number for first, last in runs for number in range(first, last + 1)} == numbers
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(runs))


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
def test_requests_are_decoded_as_they_were_encoded(asked: int, limits: dict[bytes, Any]) -> None:
    requests = {function: [ClaimRequest(function, *one) for one in some] for function, some in limits.items()}
    assert decode_requests(encode_requests(asked, requests)) == (asked, requests)


def test_an_empty_record_has_no_requests() -> None:
    assert decode_requests(b"") == (0, {})


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
def test_a_notice_has_the_new_tasks_or_requires_a_list_of_the_queue(
    before: Notice, after: Notice, new: list[str] | None
) -> None:
    assert decode_notice(encode_notice(after)).since(before) == new


# ---- with a master on another node ----


async def beside_master(nodes: Fleet) -> Member:
    """Add a node beside a master."""
    await nodes.master("m")
    return await nodes.join("n")


def test_a_claim_without_tasks_is_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "CLAIM_TIMEOUT", 10.0)

    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            began = asyncio.get_running_loop().time()
            assert await node.claim_all(ClaimRequest(b"f", 1), ClaimRequest(b"g", 1)) == [[], []]
            assert asyncio.get_running_loop().time() - began < claiming.CLAIM_TIMEOUT / 2

    run(check())


def test_each_of_two_requests_gets_its_jobs() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            jobs = {function: await node.submitted(function=function) for function in (b"f", b"g", b"h")}
            first, second = await node.claim_all(ClaimRequest(b"f", 1), ClaimRequest(b"g", 1))
            found = [job.id for job in first + second]
            while len(found) < 2:  # the two may arrive one after the other
                found += [
                    job.id
                    for some in await node.claim_all(ClaimRequest(b"f", 1), ClaimRequest(b"g", 1))
                    for job in some
                ]
            assert set(found) == {jobs[b"f"].id, jobs[b"g"].id}
            assert await node.state(jobs[b"h"].id) is State.PENDING

    run(check())


def test_a_request_for_slots_also_gets_overdue_jobs() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            jobs = [node.job(created_us=1000 if number < 5 else 2000) for number in range(40)]
            await node.submit(*jobs)
            half = frozenset(range(SLOTS // 2))
            mine = {job.id for job in jobs if slot_of("default", b"f", b"", job.id) in half}
            claimed: set[int] = set()
            await eventually(lambda: _more(node, claimed, ClaimRequest(b"f", 40, half)))
            assert claimed == mine
            await eventually(lambda: _more(node, claimed, ClaimRequest(b"f", 40, frozenset(), 2000)))
            assert claimed == mine | {job.id for job in jobs[:5]}

    async def _more(node: Member, claimed: set[int], request: ClaimRequest) -> bool:
        (some,) = await node.claim_all(request)
        claimed.update(job.id for job in some)
        return not some

    run(check())


def test_a_job_leased_at_its_submission_does_not_arrive() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            held = [await node.held() for _ in range(3)]
            job = await node.submitted()
            assert [one.id for one in await node.claim()] == [job.id]
            assert await node.claim() == []
            assert node.master.claims.waiting == 0
            assert len(nodes.queue(node)) == len(held) + 1

    run(check())


def test_an_unclaimed_job_goes_back_to_pending() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
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


def test_the_return_of_an_unclaimed_job_withdraws_no_request_for_another_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claiming, "CLAIM_TIMEOUT", 10.0)

    async def check() -> None:
        loop = asyncio.get_running_loop()
        read_clock, jumps = loop.time, [0.0]
        monkeypatch.setattr(loop, "time", lambda: read_clock() + sum(jumps))
        async with fleet() as nodes:
            node = await beside_master(nodes)
            claims = node.master.claims
            assert await node.claim_all(ClaimRequest(b"f", 2), ClaimRequest(b"g", 2)) == [[], []]
            old = await node.submitted(function=b"f")
            await eventually(lambda: claims.waiting == 1)
            jumps.append(8.0)
            recent = await node.submitted(function=b"g")
            await eventually(lambda: claims.waiting == 2)
            jumps.append(4.0)
            await eventually(lambda: nodes.tasks(paths.PENDING) == [f"f:~{old.id}"])
            later = await node.submitted(function=b"g")
            await eventually(lambda: claims.waiting == 2)
            assert [job.id for job in await node.claim(b"g")] == [recent.id, later.id]
            assert nodes.tasks(paths.PENDING) == [f"f:~{old.id}"], "the request for its function is withdrawn"

    run(check())


def test_an_unclaimed_job_whose_assignment_has_changed_goes_back_to_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "CLAIM_TIMEOUT", 0.05)

    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            assert await node.claim(limit=1) == []
            job = await node.submitted()
            await eventually(lambda: node.master.claims.waiting == 1)
            task = f"f:~{job.id}"
            held = records.running(job, f"H:n2:{job.id}")
            await node.tree.commit([Write(paths.assignment(node.session.who, task), held)])
            await eventually(lambda: nodes.tasks(paths.PENDING) == [task])
            assert [one.id for one in await until_claimed(node)] == [job.id]
            assert await node.counts() == {(b"f", State.LEASED, 1): 1}

    run(check())


def test_a_late_record_of_a_running_job_does_not_affect_its_next_delivery() -> None:
    """The job is returned and assigned to the same node again, before the record of its first delivery is written."""

    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            job = await node.submitted()
            (first,) = await until_claimed(node)
            claims = node.master.claims
            assert await node.claim(limit=1) == []

            async def settle(session: Session, operations: Sequence[ops.Settle]) -> Sequence[Any]:
                outcomes = await settling.settle(session, operations)
                await eventually(lambda: claims.waiting == 1)
                return outcomes

            release = Settlement(first, Event.RELEASE, first.attempt)
            group = [ops.Assign([first]), ops.Settle([release])]
            handlers: dict[type[Operation], Any] = {**HANDLERS, ops.Settle: settle}
            assert await engine.handle(handlers, node.session, group, lambda *_: None) == [None, set()]
            (second,) = await node.claim(limit=1)
            assert second.id == job.id
            assignment = nodes.content.read(paths.assignment(node.session.who, f"f:~{job.id}"))
            assert assignment is not None
            assert records.decode(assignment.data)["state"] == "leased"
            assert await engine.handle(handlers, node.session, [ops.Assign([second])], lambda *_: None) == [None]
            assignment = nodes.content.read(paths.assignment(node.session.who, f"f:~{job.id}"))
            assert assignment is not None
            assert records.decode(assignment.data)["state"] == "running"

    run(check())


async def until_claimed(node: Member) -> list[Job]:
    """Claim one job, until it is assigned."""
    while not (jobs := await node.claim(limit=1)):
        pass
    return jobs


def test_a_claim_of_the_master_gets_arrived_jobs_and_further_ones() -> None:
    """Fewer jobs than requested would mean that no task is left, and the next claim would be delayed."""

    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            assert await node.claim(limit=3) == []
            jobs = [await node.submitted() for _ in range(8)]
            await eventually(lambda: node.master.claims.waiting == 3)
            assert [job.id for job in await node.claim(limit=5)] == [job.id for job in jobs[:5]]
            assert [job.id for job in await node.claim(limit=5)] == [job.id for job in jobs[5:]]

    run(check())


async def drop_arrived_job(node: Member) -> int:
    """Drop a foreground job that has arrived and was not claimed, as its only client leaves; return its id."""
    assert await node.claim() == []
    dropped = await node.submitted(unique=b"u", foreground=True, waiter=node.session.term)
    await eventually(lambda: node.master.claims.waiting == 1)
    assert await node.one(ops.Unsubscribe(node.session.term, [dropped.id])) == {dropped.id}
    return dropped.id


def test_a_job_dropped_before_its_claim_is_not_claimed() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            await drop_arrived_job(node)
            assert await node.claim() == []

    run(check())


def test_a_dropped_job_is_not_returned_in_place_of_another_of_its_name() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            await drop_arrived_job(node)
            (arrived,) = [one for some in node.master.claims._arrived.values() for one in some]  # noqa: SLF001 - shows the dropped job's time
            other = await node.submitted(unique=b"u")
            await node.assign_to(other, node)
            await node.master.claims._return_unclaimed(arrived.at)  # noqa: SLF001 - the moment at which it happens
            assert await node.state(other.id) is State.LEASED
            assert nodes.tasks(paths.PENDING) == []

    run(check())


# ---- changes while the queue is read ----


def test_a_job_does_not_arrive_twice() -> None:
    # A node reads its queue while it becomes the master, and assigns the same job to itself.
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()
            job = await node.submitted()
            (claimed,) = await node.claim()
            assert claimed.id == job.id
            node.master.claims.arrive([(paths.task_name(b"f", b"", job.id), job, (1, 1))])
            assert node.master.claims.waiting == 0

    run(check())


def test_a_job_that_ends_while_the_queue_is_read_does_not_arrive_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
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
            # The notice is of another master, so the whole queue is listed.
            other = Notice(99, 0, 0, [])
            await node.tree.commit([Write(paths.queue(node.session.who), encode_notice(other))])
            await asyncio.wait_for(is_read.wait(), 5)
            await eventually(lambda: node.master.claims._notice == other)  # noqa: SLF001 - when the notice was read shows nowhere else
            assert node.master.claims.waiting == 0

    run(check())


def test_a_job_reassigned_while_the_queue_is_read_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    # A master of an older version does not number its assignments.
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            job = await node.submitted()
            (claimed,) = await node.claim()
            get_many, is_read = node.tree.get_many, asyncio.Event()

            async def late(places: Any) -> Any:
                if places[0].startswith(paths.RUNNING) and not is_read.is_set():
                    is_read.set()
                    # As if it had been returned before this read, and assigned to this node again.
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
def test_a_job_reassigned_before_its_return_is_processed_arrives(monkeypatch: pytest.MonkeyPatch, leased: str) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
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
                    # Only now its holder processes its return.
                    asyncio.get_running_loop().call_soon(node.session.assignments.pop, job.id)
                return found

            monkeypatch.setattr(node.tree, "get_many", early)
            task, queue = paths.task_name(b"f", b"", job.id), paths.queue(node.session.who)
            running, notified = await node.tree.get(paths.running(task)), await node.tree.get(queue)
            assert running is not None
            assert notified is not None
            record = records.decode(running.data)
            record.update(master=record.get("master", 1), assignment=record.get("assignment", 0) + 1)
            notice = decode_notice(notified.data) if notified.data else Notice(1)
            notice = notice._replace(number=notice.number + 1, tasks=[*notice.tasks, task])
            await node.tree.commit(
                [Write(paths.running(task), records.encode(record)), Write(queue, encode_notice(notice))]
            )
            await asyncio.wait_for(is_read.wait(), 5)
            await eventually(lambda: node.master.claims.waiting == 1)
            assert [one.id for one in await node.claim()] == [job.id]

    run(check())


def test_a_job_assigned_by_the_last_master_arrives_at_the_next_master() -> None:
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
            # Both as the last one would have written them; the watch reports it only now.
            await node.tree.commit(
                [
                    Write(paths.running(task), records.encode(record)),
                    Write(paths.queue(node.session.who), encode_notice(notice)),
                ]
            )
            await eventually(lambda: node.master.claims.waiting == 1)
            assert [one.id for one in await node.claim()] == [claimed.id]

    run(check())


# ---- changes of the master ----


def test_without_a_master_a_claim_is_answered_after_the_timeout() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            holder = await nodes.join("holder", is_candidate=False)
            await holder.tree.commit([Create(paths.MASTER, records.encode({"worker": "holder-1"}), ephemeral=True)])
            node = await nodes.join("n")
            began = asyncio.get_running_loop().time()
            assert await node.claim() == []
            assert claiming.CLAIM_TIMEOUT * 0.9 < asyncio.get_running_loop().time() - began < claiming.CLAIM_TIMEOUT * 6

    run(check())


@pytest.mark.parametrize("itself", [True, False], ids=["itself", "another"])
def test_the_next_master_finds_assignments_without_a_notice(monkeypatch: pytest.MonkeyPatch, *, itself: bool) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master("m")
            node = await nodes.join("n", is_candidate=itself)
            if not itself:
                node.running = asyncio.create_task(node.master.claims.run())
                await nodes.join("other")
            assert await node.claim(limit=30) == []
            monkeypatch.setattr(
                claiming, "CLAIM_TIMEOUT", 60.0
            )  # on a busy machine, the first may go back before the last has come
            path = paths.queue(node.session.who)
            without_notice = False
            died = asyncio.Event()

            def silenced(changes: Any) -> None:
                # Some of many tasks are assigned in a batch before the one with the notice.
                nonlocal without_notice
                notified = any(isinstance(one, Write) and one.path == path for one in changes)
                if without_notice and notified:
                    master.tree.kill()
                    nodes.content.expire(master.tree.session)
                    died.set()
                without_notice = not notified and any(one.path.startswith(f"{path}/") for one in changes)

            master.tree.before = silenced
            monkeypatch.setattr(committer, "MAX_CHANGES", 3)
            jobs = [node.job() for _ in range(30)]
            await node.submit(*jobs)
            await asyncio.wait_for(died.wait(), 5)
            master.running.cancel()
            nodes.members.remove(master)
            await eventually(lambda: node.master.claims.waiting == 30)
            assert {job.id for job in await node.claim(limit=30)} == {job.id for job in jobs}
            assert node.is_master == itself

    run(check())


def test_a_claim_under_a_term_that_has_ended_fails() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            nodes.content.expire(node.tree.session)
            with pytest.raises(StoreFencedError):
                await node.claim()
            await node.running
            with pytest.raises(StoreFencedError):
                await node.claim()

    run(check())


def test_requests_for_too_many_functions_are_written_in_parts() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            names = [b"%04d" % number + b"\xff" * 508 for number in range(700)]
            jobs = [await node.submitted(function=name) for name in (names[0], names[-1])]
            found: set[int] = set()
            async with asyncio.timeout(15):
                while len(found) < 2:
                    found |= {
                        job.id
                        for some in await node.claim_all(*(ClaimRequest(name, 1) for name in names))
                        for job in some
                    }
            assert found == {job.id for job in jobs}
            assert not node.running.done()

    run(check())


def test_a_claim_that_is_assigned_while_its_term_ends_fails() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await nodes.master()

            async def is_over_meanwhile(*_: Any) -> bool:
                node.running.cancel()
                await asyncio.gather(node.running, return_exceptions=True)
                return False

            node.session.elect(LocalMaster(lambda _: None, lambda _: None, is_over_meanwhile))
            async with asyncio.timeout(5):
                with pytest.raises(StoreFencedError):
                    await node.claim()

    run(check())


def test_jobs_arrive_in_order() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            jobs = [node.job(unique=b"%d" % number) for number in range(20)]
            await node.submit(*jobs)
            claimed = await node.claim(limit=20)
            assert [job.id for job in claimed] == [job.id for job in jobs]

    run(check())


def test_many_tasks_are_claimed() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            node = await beside_master(nodes)
            jobs = [node.job() for _ in range(1200)]
            await node.submit(*jobs)
            claimed: list[int] = []

            async def all_of_them() -> bool:
                claimed.extend(job.id for job in await node.claim(limit=300))
                return len(claimed) >= len(jobs)

            await eventually(all_of_them)
            assert sorted(claimed) == [job.id for job in jobs]

    run(check())
