"""Rows of runs in answers."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.api import workflows
from mainspring.api.handlers.run_rows import rough_duration
from mainspring.workflows.model import About, OpenTimer, Status, encode_about
from mainspring.workflows.model import State as RunState

from .a_node import run
from .runs_of_a_node import MISMATCH, START_US, a_run, activity, with_runs


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
            fake.without_worker.append(("default", "old", "2"))
            (row,) = (await node.api.call(workflows.ListWorkflowRuns())).items
            assert row.waits_for == text

    run(test())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.9, "59s"), (61, "1m1s"), (3_600, "1h"), (3_675, "1h1m"), (187_260, "2d4h"), (40_000_000, "462d23h")],
)  # fmt: skip
def test_durations_are_rough(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text
