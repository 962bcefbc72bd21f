"""The options of activities: the times in which they must start and end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import App, JobTimedOut, UsageError
from mainspring.workflows.requests import ScheduleActivityTask

from .fake_node import FakeNode, FakeWorker, code_of

app = App()


@app.task(schedule_to_start=timedelta(minutes=1), schedule_to_close="1h")
def limited(number: int) -> int:
    return number


@app.task(expires="2m")
def expiring(number: int) -> int:
    return number


CALLS: dict[str, tuple[Any, float, float]] = {
    "of the task": (limited, 60, 3600),
    "of the call": (limited.options(schedule_to_start=5), 5, 3600),
    "of the call alone": (app.function("resize").options(schedule_to_close="10s"), 0, 10),
    "expires": (expiring, 120, 0),
    "in place of expires": (expiring.options(schedule_to_start="3m"), 180, 0),
    "expires in place": (limited.options(expires=7), 7, 3600),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_activity_has_its_limits(name: str) -> None:
    function, start, close = CALLS[name]

    async def run() -> None:
        await function.submit(1)

    (command,) = FakeWorker(code_of(run), FakeNode()).decide().decisions
    assert isinstance(command, ScheduleActivityTask)
    assert (command.schedule_to_start, command.schedule_to_close) == (start, close)


@pytest.mark.parametrize(
    ("options", "kind"), [({"schedule_to_start": 5}, "schedule_to_start"), ({}, "schedule_to_close")]
)
def test_the_error_names_the_clock(options: dict[str, Any], kind: str) -> None:
    found: list[JobTimedOut] = []

    async def run() -> None:
        try:
            await app.function("resize").options(schedule_to_close=9, **options).submit(b"")
        except JobTimedOut as error:
            found.append(error)

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.node.wait(options.get("schedule_to_start", 9) - 1)
    assert not worker.node.decision_waits
    worker.node.wait(1)
    worker.decide()
    assert [(error.kind, error.handle) for error in found] == [(kind, "resize #1")]
    assert f"its {kind.replace('_', '-')} timeout has passed" in str(found[0])


def test_outside_of_workflows_a_call_with_such_a_limit_is_refused() -> None:
    for call in (limited.options(schedule_to_close=5), limited.options(schedule_to_close=5).options(priority="low")):
        with pytest.raises(
            UsageError, match="limited: schedule_to_close is for activities of workflows; limit other jobs by"
        ):
            call.submit(1)
