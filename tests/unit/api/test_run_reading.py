"""Calls that read one run, without a face and with a fake of the service."""

from __future__ import annotations

from mainspring.api import workflows
from mainspring.api.request import Code
from mainspring.jobs.model import State
from mainspring.workflows.history import ChildPolicy, TimerFired, TimerStarted
from mainspring.workflows.model import About, OpenChild, OpenTimer, Parked, Parking, Status, encode_about
from mainspring.workflows.model import State as RunState
from mainspring.workflows.store import Unbegun

from .a_node import run
from .runs_of_a_node import ROOT, START_US, a_run, activity, call, waiting, with_runs


def test_a_run_is_shown_with_its_activities() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            handle = await node.submit(b"charge")
            node.worker(b"charge")
            await node.committed()
            job = node.service.handles.parse(handle.encode())
            assert job is not None
            timers = {"4": OpenTimer(7, "4", START_US + 2_000_000)}
            timers["3"] = OpenTimer(6, "3", START_US + 1_000_000, 60, "signal approved")
            state = RunState(
                activities={5: activity(job)}, timers=timers, close_by_us=START_US + 5_000_000, cancel_requested=9
            )
            parked = Parked("mismatch", "other code", ("charge",), ("refund",), 0)
            about = encode_about(About(("approved",), {"approved": 2}, ("price",)))
            sizes = {"input_size": 12, "output_size": 0, "history_bytes": 345}
            fake.runs.append(a_run(state=state, parking=Parking(parked=parked, builds=("b1",)), about=about, **sizes))
            shown = await node.api.call(workflows.ShowRun("order-17"))
            assert shown.activities == [
                workflows.ActivityInfo("2", "charge", handle, "running", "w", 1, "2023-11-14T22:13:20.000000Z", None)
            ]
            assert [(timer.number, timer.duration, timer.guards) for timer in shown.timers] == [
                ("3", 60, "signal approved"),
                ("4", None, None),
            ]
            assert shown.parked == workflows.ParkingInfo("mismatch", "other code", ["charge"], ["refund"], 0, ["b1"])
            assert (shown.receives, shown.unread, shown.steps) == (["approved"], {"approved": 2}, ["price"])
            assert (shown.input_size, shown.history_size, shown.cancel_requested) == (12, 345, True)
            assert shown.times_out_at == "2023-11-14T22:13:25.000000Z"
            assert shown.error is None

    run(test())


def test_a_history_has_pages() -> None:
    async def test() -> None:
        async with with_runs(a_run(status=Status.COMPLETED)) as (node, fake):
            fake.events = [TimerStarted(1, START_US, 4, "1", 60, number=1), TimerFired(2, START_US, "1", 1)]
            page = await node.api.call(call("workflows.history", '{"key": "order-17", "limit": 1}'))
            assert (page.status, [event["eventId"] for event in page.items]) == ("completed", [1])
            assert "number" not in page.items[0]["timerStartedEventAttributes"]
            second = await node.api.call(workflows.ReadHistory("order-17", cursor=page.next))
            page = await node.api.call(call("workflows.history", '{"key": "order-17", "from": 2}'))
            assert second == page
            assert (page.next, [event["eventType"] for event in page.items]) == (None, ["TimerFired"])
            page = await node.api.call(workflows.ReadHistory("order-17", native=True))
            assert page.items[0]["timerStartedEventAttributes"]["number"] == 1
            page = await node.api.call(workflows.ReadHistory("order-17", limit=1, reverse=True))
            last = await node.api.call(workflows.ReadHistory("order-17", limit=1, reverse=True, cursor=page.next))
            assert [event["eventId"] for event in (*page.items, *last.items)] == [2, 1]
            assert last.next is None
            page = await node.api.call(workflows.ReadHistory("order-17", kinds=("TimerFired",)))
            assert [event["eventId"] for event in page.items] == [2]

    run(test())


def test_a_child_and_its_parent_are_shown() -> None:
    async def test() -> None:
        child = OpenChild(5, "part-1", ROOT + 1, ChildPolicy.ABANDON, number=3, type="part")
        async with with_runs(a_run(state=RunState(children={5: child}, parent_run=ROOT - 4))) as (node, _):
            shown = await node.api.call(workflows.ShowRun("order-17"))
            handle = node.service.handles.of(ROOT + 1).decode()
            assert shown.children == [workflows.ChildInfo("3", "part", "part-1", handle, "abandon")]
            assert shown.waits_for == "part #3"
            assert shown.parent is not None
            assert shown.parent.endswith(f"@{ROOT - 4}")

    run(test())


def test_a_run_that_has_not_begun_is_shown() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            fake.unbegun = [waiting(ROOT)]
            shown = await node.api.call(workflows.ShowRun("order-17"))
            assert (shown.handle, shown.id, shown.run) == (
                f"H:laptop:{ROOT}",
                "order-17",
                f"H:laptop:{ROOT}@{ROOT}",
            )
            assert (shown.type, shown.version, shown.status, shown.begins_at) == ("order", "", "pending", None)
            assert shown.waits_for == "a first worker with the workflow order"
            assert (await node.api.call(workflows.ReadHistory("order-17"))) == workflows.HistoryPage(
                [], status="pending"
            )
            fake.unbegun = [Unbegun(fake.unbegun[0].job, is_workflow=True)]
            assert (await node.api.call(workflows.ShowRun("order-17"))).waits_for == "its start"
            due_us = START_US + 187_260_000_000
            fake.unbegun = [waiting(ROOT, unique=b"", state=int(State.SCHEDULED), due_us=due_us)]
            shown = await node.api.call(workflows.ShowRun("order-17"))
            assert (shown.id, shown.status, shown.begins_at) == (
                shown.handle,
                "scheduled",
                "2023-11-17T02:14:20.000000Z",
            )
            assert shown.waits_for == "its start in 2d4h"
            fake.unbegun *= 2
            assert await node.code(workflows.ShowRun("order-17")) is Code.CONFLICT

    run(test())
