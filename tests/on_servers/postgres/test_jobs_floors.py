"""Claims with an old snapshot open: the number of dead tuples that they pass, and the jobs below a floor."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.postgres.claiming import COMMITTED_AFTER, LOWEST, SCAN_SHARE, SLOW_SCAN, Floors
from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.transaction import JOBS_SQL
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event, Settlement

from .a_fleet import NOW, Node, node, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

    from mainspring.jobs.model import Job

DEAD = 20_000
"""Dead tuples of deleted jobs that vacuum cannot remove."""


class SlowClock:
    """A clock on which each scan takes a set time; no time passes between operations."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scan = 1.0
        self._scanning = False

    def __call__(self) -> float:
        """Return the time: each operation reads it before and after its scan."""
        self._scanning = not self._scanning
        if not self._scanning:
            self.now += self.scan
        return self.now


def slow(one: Node) -> SlowClock:
    """Make a node's scans slow, by the test's clock."""
    clock = SlowClock()
    one.engine._writer.memory[Floors] = Floors(clock)  # noqa: SLF001 - a clock of the test, in what the node remembers
    return clock


def remembered(one: Node) -> Floors:
    found = one.engine._writer.memory[Floors]  # noqa: SLF001 - a clock of the test, in what the node remembers
    assert isinstance(found, Floors)
    return found


async def claim(one: Node, limit: int = 1000, slots: frozenset[int] | None = None) -> list[Job]:
    ((claimed,),) = await one.group(ops.Claim(one.term, [ops.ClaimRequest(b"f", limit, slots)]))
    return list(claimed)


async def rise(one: Node, clock: SlowClock, slots: frozenset[int] | None = None) -> list[int]:
    """Claim until the floor has risen above the present jobs; return the floors."""
    await claim(one, slots=slots)
    await claim(one, slots=slots)
    clock.now += COMMITTED_AFTER
    await claim(one, slots=slots)
    (floor,) = remembered(one).functions.values()
    assert floor.places[1] > LOWEST
    return floor.places


# ---- jobs below a floor ----


@pytest.mark.parametrize("slots", [None, frozenset(range(1024))], ids=["all", "slots"])
def test_a_released_job_is_found_below_the_floor(database: str, slots: frozenset[int] | None) -> None:
    async def test() -> None:
        async with node(database) as one:
            clock = slow(one)
            (held,) = await one.submitted(state=State.LEASED)
            (failed,) = await one.submitted(state=State.LEASED)
            (later,) = await one.submitted(state=State.SCHEDULED, due_us=NOW)
            await one.submitted(3)
            floor = await rise(one, clock, slots)
            await one.group(
                ops.Settle([Settlement(held, Event.RELEASE, 0), Settlement(failed, Event.FAIL, 1, ended_us=NOW)])
            )
            assert [job.id for job in await claim(one)] == [held.id]
            await one.group(ops.Redrive(failed.id))
            assert [job.id for job in await claim(one)] == [failed.id]
            await one.group(ops.Wake(NOW))
            assert [job.id for job in await claim(one)] == [later.id]
            assert floor[1] > LOWEST

    asyncio.run(test())


