"""Calls about the fire times of all schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import jobs, schedules
from mainspring.api.handlers import fires as module
from mainspring.api.handlers.fires import FireCalls
from mainspring.api.handlers.pages import cursor_of
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.api.request import Code
from mainspring.clock import time_of, to_us
from mainspring.schedules import triggers

from .a_node import opened, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from mainspring.schedules.model import Schedule
    from mainspring.storage.engine import Answered, Budget, Query

    from .a_node import Node


async def fire(node: Node, *minutes: int) -> None:
    """Create two schedules, and fire them in some minutes from now, each after a second schedule that a user triggers."""
    for name in ("b", "a"):
        await node.api.call(schedules.AddSchedule(name=name, function=f"f-{name}", every=3600.0))
    now = 0
    for minute in minutes:
        node.clock.advance((minute - now) * 60)
        now = minute
        for name in ("a", "b"):
            await node.api.call(schedules.TriggerSchedule(name))


async def listed(node: Node, limit: int, **criteria: object) -> list[tuple[str, str]]:
    """Return all matching fire times, read in pages: the minute and the schedule of each."""
    found: list[tuple[str, str]] = []
    after: str | None = None
    while True:
        page = await node.api.call(schedules.ListFires(limit=limit, cursor=after, **criteria))  # type: ignore[arg-type]
        assert len(page.items) <= limit
        found += [((one.fire_time or "")[14:16], one.schedule) for one in page.items]
        after = page.next
        if after is None:
            return found


def test_fire_times_of_all_schedules_are_listed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
        async with opened() as node:
            await fire(node, 1, 2, 3, 4, 5)
            expected = [(f"{13 + minute}", name) for minute in (5, 4, 3, 2, 1) for name in ("a", "b")]
            for limit in (1, 2, 3, 100):
                assert await listed(node, limit) == expected
            assert await listed(node, 2, schedule="b") == [row for row in expected if row[1] == "b"]
            now = node.clock.wall()
            assert await listed(node, 3, since=time_of(to_us(now - 60)), until=time_of(to_us(now))) == [
                ("17", "a"),
                ("17", "b"),
            ]
            assert await listed(node, 3, state="skipped") == []
            assert await listed(node, 3, state="fired") == expected
            assert await listed(node, 3, outcome="failed") == []

    run(test())


def test_a_list_that_reads_long_goes_on_with_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 1)
        monkeypatch.setattr(module, "MOST_READS", 2)
        async with opened() as node:
            await fire(node, 1, 2, 3)
            page = await node.api.call(schedules.ListFires(state="skipped"))
            assert page.items == []
            assert page.next is not None
            assert await listed(node, 100, state="skipped") == []
            assert len(await listed(node, 100)) == 6

    run(test())


def count(node: Node, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Return a table that gets the number of rows of each read from now on, by the kind of the query."""
    rows: dict[str, list[int]] = {}
    read = node.store.read

    def counting(query: Query[Any], budget: Budget, answered: Answered) -> None:
        def counted(page: Any) -> None:
            rows.setdefault(type(query).__name__, []).append(len(page if isinstance(page, list) else page.items))
            answered(page)

        read(query, budget, counted)

    monkeypatch.setattr(node.store, "read", counting)
    return rows


def test_a_page_reads_only_the_schedules_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            for number in range(30):
                function = "seen" if number % 2 else "unseen"
                await node.api.call(schedules.AddSchedule(name=f"s{number:02}", function=function, every=3600.0))
            for _ in range(20):
                node.clock.advance(60)
                await node.api.call(schedules.TriggerSchedule("s07"))
            rows = count(node, monkeypatch)
            await node.api.call(schedules.ListFires(schedule="s07", limit=3))
            assert rows == {"ListSchedules": [1], "NewestFires": [3]}
            rows.clear()
            first = await node.api.call(schedules.ReadTimeline(limit=4))
            assert ([one.schedule for one in first.items][-1], rows["ListSchedules"]) == ("s03", [5])
            rows.clear()
            last = await node.api.call(
                schedules.ReadTimeline(limit=4, cursor=cursor_of(schedules.ReadTimeline(), "s25"))
            )
            assert ([one.schedule for one in last.items], last.next) == ([f"s{n}" for n in range(26, 30)], None)
            assert rows["ListSchedules"] == [4]
            rows.clear()
            caller = Caller("c", (Grant(Role.VIEWER, functions=("seen",)),))
            some = await node.api.call(schedules.ReadTimeline(limit=4), caller=caller)
            assert ([one.schedule for one in some.items], some.next is None) == (["s01", "s03", "s05", "s07"], False)
            assert rows["ListSchedules"] == [5, 5]

    run(test())


