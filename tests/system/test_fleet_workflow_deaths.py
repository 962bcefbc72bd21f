"""A node is killed early in a long lease: its runs, timers and schedules move on as soon as the end of its session shows."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from mainspring.nodes.model import LOOK

from . import processes
from .fleet import Fleet
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from .fleet import FleetNode, ForkServer
    from .stores import Store

LEASE = 120.0
"""Longer than the test waits: the end of the lease moves nothing."""
RECEIVE_TIMEOUT = 40.0
SEEN = 4 * LOOK
"""Seconds until other nodes have seen the session of a new node."""
RUNS = 4
"""Runs of each kind."""
SCHEDULES = [f"tick-{number}" for number in range(4)]
"""Each node fires some of them."""
PROGRAM = """
import os
import time
from pathlib import Path

from mainspring import App, workflow

app = App()

@app.task
def hold(name: str) -> str:
    '''End in the first worker only when the test has ended.'''
    if os.environ["ROLE"] == "first":
        Path(name).touch()
        while not Path("end").exists():
            time.sleep(0.1)
    return os.environ["ROLE"]

@app.workflow
async def in_step(name: str) -> str:
    return await hold.step(name)

@app.workflow
async def in_activity(name: str) -> str:
    return await hold.submit(name)

@app.workflow
async def asleep() -> str:
    await workflow.sleep(2)
    return "second"

@app.task
def tick() -> None:
    pass
"""
KINDS = ("in_step", "in_activity")


@pytest.fixture
def fleet(fork_server: ForkServer, tmp_path: Path, store: Store) -> Iterator[Fleet]:
    with Fleet(fork_server, tmp_path, store.url, lease=LEASE) as fleet:
        yield fleet


def start_worker(stack: ExitStack, directory: Path, node: FleetNode, role: str) -> None:
    """Start a worker at a node, and wait until it has registered."""
    command = ("worker", "app.py", "--server", node.address, "--concurrency", str(4 * RUNS))
    stack.enter_context(processes.node(*command, cwd=directory, faces=(), ROLE=role))
    eventually(
        lambda: node.name in [row["node"] for row in node.ask("workflows.workers")["items"]],
        f"the {role} has registered",
    )


def fired_at(node: FleetNode, schedule: str) -> list[float]:
    """Return the times for which a schedule has fired."""
    rows = node.ask("schedules.history", name=schedule, limit=1000)["items"]
    return [datetime.fromisoformat(row["fire_time"]).timestamp() for row in rows if row["state"] == "fired"]


def test_runs_timers_and_schedules_of_a_killed_node_move_on_during_its_lease(
    fleet: Fleet, stack: ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    n1 = fleet.start("n1")
    start_worker(stack, tmp_path, n1, "first")
    stack.callback((tmp_path / "end").touch)
    held = {f"{kind}-{number}": kind for kind in KINDS for number in range(RUNS)}
    handles = [n1.ask("workflows.start", function=kind, id=name, args=[name])["handle"] for name, kind in held.items()]
    for name in held:
        eventually((tmp_path / name).exists, f"the first worker has {name}")

    n2 = fleet.start("n2")
    start_worker(stack, tmp_path, n2, "second")
    for name in SCHEDULES:
        n1.ask("schedules.add", name=name, function="tick", every=1, misfire="all")
    for name in SCHEDULES:
        eventually(lambda name=name: fired_at(n1, name), f"{name} fires")  # type: ignore[misc]
    time.sleep(SEEN)
    for number in range(2 * RUNS):
        node = (n1, n2)[number % 2]
        handles.append(node.ask("workflows.start", function="asleep", id=f"asleep-{number}", args=[])["handle"])
    n1.kill()
    killed = time.time()

    with n2.extended() as client:
        client.socket.settimeout(RECEIVE_TIMEOUT)
        for handle in handles:
            assert json.loads(client.outcome(handle.encode()).data) == "second"
    for name in SCHEDULES:
        eventually(lambda name=name: max(fired_at(n2, name)) > killed, f"{name} fires again")  # type: ignore[misc]
        times = fired_at(n2, name)
        assert len(set(times)) == len(times)
    eventually(lambda: [row["name"] for row in n2.ask("nodes.list")["items"]] == ["n2"], "the term of n1 has ended")
