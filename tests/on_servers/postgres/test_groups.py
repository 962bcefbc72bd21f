from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.conformance.suite.paging import everything

from mainspring.engines.postgres import connections, writer
from mainspring.errors import StoreError
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.queries import QueryJobs
from mainspring.storage.engine import Operation

from .a_fleet import Node, eventually, node, session

if TYPE_CHECKING:
    from tests.postgres.server import PostgresServer


def test_concurrent_nodes_share_the_jobs(database: str, postgres: PostgresServer) -> None:
    settled: list[int] = []
    claimed: list[int] = []
    stored: list[int] = []

    async def work(one: Node, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            uniques = [b"", b"", *(b"u%d" % chance.randrange(30) for _ in range(10))]
            chance.shuffle(uniques)
            functions = [chance.choice([b"f", b"g"]) for _ in uniques]
            jobs = [one.job(name, unique=unique) for name, unique in zip(functions, uniques, strict=True)]
            joined, wants = await one.group(
                one.submit(*jobs), ops.Claim(one.term, [ops.ClaimRequest(b"g", 4), ops.ClaimRequest(b"f", 4)])
            )
            stored.extend(job.id for job in jobs if job.id not in joined)
            mine = [job for jobs in wants for job in jobs]
            claimed.extend(job.id for job in mine)
            chance.shuffle(mine)
            assert await one.group(one.settle(*mine)) == [set()]
            settled.extend(job.id for job in mine)

    async def test() -> None:
        before = postgres.log().count("deadlock detected")
        async with node(database, "a") as one, node(database, "b") as two, node(database, "c") as third:
            await asyncio.gather(*(work(each, seed) for seed, each in enumerate((one, two, third))))
            (counts,) = await one.group(ops.Count())
            jobs = await everything(one.engine, QueryJobs(limit=100_000))
        assert len(set(claimed)) == len(claimed), "no job is claimed twice"
        assert sorted(job.id for job in jobs) == sorted(stored)
        assert {job.id for job in jobs if job.state == State.SUCCEEDED} == set(settled)
        live = [(job.function, job.unique) for job in jobs if job.unique and not State(job.state).ended]
        assert len(set(live)) == len(live)
        assert sum(counts.values()) == len(stored)
        assert postgres.log().count("deadlock detected") == before, "sorted locks do not deadlock"

    asyncio.run(test())


def test_a_lock_of_another_session_is_waited_for_and_logged(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.SESSION_SETTINGS, "lock_timeout", "50ms")
    monkeypatch.setattr(writer, "LOG_AFTER", 0.2)

    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await other.execute("BEGIN; LOCK TABLE jobs IN EXCLUSIVE MODE")
            with capture_logs() as logs:
                group = one.begin(one.submit(one.job()))

                async def says_so() -> bool:
                    return any("cannot be committed yet" in line["event"] for line in logs)

                await eventually(says_so, "the log has the reason")
            assert not group.done()
            await other.execute("COMMIT")
            assert await group == [{}]

    asyncio.run(test())


def test_a_defect_costs_one_group(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            for broken in (
                ops.Submit([Job(1, b"f", "no bytes")]),  # type: ignore[arg-type]
                ops.Submit([Job(2**70, b"f", b"")]),
                Operation(),
            ):
                with pytest.raises(StoreError, match=r"defect|SQLSTATE"):
                    await one.group(one.submit(one.job(b"new")), broken)
                assert await one.counts() == {}
            await one.submitted(function=b"new")
            assert sum((await one.counts()).values()) == 1

    asyncio.run(test())


def test_groups_that_only_read_leave_no_trace(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            (job,) = await one.submitted()
            for _ in range(5):
                await one.group(
                    ops.Count(),
                    ops.ReadBacklog(),
                    ops.Find([job.id]),
                    ops.FindUnique([(ops.InNamespace("default"), b"u")]),
                )
            assert await other.fetchval("SELECT count(*) FROM journal") == 1

    asyncio.run(test())