def test_a_job_that_another_node_releases_is_found_by_the_next_full_scan(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            clock = slow(one)
            (held,) = await two.submitted(state=State.LEASED)
            await one.submitted(3)
            await rise(one, clock)
            await two.group(ops.Settle([Settlement(held, Event.RELEASE, 0)]))
            assert await claim(one) == [], "it is below the floor, and no full scan is due"
            clock.now += SCAN_SHARE * clock.scan
            assert [job.id for job in await claim(one)] == [held.id]

    asyncio.run(test())


def test_while_scans_are_quick_a_released_job_is_found_at_once(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            slow(one).scan = SLOW_SCAN / 2
            for _ in range(3):
                (held,) = await two.submitted(state=State.LEASED)
                await one.submitted(3)
                assert len(await claim(one)) == 3
                await two.group(ops.Settle([Settlement(held, Event.RELEASE, 0)]))
                assert [job.id for job in await claim(one)] == [held.id]

    asyncio.run(test())


def test_a_rolled_back_claim_takes_no_job(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            clock = slow(one)
            jobs = await one.submitted(3)
            await one.submitted(1, function=b"g")
            await claim(one, 1)
            await claim(one, 1)
            clock.now += COMMITTED_AFTER
            await other.execute("ALTER TABLE journal ADD CONSTRAINT spoiled CHECK (number < 0) NOT VALID")
            with pytest.raises(Exception, match="spoiled"):
                await claim(one)
            await other.execute("ALTER TABLE journal DROP CONSTRAINT spoiled")
            assert [job.id for job in await claim(one)] == [jobs[2].id]

    asyncio.run(test())


def test_due_jobs_are_found_below_the_floor(database: str) -> None:
    async def wake(one: Node) -> int:
        (woken,) = await one.group(ops.Wake(NOW))
        assert isinstance(woken, ops.Woken)
        return sum(woken.due.values()) + len(woken.expired)

    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            clock = slow(one)
            await one.submitted(2, state=State.SCHEDULED, due_us=NOW)
            await one.submitted(2, expires_us=NOW)
            assert await wake(one) == 4
            assert await wake(one) == 0
            assert remembered(one).due.places[0] > LOWEST
            await one.submitted(1, state=State.SCHEDULED, due_us=5)
            await one.submitted(1, expires_us=5)
            assert await wake(one) == 2, "its own"
            await two.submitted(1, state=State.SCHEDULED, due_us=5)
            await two.submitted(1, expires_us=5)
            clock.now += 2 * SCAN_SHARE * clock.scan
            assert await wake(one) == 2, "another node's, by a full scan"

    asyncio.run(test())


# ---- dead tuples ----


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


async def pages(connection: asyncpg.Connection[asyncpg.Record], statement: str, *values: object) -> int:
    """Return the number of pages that a statement reads, and check that it uses the index of the queue."""
    (row,) = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *values)
    plan = json.loads(row[0])[0]["Plan"]
    scans = [part for part in _nodes(plan) if part["Node Type"].startswith(("Index", "Seq", "Bitmap", "Tid"))]
    assert {part.get("Index Name") for part in scans} == {"queue", "jobs_pkey"}
    found: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return found


def test_a_claim_from_its_floor_passes_no_dead_tuples(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database, **SESSION_SETTINGS) as other, session(database) as pin:
            await one.submitted(1)
            await claim(one)
            # Neighbours in the queue lie on different pages, as they do after a while.
            await other.execute(
                "INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload)"
                f" SELECT i, 100 + i * 7919 % {DEAD}, 1, 1, 1, 1, 0, '' FROM generate_series(1, {DEAD}) AS i"
            )
            await pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs")
            await other.execute("DELETE FROM jobs WHERE state = 1")
            await other.execute("VACUUM ANALYZE jobs")
            await one.submitted(100)

            async def claimed(place: int) -> int:
                values = [1], [100], [place], [place], [place], [None], [0]
                transaction = other.transaction()
                await transaction.start()
                try:
                    return await pages(other, JOBS_SQL["claim"], one.term, *values)
                finally:
                    await transaction.rollback()

            floor = await other.fetchval("SELECT min(place) FROM jobs WHERE state = 1")
            dear, cheap = await claimed(LOWEST), await claimed(floor)
            # To claim a job costs about ten pages, with any number of dead tuples.
            assert cheap < 2000
            assert dear > cheap + DEAD // 2

            # The node finds that floor by itself.
            clock = slow(one)
            await claim(one, 1)
            await claim(one, 1)
            clock.now += COMMITTED_AFTER
            await one.submitted(1)
            await claim(one, 97)
            (found,) = remembered(one).functions.values()
            assert found.places[1] == floor

    asyncio.run(test())
