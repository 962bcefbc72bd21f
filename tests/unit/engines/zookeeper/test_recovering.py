"""Tasks of lost nodes return to the queue, once, whichever node recovers them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper import master, paths, records, recovering
from mainspring.engines.zookeeper import master as module
from mainspring.engines.zookeeper.committer import TOTAL, journal_data, total
from mainspring.engines.zookeeper.recovering import abandoned
from mainspring.engines.zookeeper.tree import Create, Delete, Node, Write
from mainspring.errors import StoreFencedError
from mainspring.jobs.model import State
from mainspring.jobs.store import Assign, LostAttempt, Recovered

from .a_master import Fleet, Member, eventually, fleet, run

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mainspring.jobs.model import Job


async def pair(nodes: Fleet) -> tuple[Member, Member]:
    """Add two nodes that do nothing unasked."""
    return (await nodes.join("n1", is_candidate=False)).note(), await nodes.join("n2", is_candidate=False)


def pending(nodes: Fleet, job: Job) -> tuple[int, int, int, int]:
    """Return what the record of a pending task says: state, counted attempts, suspects and term."""
    node = nodes.content.read(paths.pending(paths.task_name(job.function, job.unique, job.id)))
    assert node is not None
    found = records.decode_job(records.decode(node.data))
    assert found.payload == b"p"
    return (found.state, found.attempt, found.suspects, found.term)


def test_a_lost_leased_job_is_suspect_and_a_running_one_was_tried() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            leased, running, mine = await lost.held(), await lost.held(), await living.held()
            await lost.one(Assign([running]))
            await lost.kill()
            attempts = frozenset({LostAttempt(running.id, b"f", 1)})
            assert await living.recover(lost.session.term) == Recovered(2, {(b"f", 1): 2}, False, attempts)
            assert pending(nodes, leased) == (State.PENDING, 0, 1, 0)
            assert pending(nodes, running) == (State.PENDING, 1, 0, 0)
            assert nodes.queue(living) == [f"f:~{mine.id}"]
            assert (await living.recover(lost.session.term)).number == 0
            assert await living.counts() == {(b"f", State.PENDING, 1): 2, (b"f", State.LEASED, 1): 1}
            assert living.hinted == [b"f"]
            left = {path for path in nodes.content.paths() if lost.session.who in path.split("/")}
            assert left == {paths.journal(lost.session.who)}

    run(check())


def test_so_many_at_a_time() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            for _ in range(7):
                await lost.held()
            await lost.kill()
            numbers = []
            while (outcome := await living.recover(lost.session.term, limit=3)).more:
                numbers.append(outcome.number)
            assert [*numbers, outcome.number] == [3, 3, 1]

    run(check())


def test_several_nodes_at_once_give_each_back_once() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            third = await nodes.join("n3", is_candidate=False)
            jobs = [await lost.held() for _ in range(20)]
            await lost.kill()
            outcomes = await asyncio.gather(*(node.recover(lost.session.term) for node in (living, third)))
            assert sum(outcome.number for outcome in outcomes) == 20
            assert {pending(nodes, job)[2] for job in jobs} == {1}

    run(check())


def test_live_workers_are_not_recovered() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, other = await pair(nodes)
            await other.held()
            assert await living.recover(other.session.term) == Recovered(0, {}, False)
            assert len(nodes.queue(other)) == 1
            assert await abandoned(living.tree) == []

    run(check())


def test_terms_of_which_something_is_left_are_abandoned() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            await lost.held()
            await lost.kill()
            assert await abandoned(living.tree) == [lost.session.term]
            await living.recover(lost.session.term)
            assert await abandoned(living.tree) == []

    run(check())


def test_foreground_jobs_go_with_those_who_wait_for_them() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            mine, theirs = living.session.term, lost.session.term
            alone = await lost.held(foreground=True, waiter=theirs, unique=b"alone")
            waits = await lost.submitted(foreground=True, waiter=theirs, unique=b"waits")
            background = await lost.held(waiter=theirs)
            wanted = await living.submitted(foreground=True, waiter=mine)
            await lost.session.meet([wanted.id])
            await living.assign_to(wanted, lost)
            await lost.kill()
            assert (await living.recover(theirs)).number == 2
            assert [await living.state(job.id) for job in (alone, waits, background, wanted)] == [
                None, None, State.PENDING, State.PENDING,
            ]  # fmt: skip
            assert await living.counts() == {(b"f", State.PENDING, 1): 2}
            await living.submitted(unique=b"alone")
            await living.submitted(unique=b"waits")

    run(check())


@pytest.mark.parametrize("how", ["joined", "awaited"])
def test_a_foreground_job_that_is_wanted_by_the_time_it_would_be_dropped_stays(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A background submit joins it, or a node that was not there yet waits for it, once it was read that nobody does."""

    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            theirs = lost.session.term
            job = await lost.held(foreground=True, waiter=theirs, unique=b"u")
            await lost.kill()
            newcomer = await nodes.join("n3", is_candidate=False)
            path = lost.session.result(job.id)
            data = {"id": job.id, "task": "f:u", "waiters": [theirs]}
            if how == "awaited":
                data |= {"waiters": [theirs, newcomer.session.term], "foreground": True}
            is_dropped = recovering.is_dropped

            def late(held: recovering.Held, alive: Collection[int]) -> bool:
                dropped = is_dropped(held, set(alive) - {newcomer.session.term})
                nodes.content.apply([Write(path, records.encode(data))])
                return dropped

            monkeypatch.setattr(recovering, "is_dropped", late)
            assert (await living.recover(theirs)).number == 1
            assert await living.state(job.id) is State.PENDING

    run(check())


