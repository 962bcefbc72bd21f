"""Queries have a connection and a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from tests.conformance.suite.paging import answer

from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.queries import READERS
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job
from mainspring.queries import QueryJobs
from mainspring.storage.engine import Budget

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_read_waits_for_no_group_and_sees_what_was_committed(tmp_path: Path) -> None:
    async def check() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        opened = await engine.open(NodeId("n"), asyncio.get_running_loop().call_soon_threadsafe)
        next_id = job_ids(opened.term)
        jobs = [Job(next_id(), b"f", b"payload") for _ in range(2)]
        engine.commit([ops.Submit(jobs[:1])], lambda _: None, apart)
        cursor = engine._tx.cursor  # noqa: SLF001 - a group is never left under way
        cursor.execute("BEGIN IMMEDIATE")  # as a group does that is under way
        cursor.execute("DELETE FROM jobs")
        found = await answer(engine, QueryJobs())
        assert [job.id for job in found.items] == [jobs[0].id]
        cursor.execute("ROLLBACK")
        await engine.close()

    asyncio.run(asyncio.wait_for(check(), 30))


def test_the_loop_goes_on_while_a_read_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And groups are committed, here and in the thread of the engine."""

    async def check() -> None:
        loop = asyncio.get_running_loop()
        begun, may_end = asyncio.Event(), threading.Event()

        async def look(*_: object) -> bool:
            loop.call_soon_threadsafe(begun.set)
            return may_end.wait(20)

        readers: dict[Any, Any] = READERS
        monkeypatch.setitem(readers, QueryJobs, look)
        engine = SqliteEngine(tmp_path / "jobs.db", thread_rows=0)
        opened = await engine.open(NodeId("n"), loop.call_soon_threadsafe)
        read = asyncio.ensure_future(answer(engine, QueryJobs()))
        await begun.wait()
        committed: asyncio.Future[Any] = loop.create_future()
        engine.commit([ops.Submit([Job(job_ids(opened.term)(), b"f", b"payload")])], committed.set_result, apart)
        assert await committed == [{}]
        assert not read.done()
        may_end.set()
        assert await read is True  # type: ignore[comparison-overlap]
        await engine.close()

    asyncio.run(asyncio.wait_for(check(), 30))


def test_a_small_read_does_not_wait_for_a_folding(tmp_path: Path) -> None:
    async def check() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        opened = await engine.open(NodeId("n"), asyncio.get_running_loop().call_soon_threadsafe)
        job = Job(job_ids(opened.term)(), b"f", b"payload")
        engine.commit([ops.Submit([job])], lambda _: None, apart)
        engine._folding._is_due = True  # noqa: SLF001 - as while the log is folded
        found = await answer(engine, ops.ShowJob(job.id))
        assert found is not None
        assert found.id == job.id
        page = asyncio.ensure_future(answer(engine, QueryJobs()))
        assert not page.done()
        engine._folding.admit_reader()  # noqa: SLF001 - as at its end
        assert len((await page).items) == 1
        await engine.close()

    asyncio.run(asyncio.wait_for(check(), 10))


def apart(place: int, outcome: Any) -> None:
    raise AssertionError((place, outcome))


def test_a_job_with_little_data_is_looked_up_at_once_and_a_long_one_in_the_thread(tmp_path: Path) -> None:
    async def check() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        opened = await engine.open(NodeId("n"), asyncio.get_running_loop().call_soon_threadsafe)
        next_id = job_ids(opened.term)
        short, long = Job(next_id(), b"f", b"payload", key=b"k"), Job(next_id(), b"f", bytes(20_000), input_size=20_000)
        engine.commit([ops.Submit([short, long])], lambda _: None, apart)
        answers = list[Any]()
        engine.read(ops.ShowJob(short.id), Budget(), answers.append)
        assert [(job.id, job.key, job.payload) for job in answers] == [(short.id, b"k", b"")]
        engine.read(ops.ShowJob(short.id, "other"), Budget(), answers.append)
        engine.read(ops.ShowJob(long.id), Budget(), answers.append)
        assert len(answers) == 1, "its row has several pages, which may be on the disk"
        found = await answer(engine, ops.ShowJob(long.id))
        assert found is not None
        assert found.id == long.id
        assert await answer(engine, ops.ShowJob(short.id, "other")) is None
        await engine.close()

    asyncio.run(asyncio.wait_for(check(), 30))
