"""Workflows in a fleet: each node answers about runs and their workers alike, whichever nodes the workers are connected to."""

from __future__ import annotations

import contextlib
import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, Progress

from . import processes
from .extension import FaultError
from .fleet import Fleet, ForkServer
from .servers import eventually
from .stores import on_postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .fleet import FleetNode

pytestmark = pytest.mark.system

FLOW = """
from mainspring import App, workflow

app = App()
approved = app.signal("approved", str)

@app.task
def double(number: int) -> int:
    return 2 * number

@app.workflow(version="{version}")
async def order(number: int) -> str:
    doubled = await double.submit(number)
    {line}
    while (answer := await approved.receive()) != "yes":
        workflow.progress(1, 2, answer)
    return f"{{doubled}} {{answer}}"
"""


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[FleetNode, FleetNode]]:
    with ExitStack() as stack:
        store = stack.enter_context(on_postgresql(request.getfixturevalue))
        fleet = stack.enter_context(Fleet(stack.enter_context(ForkServer()), tmp_path, store.url))
        one, two = fleet.start_many("n1", "n2")
        yield one, two


def worker(directory: Path, node: FleetNode, version: str = "1", line: str = "pass") -> Any:
    """Start a worker at a node."""
    (directory / f"app{version}.py").write_text(FLOW.format(version=version, line=line))
    command = ("worker", f"app{version}.py", "--server", node.address)
    return processes.node(*command, cwd=directory, faces=())


def rows(node: FleetNode, method: str, *fields: str, **params: Any) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in fields) for row in node.ask(method, **params)["items"]]


def agree(nodes: tuple[FleetNode, ...], expected: list[tuple[Any, ...]], method: str, *fields: str) -> None:
    """Wait until all nodes give the same answer."""
    for node in nodes:
        eventually(
            lambda node=node: rows(node, method, *fields) == expected,  # type: ignore[misc]
            f"{node.name} answers {method} with {expected}",
        )


def test_a_node_without_workers_lists_those_of_others_and_protects_their_versions(
    nodes: tuple[FleetNode, FleetNode], tmp_path: Path
) -> None:
    one, two = nodes
    with worker(tmp_path, two, "1"):
        agree(nodes, [("n2", ["order@1"], False)], "workflows.workers", "node", "versions", "full")
        ((worker_id,),) = rows(one, "workers.list", "id")
        here, there = (node.ask("workers.show", worker=worker_id)["decisions"] for node in (two, one))
        assert here == there
        assert here["full"] is False
        with worker(tmp_path, one, "2"):
            listed = [(one.term, "n1", ["order@2"]), (two.term, "n2", ["order@1"])]
            agree(nodes, [row[1:] for row in sorted(listed)], "workflows.workers", "node", "versions")
            agree(nodes, [("2", 1, True), ("1", 1, False)], "workflows.versions", "version", "workers", "gets_new_runs")
        agree(nodes, [("2", 0), ("1", 1)], "workflows.versions", "version", "workers")
        with pytest.raises(FaultError, match=r"has connected workers \(1\)"):
            one.ask("workflows.remove", type="order", version="1")
    agree(nodes, [("2", 0), ("1", 0)], "workflows.versions", "version", "workers")


def test_requests_reach_a_run_at_any_node(nodes: tuple[FleetNode, FleetNode], tmp_path: Path) -> None:
    one, two = nodes
    with worker(tmp_path, two):
        eventually(lambda: rows(one, "workflows.versions", "workers") == [(1,)], "the worker has registered")
        for name in ("signalled", "cancelled", "terminated"):
            one.ask("workflows.start", function="order", id=name, args=[21])

        def shown(node: FleetNode, key: str) -> tuple[Any, ...]:
            run = node.ask("workflows.show", key=key)
            return run["status"], run["waits_for"], run["events"]

        for name in ("signalled", "cancelled", "terminated"):
            eventually(lambda name=name: shown(one, name)[1] == "approved", f"{name} waits")  # type: ignore[misc]
            assert shown(one, name) == shown(two, name)
        histories = [node.ask("workflows.history", key="signalled") for node in nodes]
        assert histories[0] == histories[1]
        one.ask("workflows.signal", key="signalled", name="approved", value="yes")
        one.ask("workflows.cancel", key="cancelled", reason="no more")
        one.ask("workflows.terminate", key="terminated", reason="at once")
        for name, status in (("signalled", "completed"), ("cancelled", "cancelled"), ("terminated", "terminated")):
            for node in nodes:
                eventually(
                    lambda name=name, node=node, status=status: shown(node, name)[0] == status,  # type: ignore[misc]
                    f"{name} is {status} at {node.name}",
                )
        lists = [rows(node, "workflows.list", "id", "status", "closed_at") for node in nodes]
        assert lists[0] == lists[1]


def test_the_progress_and_the_result_of_a_run_reach_a_client_of_another_node(
    nodes: tuple[FleetNode, FleetNode], tmp_path: Path
) -> None:
    one, two = nodes
    with worker(tmp_path, two), contextlib.closing(App(one.address)) as app:
        eventually(lambda: rows(one, "workflows.versions", "workers") == [(1,)], "the worker has registered")
        order = app.function("order")
        job = order.submit(21)
        seen: list[tuple[Any, ...]] = []

        def follow() -> None:
            for report in job.stream(timeout=60):
                assert isinstance(report, Progress)
                seen.append((report.done, report.total, report.text))

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()

        def reported() -> bool:  # the reader may have begun after the first reports
            two.ask("workflows.signal", key=job.handle, name="approved", value="not yet")
            return bool(seen)

        eventually(reported, "a report of the run reaches the client of the other node")
        two.ask("workflows.signal", key=job.handle, name="approved", value="yes")
        reader.join(30)
        assert set(seen) == {(1, 2, "not yet")}
        assert json.loads(str(job.result(timeout=30), "utf-8")) == "42 yes"


def test_a_parked_run_is_counted_and_unparked_at_any_node(nodes: tuple[FleetNode, FleetNode], tmp_path: Path) -> None:
    one, two = nodes
    with worker(tmp_path, two):
        eventually(lambda: rows(one, "workflows.versions", "workers") == [(1,)], "the worker has registered")
        one.ask("workflows.start", function="order", id="o", args=[21])
        eventually(lambda: one.ask("workflows.show", key="o")["waits_for"] == "approved", "the run waits")
    with worker(tmp_path, two, line="await double.submit(1)"):
        one.ask("workflows.signal", key="o", name="approved", value="yes")
        agree(nodes, [(1, 1)], "workflows.versions", "open", "parked")
        assert [node.ask("workflows.show", key="o")["parked"]["kind"] for node in nodes] == ["mismatch"] * 2
        assert one.ask("workflows.unpark", key="o") == {"number": 1}
        agree(nodes, [(1, 1)], "workflows.versions", "open", "parked")
    with worker(tmp_path, two):
        agree(nodes, [(0, 0)], "workflows.versions", "open", "parked")
