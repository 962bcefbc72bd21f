"""A worker and a node are killed at each event of a run of each kind.

The run's result is the same, no recorded step or activity is executed again, and no effect begins before the results that it
needs are on disk.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import JobCancelled, MainspringError, NotFoundError
from mainspring.client.blocking import Client
from mainspring.client.environment import parse_address

from .workflow_processes import WorkflowProcesses
from .workflow_programs import EFFECTS, RESULTS, app, collects, go

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

TIMEOUT = 60.0
CLOCKS = 0.001
"""Seconds by which the times of an execution and of its record may be wrong: both are rounded."""
CLOSES = frozenset(f"WorkflowExecution{kind}" for kind in ("Completed", "Failed", "Canceled", "Terminated", "TimedOut"))
Effect = tuple[str, int]
Execution = tuple[Effect, float]
CHILDREN = {"family": 3}
ROLES = ("node", "worker", "other")


class Fleet(WorkflowProcesses):
    """A node and its workers, which are started again when they were killed."""

    def __init__(self, directory: Path, plant: str | None = None, roles: tuple[str, ...] = ROLES) -> None:
        super().__init__(directory, roles, plant)
        self.kills = 0
        self.longest = 0
        """The events of the longest run of the last chain."""
        self._armed = ""

    def arm(self, role: str, kill_at: int, when: str) -> None:
        """Have a process kill itself at an event, and no other one."""
        for one in {self._armed, role} - {""}:
            self.kill(one)
            self.start(one, **({"kill_at": kill_at, "when": when} if one == role else {}))
        self._armed = role

    def restart_killed(self) -> None:
        for role in self.pids:
            if not self.lives(role):
                self.kills += 1
                self.start(role)

    def call(self, method: str, **params: Any) -> Any:
        client = Client([parse_address(self.address)])
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
            except MainspringError as error:
                if isinstance(error, NotFoundError) and method == "workflows.show":
                    raise
                if time.monotonic() > end:
                    raise AssertionError(self.log()) from error
                self.restart_killed()
                time.sleep(0.01)

    def run(self, kind: str, name: str) -> list[dict[str, Any]]:
        """Run a workflow to its end, whatever is killed; return its history."""
        self.effects.unlink(missing_ok=True)
        self.patiently("workflows.start", function=kind, args=[1], id=name)
        if kind in {"mixed", "chained"}:
            self.patiently("workflows.signal", key=name, name=go.name, value=7, request="once")
        end = time.monotonic() + TIMEOUT
        cancels = kind == "cancelled"
        while True:
            shown = self.patiently("workflows.show", key=name)
            self.restart_killed()
            if shown["status"] != "open":
                break
            if cancels and "timer" in (shown["waits_for"] or "") and self.has_begun("linger"):
                self.patiently("workflows.cancel", key=name, request="once")
                cancels = False
            assert time.monotonic() < end, (shown, self.log())
            time.sleep(0.005)
        assert shown["status"] == ("cancelled" if kind == "cancelled" else "completed"), shown
        root = self.patiently("jobs.show", handle=shown["handle"])
        assert root["state"] == ("cancelled" if kind == "cancelled" else "succeeded"), "the root job has not ended"
        if kind == "cancelled":
            with pytest.raises(JobCancelled):
                self.result(shown["handle"])
        else:
            assert json.loads(self.result(shown["handle"])) == RESULTS[kind]
        return self.history(name)

    def history(self, key: str) -> list[dict[str, Any]]:
        """Return the histories of a chain's runs, one after the other: the ids of events go on."""
        links: list[list[dict[str, Any]]] = []
        previous: str | None = key
        while previous is not None:
            links.append(self.patiently("workflows.history", key=previous, limit=1000, native=True)["items"])
            previous = self.patiently("workflows.show", key=previous)["previous_run"]
        self.longest = max(map(len, links))
        history: list[dict[str, Any]] = []
        for link in reversed(links):
            first = len(history)
            for event in link:
                kind = event["eventType"]
                attributes = event[kind[0].lower() + kind[1:] + "EventAttributes"]
                for one in (event, attributes):
                    for name in {"eventId", "scheduledEventId"} & one.keys():
                        one[name] += first
            history += link
        return history

    def has_begun(self, name: str) -> bool:
        """Return whether a function of the run was executed."""
        return any(effect == name for (effect, _), _ in self.executions())

    def children(self, history: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return the histories of a run's children."""
        started = [attributes(event) for event in history if event["eventType"] == "ChildWorkflowExecutionStarted"]
        return [self.history(one["workflowExecution"]["workflowId"]) for one in started]

    def result(self, handle: str) -> bytes:
        """Wait for the outcome of a root job, even if the node is killed meanwhile."""
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                result: bytes = app.job(handle).result(timeout=0.1)
            except TimeoutError:
                if time.monotonic() > end:
                    raise
                self.restart_killed()
            else:
                return result

    def executions(self) -> list[Execution]:
        """Return the executions of the run's steps and activities, in order."""
        lines = map(str.split, self.effects.read_text().splitlines())
        return [((name, int(number)), int(at) / 1e6) for name, number, at in lines]


@contextlib.contextmanager
def fleet_in(directory: Path, plant: str | None = None, roles: tuple[str, ...] = ROLES) -> Iterator[Fleet]:
    with Fleet(directory, plant, roles) as fleet:
        before = app.connect_to(fleet.address)
        try:
            yield fleet
        finally:
            app.connect_to(before)


def attributes(event: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an event."""
    kind = event["eventType"]
    found: dict[str, Any] = event[kind[0].lower() + kind[1:] + "EventAttributes"]
    return found


def records(histories: list[list[dict[str, Any]]]) -> dict[Effect, float]:
    """Return the time at which each result was recorded; those of steps and activities that were recorded once."""
    recorded: list[tuple[Effect, float]] = []
    for history in histories:
        activities: dict[int, Effect] = {}
        for event in history:
            kind, at, given = event["eventType"], event["eventTimestamp"], attributes(event)
            if kind == "ActivityTaskScheduled":
                activities[event["eventId"]] = given["activityType"]["name"], json.loads(given["input"])[0]
            elif kind == "ActivityTaskCompleted":
                recorded.append((activities[given["scheduledEventId"]], at))
            elif kind == "MarkerRecorded":
                name, result = given["function"], int(given["details"])
                recorded.append(((name, result - {"look": 1, "count": 10}[name]), at))
    assert len(dict(recorded)) == len(recorded), "each result is recorded once"
    return dict(recorded)


def check(kind: str, histories: list[list[dict[str, Any]]], executions: list[Execution], kills: int) -> None:
    """Assert that histories are whole, and that functions were executed again only where a kill has cost their results."""
    for history in histories:
        assert [event["eventId"] for event in history] == list(range(1, len(history) + 1))
        closes = [event["eventType"] for event in history if event["eventType"] in CLOSES]
        assert closes == [history[-1]["eventType"]]
    assert len(histories) == 1 + CHILDREN.get(kind, 0), "each child begins once"
    recorded = records(histories)
    for effect, at in executions:
        assert at <= recorded.get(effect, at) + CLOCKS, f"{effect} was executed again after its result was recorded"
    needed: set[Effect] = set()
    for effects in EFFECTS[kind]:
        for effect in effects:
            times = [at for one, at in executions if one == effect]
            assert 1 <= len(times) <= 1 + kills, f"{effect} was executed {len(times)} times with {kills} kills"
            on_disk = max((recorded[one] for one in needed if one in recorded), default=0.0)
            assert min(times) >= on_disk - CLOCKS, f"{effect} began before the results that it needs were recorded"
        needed |= effects
    assert {effect for effect, _ in executions} == needed
    assert recorded.keys() == {effect for effect in needed if effect[0] != "linger"}


VARIANTS = [(role, when) for role in ("worker", "node") for when in ("before", "after")] + [("node", "answered")]


@pytest.mark.parametrize("kind", RESULTS)
def test_a_run_survives_a_kill_at_each_event(tmp_path: Path, kind: str, pytestconfig: pytest.Config) -> None:
    """The short form kills at every fourth event, in another way each time."""
    with fleet_in(tmp_path) as fleet:
        history = fleet.run(kind, f"{kind} undisturbed")
        longest = fleet.longest
        check(kind, [history, *fleet.children(history)], fleet.executions(), 0)
        events = range(1, longest + 1)
        cases = [(event, *variant) for event in events for variant in VARIANTS]
        if not pytestconfig.getoption("--long"):
            cases = [(event, *VARIANTS[event // 4 % len(VARIANTS)]) for event in events[1::4]]
        killed = [kill(fleet, kind, *case) for case in cases]
    assert sum(killed) > 0.6 * len(cases), "some events end no process: those that a commit or a report skips"


def kill(fleet: Fleet, kind: str, event: int, role: str, when: str) -> bool:
    """Run a workflow while a process kills itself at an event, and check the run; return whether it has."""
    fleet.arm(role, event, when)
    before = fleet.kills
    history = fleet.run(kind, f"{kind} {role} {when} {event}")
    kills = fleet.kills - before
    assert kills <= 1
    check(kind, [history, *fleet.children(history)], fleet.executions(), kills)
    return kills == 1 or not fleet.lives(role)


# The checks must fail if a node or a worker breaks its promises; otherwise they prove nothing.


@pytest.mark.parametrize(
    ("plant", "role", "when", "found"),
    [
        ("acknowledgement", "node", "before", "began before the results that it needs|no run has"),
        ("start", "node", "before", "began before the results that it needs"),
        ("repetition", "worker", "after", "was executed again after its result was recorded"),
        ("outcome", "node", "after", "has not ended"),
    ],
)
def test_a_planted_defect_is_found(tmp_path: Path, plant: str, role: str, when: str, found: str) -> None:
    def kill_some(fleet: Fleet) -> None:
        for event in 3 * [*range(4, 13)]:  # most are found at one of the first; on a slow machine, later
            kill(fleet, "steps", event, role, when)

    with fleet_in(tmp_path, plant) as fleet, pytest.raises((AssertionError, NotFoundError), match=found):
        kill_some(fleet)


def test_lost_requests_to_other_runs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TIMEOUT", 2.0)
    with fleet_in(tmp_path, "errands") as fleet:
        with pytest.raises(AssertionError, match="'type': 'family'"):
            fleet.run("family", "lost")
        assert fleet.call("workflows.show", key="lost")["waits_for"] == "member #1"


def test_signals_before_the_first_worker_survive_kills(tmp_path: Path) -> None:
    """A client starts a run and signals it before any worker has registered its workflow; the node is killed after each."""
    with fleet_in(tmp_path, roles=("node",)) as fleet:
        fleet.patiently("workflows.list")
        collects.options(id="early").submit(4)
        for number in range(3):
            fleet.patiently("workflows.signal", key="early", name=go.name, value=number, request=str(number))
            assert fleet.call("workflows.show", key="early")["status"] == "pending"
            fleet.kill("node")
            fleet.start("node")
        fleet.start("worker")
        fleet.patiently("workflows.signal", key="early", name=go.name, value=3)
        handle = fleet.patiently("workflows.show", key="early")["handle"]
        assert json.loads(fleet.result(handle)) == [0, 1, 2, 3]
