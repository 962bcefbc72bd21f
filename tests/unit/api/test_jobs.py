"""Calls about jobs, without a face."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from mainspring.api import jobs
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import JobOptions, RunJob, Submit
from mainspring.errors import StoreFullError
from mainspring.features import Feature
from mainspring.jobs.model import State, failure
from mainspring.jobs.requests import JobChanges

from .a_node import UNKNOWN_HANDLE, Node, opened, run

if TYPE_CHECKING:
    from mainspring.api.request import Request


def test_a_job_is_shown_listed_cancelled_and_retried() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit(payload=b"load", unique=b"u")
            shown = await node.api.call(jobs.ShowJob(handle))
            assert (shown.handle, shown.function, shown.unique, shown.state) == (handle, "f", "u", "pending")
            assert (shown.input_size, shown.worker, shown.created_at) == (4, None, "2023-11-14T22:13:20.000000Z")
            (listed,) = (await node.api.call(jobs.ListJobs(function="f", unique="u", state="pending"))).items
            assert listed == jobs.JobInfo(*(getattr(shown, name) for name in jobs.JobInfo.__struct_fields__))
            assert await node.api.call(jobs.CancelJob(handle, "no")) == jobs.CancelledJob(handle, "cancelled")
            assert (await node.api.call(jobs.ShowJob(handle))).error == "Cancelled: no"
            assert (await node.api.call(jobs.RetryJob(handle))).state == "pending"
            assert await node.code(jobs.RetryJob(handle)) is Code.CONFLICT

    run(test())


def test_jobs_are_listed_by_tag() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.submit()
            tagged = (await node.api.call(Submit(b"f", b"", options=JobOptions(tags=("b", "a"))))).handle
            node.worker(b"g")
            held = (await node.api.call(Submit(b"g", b"", options=JobOptions(tags=("a",))))).handle
            assert (await node.api.call(jobs.ShowJob(tagged))).tags == ["a", "b"]
            assert [job.handle for job in (await node.api.call(jobs.ListJobs(tag="a"))).items] == [held, tagged]
            assert [job.handle for job in (await node.api.call(jobs.ListJobs(tag="b"))).items] == [tagged]
            assert (await node.api.call(jobs.ListJobs(tag="c"))).items == []

    run(test())


def test_lists_have_pages_and_include_foreground_jobs() -> None:
    async def test() -> None:
        async with opened() as node:
            handles = [await node.submit() for _ in range(4)]
            alone = asyncio.create_task(node.api.call(RunJob(b"g", b"")))
            await node.committed()
            page = await node.api.call(jobs.ListJobs(limit=2, function="f"))
            assert [job.handle for job in page.items] == handles[:1:-1]
            page = await node.api.call(jobs.ListJobs(limit=2, function="f", cursor=page.next))
            assert [job.handle for job in page.items] == handles[1::-1]
            assert [job.function for job in (await node.api.call(jobs.ListJobs(limit=1))).items] == ["g"]
            alone.cancel()

    run(test())


def test_a_running_job_is_shown_before_it_is_committed() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker()
            handle = await node.submit()
            assert [job.handle for job in (await node.api.call(jobs.ListJobs(state="running"))).items] == [handle]
            shown = await node.api.call(jobs.ShowJob(handle))
            assert (shown.state, shown.worker, shown.attempt) == ("running", "w", 1)
            assert (await node.api.call(jobs.CancelJob(handle))).state == "running"
            assert side.stopped == [b"cancelled"]

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (jobs.ListJobs(state="asleep"), Code.INVALID),
        (jobs.ListJobs(state=["failed", "asleep"]), Code.INVALID),
        (jobs.ListJobs(cursor="x"), Code.INVALID),
        (jobs.ShowJob("x"), Code.JOB_NOT_FOUND),
        (jobs.ShowJob(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
        (jobs.CancelJob(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
        (jobs.RetryJob(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
    ],
)
def test_problems_have_codes(request_: Request[object], code: Code) -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(request_) is code

    run(test())


@pytest.mark.parametrize(
    "request_",
    [jobs.ListJobs(), jobs.ShowJob(UNKNOWN_HANDLE), jobs.CancelJob(UNKNOWN_HANDLE), jobs.RetryJob(UNKNOWN_HANDLE)],
)
def test_a_store_that_refuses_is_unavailable(request_: Request[object]) -> None:
    async def test() -> None:
        async with opened() as node:
            node.store.error = StoreFullError("full")
            assert await node.code(request_) is Code.UNAVAILABLE

    run(test())


def test_a_watch_sends_only_what_its_buffer_holds() -> None:
    async def test() -> None:
        async with opened() as node:
            seen: list[jobs.JobInfo | jobs.MissedChanges] = []
            room = [True]
            end = node.jobs.watch(jobs.WatchJobs(function="f"), seen.append, lambda: room[0])
            first = await node.submit()
            await node.submit(b"g")
            room[0] = False
            await node.submit()
            await node.submit()
            room[0] = True
            last = await node.submit()
            end()
            await node.submit()
            assert [one.missed if isinstance(one, jobs.MissedChanges) else one.handle for one in seen] == [
                first,
                2,
                last,
            ]
            with pytest.raises(ApiError, match="no job has the handle x"):
                node.jobs.watch(jobs.WatchJobs(handle="x"), seen.append, lambda: True)
            end = node.jobs.watch(jobs.WatchJobs(handle=first), seen.append, lambda: True)
            del seen[:]
            await node.api.call(jobs.CancelJob(last))
            await node.api.call(jobs.CancelJob(first))
            end()
            assert [one.state for one in seen if isinstance(one, jobs.JobInfo)] == ["cancelled"]

    run(test())


def test_a_failure_is_shown_with_its_traceback() -> None:
    async def fail(node: Node) -> str:
        side = node.worker()
        handle = await node.submit()
        node.service.settling.failed(side.given[0], failure("E", "why"), final=True)
        await node.committed()
        return handle

    async def test() -> None:
        async with opened() as node:
            shown = await node.api.call(jobs.ShowJob(await fail(node)))
            assert (shown.state, shown.error, shown.traceback) == ("failed", "E: why", None)

    run(test())


def test_a_list_is_filtered_by_many_criteria() -> None:
    async def test() -> None:
        async with opened() as node:
            first = await node.submit(unique=b"u")
            node.clock.advance(10)
            second = await node.submit()
            node.clock.advance(10)
            third = await node.submit()
            await node.api.call(jobs.CancelJob(second, "no"))

            async def found(**criteria: object) -> list[str]:
                request = msgspec.convert(criteria, jobs.ListJobs)
                return [job.handle for job in (await node.api.call(request)).items]

            assert await found(state=["pending", "cancelled"], function="f") == [third, second, first]
            assert await found(state=["pending"]) == [third, first]
            assert await found(error_type="Cancelled") == [second]
            assert await found(error_type="Cancel") == []
            assert await found(key="k") == await found(schedule="s") == []
            assert await found(key="") == [third, second, first]
            created = (await node.api.call(jobs.ShowJob(second))).created_at
            assert await found(created_from=created) == [third, second]
            assert await found(created_to=created) == [first]
            assert await node.code(jobs.ListJobs(workflow="order-17")) is Code.RUN_NOT_FOUND
            assert await found(workflow=f"{first}@5") == []

    run(test())


# ---- deadlines ----


def test_a_job_has_the_times_of_its_options() -> None:
    async def test() -> None:
        async with opened() as node:
            options = JobOptions(delay=10, start_within=5, deadline=60)
            handle = (await node.api.call(Submit(b"f", b"", options=options))).handle
            shown = await node.api.call(jobs.ShowJob(handle))
            assert (shown.start_by, shown.deadline_at) == ("2023-11-14T22:13:35.000000Z", "2023-11-14T22:14:30.000000Z")
            assert shown.overdue_since is None
            node.clock.advance(15)
            (listed,) = (await node.api.call(jobs.ListJobs(function="f"))).items
            assert listed.overdue_since == shown.start_by
            node.clock.advance(60)
            assert (await node.api.call(jobs.ShowJob(handle))).overdue_since == shown.start_by

    run(test())


def test_times_of_a_job_change_and_go() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = (await node.api.call(Submit(b"f", b"", options=JobOptions(deadline=60)))).handle
            node.clock.advance(30)
            await node.api.call(jobs.UpdateJob(handle, deadline=60, start_within=5, priority="high"))
            shown = await node.api.call(jobs.ShowJob(handle))
            assert (shown.start_by, shown.deadline_at) == ("2023-11-14T22:13:55.000000Z", "2023-11-14T22:14:50.000000Z")
            assert shown.priority == "high"
            await node.api.call(jobs.UpdateJob(handle, start_within=None))
            await node.api.call(jobs.SnoozeJob(handle, 60))
            shown = await node.api.call(jobs.ShowJob(handle))
            assert (shown.start_by, shown.deadline_at) == (None, "2023-11-14T22:16:20.000000Z")
            assert await node.code(jobs.UpdateJob(handle, deadline=0)) is Code.INVALID
            assert await node.code(jobs.UpdateJob(UNKNOWN_HANDLE, deadline=5)) is Code.JOB_NOT_FOUND

    run(test())


def test_a_running_job_gets_a_deadline_and_an_ended_one_does_not() -> None:
    async def test() -> None:
        async with opened() as node:
            node.worker(b"f")
            running, other = await node.submit(), await node.submit(b"g")
            assert (await node.api.call(jobs.UpdateJob(running, deadline=60))).state == "running"
            assert (await node.api.call(jobs.ShowJob(running))).deadline_at == "2023-11-14T22:14:20.000000Z"
            await node.api.call(jobs.CancelJob(other))
            assert await node.code(jobs.UpdateJob(other, deadline=60)) is Code.CONFLICT

    run(test())


def test_a_start_and_a_deadline_are_changed_in_one_operation_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(JobChanges, "redate")

    async def test() -> None:
        async with opened() as node:
            handle = (await node.api.call(Submit(b"f", b"", options=JobOptions(start_within=5, deadline=60)))).handle
            run_at = datetime(2023, 11, 14, 23, 0, tzinfo=UTC)
            await node.api.call(jobs.UpdateJob(handle, run_at=run_at, deadline=90))
            shown = await node.api.call(jobs.ShowJob(handle))
            assert (shown.run_at, shown.start_by, shown.deadline_at) == (
                "2023-11-14T23:00:00.000000Z",
                "2023-11-14T23:00:05.000000Z",
                "2023-11-14T23:01:30.000000Z",
            ), "from the new start on"
            await node.api.call(jobs.UpdateJob(handle, expires_at=None, start_within=None))
            assert (await node.api.call(jobs.ShowJob(handle))).start_by is None
            node.worker(b"g")
            running = await node.submit(b"g")
            assert await node.code(jobs.UpdateJob(running, priority="high", deadline=60)) is Code.CONFLICT
            shown = await node.api.call(jobs.ShowJob(running))
            assert (shown.priority, shown.deadline_at) == ("normal", None)

    run(test())


def test_a_start_that_counts_is_recorded_at_once() -> None:
    async def test() -> None:
        async with opened() as node:
            node.worker(b"f", places=2)
            await node.submit()
            handle = (await node.api.call(Submit(b"f", b"", options=JobOptions(start_within=60)))).handle
            await node.committed()
            assert [job.state for job in node.store.tables.jobs.values()] == [State.LEASED, State.RUNNING]
            node.clock.advance(61)
            assert (await node.api.call(jobs.ShowJob(handle))).overdue_since is None

    run(test())


def test_a_store_without_deadlines_refuses_them() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.DEADLINES})) as node:
            for options in (JobOptions(deadline=60), JobOptions(start_within=60)):
                assert await node.code(Submit(b"f", b"", options=options)) is Code.UNSUPPORTED

    run(test())
