"""A stored row that cannot be read is a row with its id and a sentence. It breaks no list."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest

from mainspring.api.answers.job_info import info_of
from mainspring.api.answers.text import rfc3339
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.failures import JobFailure
from mainspring.jobs.model import UNREADABLE_JOB, Job, State
from mainspring.queries.filters import JobFilter
from mainspring.queries.jobs import ListJobs
from mainspring.testing.conformance.paging import answer

if TYPE_CHECKING:
    from pathlib import Path


class Stored:
    """Some jobs in a file, of which a test may change the rows."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> Self:
        self.engine = SqliteEngine(self._path / "jobs.db")
        opened = await self.engine.open(NodeId("n"), asyncio.get_running_loop().call_soon_threadsafe)
        self.ids = [(next_id := job_ids(opened.term))(), next_id(), next_id()]
        jobs = [Job(job_id, b"f", b"") for job_id in self.ids]
        self.engine.commit([ops.Submit(jobs)], lambda _: None, lambda *_: None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    def change(self, what: str, *values: Any) -> None:
        """Change the second job."""
        cursor = self.engine._tx.cursor  # noqa: SLF001 - as a newer version, or damage, might
        cursor.execute(f"UPDATE jobs SET {what} WHERE id = ?", (*values, self.ids[1]))

    async def listed(self, **where: Any) -> list[Job]:
        return (await answer(self.engine, ListJobs(where=JobFilter(**where)))).items


def shown(jobs: list[Job]) -> list[tuple[str, str | None]]:
    service: Any = SimpleNamespace(handle_of=b"H:n:%d".__mod__)
    return [(one.state, one.error) for one in (info_of(service, job) for job in jobs)]


@pytest.mark.parametrize("options", [b"\xc1", b"\x81", b"\x81\xa5retry\x07", b"\x81\xa7version\xa1\xff"])
def test_options_that_cannot_be_read_break_no_list(tmp_path: Path, options: bytes) -> None:
    async def check() -> None:
        async with Stored(tmp_path) as stored:
            stored.change("options = ?", options)
            states = [("pending", None), ("pending", UNREADABLE_JOB), ("pending", None)]
            assert shown(await stored.listed()) == states
            assert shown(await stored.listed(states=(State.PENDING,))) == states
            found = await answer(stored.engine, ops.ShowJob(stored.ids[1]))
            assert found is not None
            assert shown([found]) == states[1:2]

    asyncio.run(asyncio.wait_for(check(), 30))


def test_failures_and_times_that_cannot_be_read_break_no_list(tmp_path: Path) -> None:
    async def check() -> None:
        async with Stored(tmp_path) as stored:
            what = "error = ?, state = 5, created_us = ?, started_us = ?, ended_us = ?"
            stored.change(what, b"\xff{", 2**62, -(2**62), 2**62)
            (_, (state, error), _) = shown(await stored.listed())
            assert state == "failed"
            assert error == "UnreadableFailure: the stored failure of 2 bytes cannot be read"

    asyncio.run(asyncio.wait_for(check(), 30))


def test_a_failure_of_an_older_version_is_read_in_part(tmp_path: Path) -> None:
    """It may have had any size."""

    async def check() -> None:
        async with Stored(tmp_path) as stored:
            old = msgspec.json.encode(JobFailure("E", "x" * 2**20, "t" * 2**20))
            stored.change("error = ?, state = 5", old)
            jobs = await stored.listed()
            assert max(len(job.error) for job in jobs) == 4096
            assert [error and error[:5] for _, error in shown(jobs)] == [None, "E: xx", None]
            assert len(await stored.listed(error_type="E")) == 1
            found = await answer(stored.engine, ops.ShowJob(stored.ids[1]))
            assert found is not None
            assert found.error == old

    asyncio.run(asyncio.wait_for(check(), 30))


def test_a_time_is_always_shown() -> None:
    assert rfc3339(2**70) == "9999-12-31T23:59:59.000000Z"
    assert rfc3339(-(2**70)) == "0001-01-01T00:00:00.000000Z"
