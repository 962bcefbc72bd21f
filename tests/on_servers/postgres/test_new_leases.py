"""New jobs that the claims of their own group lease."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mainspring.ids import SLOTS
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State

from .a_fleet import Node, node, session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mainspring.jobs.model import Job


def run(database: str, test: Callable[[Node], Awaitable[None]]) -> None:
    async def with_node() -> None:
        async with node(database, "a") as one:
            await one.group(one.submit(one.job(state=State.SCHEDULED, due_us=10**17)))  # the function has a number now
            await test(one)

    asyncio.run(with_node())


def claim(one: Node, *limits: int) -> ops.Claim:
    return ops.Claim(one.term, [ops.ClaimRequest(b"f", limit) for limit in limits])


def ids(jobs: list[Job]) -> list[int]:
    return [job.id for job in jobs]


def test_a_new_job_is_written_once_and_counts_as_leased(database: str) -> None:
    async def test(one: Node) -> None:
        new = one.job()
        _, (claimed,) = await one.group(one.submit(new), claim(one, 5))
        assert ids(claimed) == [new.id]
        assert (claimed[0].state, claimed[0].term, claimed[0].payload) == (State.LEASED, one.term, b"p")
        assert (new.state, new.term) == (State.PENDING, 0), "another attempt may store it as waiting"
        (counts,) = await one.group(ops.Count())
        assert counts[b"f", State.LEASED, Priority.NORMAL] == 1
        async with session(database) as other:
            place = await other.fetchval("SELECT ctid FROM mainspring.jobs WHERE id = $1", new.id)
        assert place == (0, 2), "the second row of the table: no version before it was the waiting job"
        assert await one.group(one.settle(*claimed)) == [set()]

    run(database, test)


def test_stored_jobs_come_before_new_ones_and_urgent_ones_first(database: str) -> None:
    async def test(one: Node) -> None:
        stored = [one.job(), one.job(priority=Priority.LOW)]
        await one.group(one.submit(*stored))
        new = [
            one.job(unique=b"z"),
            one.job(priority=Priority.HIGH),
            one.job(unique=b"a"),
            one.job(priority=Priority.LOW),
        ]
        _, (claimed,) = await one.group(one.submit(*new), claim(one, 5))
        assert ids(claimed) == ids([new[1], stored[0], new[0], new[2], stored[1]])
        ((rest,),) = await one.group(claim(one, 5))
        assert ids(rest) == ids([new[3]])

    run(database, test)


def test_a_claim_with_fewer_jobs_than_it_has_asked_for_leaves_none(database: str) -> None:
    """The node takes such an answer for the end of the queue: a job that was left would wait for the next count."""

    async def test(one: Node) -> None:
        await one.group(one.submit(one.job(unique=b"u")))
        # The first of the new jobs have room, but join the stored one, which the claim takes.
        joining = [one.job(unique=b"u") for _ in range(3)]
        last = [one.job(), one.job()]
        joined, (claimed,) = await one.group(one.submit(*joining, *last), claim(one, 4))
        assert set(joined) == set(ids(joining))
        assert len(claimed) == 3
        assert ids(claimed)[1:] == ids(last)

    run(database, test)


@pytest.mark.parametrize("limits", [(2, 3), (1, 1)])
def test_several_requests_share_the_new_jobs(database: str, limits: tuple[int, int]) -> None:
    async def test(one: Node) -> None:
        new = [one.job() for _ in range(4)]
        _, (first, second) = await one.group(one.submit(*new), claim(one, *limits))
        assert ids(first) + ids(second) == ids(new)[: sum(limits)]
        assert len(first) == limits[0]

    run(database, test)


def test_other_claims_keep_their_order(database: str) -> None:
    """A claim of some slots, or of a function that is new, runs after the submits, and takes the new job from the store."""

    async def test(one: Node) -> None:
        other, new = one.job(), one.job()
        slots = frozenset(range(SLOTS)) - {rules.slot(other)}
        assert rules.slot(new) in slots
        _, (claimed,) = await one.group(one.submit(other, new), ops.Claim(one.term, [ops.ClaimRequest(b"f", 5, slots)]))
        assert ids(claimed) == [new.id]
        first = one.job(b"first")
        _, ((claimed,),) = await one.group(one.submit(first), ops.Claim(one.term, [ops.ClaimRequest(b"first", 1)]))
        assert ids([claimed]) == [first.id]

    run(database, test)
