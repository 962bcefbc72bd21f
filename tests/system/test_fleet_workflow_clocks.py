"""Workflows in a fleet whose nodes all have wrong clocks: timers ring once, by the clock of the store, and each run ends."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import leave_out

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers

from . import processes
from .fleet_clocks import FAKETIME_LIBRARIES, FakedClock
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .stores import Store

PROGRAM = Path(__file__).with_name("wrong_clock_app.py")
TIMEOUT = 90.0
HOUR = 3600.0
LEASE = "1500ms"
CLOCKS = {"fast": "+1h", "slow": "-1h", "stepped": "+0"}
"""The nodes, and their clocks at first."""
STEPS = ("+2h", "-2h", "+1h", "-1h")
RUNS = 3
"""Runs that begin at each node before each step."""


@contextmanager
def clients(addresses: list[str]) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        found = [Client(parse_servers(address)) for address in addresses]
        for client in found:
            stack.callback(client.close)
        yield found


def fired_after(events: list[dict[str, Any]]) -> list[float]:
    """Return after how many seconds the timers of a history have fired, in the order of their ends."""
    started = {event["eventId"]: event["eventTimestamp"] for event in events if event["eventType"] == "TimerStarted"}
    fired = [event for event in events if event["eventType"] == "TimerFired"]
    ids = [event["timerFiredEventAttributes"]["startedEventId"] for event in fired]
    assert len(set(ids)) == len(ids), "a timer has fired twice"
    return [event["eventTimestamp"] - started[one] for event, one in zip(fired, ids, strict=True)]


def test_timers_ring_once_and_by_the_clock_of_the_store(store: Store, tmp_path: Path) -> None:
    if not FAKETIME_LIBRARIES:
        leave_out("libfaketime")
    clocks = {name: FakedClock(tmp_path / f"clock of {name}") for name in CLOCKS}
    with ExitStack() as stack:
        addresses: list[str] = []
        logs: dict[str, Path] = {}
        for name, offset in CLOCKS.items():
            clocks[name].set(offset)
            command = ("serve", "--store", store.url, "--gearman", "127.0.0.1:0", "--name", name, "--lease", LEASE)
            node = stack.enter_context(
                processes.node(*command, cwd=tmp_path, faces=("gearman",), worker=False, **clocks[name].variables)
            )
            addresses.append(node.address)
            logs[name] = node.log
        worker = ("worker", str(PROGRAM), "--server", ",".join(addresses))
        stack.enter_context(processes.node(*worker, cwd=tmp_path, faces=()))
        nodes = stack.enter_context(clients(addresses))
        eventually(
            lambda: len(nodes[0].call("workflows.workers", {})["items"]) == len(nodes),
            "the worker has registered everywhere",
        )
        keys = []
        for step in STEPS:
            for number, asked in enumerate(nodes * RUNS):
                key = f"{step} {number}"
                asked.call("workflows.start", {"function": "sleeps", "id": key})
                nodes[(number + 1) % len(nodes)].call("workflows.signal", {"key": key, "name": "go", "value": "on"})
                keys.append(key)
            clocks["stepped"].set(step)
        for number, key in enumerate(keys):
            asked = nodes[number % len(nodes)]
            handle = asked.call("workflows.show", {"key": key})["handle"]
            assert asked.outcome(handle, TIMEOUT).data == b"false", "a timer of an hour has not fired"
            events = asked.call("workflows.history", {"key": key, "limit": 1000, "native": True})["items"]
            (after,) = fired_after(events)
            assert 1.0 - 0.001 <= after < HOUR / 2
        for name, sign in (("fast", 1), ("slow", -1)):
            line = next(line for line in logs[name].read_text().splitlines() if '"started"' in line)
            off = datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() - time.time()
            assert abs(off - sign * HOUR) < HOUR / 2, "its clock is really wrong"
