"""Routes about runs of workflows, with a fake of their service."""

from __future__ import annotations

from tests.unit.api.a_node import PAYLOAD_LIMIT, run
from tests.unit.api.runs_of_a_node import MISMATCH, ROOT, START_US, FakeWorkflows, a_run, activity
from tests.unit.nodes.rows import row

from mainspring.api.handlers.nodes import SingleNodeCalls
from mainspring.api.handlers.workflows import WorkflowCalls
from mainspring.workflows.history import TimerFired, TimerStarted
from mainspring.workflows.model import Limits
from mainspring.workflows.model import State as RunState

from .a_client import serving

WORKFLOWS = "/api/v1/namespaces/default/workflows"


def test_runs_are_shown_with_their_open_work_and_their_history() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            fake = FakeWorkflows()
            node.api.add(
                WorkflowCalls(fake, node.service, node.jobs, node.submits, Limits(largest=PAYLOAD_LIMIT)).handlers
            )
            node.service.handles.use_names({3: "laptop"})
            fake.runs.append(a_run(state=RunState(activities={5: activity()})))
            handle = f"H:laptop:{ROOT}"
            listed = await client.get(f"{WORKFLOWS}?open=true&since=2023-11-14T00:00:00Z")
            assert [one["handle"] for one in listed.json["items"]] == [handle]
            assert (await client.get(f"{WORKFLOWS}?status=odd")).status == 422
            assert (await client.get(f"{WORKFLOWS}/{handle}")).json["type"] == "order"
            pending = await client.get(f"{WORKFLOWS}/order-17/pending")
            assert [one["function"] for one in pending.json["activities"]] == ["charge"]
            fake.events = [TimerStarted(1, START_US, 4, "1", 60, number=1), TimerFired(2, START_US, "1", 1)]
            first = await client.get(f"{WORKFLOWS}/order-17/history?limit=1")
            second = await client.get(f"{WORKFLOWS}/order-17/history?limit=1&cursor={first.json['next']}")
            assert [one["eventType"] for one in first.json["items"] + second.json["items"]] == [
                "TimerStarted",
                "TimerFired",
            ]

    run(test())


def test_requests_to_runs_have_their_roles() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            fake = FakeWorkflows()
            node.api.add(
                WorkflowCalls(fake, node.service, node.jobs, node.submits, Limits(largest=PAYLOAD_LIMIT)).handlers
            )
            node.service.handles.use_names({3: "laptop"})
            fake.runs.append(a_run(parking=MISMATCH))
            body = {"function": "order", "id": "order-17", "args": {"amount": 100}}
            assert (await client.send("POST", WORKFLOWS, body, token="operator")).status == 403
            started = await client.send("POST", WORKFLOWS, body, token="developer")
            assert (started.status, started.json["joined"]) == (201, False)
            assert started.headers["location"].startswith(f"{WORKFLOWS}/H:")
            assert fake.received[-1][0].payload == b'{"amount":100}'
            old = {"function": "order", "unique": "order-17", "input": {"amount": 100}}
            assert (await client.send("POST", WORKFLOWS, old, token="developer")).status == 422
            for name in ("value",):
                signal = await client.send("POST", f"{WORKFLOWS}/order-17/signal", {"name": "go", name: [1]})
                assert (signal.status, fake.received[-1].input) == (202, b"[1]")
            for verb, status in (
                ("cancel", 202),
                ("terminate", 200),
                ("move", 200),
                ("pause", 200),
                ("resume", 200),
                ("unpark", 200),
            ):
                given = {"version": "1"} if verb == "move" else {}
                path = f"{WORKFLOWS}/order-17/{verb}"
                assert (await client.send("POST", path, given, token="viewer")).status == 403
                assert (await client.send("POST", path, given, token="developer")).status == status

    run(test())


def test_the_only_node_cannot_be_drained() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            node.api.add(SingleNodeCalls(lambda: row(7, name="n")).handlers)
            assert [one["name"] for one in (await client.get("/api/v1/nodes")).json["items"]] == ["n"]
            assert (await client.get("/api/v1/nodes/7")).json["term"] == 7
            assert (await client.get("/api/v1/nodes/x")).problem == "node-not-found"
            for verb in ("drain", "undrain"):
                assert (await client.send("POST", f"/api/v1/nodes/n/{verb}")).problem == "only-node"
            assert (await client.send("DELETE", "/api/v1/nodes/n?force=true")).problem == "only-node"

    run(test())


def test_a_history_is_read_backwards_and_by_kinds() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            fake = FakeWorkflows()
            node.api.add(
                WorkflowCalls(fake, node.service, node.jobs, node.submits, Limits(largest=PAYLOAD_LIMIT)).handlers
            )
            node.service.handles.use_names({3: "laptop"})
            fake.runs.append(a_run(events=9))
            fake.events = [
                TimerFired(number, START_US, "1", 1)
                if number % 3 == 0
                else TimerStarted(number, START_US, 4, "1", 60, number=1)
                for number in range(1, 10)
            ]

            async def read(query: str) -> list[int]:
                found: list[int] = []
                cursor = ""
                while True:
                    page = await client.get(f"{WORKFLOWS}/order-17/history?{query}{cursor}")
                    found += [one["eventId"] for one in page.json["items"]]
                    if page.json["next"] is None:
                        return found
                    cursor = f"&cursor={page.json['next']}"

            for limit in (1, 2, 4, 9, 100):
                assert await read(f"limit={limit}") == list(range(1, 10))
                assert await read(f"limit={limit}&reverse=true") == list(range(9, 0, -1))
                assert await read(f"limit={limit}&kinds=TimerFired") == [3, 6, 9]
                assert await read(f"limit={limit}&reverse=true&kinds=TimerFired&kinds=TimerStarted") == list(
                    range(9, 0, -1)
                )
            assert await read("kinds=None") == []

    run(test())