def test_a_list_of_all_reads_many_histories_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            for number in range(30):
                await node.api.call(schedules.AddSchedule(name=f"s{number:02}", function="f", every=3600.0))
            for number in range(40):
                node.clock.advance(60)
                await node.api.call(schedules.TriggerSchedule(f"s{number % 20:02}"))
                await node.api.call(schedules.TriggerSchedule("s20"))
            expected = await listed(node, 1000)
            assert len(expected) == 80
            rows = count(node, monkeypatch)
            assert await listed(node, 30) == expected
            assert len(rows["NewestFires"]) <= 10
            rows.clear()
            await node.api.call(schedules.ReadTimeline(limit=30))
            assert (len(rows["ListSchedules"]), rows["NewestFires"]) == (1, [80])

    run(test())


def test_outcomes_are_read_together_and_only_of_visible_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            for name in ("a", "b", "c", "d"):
                await node.api.call(schedules.AddSchedule(name=name, function=f"f-{name}", every=3600.0))
                for _ in range(2 if name < "d" else 0):
                    node.clock.advance(60)
                    handle = (await node.api.call(schedules.TriggerSchedule(name))).handle
                    await node.api.call(jobs.CancelJob(handle or ""))
            await node.api.call(schedules.TriggerSchedule("a"))
            rows = count(node, monkeypatch)
            request = schedules.ReadOutcomes(["d", "a", "c", "unknown", "a"])
            found = (await node.api.call(request)).items
            (newest,) = (await node.api.call(schedules.ListFires(schedule="c", limit=1))).items
            assert ([(one.schedule, one.outcome) for one in found], found[1]) == (
                [("a", "cancelled"), ("c", "cancelled")],
                newest,
            )
            assert rows.pop("LastOutcomes") == [2]
            caller = Caller("c", (Grant(Role.VIEWER, functions=("f-a", "f-b")),))
            found = (await node.api.call(request, caller=caller)).items
            assert [one.schedule for one in found] == ["a"]

    run(test())


def test_problems_have_codes() -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(schedules.ListFires(schedule="none")) is Code.SCHEDULE_NOT_FOUND
            assert await node.code(schedules.ListFires(cursor="x")) is Code.INVALID
            assert (
                await node.code(schedules.ReadTimeline(since=time_of(5_000_000), until=time_of(4_000_000)))
                is Code.INVALID
            )
            assert (
                await node.code(schedules.ReadTimeline(since=time_of(0), until=time_of(32 * 86_400_000_000)))
                is Code.INVALID
            )

    run(test())


def test_functions_of_others_are_left_out() -> None:
    async def test() -> None:
        async with opened() as node:
            await fire(node, 1)
            caller = Caller("c", (Grant(Role.VIEWER, functions=("f-a",)),))
            page = await node.api.call(schedules.ListFires(), caller=caller)
            assert [one.schedule for one in page.items] == ["a"]
            lines = (await node.api.call(schedules.ReadTimeline(), caller=caller)).items
            assert [one.schedule for one in lines] == ["a"]

    run(test())


