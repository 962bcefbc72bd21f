"""A worker and a node are killed at each event of a run: its result is the same, and no recorded step is executed again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import MainspringError
from mainspring.client.addresses import parse_address
from mainspring.client.blocking import Client

from .workflow_programs import RESULTS, app, go

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 30.0


class Fleet:
    """A node and a worker, which are started again when they were killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._host = subprocess.Popen(
            [sys.executable, "-m", "tests.system.workflow_host"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pids = {"node": 0, "worker": 0}
        self.kills = 0

    def start(self, role: str, kill_at: int = 0, when: str = "after") -> None:
        order = {"role": role, "directory": str(self.directory), "kill_at": kill_at, "when": when}
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.write(json.dumps(order) + "\n")
        self._host.stdin.flush()
        self.pids[role] = int(self._host.stdout.readline())

    def stop(self, role: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[role], 9)
        self._gone(role)

    def _gone(self, role: str) -> None:
        while self.lives(role):
            time.sleep(0.002)

    def lives(self, role: str) -> bool:
        return Path(f"/proc/{self.pids[role]}").exists()

    def restart_killed(self) -> None:
        for role in self.pids:
            if not self.lives(role):
                self.kills += 1
                self.start(role)

    def close(self) -> None:
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.close()
        self._host.stdout.close()
        self._host.wait()

    def log(self) -> str:
        return "".join(path.read_text()[-4000:] for path in self.directory.glob("*.log"))

    def call(self, method: str, **params: Any) -> Any:
        client = Client([parse_address(f"unix:{self.directory / 's'}")])
        try:
            return client.call(method, params)
        finally:
            client.close()

    def patiently(self, method: str, **params: Any) -> Any:
        """Call until the node answers."""
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                return self.call(method, **params)
            except MainspringError:
                assert time.monotonic() < end, self.log()
                self.restart_killed()
                time.sleep(0.01)

    def run(self, kind: str, name: str) -> list[dict[str, Any]]:
        """Run a workflow to its end, whatever is killed; return its history."""
        effects = self.directory / "effects"
        effects.unlink(missing_ok=True)
        self.patiently("workflows.start", function=kind, input=[1], unique=name)
        if kind == "mixed":
            self.patiently("workflows.signal", key=name, name=go.name, input=7, request="once")
        end = time.monotonic() + TIMEOUT
        while True:
            shown = self.patiently("workflows.show", key=name)
            self.restart_killed()
            if shown["status"] != "open":
                break
            assert time.monotonic() < end, (shown, self.log())
            time.sleep(0.005)
        assert shown["status"] == "completed", shown
        assert json.loads(app.job(shown["handle"]).result(timeout=TIMEOUT)) == RESULTS[kind]
        history: list[dict[str, Any]] = self.patiently("workflows.history", key=name, limit=1000, native=True)["events"]
        return history


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    before = app.connect_to(f"unix:{tmp_path / 's'}")
    try:
        yield fleet
    finally:
        app.connect_to(before)
        fleet.close()


def check(history: list[dict[str, Any]], effects: str) -> None:
    """Assert that events are dense, the run is closed once, and nothing was executed again after its result was recorded."""
    assert [event["eventId"] for event in history] == list(range(1, len(history) + 1))
    kinds = [event["eventType"] for event in history]
    assert kinds.count("WorkflowExecutionCompleted") == 1
    assert kinds[-1] == "WorkflowExecutionCompleted"
    scheduled: dict[int, int] = {}
    recorded: dict[tuple[str, int], float] = {}
    for event in history:
        kind, at = event["eventType"], event["eventTimestamp"]
        attributes = event[kind[0].lower() + kind[1:] + "EventAttributes"]
        if kind == "ActivityTaskScheduled":
            scheduled[event["eventId"]] = json.loads(attributes["input"])[0]
        elif kind == "ActivityTaskCompleted":
            recorded["work", scheduled[attributes["scheduledEventId"]]] = at
        elif kind == "MarkerRecorded":
            result = int(attributes["details"])
            recorded[attributes["function"], result - {"look": 1, "count": 10}[attributes["function"]]] = at
    executed = set()
    for line in effects.splitlines():
        name, number, at = line.split()
        executed.add((name, int(number)))
        assert int(at) / 1e6 <= recorded[name, int(number)] + 0.001, f"{line} was executed again"
    assert executed == recorded.keys()


VARIANTS = [(role, when) for role in ("worker", "node") for when in ("before", "after")]


@pytest.mark.parametrize("kind", RESULTS)
def test_a_run_survives_a_kill_at_each_event(fleet: Fleet, kind: str, pytestconfig: pytest.Config) -> None:
    """The short form kills at every second event, in another way each time."""
    fleet.start("node")
    fleet.start("worker")
    events = range(1, len(fleet.run(kind, f"{kind} undisturbed")) + 1)
    cases = [(event, *variant) for event in events for variant in VARIANTS]
    if not pytestconfig.getoption("--long"):
        cases = [(event, *VARIANTS[event // 2 % len(VARIANTS)]) for event in events if event % 2]
    killed = set()
    for event, role, when in cases:
        fleet.stop(role)
        fleet.start(role, event, when)
        kills = fleet.kills
        history = fleet.run(kind, f"{kind} {role} {when} {event}")
        check(history, (fleet.directory / "effects").read_text())
        if fleet.kills > kills:
            killed.add((role, when))
    assert killed == set(VARIANTS)
