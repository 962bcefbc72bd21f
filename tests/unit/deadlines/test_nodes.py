"""Deadlines on a whole node: options, events at their time, and what is shown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import pytest
from tests.unit.faces.rest.a_server import whole_node

from mainspring.api.events import END, EventInfo, ListEvents, SaveCursor
from mainspring.api.jobs import ShowJob
from mainspring.api.schedules import AddSchedule, EditSchedule, PauseSchedule, ResumeSchedule, ShowSchedule
from mainspring.api.submitting import JobOptions, Submit
from mainspring.api.workflows import ListWorkflowRuns, ShowRun, StartRun
from mainspring.callbacks import awaited
from mainspring.workflows.model import Definition
from mainspring.workflows.store import SaveDefinitions

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mainspring.api.handlers.registry import Api


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


async def events(api: Api, after: str | None, number: int) -> list[EventInfo]:
    """Return so many events behind a place."""
    found: list[EventInfo] = []
    while len(found) < number:
        page = await api.call(ListEvents(type=["*.overdue"], after=after, wait=5.0))
        found += page.items
        after = page.last
    return found


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/jobs.db"])
def test_a_job_without_a_worker_has_an_event_at_its_time(store: str, tmp_path: Any) -> None:
    async def test() -> None:
        async with whole_node(store.format(tmp_path)) as (_, built):
            place = (await built.api.call(ListEvents(type=["*.overdue"], after=END))).last
            options = JobOptions(start_within=0.2, deadline=0.4)
            handle = (await built.api.call(Submit(b"f", b"", options=options))).handle
            first, second = await events(built.api, place, 2)
            shown = await built.api.call(ShowJob(handle))
            assert [one.job for one in (first, second)] == [handle, handle]
            assert [one.data["kind"] for one in (first, second)] == ["start_within", "deadline"]
            assert shown.overdue_since == shown.start_by
            assert first.time is not None
            assert shown.start_by is not None
            assert first.time >= shown.start_by

    run(test())


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/jobs.db"])
def test_a_run_without_a_worker_is_shown_as_overdue(store: str, tmp_path: Any) -> None:
    async def test() -> None:
        async with whole_node(store.format(tmp_path)) as (_, built):
            definition = Definition("order", "1", timeout=86_400.0)
            await awaited(built.node.commits.committed(SaveDefinitions([definition], 0)))
            place = (await built.api.call(ListEvents(type=["*.overdue"], after=END))).last
            started = await built.api.call(StartRun("order", start_within=0.2, deadline=100))
            (event,) = await events(built.api, place, 1)
            assert (event.job, event.data["kind"]) == (started.handle, "start_within")
            run_shown = await built.api.call(ShowRun(started.handle))
            assert run_shown.overdue_since == run_shown.start_by is not None
            assert run_shown.deadline_at is not None
            assert (await built.api.call(ShowJob(started.handle))).overdue_since == run_shown.start_by
            await built.api.call(StartRun("order"))
            for request in (ListWorkflowRuns(), ListWorkflowRuns(overdue=True)):
                listed = {one.handle: one.overdue_since for one in (await built.api.call(request)).items}
                assert listed.pop(started.handle) == run_shown.start_by
                assert set(listed.values()) <= {None}
                assert bool(listed) is not request.overdue

    run(test())


def test_a_schedule_has_its_times() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            await built.api.call(AddSchedule(name="a", every=60.0, start_within=5.0, deadline=9.0))
            shown = await built.api.call(ShowSchedule("a"))
            assert (shown.start_within, shown.deadline, shown.overdue_since) == (5.0, 9.0, None)
            await built.api.call(EditSchedule(name="a", deadline=None))
            shown = await built.api.call(ShowSchedule("a"))
            assert (shown.start_within, shown.deadline) == (5.0, None)

    run(test())


@pytest.mark.parametrize("misfire", ["once", "skip"])
def test_a_schedule_whose_nodes_were_all_away_was_late_once(misfire: Literal["once", "skip"], tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"

    async def test() -> None:
        async with whole_node(store) as (_, built):
            add = AddSchedule(name="a", every=2.0, start_within=0.5, misfire=misfire, misfire_after=0.1)
            await built.api.call(add)
            place = (await built.api.call(SaveCursor("tests", type=["schedule.*"]))).place  # it outlives the node
        await asyncio.sleep(3)  # a fire time passes without a node, and the time for its job
        async with whole_node(store) as (_, built):
            found: list[EventInfo] = []
            after: str | None = place
            while all(one.type != "schedule.fired" for one in found):
                page = await built.api.call(ListEvents(type=["schedule.*"], after=after, wait=5.0))
                found, after = found + page.items, page.last
            (late,) = (one for one in found if one.type == "schedule.overdue")
            assert (late.subject, late.data["why"]) in {("a", "not_fired"), ("a", "misfire")}
            assert (await built.api.call(ShowSchedule("a"))).overdue_since is None

    run(test())


def test_a_schedule_that_is_paused_while_the_node_is_away_is_not_late(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"

    async def test() -> None:
        async with whole_node(store) as (_, built):
            await built.api.call(AddSchedule(name="a", every=2.0, start_within=0.5))
            place = (await built.api.call(SaveCursor("tests", type=["schedule.*"]))).place
            await built.api.call(PauseSchedule("a"))
        await asyncio.sleep(3)
        async with whole_node(store) as (_, built):
            await built.api.call(ResumeSchedule("a"))
            found: list[str] = []
            after: str | None = place
            while "schedule.fired" not in found:
                page = await built.api.call(ListEvents(type=["schedule.*"], after=after, wait=5.0))
                found, after = found + [one.type for one in page.items], page.last
            assert "schedule.resumed" in found
            assert "schedule.overdue" not in found

    run(test())