def test_a_timeline_has_past_and_next_times_in_buckets() -> None:
    async def test() -> None:
        async with opened() as node:
            await fire(node, 1, 2)
            await node.api.call(schedules.PauseSchedule("b"))
            found = await node.api.call(schedules.ReadTimeline(step=3600.0))
            assert (found.since, found.until) == ("2023-11-14T00:00:00.000000Z", "2023-11-15T00:00:00.000000Z")
            a, b = found.items
            assert (a.schedule, a.state, a.complete) == ("a", "active", True)
            assert a.buckets == [
                schedules.TimelineBucket("2023-11-14T22:00:00.000000Z", 2, 0, 0, 0, 0),
                schedules.TimelineBucket("2023-11-14T23:00:00.000000Z", 0, 0, 0, 0, 1),
            ]
            assert (b.state, [one.due for one in b.buckets]) == ("paused", [0])
            first = await node.api.call(schedules.ReadTimeline(limit=1))
            assert first.items[-1].schedule == "a"
            second = await node.api.call(schedules.ReadTimeline(limit=1, cursor=first.next))
            assert ([one.schedule for one in second.items], second.next) == (["b"], None)
            some = await node.api.call(schedules.ReadTimeline(schedules=["b", "none", "a"], limit=1))
            assert ([one.schedule for one in some.items], some.next is None) == (["a"], False)
            some = await node.api.call(schedules.ReadTimeline(schedules=["b", "none"]))
            assert ([one.schedule for one in some.items], some.next) == (["b"], None)

    run(test())


def test_a_timeline_counts_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "MOST_ROWS", 5)
        monkeypatch.setattr(module, "MOST_STEPS", 5)
        async with opened() as node:
            for name in ("a", "b"):
                await node.api.call(schedules.AddSchedule(name=name, function="f", every=1.0))
            first = await node.api.call(schedules.ReadTimeline())
            assert [(one.schedule, one.complete, one.buckets[0].due) for one in first.items] == [("a", False, 5)]
            assert first.items[-1].schedule == "a"
            assert await node.api.call(schedules.ReadTimeline()) == first
            second = await node.api.call(schedules.ReadTimeline(cursor=first.next))
            assert [one.schedule for one in second.items] == ["b"]

    run(test())


def test_a_timeline_computes_the_next_times_of_a_schedule_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            await node.api.call(
                schedules.AddSchedule(name="a", function="f", cron="*/10 * * * *", timezone="Europe/Berlin")
            )
            first = await node.api.call(schedules.ReadTimeline(step=3600.0))
            days: list[int] = []  # the ends of computed times; those of a pause end before the day does
            steps, end_us = triggers.running_steps, 1_700_006_400_000_000

            def computing(schedule: Schedule, after_us: int, until_us: int) -> Iterator[int | None]:
                days.extend([until_us] if until_us == end_us - 1 else [])
                return steps(schedule, after_us, until_us)

            monkeypatch.setattr(triggers, "running_steps", computing)
            assert await node.api.call(schedules.ReadTimeline(step=3600.0)) == first
            node.clock.advance(1800)
            await node.api.call(schedules.PauseSchedule("a"))
            await node.api.call(schedules.ResumeSchedule("a"))
            later = await node.api.call(schedules.ReadTimeline(step=1200.0))
            assert days == []
            due = [[bucket.due for bucket in one.items[0].buckets] for one in (first, later)]
            assert (due[0], due[1]) == ([4, 6], [0, 1, 2, 2, 2])
            await node.api.call(schedules.EditSchedule(name="a", cron="*/20 * * * *"))
            edited = await node.api.call(schedules.ReadTimeline(step=3600.0))
            assert ([bucket.due for bucket in edited.items[0].buckets], len(days)) == ([0, 3], 1)

    run(test())


def test_each_namespace_has_its_own_fire_times() -> None:
    async def test() -> None:
        async with opened() as node:
            parts = (node.schedules, node.reads, node.service.handles, node.clock)
            call = Api(ScheduleCalls(*parts).handlers, FireCalls(*parts).handlers, enter=lambda _: None).call
            for namespace in ("default", "shop"):
                await call(schedules.AddSchedule(name="a", function=namespace, every=3600.0, namespace=namespace))
            await call(schedules.TriggerSchedule("a", namespace="shop"))
            (fire,) = (await call(schedules.ListFires(namespace="shop"))).items
            assert fire.schedule == "a"
            assert (await call(schedules.ListFires())).items == []
            assert (await call(schedules.ListFires(schedule="a", namespace="shop"))).items == [fire]
            (line,) = (await call(schedules.ReadTimeline(namespace="shop"))).items
            assert (line.schedule, line.function, sum(one.fired for one in line.buckets)) == ("a", "shop", 1)
            (line,) = (await call(schedules.ReadTimeline())).items
            assert (line.function, sum(one.fired for one in line.buckets)) == ("default", 0)

    run(test())
