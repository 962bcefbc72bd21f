"""Calls that start and change runs, without a face and with a fake of the service."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import msgspec
import pytest

from mainspring.access.caller import Permission
from mainspring.api import functions, jobs, submitting, workflows
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.workflows import VersionCalls
from mainspring.api.request import ApiError, Code
from mainspring.features import Feature
from mainspring.jobs.model import State
from mainspring.jobs.store import Found
from mainspring.workflows.carrying import Choice
from mainspring.workflows.forking import Change, ForkPlan, Point
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import Key, Status
from mainspring.workflows.requests import Reached
from mainspring.workflows.store import Begun, Forked, Moved

from .a_node import PAYLOAD_LIMIT, run
from .runs_of_a_node import ROOT, a_run, call, with_runs

if TYPE_CHECKING:
    from mainspring.api.request import Request


def test_a_run_is_started_or_joined() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            request = call(
                "workflows.start",
                '{"function": "order", "args": [17, ["cat"]], "id": "order-17", "version": "2", "timeout": 60}',
            )
            started = await node.api.call(request)
            job, version, timeout = fake.received.pop()
            assert (job.function, job.payload, job.unique) == (b"order", b'[17, ["cat"]]', b"order-17")
            assert (version, timeout) == ("2", 60.0)
            handle = node.service.handles.of(job.id).decode()
            assert started == workflows.StartedRun(handle, f"{handle}@{job.id}", "order-17", joined=False)

            second = call("workflows.start", '{"function": "order", "payload": "eA==", "id": "order-17"}')
            fake.begun = lambda job: Begun({job.id: Found(ROOT, 4, 0)}, {})
            handle = f"H:laptop:{ROOT}"
            assert await node.api.call(second) == workflows.StartedRun(
                handle, f"{handle}@{ROOT}", "order-17", joined=True
            )

    run(test())


def test_an_id_is_the_handle_without_a_unique() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            started = await node.api.call(workflows.StartRun("order"))
            assert started.id == started.handle
            assert fake.received[0][0].payload == b""

    run(test())


def test_requests_reach_a_run() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            taken = workflows.ReachedRun(f"H:laptop:{ROOT}", f"H:laptop:{ROOT}@{ROOT}", "open", repeated=False)
            request = call(
                "workflows.signal", '{"key": "order-17", "name": "approved", "value": {"by": "eva"}, "request": "r"}'
            )
            assert await node.api.call(request) == taken
            for state in (State.SCHEDULED, State.PENDING):
                fake.reached = Reached("recorded", ROOT, ROOT, waiting=state)
                assert (await node.api.call(request)).status == state.name.lower()
            fake.reached = Reached("recorded", ROOT, ROOT, 7)
            signal = fake.received.pop()
            assert signal[:3] == (Key(workflow_id="order-17"), "approved", b'{"by": "eva"}')
            await node.api.call(workflows.SignalRun("order-17", "approved", request="r"))
            assert fake.received[-1].request == signal.request != 0
            assert fake.received.pop().input == b"", "as of Run.signal without a value"
            fake.reached = fake.reached._replace(verdict="repeated")
            assert (await node.api.call(workflows.CancelRun("order-17", "why"))).repeated
            assert fake.received.pop() == (Key(workflow_id="order-17"), "why", 0)
            fake.reached = fake.reached._replace(verdict="recorded", status=Status.TERMINATED)
            assert (await node.api.call(workflows.TerminateRun("order-17", "why"))).status == "terminated"
            assert fake.received.pop() == (Key(workflow_id="order-17"), "why", None)
            await node.api.call(call("workflows.terminate", '{"key": "order-17", "children": "cancel"}'))
            assert fake.received.pop()[2] is ChildPolicy.REQUEST_CANCEL

    run(test())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"H:laptop:{ROOT}", Key(job=ROOT)),
        (f"H:laptop:{ROOT}@{ROOT + 5}", Key(run=ROOT + 5)),
        ("order-17", Key(workflow_id="order-17")),
        ("order@17", Key(workflow_id="order@17")),
        (f"H:laptop:{ROOT}@x", Key(workflow_id=f"H:laptop:{ROOT}@x")),
    ],
)
def test_a_key_is_a_handle_or_a_run_or_a_workflow_id(text: str, key: Key) -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            await node.api.call(workflows.CancelRun(text))
            assert fake.received.pop()[0] == key

    run(test())


def test_parked_runs_go_on() -> None:
    async def test() -> None:
        async with with_runs(a_run(1), a_run(2)) as (node, fake):
            assert await node.api.call(workflows.UnparkRun("order-1")) == workflows.ChangedRuns(1)
            assert await node.api.call(workflows.UnparkAllRuns()) == workflows.ChangedRuns(2)
            assert fake.received[-1] is None

    run(test())


def test_a_run_is_reset_to_a_decision() -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, fake):
            plan = ForkPlan(9, 6, ("charge#1",), ("ship#1",), (), 2, 7, 1)
            fake.forked = Forked("planned", ROOT, ROOT, plan=plan)
            planned = await node.api.call(workflows.ResetRun("order-17", before="ship", dry_run=True))
            change = Change(Point(before="ship"))
            assert fake.received[-1] == (Key(workflow_id="order-17"), change, True)
            source = f"H:laptop:{ROOT}@{ROOT}"
            expected = workflows.ForkedRun(source, None, None, 9, 6, ["charge#1"], ["ship#1"], 2, 7, 1, 1, 1)
            assert planned == expected
            calls = tuple(f"part#{number}" for number in range(150))
            fake.forked = Forked("planned", ROOT, ROOT, plan=ForkPlan(9, 6, calls, calls))
            long = await node.api.call(workflows.ResetRun("order-17", last=True, dry_run=True))
            assert (long.results, long.repeated) == ([*calls[50:]], [*calls[:100]])
            assert (long.all_results, long.all_repeated) == (150, 150)
            fake.forked = Forked("forked", ROOT, ROOT, ROOT + 5, ROOT, plan)
            for values, point in (
                ({"event": 9}, Point(event=9)),
                ({"first": True}, Point(end="first")),
                ({"last": True}, Point(end="last")),
            ):
                request = workflows.ResetRun("order-17", **values, drop_signals=True, reason="why")
                forked = await node.api.call(request)
                assert fake.received[-1] == (
                    Key(workflow_id="order-17"),
                    Change(point, drop_signals=True, reason="why"),
                    False,
                )
                assert (forked.handle, forked.run) == (f"H:laptop:{ROOT}", f"H:laptop:{ROOT}@{ROOT + 5}")

    run(test())


def test_a_reset_is_refused_with_the_reason() -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, fake):
            request = workflows.ResetRun("order-17", last=True)
            for outcome, code, words in (
                (Forked("unknown"), Code.RUN_NOT_FOUND, "no run has the handle"),
                (Forked("ambiguous"), Code.CONFLICT, "order-17"),
                (Forked("unread", ROOT, ROOT, fault="a newer event"), Code.CONFLICT, "a newer event"),
                (Forked("unbegun", 0, ROOT), Code.CONFLICT, "has not begun"),
                (Forked("open", ROOT, ROOT, rival=ROOT + 5), Code.CONFLICT, f"an open run: H:laptop:{ROOT + 5}"),
                (Forked("refused", ROOT, ROOT, fault="no decision"), Code.CONFLICT, "order-17: no decision"),
            ):
                fake.forked = outcome
                with pytest.raises(ApiError, match=re.escape(words)) as raised:
                    await node.api.call(request)
                assert raised.value.problem.code is code
            before = len(fake.received)
            for values in ({}, {"first": True, "last": True}, {"event": 1, "before": "charge"}):
                with pytest.raises(ApiError, match="give one of event, before, first and last") as raised:
                    await node.api.call(workflows.ResetRun("order-17", **values))
                assert raised.value.problem.code is Code.INVALID
            assert len(fake.received) == before

    run(test())


def test_a_rerun_has_the_choices_of_the_request() -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, fake):
            plan = ForkPlan(0, 0, ("charge#1",), ("ship#1",), ("notify",), 2)
            fake.forked = Forked("planned", ROOT, ROOT, plan=plan)
            planned = await node.api.call(workflows.RerunRun("order-17", dry_run=True))
            assert fake.received[-1] == (Key(workflow_id="order-17"), Change(), True)
            assert (planned.event, planned.results, planned.repeated) == (0, ["charge#1"], ["ship#1"])
            assert (planned.given, planned.signals, planned.handle) == (["notify"], 2, None)
            fake.forked = Forked("forked", ROOT, ROOT, ROOT + 5, ROOT, plan)
            request = workflows.RerunRun(
                "order-17",
                args=msgspec.Raw(b"[18]"),
                from_call="ship#2",
                repeat=("charge",),
                skip={"notify": {"by": [1]}},
                version="2",
                drop_signals=True,
                reason="why",
            )
            forked = await node.api.call(request)
            choice = Choice("ship#2", ("charge",), {"notify": b'{"by":[1]}'})
            change = Change(None, choice, b"[18]", "2", drop_signals=True, reason="why")
            assert fake.received[-1] == (Key(workflow_id="order-17"), change, False)
            assert (forked.handle, forked.run) == (f"H:laptop:{ROOT}", f"H:laptop:{ROOT}@{ROOT + 5}")
            fake.forked = Forked("unregistered", ROOT, ROOT, versions=("1", "2"))
            with pytest.raises(ApiError, match="registered: 1, 2") as raised:
                await node.api.call(request)
            assert raised.value.problem.code is Code.WORKFLOW_NOT_FOUND

    run(test())


def test_a_rerun_with_other_arguments_or_results_needs_the_permission_to_submit_jobs() -> None:
    assert workflows.RerunRun("a", from_call="charge", repeat=("ship",)).needs() is Permission.OPERATE
    assert workflows.RerunRun("a", args=msgspec.Raw(b"1")).needs() is Permission.DEVELOP
    assert workflows.RerunRun("a", payload=b"1").needs() is Permission.DEVELOP
    assert workflows.RerunRun("a", skip={"ship": None}).needs() is Permission.DEVELOP


def test_a_run_is_moved_to_another_version() -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, fake):
            fake.moved = Moved("moved", ROOT + 5, ROOT)
            request = workflows.MoveRun("order-17", "1")
            moved = await node.api.call(request)
            assert fake.received[-1] == (Key(workflow_id="order-17"), "1")
            assert (moved.run, moved.status, moved.repeated) == (f"H:laptop:{ROOT}@{ROOT + 5}", "open", False)
            fake.moved = Moved("same", ROOT, ROOT)
            assert (await node.api.call(request)).repeated
            for outcome, code, words in (
                (Moved("unknown"), Code.RUN_NOT_FOUND, "no run has the handle"),
                (Moved("ambiguous"), Code.CONFLICT, "order-17"),
                (Moved("unregistered", versions=("2", "3")), Code.WORKFLOW_NOT_FOUND, "registered: 2, 3"),
                (Moved("closed", ROOT, ROOT, Status.TIMED_OUT), Code.CONFLICT, "is closed (timed out)"),
                (Moved("unbegun"), Code.CONFLICT, "has not begun"),
                (Moved("recorded", ROOT, ROOT), Code.CONFLICT, "its code has made decisions"),
            ):
                fake.moved = outcome
                with pytest.raises(ApiError, match=re.escape(words)) as raised:
                    await node.api.call(request)
                assert raised.value.problem.code is code

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (workflows.ShowRun("none"), Code.RUN_NOT_FOUND),
        (workflows.ReadHistory("none"), Code.RUN_NOT_FOUND),
        (workflows.UnparkRun("none"), Code.RUN_NOT_FOUND),
        (workflows.ShowRun(""), Code.INVALID),
        (workflows.ShowRun("x" * 129), Code.INVALID),
        (workflows.UnparkRun(""), Code.INVALID),
        (workflows.ListWorkflowRuns(open=True, parked=True), Code.INVALID),
        (workflows.ListWorkflowRuns(cursor="order-17"), Code.INVALID),
        (workflows.StartRun("order", timeout=0.0), Code.INVALID),
        (workflows.StartRun("order", timeout=1e9), Code.INVALID),
        (workflows.StartRun(""), Code.INVALID),
        (workflows.StartRun("order", payload=b"x" * (PAYLOAD_LIMIT + 1)), Code.TOO_LARGE),
        (workflows.SignalRun("x", "s", payload=b"x" * (PAYLOAD_LIMIT + 1)), Code.TOO_LARGE),
        (workflows.SignalRun("x", "s", payload=b"x", value=msgspec.Raw(b"1")), Code.INVALID),
    ],
)
def test_problems_have_codes(request_: Request[object], code: Code) -> None:
    async def test() -> None:
        async with with_runs() as (node, _):
            assert await node.code(request_) is code

    run(test())


def test_a_node_whose_store_keeps_no_runs_refuses_all_calls() -> None:
    async def test() -> None:
        async with with_runs() as (node, _):
            node.api.add(VersionCalls(Mock(), Mock()).handlers)
            api = Api(lacks=frozenset({Feature.WORKFLOWS}))
            assert set(api.requests) == {name for name in node.api.requests if name.startswith("workflows.")}
            with pytest.raises(ApiError) as refused:
                await api.call(workflows.ShowRun("order-17"))
            assert refused.value.problem.code is Code.UNSUPPORTED

    run(test())


def test_the_job_of_a_task_is_no_run() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            fake.reached = Reached("unknown")
            handle = await node.submit(b"charge")
            requests: list[Request[Any]] = [
                workflows.ShowRun(handle),
                workflows.SignalRun(handle, "a"),
                workflows.TerminateRun(handle),
            ]
            for request in requests:
                with pytest.raises(
                    ApiError, match=f"{handle} is a job of the task charge.*jobs show {handle}"
                ) as caught:
                    await node.api.call(request)
                assert caught.value.problem.code is Code.RUN_NOT_FOUND
            waiting_client = asyncio.create_task(node.api.call(submitting.RunJob(b"later", b"")))
            await asyncio.sleep(0)
            (held,) = node.service.table.held.values()
            foreground = node.service.handles.of(held.job.id).decode()
            with pytest.raises(
                ApiError, match=f"a client waits for the job {foreground} of later, which is not stored"
            ):
                await node.api.call(workflows.SignalRun(foreground, "a"))
            waiting_client.cancel()
            await node.api.call(jobs.CancelJob(handle))
            with pytest.raises(ApiError, match=r"ended before a run began \(cancelled\)"):
                await node.api.call(workflows.ShowRun(handle))

    run(test())


def test_a_start_without_a_registered_workflow_is_refused() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            fake.begun = lambda job: Begun({}, {job.id: "order@9 is not registered"})
            assert await node.code(workflows.StartRun("order", version="9")) is Code.WORKFLOW_NOT_FOUND
            assert (await node.api.call(functions.ListFunctions())).items == [], "a wrong name makes no function"

    run(test())


@pytest.mark.parametrize(
    ("reached", "code", "words"),
    [
        (Reached("unknown"), Code.RUN_NOT_FOUND, "mainspring workflows list"),
        (Reached("closed", status=Status.TIMED_OUT), Code.CONFLICT, r"closed \(timed out\)"),
        (Reached("full", ROOT, ROOT), Code.CONFLICT, "at most 25000 events, and the last 1000 are"),
        (Reached("full", 0, ROOT), Code.CONFLICT, "has not begun, and takes no more signals"),
        (Reached("ambiguous"), Code.CONFLICT, "mainspring jobs list --unique order-17"),
    ],
)
def test_a_run_that_takes_no_request_gives_the_reason(reached: Reached, code: Code, words: str) -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            fake.reached = reached
            with pytest.raises(ApiError, match=words) as caught:
                await node.api.call(workflows.SignalRun("order-17", "approved"))
            assert caught.value.problem.code is code

    run(test())


def test_a_run_is_paused_until_a_time_and_resumed() -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, fake):
            fake.reached = Reached("recorded", ROOT, ROOT)
            until = dt.datetime.fromtimestamp(node.service.clock.wall() + 60, dt.UTC)
            paused = await node.api.call(workflows.PauseRun(f"H:laptop:{ROOT}", "the bank is down", until))
            assert (paused.status, paused.repeated) == ("open", False)
            key, reason, by, until_us = fake.received[-1]
            assert (key.job, reason, by) == (ROOT, "the bank is down", "local")
            assert until_us == round(until.timestamp() * 1_000_000)
            for wrong in (until - dt.timedelta(minutes=2), until + dt.timedelta(days=36_600)):
                with pytest.raises(ApiError, match="until is a time in the future"):
                    await node.api.call(workflows.PauseRun("order-17", "", wrong))
            fake.reached = Reached("repeated", ROOT, ROOT)
            assert (await node.api.call(workflows.ResumeRun("order-17"))).repeated
            for reached, why in (
                (Reached("unbegun", 0, ROOT), "functions pause"),
                (Reached("older", ROOT, ROOT), "earlier version"),
                (Reached("closed", ROOT, ROOT), "is closed"),
            ):
                fake.reached = reached
                with pytest.raises(ApiError, match=why) as problem:
                    await node.api.call(workflows.PauseRun("order-17"))
                assert problem.value.problem.code is Code.CONFLICT

    run(test())
