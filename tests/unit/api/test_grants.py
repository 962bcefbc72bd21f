"""Callers whose grants name some functions, or who may not see payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import functions, jobs, schedules, workflows
from mainspring.api.handlers.grants import RunGrants, without_payloads
from mainspring.api.request import ApiError, Code, Page
from mainspring.schedules.specification import Specification
from mainspring.workflows.history import TimerStarted

from .a_node import opened, run
from .runs_of_a_node import START_US, a_run, with_runs

if TYPE_CHECKING:
    from mainspring.api.handlers.registry import Handlers
    from mainspring.api.request import Request

    from .a_node import Node

PAY = Caller("pay", (Grant(Role.ADMIN, functions=("pay*",), payloads=True),))
BLIND = Caller("blind", (Grant(Role.ADMIN),))
SEES = Caller("sees", (Grant(Role.VIEWER, payloads=True),))


async def refused(node: Node, request: Request[Any], caller: Caller = PAY) -> bool:
    """Return whether a request is forbidden."""
    with pytest.raises(ApiError) as caught:
        await node.api.call(request, caller=caller)
    return caught.value.problem.code is Code.FORBIDDEN


def test_places_between_pages_name_no_function_of_others() -> None:
    async def test() -> None:
        async with opened() as node:
            for name in ("mail", "pay", "pay-later", "post"):
                await node.api.call(functions.LimitFunction(name, concurrency=1))
            after, names, places = None, [], []
            while True:
                page = await node.api.call(functions.ListFunctions(limit=1, cursor=after), caller=PAY)
                names += [one.function for one in page.items]
                if (after := page.next) is None:
                    break
                places.append(after)
            assert names == ["pay", "pay-later"]
            assert not {f"n{name.hex()}" for name in (b"mail", b"post")} & set(places)

    run(test())


def test_functions_of_others_are_left_out_and_forbidden() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.submit(b"pay")
            await node.submit(b"mail")
            listed = await node.api.call(functions.ListFunctions(), caller=PAY)
            assert [one.function for one in listed.items] == ["pay"]
            assert (await node.api.call(functions.ShowFunction("pay"), caller=PAY)).waiting == 1
            node.worker(b"mail", b"pay-later")
            registered = await node.api.call(functions.IsRegistered("pay-x"), caller=PAY)
            assert registered.functions == ["pay-later"]
            for request in (
                functions.ShowFunction("mail"),
                functions.IsRegistered("mail"),
                functions.PauseFunction("mail"),
            ):
                assert await refused(node, request)

    run(test())


LIKE_DECISIONS = "order@1\\ (decisions)"
"""The text of a function of users that is named as the decisions of a workflow are shown."""


@pytest.mark.parametrize(("pattern", "sees"), [(LIKE_DECISIONS, True), ("order@1 (decisions)", False)])
def test_a_pattern_means_the_same_function_in_all_calls(pattern: str, *, sees: bool) -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit(b"order@1 (decisions)")
            caller = Caller("own", (Grant(Role.ADMIN, functions=(pattern,), payloads=True),))
            requests: list[Request[Any]] = [
                functions.ShowFunction(LIKE_DECISIONS),
                jobs.ShowJob(handle),
                jobs.ReadPayload(handle),
                jobs.CancelJob(handle),
            ]
            if sees:
                for request in requests:
                    await node.api.call(request, caller=caller)
            else:
                assert [await refused(node, request, caller) for request in requests] == [True] * len(requests)
            listed = await node.api.call(jobs.ListJobs(), caller=caller)
            assert [one.handle for one in listed.items] == [handle] * sees

    run(test())


def test_schedules_of_other_functions_are_left_out_and_forbidden() -> None:
    async def test() -> None:
        async with opened() as node:
            for name in ("pay", "mail"):
                await node.api.call(schedules.AddSchedule(name=f"{name}-daily", function=name, every=60.0))
            listed = await node.api.call(schedules.ListAllSchedules(), caller=PAY)
            assert [one.name for one in listed.items] == ["pay-daily"]
            await node.api.call(schedules.PauseSchedule("pay-daily"), caller=PAY)
            await node.api.call(schedules.ResumeSchedule("pay-daily"), caller=PAY)
            await node.api.call(schedules.NextTimes("pay-daily"), caller=PAY)
            await node.api.call(schedules.AddSchedule(name="other", function="pay-2", every=60.0), caller=PAY)
            await node.api.call(schedules.EditSchedule(name="other", jitter=1.0), caller=PAY)
            await node.api.call(schedules.DeclareSchedules("x", [Specification(name="mail-3", every=60.0)]))
            declared = await node.api.call(
                schedules.DeclareSchedules("y", [Specification(name="pay-3", every=60.0)]), caller=PAY
            )
            assert [(one.kind, one.name) for one in declared.changes] == [("added", "pay-3")]
            await node.api.call(schedules.AdoptSchedule("pay-daily", "y"), caller=PAY)
            await node.api.call(schedules.AddSchedule(name="mail-4", parents=["pay-3"], function="mail"))
            requests: tuple[Request[Any], ...] = (
                schedules.ShowSchedule("mail-daily"),
                schedules.NextTimes("mail-daily"),
                schedules.ScheduleHistory("mail-daily"),
                schedules.ScheduleHistory("gone"),
                schedules.PauseSchedule("mail-daily"),
                schedules.ResumeSchedule("mail-daily"),
                schedules.RemoveSchedule("mail-daily"),
                schedules.RemoveSchedule("pay-3", children=True),
                schedules.AdoptSchedule("mail-daily", "y"),
                schedules.AdoptSchedule("pay-daily", "x"),
                schedules.DeclareSchedules("x", [Specification(name="pay-3", every=60.0)]),
                schedules.TriggerSchedule("mail-daily"),
                schedules.EditSchedule(name="mail-daily", function="pay"),
                schedules.EditSchedule(name="pay-daily", function="mail"),
                schedules.ReplaceSchedule(name="pay-daily", every=1.0, function="mail"),
                schedules.AddSchedule(name="new", every=1.0),
                schedules.PreviewSchedule(name="new", every=1.0),
                schedules.DeclareSchedules("x", [Specification(name="mail", every=60.0)]),
            )
            for request in requests:
                assert await refused(node, request), request

    run(test())


def test_payloads_of_schedules_are_shown_to_those_who_may_see_them() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.api.call(schedules.AddSchedule(name="pay", every=60.0, payload=b"secret"))
            for caller, payload in ((BLIND, b""), (SEES, b"secret"), (PAY, b"secret")):
                shown = await node.api.call(schedules.ShowSchedule("pay"), caller=caller)
                assert (shown.payload, shown.payload_size) == (payload, 6)

    run(test())


def test_runs_of_other_workflows_are_left_out_and_forbidden() -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, fake):
            assert (await node.api.call(workflows.ListWorkflowRuns(), caller=PAY)).items == []
            assert len((await node.api.call(workflows.ListWorkflowRuns(), caller=BLIND)).items) == 1
            requests: tuple[Request[Any], ...] = (
                workflows.ShowRun("order-17"),
                workflows.ReadHistory("order-17"),
                workflows.SignalRun(key="order-17", name="go"),
                workflows.CancelRun("order-17"),
                workflows.TerminateRun("order-17"),
                workflows.MoveRun("order-17", "1"),
                workflows.ResetRun("order-17", last=True),
                workflows.ResetRun("order-17", last=True, dry_run=True),
                workflows.RerunRun("order-17"),
                workflows.UnparkRun("order-17"),
                workflows.UnparkAllRuns(),
                workflows.StartRun(function="order"),
            )
            for request in requests:
                assert await refused(node, request), request
            own = Caller("own", (Grant(Role.ADMIN, functions=("order",)),))
            assert (await node.api.call(workflows.ShowRun("order-17"), caller=own)).type == "order"
            await node.api.call(workflows.SignalRun(key="order-17", name="go"), caller=own)
            assert fake.received[-1].name == "go"

    run(test())


def test_versions_of_other_workflows_are_left_out_and_forbidden() -> None:
    async def versions(*_: object) -> Page[workflows.VersionInfo]:
        info = ("1", 0, 0, 1, None, True, True)
        return Page([workflows.VersionInfo(name, *info) for name in ("pay", "order")])

    async def workers(*_: object) -> Page[workflows.DeciderInfo]:
        listed = (["pay@1", "order@1"], ["order@2"])
        return Page(
            [
                workflows.DeciderInfo("w", "n1", names, 0, 0, 100, full=False, draining=False, cache=None)
                for names in listed
            ]
        )

    async def remove(request: workflows.RemoveVersion, _: object) -> str:
        return request.type

    async def test() -> None:
        async with opened() as node:
            inner: Handlers = {
                workflows.ListVersions: versions,
                workflows.ListDeciders: workers,
                workflows.RemoveVersion: remove,
            }
            node.api.add({kind: one for kind, one in RunGrants(inner).handlers.items() if kind in inner})
            call = node.api.call
            for caller, names, decided in (
                (PAY, ["pay"], [["pay@1"]]),
                (BLIND, ["pay", "order"], [["pay@1", "order@1"], ["order@2"]]),
            ):
                found = (await call(workflows.ListVersions(), caller=caller)).items
                assert [one.type for one in found] == names
                listed = (await call(workflows.ListDeciders(), caller=caller)).items
                assert [one.versions for one in listed] == decided
            assert await refused(node, workflows.RemoveVersion("order", "1"))
            await call(workflows.RemoveVersion("pay", "1"), caller=PAY)

    run(test())


def test_a_history_has_sizes_in_place_of_payloads() -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, fake):
            fake.events = [TimerStarted(1, START_US, 4, "1", 60, "secret", number=1)]
            key = "timerStartedEventAttributes"
            blind = await node.api.call(workflows.ReadHistory("order-17", native=True), caller=BLIND)
            assert "secret" not in str(blind.items)
            assert blind.items[0][key]["timerId"] == "1"
            seen = await node.api.call(workflows.ReadHistory("order-17", native=True), caller=SEES)
            assert "secret" in str(seen.items)
            assert await refused(node, workflows.ReadHistory("order-17", exact=True), BLIND)
            assert (await node.api.call(workflows.ReadHistory("order-17", exact=True), caller=SEES)).items

    run(test())


def test_only_known_texts_of_events_are_shown() -> None:
    event = {
        "eventType": "x",
        "eventId": 3,
        "xEventAttributes": {
            "input": "secret",
            "tagList": ["a"],
            "activityType": {"name": "f", "version": "1"},
            "more": [{"data": "secret"}, "secret"],
            "startToCloseTimeout": "60",
        },
    }
    assert without_payloads(event) == {
        "eventType": "x",
        "eventId": 3,
        "xEventAttributes": {
            "inputSize": 6,
            "tagList": ["a"],
            "activityType": {"name": "f", "version": "1"},
            "more": [{"dataSize": 6}, None],
            "startToCloseTimeout": "60",
        },
    }
