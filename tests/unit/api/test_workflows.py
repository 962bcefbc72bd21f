"""Calls about workflows, without a face and with a fake of the service."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import msgspec
import pytest

from mainspring.api import functions, jobs, submitting, workflows
from mainspring.api.answers.no_workflows import without_workflows
from mainspring.api.answers.run_rows import rough_duration
from mainspring.api.answers.workflow_versions import VersionCalls
from mainspring.api.answers.workflows import WorkflowCalls
from mainspring.api.errors import ApiError, Code
from mainspring.api.request import read
from mainspring.clock import to_us
from mainspring.jobs.model import Job, State
from mainspring.jobs.store import Found
from mainspring.storage.query import Page
from mainspring.workflows.history import ChildPolicy, Event, TimerFired, TimerStarted
from mainspring.workflows.model import About, Key, Limits, Parked, Status, encode_about
from mainspring.workflows.requests import Reached, Signal
from mainspring.workflows.state import OpenActivity, OpenChild, OpenTimer, Parking
from mainspring.workflows.state import State as RunState
from mainspring.workflows.store import Begun, ListRuns, RunRow, Shown, ShownRun, Unbegun

from .a_node import PAYLOAD_LIMIT, Node, opened, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from mainspring.api.request import Request

ROOT = 3_000_000_000_017
START_US = 1_700_000_000_000_000
"""The time of the node's clock."""
MISMATCH = Parking(parked=Parked("mismatch", "why"))


class FakeWorkflows:
    """Runs of a node: it answers at once, and keeps the requests."""

    def __init__(self) -> None:
        self.runs: list[ShownRun] = []
        self.unbegun: list[Unbegun] = []
        self.events: list[Event] = []
        self.reached = Reached("recorded", ROOT, ROOT, 7)
        self.begun: Callable[[Job], Begun] = lambda _: Begun({}, {})
        self.requests: list[Any] = []
        self.without_worker: list[tuple[str, str]] = []

    def start(self, job: Job, version: str, timeout: float, done: Callable[[Begun], None], _: object) -> None:
        self.requests.append((job, version, timeout))
        done(self.begun(job))

    def signal(self, signal: Signal, done: Callable[[Reached], None], _: object) -> None:
        self.requests.append(signal)
        done(self.reached)

    def request_cancel(self, key: Key, reason: str, request: int, done: Callable[[Reached], None], _: object) -> None:
        self.requests.append((key, reason, request))
        done(self.reached)

    def terminate(
        self, key: Key, reason: str, children: ChildPolicy | None, done: Callable[[Reached], None], _: object
    ) -> None:
        self.requests.append((key, reason, children))
        done(self.reached)

    def unpark(self, key: Key | None, done: Callable[[int], None], _: object) -> None:
        self.requests.append(key)
        done(1 if key else len(self.runs))

    def stranded(self) -> Collection[tuple[str, str]]:
        return self.without_worker

    def functions(self) -> list[bytes]:
        return [b"order"]

    def list(self, query: ListRuns, done: Callable[[Page[ShownRun]], None], _: object) -> None:
        self.requests.append(query)
        newest = sorted(
            (one for one in self.runs if query.after is None or one.row.id < query.after), key=lambda one: -one.row.id
        )
        page = newest[: query.limit]
        done(Page(page, page[-1].row.id if len(newest) > len(page) else None))

    def show(self, key: Key, done: Callable[[Shown], None], _: object) -> None:
        self.requests.append(key)
        done(next(iter(self.runs), self.unbegun))

    def history(self, run_id: int, first: int, limit: int, done: Callable[[Page[Event]], None], _: object) -> None:
        found = [event for event in self.events if event.id >= first]
        self.requests.append(run_id)
        done(Page(found[:limit], found[limit - 1].id if len(found) > limit else None))


@asynccontextmanager
async def with_runs(*runs: ShownRun, **limits: int) -> AsyncIterator[tuple[Node, FakeWorkflows]]:
    async with opened() as node:
        fake = FakeWorkflows()
        fake.runs.extend(runs)
        chosen = Limits(largest=PAYLOAD_LIMIT, **limits)
        node.api.add(WorkflowCalls(fake, node.service, node.jobs, node.submits, chosen).handlers)
        node.service.handles.use_names({3: "laptop"})
        yield node, fake


