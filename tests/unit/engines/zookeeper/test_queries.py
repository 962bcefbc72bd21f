"""Look-ups, counts and lists on ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.suite.operations import ANYTHING

from mainspring.engines.zookeeper import paths, queries, records, sessions
from mainspring.engines.zookeeper.committer import TOTAL
from mainspring.engines.zookeeper.tree import Create, Done, Write
from mainspring.errors import StoreUnavailableError
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Priority, State
from mainspring.jobs.rules import Event, Settlement, succeeded

from .a_session import NOW, Node, falls_behind, fleet, one_node, run

if TYPE_CHECKING:
    from collections.abc import Callable


def test_jobs_are_found_by_id_wherever_they_are() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            jobs = [
                await node.submitted(),
                await node.submitted(state=State.SCHEDULED, due_us=NOW),
                await node.held(),
                await node.held(),
                await node.held(),
            ]
            await node.settle(succeeded(jobs[3], b"r", NOW, NOW))
            await node.publish()
            await node.settle(succeeded(jobs[4], b"r", NOW, NOW))
            ids = [*(job.id for job in jobs), 1, 10**19 - 1, 2**63, -1, jobs[-1].id + 1, 99 * 10**12]
            reads = other.tree.reads
            first, second = await other.handle(ops.Find(ids, 2), ops.Find(ids[:1]))
            assert [first[job.id].state for job in jobs] == [1, 0, 2, 4, 4]
            assert set(first) == {job.id for job in jobs}
            assert second == {jobs[0].id: first[jobs[0].id]}
            assert (first[jobs[3].id].result, first[jobs[4].id].result) == (b"r", b"r")
            assert other.tree.reads - reads <= 8, "all of them at once, and once more those that are not there"
            assert other.session.nodes[1] == "n1"

    run(check())


@pytest.mark.parametrize(
    "asks",
    [
        lambda term, job: (ops.Find([job.id]), lambda found: job.id in found),
        lambda term, job: (ops.Subscribe(term, [job.id]), lambda found: job.id in found),
        lambda term, job: (ops.FindUnique([(b"f", b"u")]), lambda found: found[0].id == job.id),
        lambda term, job: (ops.Cancel(job.id, b"", NOW), lambda found: found.before == State.PENDING),
        lambda term, job: (ops.Count(), lambda found: sum(found.values()) == 1),
    ],
    ids=["find", "wait", "find unique", "cancel", "count"],
)
def test_a_member_that_lags_behind_makes_nothing_unknown(
    asks: Callable[[int, Job], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.submitted(unique=b"u")
            falls_behind(other.tree, monkeypatch)
            operation, is_right = asks(other.session.term, job)
            assert is_right(await other.one(operation))

    run(check())


def test_a_list_of_a_member_that_lags_behind_has_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            job = await node.submitted(unique=b"u")
            falls_behind(other.tree, monkeypatch)
            assert [one.id for one in await other.listed()] == [job.id]

    run(check())


async def unique(node: Node, *keys: tuple[bytes | ops.InNamespace, bytes]) -> list[int | None]:
    found: list[ops.Found | None] = await node.one(ops.FindUnique(list(keys)))
    return [one and one.id for one in found]


def test_live_jobs_are_found_by_unique() -> None:
    async def check() -> None:
        async with one_node() as node:
            await node.submitted()
            first, second = await node.submitted(unique=b"u"), await node.submitted(function=b"g", unique=b"v")
            keys: list[tuple[bytes | ops.InNamespace, bytes]] = [
                (b"g", b"v"),
                (b"g", b"u"),
                (b"f", b"u"),
                (b"unknown", b"u"),
                (ANYTHING, b"v"),
                (ANYTHING, b"w"),
                (ANYTHING, b""),
            ]
            assert await unique(node, *keys, (b"f", b"")) == [
                second.id, None, first.id, None, second.id, None, None, None,
            ]  # fmt: skip

    run(check())


def test_ended_jobs_are_not_found_by_unique() -> None:
    async def check() -> None:
        async with one_node() as node:
            job = await node.held(unique=b"u")
            await node.settle(Settlement(job, Event.FAIL, 1, ended_us=NOW))
            assert await unique(node, (b"f", b"u"), (ANYTHING, b"u")) == [None, None]
            await node.publish()
            assert await unique(node, (b"f", b"u"), (ANYTHING, b"u")) == [None, None]

    run(check())


def test_the_backlog_shows_pending_jobs() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            assert await node.one(ops.ReadBacklog()) == ops.Backlog({}, {}, 0)
            await other.submit(
                other.job(),
                other.job(priority=Priority.HIGH),
                other.job(b"g", state=State.SCHEDULED, due_us=NOW + 5),
                other.job(b"h", state=State.LEASED),
                other.job(expires_us=NOW + 3),
            )
            outlook = await node.one(ops.ReadBacklog())
            assert outlook.pending == {(b"f", Priority.NORMAL): 2, (b"f", Priority.HIGH): 1}
            assert outlook.live == {b"f": 3, b"g": 1, b"h": 1}
            assert outlook.next_us == NOW + 3

    run(check())


def test_counts_are_those_of_one_moment_while_a_master_moves_them() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            await other.submitted()
            mine = paths.journal(other.session.who)
            get_many = node.tree.get_many
            moves = 2

            async def move() -> None:
                journal, sum_of_all = await other.tree.get_many([mine, TOTAL])
                assert journal is not None
                data = records.encode({"batch": 0, "counts": [["f", State.PENDING, 1, 1]]})
                await other.tree.commit(
                    [
                        Write(mine, records.encode({"batch": 9, "counts": []})),
                        Create(TOTAL, data) if sum_of_all is None else Write(TOTAL, data),
                    ]
                )

            async def get_one_by_one(places: list[str]) -> list[object]:
                nonlocal moves
                found: list[object] = []
                for path in places:
                    if path == mine and moves:
                        moves -= 1
                        await move()
                    found += await get_many([path])
                return found

            node.tree.get_many = get_one_by_one  # type: ignore[method-assign, assignment]
            for _ in range(3):
                assert await node.one(ops.Count()) == {(b"f", State.PENDING, 1): 1}
            assert moves == 0

    run(check())


def test_the_next_time_is_found_behind_empty_minutes() -> None:
    async def check() -> None:
        async with one_node() as node:
            minute = paths.MINUTE_US
            await node.session.ensure([paths.minute(paths.DELAYED, NOW - minute)])
            late = await node.submitted(state=State.SCHEDULED, due_us=NOW + 2 * minute)
            assert await queries.next_us(node.session) == NOW + 2 * minute
            early = await node.submitted(state=State.SCHEDULED, due_us=NOW + minute)
            assert await queries.next_us(node.session) == NOW + minute
            assert (await queries.first(node.session, paths.DELAYED, NOW + minute) or (0, 0))[1] == late.id
            assert (await queries.first(node.session, paths.DELAYED, NOW + minute - 1) or (0, 0))[1] == early.id

    run(check())


def test_lists_are_newest_first_and_in_pages_across_blocks_and_terms() -> None:
    async def check() -> None:
        async with fleet() as members:
            node, other = await members.join("n1"), await members.join("n2")
            jobs = []
            for start in (0, 990, 1990):
                for number in range(start, start + 20):
                    job = node.job()
                    job.id = node.session.term * 10**12 + number
                    jobs.append(job)
            await node.submit(*jobs)
            jobs += [await other.submitted() for _ in range(3)]
            ids = [job.id for job in reversed(jobs)]
            pages: list[int] = []
            after = None
            while page := await node.listed(limit=7, after=after):
                assert len(page) <= 7
                pages += [job.id for job in page]
                after = page[-1].id
            assert pages == ids
            assert [job.id for job in await node.listed(after=10**19 - 1, limit=1)] == ids[:1]

    run(check())


def test_a_small_page_reads_a_small_part_of_the_tree() -> None:
    async def check() -> None:
        async with one_node() as node:
            await node.submit(*[node.job() for _ in range(1500)])
            reads = node.tree.reads
            assert len(await node.listed(limit=10)) == 10
            assert node.tree.reads - reads < 10

    run(check())


def test_foreign_nodes_in_the_tree_are_ignored() -> None:
    async def check() -> None:
        async with fleet() as members:
            node = await members.join("n1")
            job = await node.submitted()
            later = await node.submitted(state=State.SCHEDULED, due_us=NOW + 5)
            minute = paths.minute(paths.DELAYED, later.due_us)
            block = paths.block(job.id)
            for root in (paths.JOURNALS, paths.RESULTS, paths.TERMS, paths.DELAYED, paths.EXPIRING, minute, block):
                for name in ("strange", "-", "1-x", "x1", "²", "00000001.x.f:~1"):
                    assert isinstance(members.content.apply([Create(f"{root}/{name}", b"?")]), Done)
            assert await node.counts() == {(b"f", State.PENDING, 1): 1, (b"f", State.SCHEDULED, 1): 1}
            assert [found.id for found in await node.listed()] == [later.id, job.id]
            assert await node.one(ops.Sweep(NOW, NOW, 100)) == 0
            assert await sessions.read_all(node.tree) == {node.session.term: "n1"}
            woken = await node.one(ops.Wake(NOW + 5, 100))
            assert woken.due == {(b"f", 1): 1}

    run(check())


def test_filters_hold_together() -> None:
    async def check() -> None:
        async with one_node() as node:
            for function in (b"f", b"g"):
                for key in (b"u", b""):
                    job = await node.held(function=function, unique=key)
                    await node.settle(Settlement(job, Event.FAIL, 1, ended_us=NOW))
                    await node.publish()
                    await node.submitted(function=function, unique=key)
            everything = await node.listed()
            assert len(everything) == 8
            for state in (None, State.FAILED, State.PENDING, State.RUNNING):
                for function_wanted in (None, b"f", b"x"):
                    for key_wanted in (ANYTHING, b"u"):
                        expected = [
                            job.id
                            for job in everything
                            if (state is None or job.state == state)
                            and function_wanted in {None, job.function}
                            and key_wanted in {None, job.unique}
                        ]
                        which: dict[str, Any] = {"state": state, "function": function_wanted, "unique": key_wanted}
                        assert [job.id for job in await node.listed(**which)] == expected
                        assert [job.id for job in await node.listed(**which, limit=1)] == expected[:1]

    run(check())


def test_without_an_ensemble_the_caller_gets_an_error() -> None:
    async def check() -> None:
        async with one_node() as node:
            await node.submitted()
            node.tree.cut()
            with pytest.raises(StoreUnavailableError):
                await node.one(ops.Count())
            node.tree.heal()
            assert await node.one(ops.Count()) == {(b"f", State.PENDING, 1): 1}

    run(check())