def test_a_foreground_job_that_ran_is_not_dropped() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            job = await lost.held(foreground=True, waiter=lost.session.term)
            await lost.one(Assign([job]))
            await lost.kill()
            await living.recover(lost.session.term)
            # It was given back, and then nobody waited for it any more.
            assert await living.state(job.id) is None
            assert await living.counts() == {}

    run(check())


def test_an_assignment_without_its_task_is_taken_away() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            living, lost = await pair(nodes)
            job = await lost.held(unique=b"u")
            await living.tree.commit([Delete(paths.running("f:u"))])
            await lost.kill()
            assert (await living.recover(lost.session.term)).number == 0
            assert await abandoned(living.tree) == []
            del job

    run(check())


def test_a_lost_workers_late_completion_is_refused() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            await nodes.master()
            lost = await nodes.join("n2")
            job = await lost.held()
            nodes.content.expire(lost.tree.session)
            await eventually(lambda: len(nodes.tasks(paths.PENDING)) == 1)
            try:
                await lost.succeed(job)
            except StoreFencedError:
                pass
            else:
                raise AssertionError("it was taken")
            assert nodes.tasks(paths.COMPLETED) == []

    run(check())


def test_the_master_gives_back_at_once_and_others_take_it() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            await nodes.master()
            lost, other = await nodes.join("n2"), await nodes.join("n3")
            assert await other.claim() == []
            job = await lost.held()
            await lost.kill()
            await eventually(lambda: other.master.claims.waiting == 1)
            assert [one.id for one in await other.claim()] == [job.id]

    run(check())


def test_the_master_says_again_what_is_left_while_it_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master, lost = await nodes.master(), await nodes.join("n2")
            await lost.held()
            returned: list[Sequence[int]] = []
            monkeypatch.setattr(module, "RESEND_INTERVAL", 0.01)
            monkeypatch.setattr(master, "give_back", returned.append)
            await lost.kill()
            await eventually(lambda: len(returned) == 3)
            await master.recover(lost.session.term)
            assert {*map(tuple, returned)} == {(lost.session.term,)}

    run(check())


# ---- journals ----


def journal(batch: int, **counts: int) -> Node:
    numbers = {(name.encode(), int(State.PENDING), 1): number for name, number in counts.items()}
    return Node(journal_data(batch, numbers), 4, 0, 0, 0)


def test_journals_are_folded_into_one() -> None:
    some = [("/journals/n-1", journal(7, f=2, g=1)), ("/journals/n-1.0", journal(0, f=-5))]
    entry = master.folded(some, journal(0, f=3))
    assert entry is not None
    first, second, third = entry.changes
    assert isinstance(third, Create) is False
    assert records.decode(first.data) == {"batch": 7, "counts": []}  # type: ignore[union-attr]
    assert second == Delete("/journals/n-1.0", 4)
    assert total([third.data]) == {(b"g", 1, 1): 1}  # type: ignore[union-attr]
    assert master.folded([("/journals/n-1", journal(7))], None) is None


def test_counts_outlive_their_workers() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            first = await nodes.master("a.b-1")
            await first.submitted()
            for number in range(3):
                lost = await nodes.join("n2")
                await lost.submitted(unique=b"%d" % number)
                await lost.kill()
                await eventually(partial(_is_folded, nodes, lost))
                assert await first.counts() == {(b"f", State.PENDING, 1): number + 2}

    def _is_folded(nodes: Fleet, lost: Member) -> bool:
        found = nodes.content.read(paths.journal(lost.session.who))
        assert found is not None, "a worker that was cut off may ask for its batch"
        record = records.decode(found.data)
        assert record["batch"] > 0
        return not record["counts"]

    run(check())


def test_an_old_journal_goes() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            now_us = [1_000_000_000_000_000]
            nodes.content.now_us = lambda: now_us[0]
            first = await nodes.master()
            lost = await nodes.join("n2")
            await lost.submitted()
            await lost.kill()
            await eventually(lambda: TOTAL in nodes.content.paths())
            assert paths.journal(lost.session.who) in nodes.content.paths()
            now_us[0] += master.JOURNAL_RETENTION_US + 10_000_000
            await (await nodes.join("n3")).kill()
            await eventually(lambda: paths.journal(lost.session.who) not in nodes.content.paths())
            assert await first.counts() == {(b"f", State.PENDING, 1): 1}

    run(check())
