"""The limits of a run."""

from __future__ import annotations

import pytest
from tests.unit.workflows.drafts import Run, ended

from mainspring.workflows import execution, history
from mainspring.workflows.draft import warning
from mainspring.workflows.model import Limits, Status
from mainspring.workflows.requests import ScheduleActivityTask, StartTimer

LIMITS = Limits(events=60, reserved=20)


def test_clients_cannot_end_a_run_with_signals() -> None:
    run = Run(limits=LIMITS)
    verdicts = [run.signal().verdict for _ in range(100)]
    assert verdicts == ["recorded"] * 38 + ["full"] * 62
    assert run.state.last == 40
    assert run.state.status == Status.OPEN


def test_one_cancel_request_is_taken_in_the_last_events() -> None:
    run = Run(limits=LIMITS)
    while run.signal().verdict == "recorded":
        pass
    assert run.do(execution.request_cancel).verdict == "recorded"
    assert run.do(execution.request_cancel).verdict == "full"


def test_a_run_is_terminated_before_its_history_is_too_long() -> None:
    run = Run(limits=LIMITS)
    for number in range(1, LIMITS.events):
        if run.state.status != Status.OPEN:
            break
        run.decide(StartTimer(number, str(number), 1))
        run.ring(1)
    assert run.state.status == Status.TERMINATED
    assert len(run.events) <= 60
    last = run.events[-1]
    assert isinstance(last, history.WorkflowExecutionTerminated)
    assert last.cause == "EVENT_LIMIT_EXCEEDED"


@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_an_activity_s_end_fits_or_terminates(left: int) -> None:
    run = Run()
    run.decide(ScheduleActivityTask(1, "1", b"f"))
    run.limits = Limits(events=run.state.last + left)
    recorded = run.end(ended(1001))
    assert recorded == (left > 3)
    assert (run.state.status == Status.TERMINATED) == (left <= 3)
    assert len(run.events) <= run.limits.events


@pytest.mark.parametrize(("asked", "lasts"), [(0, 60), (10, 10), (100, 60)])
def test_a_run_lasts_at_most_as_long_as_its_node_allows(asked: float, lasts: float) -> None:
    started = Run(limits=Limits(timeout=60), timeout=asked).events[0]
    assert isinstance(started, history.WorkflowExecutionStarted)
    assert started.execution_timeout == lasts


def test_open_activities_are_limited() -> None:
    run = Run(limits=Limits(open_activities=2))
    run.decide(*(ScheduleActivityTask(n, str(n), b"f") for n in range(3)))
    refused = run.last_draft.events[-2]
    assert isinstance(refused, history.ScheduleActivityTaskFailed)
    assert (refused.activity_id, refused.cause) == ("2", "OPEN_ACTIVITIES_LIMIT_EXCEEDED")
    assert list(run.last_draft.submitted) == [1001, 1002]
    run.end(ended(1001))
    run.decide(ScheduleActivityTask(4, "4", b"f"))
    assert len(run.state.activities) == 2, "room again after an end"


def test_open_timers_are_limited() -> None:
    run = Run(limits=Limits(open_timers=2))
    run.decide(*(StartTimer(n, str(n), 1) for n in range(3)))
    refused = run.last_draft.events[-2]
    assert isinstance(refused, history.StartTimerFailed)
    assert refused.cause == "OPEN_TIMERS_LIMIT_EXCEEDED"


def test_warnings_on_the_way() -> None:
    limits = Limits()
    assert warning(limits, 9_999, 10, 5, 5) == ""
    assert "at 25000 the run is terminated" in warning(limits, 10_001, 10, 5, 5)
    assert warning(limits, 10_006, 10, 5, 5) == "", "once"
    assert "10.0 MiB" in warning(limits, 50, 10 * 2**20, 5, 5)
    assert warning(limits, 50, 10 * 2**20 + 5, 5, 5) == ""
