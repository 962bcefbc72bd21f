"""A stored row that cannot be read is a row with its id and a sentence. It breaks no list."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest

from mainspring.access.audit import ListActs, RecordActs, Recorded, decode_act
from mainspring.access.caller import Act
from mainspring.access.store import shown_credential
from mainspring.api import access as access_requests
from mainspring.api.handlers.access import AccessCalls
from mainspring.api.handlers.job_records import info_of
from mainspring.api.handlers.pages import number_fitting, rfc3339, value_in_row
from mainspring.api.handlers.registry import Api
from mainspring.bulk.rules import decode_touched
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.ids import NodeId, job_ids
from mainspring.job_logs.model import Chunk, lines_of
from mainspring.jobs import store as ops
from mainspring.jobs.model import UNREADABLE_JOB, UNREADABLE_OPTIONS, Job, JobFailure, State, read_options
from mainspring.jobs.settlement_records import AttemptRecord, decode_records, encode_record
from mainspring.queries import JobFilter, QueryJobs
from mainspring.series import decode_bucket
from mainspring.sizes import PAGE
from mainspring.storage.engine import Page
from mainspring.workflows.model import About, decode_about
from tests.conformance.suite.paging import answer

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

    def execute(self, statement: str) -> None:
        self.engine._tx.cursor.execute(statement)  # noqa: SLF001 - as above

    async def listed(self, **where: Any) -> list[Job]:
        return (await answer(self.engine, QueryJobs(where=JobFilter(**where)))).items


def shown(jobs: list[Job]) -> list[tuple[str, str | None]]:
    service: Any = SimpleNamespace(handles=SimpleNamespace(of=b"H:n:%d".__mod__))
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


# ---- rows of other tables ----

GARBAGE = [b"", b"\xc1", b"\x81\xa5retry\x07", b"\x91" * 5000 + b"\xc0", b"\xa2\xff\xff", b"{", b"[" * 5000]


@pytest.mark.parametrize("stored", GARBAGE, ids=range(len(GARBAGE)))
def test_no_row_of_another_table_breaks_its_list(stored: bytes) -> None:
    assert decode_act(stored).what == "unreadable"
    token = shown_credential("id", stored, 0)
    assert (token.token, token.grants, token.name[:27]) == ("id", (), "(this version cannot read t")
    assert decode_bucket(stored).is_empty()
    assert decode_touched(stored) == {}
    lines = lines_of(Chunk(1, 2, "default", b"f", 1, 0, 1, 3, 1, stored))
    assert {line.message for line in lines} == {"(this line cannot be read by this version)"}
    assert len(lines) == 3
    assert decode_about(stored) == About()
    assert read_options(stored) is UNREADABLE_OPTIONS


def test_one_record_of_an_attempt_leaves_the_others_readable() -> None:
    good = encode_record(AttemptRecord(1, 2, 3, "n", "w", "failed"))
    first, bad, last = decode_records(good + b"[" * 5000 + b"\n" + good)
    assert first == last == AttemptRecord(1, 2, 3, "n", "w", "failed")
    assert "cannot read the record" in bad.message


def test_an_act_that_cannot_be_read_is_a_row_of_the_audit(tmp_path: Path) -> None:
    async def check() -> None:
        async with Stored(tmp_path) as stored:
            stored.engine.commit([RecordActs([Act("a.b", "me"), Act("c.d", "me")])], lambda _: None, lambda *_: None)
            stored.execute("UPDATE audit SET act = x'c1' WHERE number = (SELECT min(number) FROM audit)")
            page = await answer(stored.engine, ListActs())
            assert [one.act.what for one in page.items] == ["c.d", "unreadable"]

    asyncio.run(asyncio.wait_for(check(), 30))


# ---- the budget of a page ----


def test_a_page_ends_early_where_its_rows_are_large() -> None:
    small = [{"row": number} for number in range(1000)]
    assert number_fitting(small) == 1000
    large = ["x" * 2**20] * 10
    assert number_fitting(large) == 3
    assert number_fitting(["x" * 2**24, "y"]) == 1
    assert len(msgspec.json.encode(large[:3])) <= PAGE.most


def test_a_large_value_in_a_row_is_a_mark() -> None:
    assert value_in_row({"small": 1}) == {"small": 1}
    assert value_in_row({"large": "x" * 100_000}) == "[… 100012 bytes …]"
    assert "cannot be shown" in value_in_row(msgspec.msgpack.Ext(5, b""))


def test_a_page_of_the_audit_continues_after_large_acts() -> None:
    acts = [Recorded(number, 1, Act("a", "me", object="x" * 2**20)) for number in range(9, 0, -1)]

    async def list_acts(query: ListActs) -> Page[Recorded]:
        found = [one for one in acts if query.after is None or one.number < query.after]
        some = found[: query.limit]
        return Page(some, some[-1].number if len(some) < len(found) else None)

    async def check() -> None:
        access: Any = SimpleNamespace(list_acts=list_acts)
        api = Api(AccessCalls(access, lambda: 0.0, list).handlers)
        seen: list[int] = []
        after = None
        for _ in range(9):
            page = await api.call(access_requests.ListActs(everywhere=True, cursor=after))
            assert len(msgspec.json.encode(page)) <= PAGE.most + 1000
            seen += [one.number for one in page.items]
            after = page.next
            if after is None:
                break
        assert seen == [9, 8, 7, 6, 5, 4, 3, 2, 1]

    asyncio.run(asyncio.wait_for(check(), 30))
