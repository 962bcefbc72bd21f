"""An App lists, changes and controls what its servers have, blocking and for asyncio."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from checks.operating import FILES, written

from mainspring import App, Rate, Retry
from mainspring.api.request import Page
from mainspring.client.connections import PAGE, _Pages
from mainspring.client.declared import REQUESTS, answer, params
from mainspring.client.job import ListedJob
from mainspring.client.run import ListedRun
from mainspring.errors import ConflictError, JobFailed, NotFoundError, ServerError, UsageError
from mainspring.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.testing.app import InMemory

app = App()
go = app.signal("go", int)
LATER = datetime(2040, 1, 31, 12, tzinfo=UTC)


@app.task
def charge(order: int, cents: int = 0) -> str:
    if cents < 0:
        raise ValueError(f"order {order} costs {cents}")
    return f"{order}: {cents}"


@app.workflow
async def order(number: int) -> int:
    return number + await go.receive()


@app.scheduled("30 2 * * *")
def nightly() -> None: ...


@pytest.fixture(scope="module")
def fleet() -> Iterator[InMemory]:
    with in_memory(app) as fleet:
        yield fleet


def test_the_methods_are_those_of_the_declared_requests() -> None:
    for path, text in written().items():
        assert path.read_text("utf-8") == text, "run python -m checks.operating"


def test_each_method_has_a_twin_with_its_parameters() -> None:
    seen = 0
    for file in FILES:
        for group in file.groups:
            kind = getattr(importlib.import_module(f"mainspring.client.{file.name[:-3]}"), group.name)
            for method in group.methods:
                one, other = (inspect.signature(getattr(kind, name)) for name in (method.name, f"a{method.name}"))
                assert one.parameters == other.parameters
                seen += 1
    assert seen > 30


def test_failed_jobs_are_found_and_retried(fleet: InMemory) -> None:
    failed = [charge.options(tags=["trial"]).submit(number, cents=-1) for number in range(3)]
    for job in failed:
        with pytest.raises(JobFailed):
            fleet.result(job)
    found = list(app.jobs.list(state="failed", function=charge, tag="trial"))
    assert [job.handle for job in found] == [job.handle for job in reversed(failed)]
    assert {(job.row.state, job.row.error) for job in found} >= {("failed", "ValueError: order 2 costs -1")}
    assert [job.handle for job in app.jobs.list(tag="trial", limit=2)] == [job.handle for job in found[:2]]
    (attempt,) = found[0].attempts()
    assert (attempt.number, attempt.error_type) == (1, "ValueError")
    assert found[0].arguments().value == {"order": 2, "cents": -1}

    assert found[0].retry(args=[2, 50], delay="1m").state == "scheduled"
    assert found[1].retry(args={"order": 1, "cents": 7}).state in {"pending", "leased", "running", "succeeded"}
    assert fleet.result(charge.job(found[0].handle)) == "2: 50"
    assert fleet.result(charge.job(found[1].handle)) == "1: 7"
    with pytest.raises(ConflictError):
        found[0].retry()
    found[2].delete()
    with pytest.raises(NotFoundError):
        app.jobs.get(found[2].handle)
    assert app.jobs.find(tag="trial", state=["failed", "expired"]) is None


def test_a_waiting_job_is_found_by_its_unique_and_changed(fleet: InMemory) -> None:
    submitted = charge.options(unique="order-1", delay="1d").submit(1, 5)
    found = app.jobs.find(unique="order-1")
    assert isinstance(found, ListedJob)
    assert (found.handle, found.row.unique, found.row.state) == (submitted.handle, "order-1", "scheduled")
    assert found.update(priority="high", expires_at=LATER).priority == "high"
    shown = app.jobs.get(found.handle).row
    assert shown.expires_at == "2040-01-31T12:00:00.000000Z"  # type: ignore[attr-defined] # with all details
    found.update(expires_at=None)
    assert found.snooze(timedelta(hours=1)).state == "scheduled"
    clone = app.jobs.clone(found.handle, args=[2, 6])
    assert fleet.result(clone) == b'"2: 6"'
    found.cancel()
    with pytest.raises(UsageError, match="run_at has no time zone"):
        found.update(run_at=datetime(2040, 1, 1))  # noqa: DTZ001 - that is the mistake
    with pytest.raises(UsageError, match="delay"):
        found.snooze("soon")
    with pytest.raises(TypeError, match=r"jobs\.clone has no argument 'namespace'"):
        app.jobs.clone(found.handle, namespace="other")  # type: ignore[call-arg] # that is the mistake
    with pytest.raises(TypeError, match=r"jobs\.list has no argument 'colour'"):
        app.jobs.find(colour="red")  # type: ignore[call-arg] # that is the mistake
    with pytest.raises(UsageError, match=r"jobs\.update: .*priority"):
        found.update(priority="highest")  # type: ignore[arg-type] # that is the mistake


def test_a_function_is_paused_limited_and_resumed(fleet: InMemory) -> None:
    until = fleet.now + timedelta(days=1)
    paused = app.functions.pause(charge, reason="the bank is down", until=until)
    assert datetime.fromisoformat(paused.paused_until or "") == until
    assert app.functions.get("charge").pause_reason == "the bank is down"
    assert not app.functions.resume(charge).paused
    limited = app.functions.limit("charge", concurrency=2, rate=Rate(10, per="1m"))
    assert limited.concurrency == 2
    assert limited.rate is not None
    assert (limited.rate.number, limited.rate.per) == (10, 60.0)
    assert app.functions.limit("charge", rate=None).rate is None
    assert app.functions.limit(charge, declared=True).concurrency is None
    assert [one.function for one in app.functions.list(name="HARG")] == ["charge"]


def test_schedules_are_added_changed_triggered_and_removed(fleet: InMemory) -> None:
    added = app.schedules.add(
        "monthly",
        cron="0 3 1 * *",
        function=charge,
        args={"order": 7, "cents": 9},
        exclude=[date(2030, 12, 24)],
        retry=Retry(max_attempts=3),
        jitter="1m",
    )
    assert (added.function, added.state, added.origin) == ("charge", "active", "cli")
    details = app.schedules.get("monthly")
    assert (details.exclude, details.jitter, details.retry and details.retry.max_attempts) == (["2030-12-24"], 60.0, 3)
    assert bytes(details.args or b"") == b'{"order":7,"cents":9}'
    assert {one.name for one in app.schedules.list()} >= {"monthly"}
    with pytest.raises(ConflictError):
        app.schedules.add("monthly", every="1h", function=charge)
    assert app.schedules.pause("monthly").state == "paused"
    assert app.schedules.resume("monthly").state == "active"
    assert app.schedules.edit("monthly", jitter=0, end=LATER, args=[8, 1]).when == added.when
    fired = app.schedules.trigger("monthly")
    assert fleet.result(charge.job(fired.handle or "")) == "8: 1"
    assert [one.handle for one in app.schedules.fires(schedule="monthly")] == [fired.handle]
    assert len(app.schedules.next("monthly", count=3).times) == 3
    assert app.schedules.preview("yearly", cron="@yearly", count=2).conflicts == []
    assert app.schedules.add("after", parents=["monthly"], function="charge").parents == ["monthly"]
    app.schedules.remove("after")
    assert app.schedules.remove("monthly").state == "removed"
    with pytest.raises(NotFoundError):
        app.schedules.get("monthly")
    assert [one.name for one in app.schedules.all()] == ["nightly"]


def test_runs_are_started_found_and_changed(fleet: InMemory) -> None:
    run = app.runs.start("order", id="order-17", args=[17])
    found = app.runs.find(id="order-17", status="open")
    assert isinstance(found, ListedRun)
    assert (found.handle, found.row.id, found.joined) == (run.handle, "order-17", False)
    assert app.runs.start("order", id="order-17", args=[18]).joined
    assert [one.row.run for one in app.runs.list(type="order", open=True)] == [found.row.run]
    got = app.runs.get("order-17")
    assert got.details()["id"] == "order-17"
    assert got.unpark().number in {0, 1}
    assert not got.pause(reason="look first").repeated
    details = got.details()
    assert (details["paused"]["reason"], details["waits_for"]) == ("look first", "its resume (paused: look first)")
    assert [one.row.id for one in app.runs.list(paused=True)] == ["order-17"]
    assert not got.resume().repeated
    assert got.resume().repeated
    assert got.move("1").repeated
    got.signal(go, 3)
    assert fleet.result(run) == b"20"
    assert app.runs.find(id="order-17", status="cancelled") is None


def test_an_event_loop_has_the_same(fleet: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise AssertionError("a request blocks the event loop")

    monkeypatch.setattr(app.connections, "blocking", refuse)

    async def all_of_it() -> None:
        job = await charge.options(unique="loop", delay="1d").asubmit(4)
        found = await app.jobs.afind(unique="loop")
        assert found is not None
        assert [one.handle async for one in app.jobs.alist(unique="loop")] == [job.handle]
        assert (await found.aupdate(priority="low")).priority == "low"
        assert (await app.jobs.aget(job.handle)).row.priority == "low"
        await found.acancel()
        assert (await found.aretry(delay="1d")).state == "scheduled"
        await found.acancel()
        await found.adelete()
        assert (await app.functions.apause("charge")).paused
        assert not (await app.functions.aresume("charge")).paused
        assert "charge" in [one.function async for one in app.functions.alist()]
        await app.schedules.aadd("hourly", every=timedelta(hours=1), function=charge, args=[1])
        assert [one.name async for one in app.schedules.alist()] == ["hourly", "nightly"]
        assert (await app.schedules.atrigger("hourly")).handle
        await app.schedules.aremove("hourly")
        run = await app.runs.astart("order", id="loop", args=[1])
        by_id = order.get("loop")
        with pytest.raises(ConflictError):
            await by_id.adelete()  # it has found its handle without blocking the loop
        assert [one.handle async for one in app.runs.alist(id="loop")] == [run.handle]
        await run.aterminate()
        await app.aclose()

    asyncio.run(all_of_it())


def test_lists_are_read_page_by_page() -> None:
    pages = _Pages({"state": "failed"}, 5)
    assert pages.given == {"state": "failed", "limit": 5}
    assert pages.rows(Page([1, 2], "H:2")) == [1, 2]
    assert pages.given == {"state": "failed", "limit": 3, "cursor": "H:2"}
    assert pages.rows(Page([], "H:1")) == []
    assert pages.given == {"state": "failed", "limit": 3, "cursor": "H:1"}
    assert pages.rows(Page([3, 4, 5, 6], "H:0")) == [3, 4, 5]
    assert pages.given is None
    everything = _Pages({}, None)
    assert everything.given == {"limit": PAGE}
    assert everything.rows(Page([1], None)) == [1]
    assert everything.given is None


def test_answers_of_other_versions_are_refused_with_a_sentence() -> None:
    with pytest.raises(ServerError, match=r"the answer to functions\.pause cannot be read"):
        answer("functions.pause", {"function": "f"})
    row: dict[str, Any] = dict.fromkeys(("handle", "function", "unique", "state", "priority"), "x")
    row |= {"attempt": 1, "newer": "key", **dict.fromkeys(("created_at", "started_at", "ended_at", "error"))}
    assert answer("jobs.retry", row).state == "x"
    assert params("workflows.start", {"function": "f", "id": "a", "args": b"\x00"}) == {
        "function": "f",
        "id": "a",
        "payload": "AA==",
    }
    assert set(REQUESTS) >= {"jobs.retry", "functions.limit", "schedules.add", "workflows.start"}