def a_run(number: int = ROOT, state: RunState | None = None, **columns: Any) -> ShownRun:
    row = RunRow(number, number, "default", f"order-{number}", "order", "2", started_us=START_US, events=4)
    return ShownRun(msgspec.structs.replace(row, **columns), state or RunState())


def activity(job: int = 0, number: int = 2) -> OpenActivity:
    return OpenActivity(5, str(number), b"charge", job, START_US)


def call(name: str, params: str) -> Request[Any]:
    kinds = {kind.call: kind for kind in vars(workflows).values() if getattr(kind, "call", "")}
    return read(kinds, name, params.encode())


def test_a_run_is_started_or_joined() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            request = call(
                "workflows.start",
                '{"function": "order", "input": [17, ["cat"]], "unique": "order-17", "version": "2", "timeout": 60}',
            )
            started = await node.api.call(request)
            job, version, timeout = fake.requests.pop()
            assert (job.function, job.payload, job.unique) == (b"order", b'[17, ["cat"]]', b"order-17")
            assert (version, timeout) == ("2", 60.0)
            handle = node.service.handle_of(job.id).decode()
            assert started == workflows.Started(handle, f"{handle}@{job.id}", "order-17", joined=False)

            second = call("workflows.start", '{"function": "order", "payload_base64": "eA==", "unique": "order-17"}')
            fake.begun = lambda job: Begun({job.id: Found(ROOT, 4, 0)}, {})
            handle = f"H:laptop:{ROOT}"
            assert await node.api.call(second) == workflows.Started(handle, f"{handle}@{ROOT}", "order-17", joined=True)

    run(test())


def test_an_id_is_the_handle_without_a_unique() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            started = await node.api.call(workflows.Start("order"))
            assert started.workflow_id == started.handle
            assert fake.requests[0][0].payload == b""

    run(test())


def test_a_run_is_listed_with_the_things_that_it_waits_for() -> None:
    async def test() -> None:
        state = RunState(activities={5: activity()}, timers={"3": OpenTimer(6, "3", START_US + 187_260_000_000)})
        about = encode_about(About(("approved",)))
        async with with_runs(a_run(state=state, about=about)) as (node, _):
            (row,) = (await node.api.call(workflows.List())).runs
            assert row.waits_for == "charge #2, timer 2d4h, approved"
            assert (row.handle, row.run) == (f"H:laptop:{ROOT}", f"H:laptop:{ROOT}@{ROOT}")
            assert (row.workflow_id, row.type, row.version, row.status) == (f"order-{ROOT}", "order", "2", "open")
            assert (row.started_at, row.closed_at, row.events) == ("2023-11-14T22:13:20.000000Z", None, 4)

    run(test())


