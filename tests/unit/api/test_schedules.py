"""Calls about schedules, without a face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.api import jobs, schedules
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.api.request import ApiError, Code, Page
from mainspring.clock import time_of
from mainspring.errors import StoreFullError
from mainspring.features import Feature
from mainspring.schedules.specification import Specification
from mainspring.schedules.store import SaveSchedules, TriggerSchedule

from .a_node import opened, run

if TYPE_CHECKING:
    from mainspring.api.request import Request


def test_a_schedule_is_added_edited_paused_and_removed() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            added = await call(schedules.AddSchedule(name="a", function="f", every=60.0))
            assert (added.when, added.state, added.origin) == ("every 1m", "active", "cli")
            assert await call(schedules.ListAllSchedules()) == Page([added])
            assert (await call(schedules.PauseSchedule("a"))).state == "paused"
            assert await call(schedules.NextTimes("a")) == schedules.Times("a", paused=True, times=[], local=[])
            assert (await call(schedules.ResumeSchedule("a"))).state == "active"
            assert (await call(schedules.EditSchedule(name="a", jitter=1.5))).when == "every 1m"
            shown = await call(schedules.ShowSchedule("a"))
            assert (shown.every, shown.jitter, shown.cron, shown.version) == (60.0, 1.5, None, 4)
            times = await call(schedules.NextTimes("a", count=2))
            assert times.times == ["2023-11-14T22:14:00.000000Z", "2023-11-14T22:15:00.000000Z"]
            await call(schedules.ReplaceSchedule(name="a", function="f", cron="30 2 * * *", timezone="Europe/Berlin"))
            times = await call(schedules.NextTimes("a", count=1))
            assert times.local == [
                schedules.PreviewedTime("2023-11-15T01:30:00.000000Z", "2023-11-15T02:30:00+01:00", None)
            ]
            assert await call(schedules.RemoveSchedule("a")) == schedules.RemovedSchedule("a")
            assert (await call(schedules.ListAllSchedules())).items == []

    run(test())


def test_fires_do_not_refuse_the_changes_of_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            call, put = node.api.call, node.commits.put
            for namespace in ("default", "team"):
                own: dict[str, Any] = {"namespace": namespace, "function": "f"}
                await call(schedules.AddSchedule(name="parent", every=0.1, **own))
                await call(schedules.AddSchedule(name="child", parents=["parent"], **own))

            def fire_first(operation: Any, *more: Any) -> None:
                if isinstance(operation, SaveSchedules):
                    for one in operation.changes:
                        put(TriggerSchedule(one.name, operation.now_us))
                put(operation, *more)

            monkeypatch.setattr(node.commits, "put", fire_first)
            for namespace in ("default", "team"):
                revision = (await call(schedules.ShowSchedule("parent", namespace=namespace))).revision
                edit = schedules.EditSchedule(name="parent", namespace=namespace, revision=revision, jitter=1.5)
                assert (await call(edit)).state == "active"
                assert await node.code(edit) is Code.CHANGED
                assert (await call(schedules.PauseSchedule("parent", namespace=namespace))).state == "paused"
                await call(schedules.AdoptSchedule("parent", app="shop", namespace=namespace))
                await call(schedules.ReplaceSchedule(name="parent", namespace=namespace, function="g", every=0.1))
                await call(schedules.RemoveSchedule("parent", children=True, namespace=namespace))
                assert (await call(schedules.ListAllSchedules(namespace=namespace))).items == []

    run(test())


def test_a_schedule_is_removed_with_all_that_follow_it_or_not_at_all() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            for name, parents in (("a", ()), ("other", ()), ("b", ("a",)), ("c", ("b", "other")), ("d", ("other",))):
                trigger: dict[str, Any] = {"parents": list(parents)} if parents else {"every": 60.0}
                await call(schedules.AddSchedule(name=name, function="f", **trigger))
            assert await node.code(schedules.RemoveSchedule("a")) is Code.INVALID
            assert len((await call(schedules.ListAllSchedules())).items) == 5
            assert await call(schedules.RemoveSchedule("a", children=True)) == schedules.RemovedSchedule("a")
            assert [one.name for one in (await call(schedules.ListAllSchedules())).items] == ["d", "other"]

    run(test())


def test_a_schedule_is_given_to_an_app_and_its_code_applies() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            await call(schedules.AddSchedule(name="a", function="f", every=60.0, jitter=1.0))
            adopted = await call(schedules.AdoptSchedule("a", "shop"))
            assert (adopted.app, adopted.origin) == ("shop", "code")
            assert await node.code(schedules.AdoptSchedule("gone", "shop")) is Code.SCHEDULE_NOT_FOUND
            assert await node.code(schedules.AdoptSchedule("a", "")) is Code.INVALID
            (change,) = (
                await call(schedules.DeclareSchedules("shop", [Specification(name="a", function="f", every=60.0)]))
            ).changes
            assert (change.kind, (await call(schedules.ShowSchedule("a"))).jitter) == ("changed", 0.0)

    run(test())


def test_a_node_without_workflows_leaves_out_their_schedules() -> None:
    async def test() -> None:
        async with opened() as node:
            parts = (node.schedules, node.reads, node.service.handles, node.clock)
            call = Api(ScheduleCalls(*parts, lacks=frozenset({Feature.WORKFLOWS})).handlers, enter=lambda _: None).call
            both = [Specification(name="a", every=60.0), Specification(name="order", every=60.0)]
            declare = schedules.DeclareSchedules("x", both, functions=["a", "order"], workflows=("order",))
            added, left = (await call(declare)).changes
            assert (added.kind, added.name, left.kind, left.name) == ("added", "a", "left alone", "order")
            assert (left.warning, "keeps none" in left.text) == (True, True)
            assert [one.name for one in (await call(schedules.ListAllSchedules())).items] == ["a"]

    run(test())


def test_namespaces_have_schedules_of_the_same_name_and_do_not_see_each_other() -> None:
    async def test() -> None:
        async with opened() as node:
            parts = (node.schedules, node.reads, node.service.handles, node.clock)
            call = Api(ScheduleCalls(*parts).handlers, enter=lambda _: None).call
            added = await call(schedules.AddSchedule(name="a", function="f", every=60.0, namespace="team"))
            assert (added.name, added.function) == ("a", "f")
            assert (await call(schedules.ListAllSchedules())).items == []
            assert (await call(schedules.ListAllSchedules(namespace="team"))).items == [added]
            foreign: list[Request[Any]] = [
                schedules.ShowSchedule("a"),
                schedules.RemoveSchedule("a"),
                schedules.TriggerSchedule("a"),
                schedules.PauseSchedule("a"),
            ]
            for request in foreign:
                with pytest.raises(ApiError, match="'a'") as caught:
                    await call(request)
                assert caught.value.problem.code is Code.SCHEDULE_NOT_FOUND
            await call(schedules.AddSchedule(name="a", function="g", every=60.0))
            assert (await call(schedules.PauseSchedule("a"))).state == "paused"
            assert (await call(schedules.ShowSchedule("a", namespace="team"))).state == "active"
            with pytest.raises(ApiError, match="separates namespaces") as caught:
                await call(schedules.ShowSchedule("team\x1fa"))
            await call(schedules.RemoveSchedule("a"))
            assert (await call(schedules.ShowSchedule("a", namespace="team"))).function == "f"

    run(test())


def test_a_preview_saves_nothing_and_previews_an_edit_where_the_schedule_exists() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            shown = await call(
                schedules.PreviewSchedule(name="a", cron="30 2 * * *", timezone="Europe/Berlin", count=2)
            )
            assert shown.times == [
                schedules.PreviewedTime("2023-11-15T01:30:00.000000Z", "2023-11-15T02:30:00+01:00", None),
                schedules.PreviewedTime("2023-11-16T01:30:00.000000Z", "2023-11-16T02:30:00+01:00", None),
            ]
            assert (shown.clock_changes, shown.conflicts) == ([], [])
            assert (await call(schedules.ListAllSchedules())).items == []
            await call(schedules.AddSchedule(name="a", function="f", every=60.0))
            shown = await call(schedules.PreviewSchedule(name="a", start=time_of(1_800_000_000_000_000), count=1))
            assert (shown.when, shown.times[0].at) == ("every 1m", "2027-01-15T08:00:00.000000Z")
            assert [one.kind for one in shown.conflicts] == ["exists"]
            year = await call(schedules.PreviewSchedule(name="b", cron="0 0 1 * *", timezone="Europe/Berlin", count=12))
            assert year.clock_changes == [
                schedules.ClockChangeInfo("2024-03-31T01:00:00.000000Z", "+01:00", "+02:00"),
                schedules.ClockChangeInfo("2024-10-27T01:00:00.000000Z", "+02:00", "+01:00"),
            ]

    run(test())


def test_a_revision_prevents_a_lost_update_and_fires_do_not_change_it() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            await call(schedules.AddSchedule(name="a", function="f", every=60.0))
            before = await call(schedules.ShowSchedule("a"))
            await call(schedules.TriggerSchedule("a"))
            fired = await call(schedules.ShowSchedule("a"))
            assert (fired.revision, fired.version > before.version) == (before.revision, True)
            await call(schedules.EditSchedule(name="a", jitter=1.0, revision=before.revision))
            for stale in (
                schedules.EditSchedule(name="a", jitter=2.0, revision=before.revision),
                schedules.ReplaceSchedule(name="a", every=1.0, revision=before.revision),
                schedules.PauseSchedule("a", before.revision),
                schedules.ResumeSchedule("a", before.revision),
                schedules.RemoveSchedule("a", before.revision),
            ):
                assert await node.code(stale) is Code.CHANGED
            edited = (await call(schedules.ShowSchedule("a"))).revision
            await call(schedules.PauseSchedule("a", edited))
            paused = await call(schedules.ShowSchedule("a"))
            assert (paused.state, paused.jitter, paused.revision != edited) == ("paused", 1.0, True)
            await call(schedules.ResumeSchedule("a", paused.revision))
            assert (await call(schedules.ShowSchedule("a"))).revision == edited
            assert (await call(schedules.RemoveSchedule("a", edited))).name == "a"

    run(test())


def test_a_replaced_schedule_has_defaults_where_fields_are_left_out() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            await call(schedules.AddSchedule(name="a", function="f", every=60.0, jitter=3.0))
            assert (await call(schedules.ReplaceSchedule(name="a", every=30.0))).when == "every 30s"
            shown = await call(schedules.ShowSchedule("a"))
            assert (shown.function, shown.jitter) == ("a", 0.0)
            assert await node.code(schedules.ReplaceSchedule(name="none", every=1.0)) is Code.SCHEDULE_NOT_FOUND

    run(test())


def test_a_triggered_run_is_in_the_history() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.api.call(schedules.AddSchedule(name="a", function="f", every=60.0))
            assert (await node.api.call(schedules.ScheduleHistory("a"))).items == []
            run = await node.api.call(schedules.TriggerSchedule("a"))
            assert run.handle is not None
            assert (await node.api.call(jobs.ShowJob(run.handle))).schedule == "a"
            assert (await node.api.call(schedules.ScheduleHistory("a"))).items == [run]

    run(test())


def test_schedules_are_declared_by_code() -> None:
    async def test() -> None:
        async with opened() as node:
            declared = await node.api.call(schedules.DeclareSchedules("x", [Specification(name="a", every=60.0)]))
            assert declared == schedules.Declared(
                governs=True, changes=[schedules.Difference("added", "a", "added a: every 1m")]
            )

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (schedules.AddSchedule(name="b"), Code.INVALID),
        (schedules.AddSchedule(name="there", every=1.0), Code.CONFLICT),
        (schedules.EditSchedule(name="there", overlap="x"), Code.INVALID),
        (schedules.EditSchedule(name="none"), Code.SCHEDULE_NOT_FOUND),
        (schedules.ShowSchedule("none"), Code.SCHEDULE_NOT_FOUND),
        (schedules.PauseSchedule("none"), Code.SCHEDULE_NOT_FOUND),
        (schedules.RemoveSchedule("none"), Code.SCHEDULE_NOT_FOUND),
        (schedules.TriggerSchedule("none"), Code.SCHEDULE_NOT_FOUND),
        (schedules.ScheduleHistory("none"), Code.SCHEDULE_NOT_FOUND),
        (schedules.NextTimes("there", count=1001), Code.INVALID),
        (schedules.PreviewSchedule(name="b"), Code.INVALID),
        (schedules.PreviewSchedule(name="b", every=1.0, count=0), Code.INVALID),
        (schedules.DeclareSchedules("x", [Specification(name="b")]), Code.INVALID),
    ],
)
def test_problems_have_codes(request_: Request[object], code: Code) -> None:
    async def test() -> None:
        async with opened() as node:
            await node.api.call(schedules.AddSchedule(name="there", every=60.0))
            assert await node.code(request_) is code

    run(test())


@pytest.mark.parametrize(
    "request_",
    [
        schedules.ListAllSchedules(),
        schedules.AddSchedule(name="a", every=1.0),
        schedules.TriggerSchedule("a"),
        schedules.ScheduleHistory("a"),
    ],
)
def test_a_store_that_refuses_is_unavailable(request_: Request[object]) -> None:
    async def test() -> None:
        async with opened() as node:
            node.store.error = StoreFullError("full")
            assert await node.code(request_) is Code.UNAVAILABLE

    run(test())
