"""A node is killed at each event of a reset: no signal is lost, and one run of the workflow id is open at a time."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import MainspringError

from .test_workflow_kills import TIMEOUT, Fleet, fleet_in
from .workflow_programs import go

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

NUMBER = 4
"""Signals that the run collects; half of them come before the reset."""


def waiting(fleet: Fleet, key: str, decided: int) -> dict[str, Any]:
    """Return a run once its code has received some signals, and waits for the next one."""
    end = time.monotonic() + TIMEOUT
    while True:
        fleet.restart_killed()
        shown: dict[str, Any] = fleet.patiently("workflows.show", key=key)
        events = fleet.patiently("workflows.history", key=shown["run"], limit=1000)["items"]
        kinds = [event["eventType"] for event in events]
        is_idle = kinds.count("DecisionTaskScheduled") == kinds.count("DecisionTaskCompleted")
        if is_idle and kinds.count("WorkflowExecutionSignaled") == decided:
            return shown
        assert time.monotonic() < end, (shown, kinds, fleet.log())
        time.sleep(0.005)


def reset(fleet: Fleet, source: str) -> str:
    """Reset a run, whatever is killed; return the key of the new one. A request without an answer is looked up first."""
    end = time.monotonic() + TIMEOUT
    while True:
        shown = fleet.patiently("workflows.show", key=source)
        if shown["status"] == "continued_as_new":
            assert shown["next_run"] == shown["forked_to"]
            return str(shown["next_run"])
        try:
            run: str = fleet.call("workflows.reset", key=source, last=True, reason="test")["run"]
        except MainspringError:
            assert time.monotonic() < end, fleet.log()
            fleet.restart_killed()
            time.sleep(0.01)
        else:
            return run


def test_a_reset_survives_a_kill_at_each_event(tmp_path: Path) -> None:
    with fleet_in(tmp_path, roles=("node", "worker")) as fleet:
        cases = [(0, "after"), *((1, when) for when in ("before", "after", "answered")), (3, "before"), (5, "after")]
        for later, when in cases:
            key = f"reset {later} {when}"
            fleet.patiently("workflows.start", function="collects", args=[NUMBER], id=key)
            for number in range(NUMBER // 2):
                fleet.patiently("workflows.signal", key=key, name=go.name, value=number, request=str(number))
            before = waiting(fleet, key, NUMBER // 2)
            kills = fleet.kills
            if later:
                fleet.arm("node", before["events"] + later, when)
            run = reset(fleet, before["run"])
            listed = fleet.patiently("workflows.list", id=key)["items"]
            assert sorted(one["status"] for one in listed) == ["continued_as_new", "open"]
            for number in range(NUMBER):  # those that came before are repeated: the reset remembers them
                fleet.patiently("workflows.signal", key=key, name=go.name, value=number, request=str(number))
            assert json.loads(fleet.result(before["handle"])) == [*range(NUMBER)]
            fleet.restart_killed()
            shown = fleet.patiently("workflows.show", key=key)
            assert (shown["run"], shown["status"], shown["forked_from"]) == (run, "completed", before["run"])
            assert fleet.kills - kills == (1 if later else 0), "the node was killed where it had to be"
            fleet.arm("node", 10**6, when)