@pytest.mark.parametrize(
    ("state", "columns", "text"),
    [
        (RunState(), {}, "a decision"),
        (RunState(activities=dict.fromkeys(range(7), activity())), {}, ", ".join(["charge #2"] * 5) + " and 2 more"),
        (RunState(), {"about": encode_about(About(steps=("price",), conditions=1))}, "price (step), a condition"),
        (RunState(timers={"1": OpenTimer(1, "1", START_US - 5)}), {}, "timer 0s"),
        (RunState(activities={5: activity()}), {"parking": MISMATCH}, "other code (parked: mismatch)"),
        (RunState(), {"decision": 9, "type": "old"}, "a worker with old@2"),
        (RunState(activities={5: activity()}), {"status": Status.TIMED_OUT}, None),
    ],
)  # fmt: skip
def test_a_run_waits_for(state: RunState, columns: dict[str, Any], text: str | None) -> None:
    async def test() -> None:
        async with with_runs(a_run(state=state, **columns)) as (node, fake):
            fake.without_worker.append(("old", "2"))
            (row,) = (await node.api.call(workflows.List())).runs
            assert row.waits_for == text

    run(test())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.9, "59s"), (61, "1m1s"), (3_600, "1h"), (3_675, "1h1m"), (187_260, "2d4h"), (40_000_000, "462d23h")],
)  # fmt: skip
def test_durations_are_rough(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


def test_lists_have_pages() -> None:
    async def test() -> None:
        async with with_runs(*(a_run(number) for number in range(1, 6))) as (node, _):
            seen: list[str] = []
            after: str | None = None
            while True:
                page = await node.api.call(workflows.List(limit=2, after=after))
                seen += [row.workflow_id for row in page.runs]
                after = page.next
                if after is None:
                    break
            assert seen == [f"order-{number}" for number in (5, 4, 3, 2, 1)]

    run(test())


def test_lists_have_filters() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            for request, expected in (
                (workflows.List(open=True, type="order", id="order-17", since=1.5), ((0,), False)),
                (workflows.List(closed=True), ((1, 2, 3, 4, 5, 6), False)),
                (workflows.List(parked=True), ((0,), True)),
                (workflows.List(status="timed_out"), ((6,), False)),
            ):
                await node.api.call(request)
                query = fake.requests.pop()
                assert (query.status, query.parked) == expected
                assert (query.type, query.workflow_id, query.since_us) == (
                    request.type,
                    request.id,
                    to_us(request.since or 0),
                )

    run(test())


def test_stranded_runs_are_listed_by_their_version() -> None:
    async def test() -> None:
        runs = [a_run(number, decision=7, version="1" if number % 2 else "2") for number in range(1, 1101)]
        async with with_runs(
            *runs,
            a_run(2000, version="1"),
            a_run(2001, version="1", decision=7, parking=Parking(parked=Parked("", ""))),
        ) as (node, fake):
            assert (await node.api.call(workflows.List(stranded=True))).runs == []
            fake.without_worker.append(("order", "1"))
            page = await node.api.call(workflows.List(stranded=True, limit=3))
            assert [row.workflow_id for row in page.runs] == ["order-1099", "order-1097", "order-1095"]
            number, after = 0, page.next
            while after is not None:
                page = await node.api.call(workflows.List(stranded=True, limit=1000, after=after))
                number, after = number + len(page.runs), page.next
            assert number == 547

    run(test())


def test_a_run_is_shown_with_its_activities() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            handle = await node.submit(b"charge")
            node.worker(b"charge")
            await node.committed()
            job = node.service.id_of(handle.encode())
            assert job is not None
            timers = {"4": OpenTimer(7, "4", START_US + 2_000_000), "3": OpenTimer(6, "3", START_US + 1_000_000)}
            state = RunState(
                activities={5: activity(job)}, timers=timers, close_by_us=START_US + 5_000_000, cancel_requested=9
            )
            parked = Parked("mismatch", "other code", ("charge",), ("refund",), 0)
            about = encode_about(About(("approved",), {"approved": 2}, ("price",)))
            sizes = {"input_size": 12, "output_size": 0, "history_bytes": 345}
            fake.runs.append(a_run(state=state, parking=Parking(parked=parked, builds=("b1",)), about=about, **sizes))
            shown = await node.api.call(workflows.Show("order-17"))
            assert shown.activities == [
                workflows.ActivityInfo("2", "charge", handle, "running", "w", 1, "2023-11-14T22:13:20.000000Z", None)
            ]
            assert [timer.number for timer in shown.timers] == ["3", "4"]
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
            assert (page.next, page.status, [event["eventId"] for event in page.events]) == (2, "completed", [1])
            assert "number" not in page.events[0]["timerStartedEventAttributes"]
            page = await node.api.call(call("workflows.history", '{"key": "order-17", "from": 2}'))
            assert (page.next, [event["eventType"] for event in page.events]) == (None, ["TimerFired"])
            page = await node.api.call(workflows.History("order-17", native=True))
            assert page.events[0]["timerStartedEventAttributes"]["number"] == 1

    run(test())


def test_requests_reach_a_run() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            taken = workflows.Reached(f"H:laptop:{ROOT}", f"H:laptop:{ROOT}@{ROOT}", "open", repeated=False)
            request = call(
                "workflows.signal", '{"key": "order-17", "name": "approved", "input": {"by": "eva"}, "request": "r"}'
            )
            assert await node.api.call(request) == taken
            for state in (State.SCHEDULED, State.PENDING):
                fake.reached = Reached("recorded", ROOT, ROOT, waiting=state)
                assert (await node.api.call(request)).status == state.name.lower()
            fake.reached = Reached("recorded", ROOT, ROOT, 7)
            signal = fake.requests.pop()
            assert signal[:3] == (Key(workflow_id="order-17"), "approved", b'{"by": "eva"}')
            await node.api.call(workflows.Signal("order-17", "approved", request="r"))
            assert fake.requests[-1].request == signal.request != 0
            assert fake.requests.pop().input == b"", "as of Run.signal without a value"
            fake.reached = fake.reached._replace(verdict="repeated")
            assert (await node.api.call(workflows.Cancel("order-17", "why"))).repeated
            assert fake.requests.pop() == (Key(workflow_id="order-17"), "why", 0)
            fake.reached = fake.reached._replace(verdict="recorded", status=Status.TERMINATED)
            assert (await node.api.call(workflows.Terminate("order-17", "why"))).status == "terminated"
            assert fake.requests.pop() == (Key(workflow_id="order-17"), "why", None)
            await node.api.call(call("workflows.terminate", '{"key": "order-17", "children": "cancel"}'))
            assert fake.requests.pop()[2] is ChildPolicy.REQUEST_CANCEL

    run(test())


def test_a_child_and_its_parent_are_shown() -> None:
    async def test() -> None:
        child = OpenChild(5, "part-1", ROOT + 1, ChildPolicy.ABANDON, number=3, type="part")
        async with with_runs(a_run(state=RunState(children={5: child}, parent_run=ROOT - 4))) as (node, _):
            shown = await node.api.call(workflows.Show("order-17"))
            handle = node.service.handle_of(ROOT + 1).decode()
            assert shown.children == [workflows.ChildInfo("3", "part", "part-1", handle, "abandon")]
            assert shown.waits_for == "part #3"
            assert shown.parent is not None
            assert shown.parent.endswith(f"@{ROOT - 4}")

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
            await node.api.call(workflows.Cancel(text))
            assert fake.requests.pop()[0] == key

    run(test())


def test_parked_runs_go_on() -> None:
    async def test() -> None:
        async with with_runs(a_run(1), a_run(2)) as (node, fake):
            assert await node.api.call(workflows.Unpark("order-1")) == workflows.Number(1)
            assert await node.api.call(workflows.Unpark(all=True)) == workflows.Number(2)
            assert fake.requests[-1] is None

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (workflows.Show("none"), Code.RUN_NOT_FOUND),
        (workflows.History("none"), Code.RUN_NOT_FOUND),
        (workflows.Unpark("none"), Code.RUN_NOT_FOUND),
        (workflows.Show(""), Code.INVALID),
        (workflows.Show("x" * 129), Code.INVALID),
        (workflows.Unpark(), Code.INVALID),
        (workflows.Unpark("x", all=True), Code.INVALID),
        (workflows.List(open=True, parked=True), Code.INVALID),
        (workflows.List(limit=0), Code.INVALID),
        (workflows.List(after="order-17"), Code.INVALID),
        (workflows.History("x", first=0), Code.INVALID),
        (workflows.Start("order", timeout=0.0), Code.INVALID),
        (workflows.Start("order", timeout=1e9), Code.INVALID),
        (workflows.Start(""), Code.INVALID),
        (workflows.Start("order", payload_base64=b"x" * (PAYLOAD_LIMIT + 1)), Code.TOO_LARGE),
        (workflows.Signal("x", "s", payload_base64=b"x" * (PAYLOAD_LIMIT + 1)), Code.TOO_LARGE),
        (workflows.Signal("x", "s", payload_base64=b"x", input=msgspec.Raw(b"1")), Code.INVALID),
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
            calls = set(node.api.requests)
            node.api.add(without_workflows())
            assert set(node.api.requests) == calls
            assert await node.code(workflows.Show("order-17")) is Code.UNSUPPORTED

    run(test())


def waiting(number: int, **columns: Any) -> Unbegun:
    job = Job(number, b"order", b"", unique=b"order-17", state=int(State.PENDING), created_us=START_US)
    return Unbegun(msgspec.structs.replace(job, **columns), is_workflow=False)


def test_a_run_that_has_not_begun_is_shown() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            fake.unbegun = [waiting(ROOT)]
            shown = await node.api.call(workflows.Show("order-17"))
            assert (shown.handle, shown.workflow_id, shown.run) == (
                f"H:laptop:{ROOT}",
                "order-17",
                f"H:laptop:{ROOT}@{ROOT}",
            )
            assert (shown.type, shown.version, shown.status, shown.begins_at) == ("order", "", "pending", None)
            assert shown.waits_for == "a first worker with the workflow order"
            assert (await node.api.call(workflows.History("order-17"))) == workflows.Events([], None, "pending")
            fake.unbegun = [Unbegun(fake.unbegun[0].job, is_workflow=True)]
            assert (await node.api.call(workflows.Show("order-17"))).waits_for == "its start"
            due_us = START_US + 187_260_000_000
            fake.unbegun = [waiting(ROOT, unique=b"", state=int(State.SCHEDULED), due_us=due_us)]
            shown = await node.api.call(workflows.Show("order-17"))
            assert (shown.workflow_id, shown.status, shown.begins_at) == (
                shown.handle,
                "scheduled",
                "2023-11-17T02:14:20.000000Z",
            )
            assert shown.waits_for == "its start in 2d4h"
            fake.unbegun *= 2
            assert await node.code(workflows.Show("order-17")) is Code.CONFLICT

    run(test())


def test_runs_that_have_not_begun_are_listed_among_the_others() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            handles = [await node.submit(b"order", unique=f"u{number}".encode()) for number in range(4)]
            await node.submit(b"charge")
            ids = [number for handle in handles if (number := node.service.id_of(handle.encode())) is not None]
            fake.runs.extend(a_run(number) for number in (ids[1], ids[3] + 7, ids[0] - 7))
            await node.api.call(jobs.Cancel(handles[1]))
            expected = [f"order-{ids[3] + 7}", "u3", "u2", f"order-{ids[1]}", "u0", f"order-{ids[0] - 7}"]
            for limit in (1, 2, 3, 100):
                seen: list[str] = []
                after: str | None = None
                while True:
                    page = await node.api.call(workflows.List(limit=limit, after=after))
                    assert len(page.runs) <= limit
                    seen += [row.workflow_id for row in page.runs]
                    after = page.next
                    if after is None:
                        break
                assert seen == expected
            fake.runs.clear()
            fake.unbegun = [waiting(ids[2], unique=b"u2")._replace(is_workflow=True), waiting(9, function=b"charge")]
            for request, ids_found in (
                (workflows.List(status="pending"), ["u3", "u2", "u0"]),
                (workflows.List(status="pending", limit=2), ["u3", "u2"]),
                (workflows.List(type="order"), ["u3", "u2", "u0"]),
                (workflows.List(id="u2"), ["u2"]),
                (workflows.List(id="u2", status="scheduled"), []),
                *(
                    (request, [])
                    for request in (
                        workflows.List(type="refund"),
                        workflows.List(status="scheduled"),
                        workflows.List(status="open"),
                        workflows.List(open=True),
                        workflows.List(closed=True),
                        workflows.List(parked=True),
                        workflows.List(since=1.0),
                    )
                ),
            ):
                found = (await node.api.call(request)).runs
                assert [row.workflow_id for row in found] == ids_found
                assert {row.status for row in found} <= {"pending"}

    run(test())


def test_the_job_of_a_task_is_no_run() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            fake.reached = Reached("unknown")
            handle = await node.submit(b"charge")
            requests: list[Request[Any]] = [
                workflows.Show(handle),
                workflows.Signal(handle, "a"),
                workflows.Terminate(handle),
            ]
            for request in requests:
                with pytest.raises(
                    ApiError, match=f"{handle} is a job of the task charge.*jobs show {handle}"
                ) as caught:
                    await node.api.call(request)
                assert caught.value.problem.code is Code.RUN_NOT_FOUND
            waiting_client = asyncio.create_task(node.api.call(submitting.Run(b"later", b"")))
            await asyncio.sleep(0)
            (held,) = node.service.in_memory()
            foreground = node.service.handle_of(held.job.id).decode()
            with pytest.raises(
                ApiError, match=f"a client waits for the job {foreground} of later, which is not stored"
            ):
                await node.api.call(workflows.Signal(foreground, "a"))
            waiting_client.cancel()
            await node.api.call(jobs.Cancel(handle))
            with pytest.raises(ApiError, match=r"ended before a run began \(cancelled\)"):
                await node.api.call(workflows.Show(handle))

    run(test())


def test_a_start_without_a_registered_workflow_is_refused() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            fake.begun = lambda job: Begun({}, {job.id: "order@9 is not registered"})
            assert await node.code(workflows.Start("order", version="9")) is Code.WORKFLOW_NOT_FOUND
            assert (await node.api.call(functions.List())).functions == [], "a wrong name makes no function"

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
                await node.api.call(workflows.Signal("order-17", "approved"))
            assert caught.value.problem.code is code

    run(test())
