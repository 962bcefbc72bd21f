"""SWF's decisions about timers."""

from __future__ import annotations

from tests.unit.workflows.drafts import BEGIN, SECOND, Run

from mainspring.workflows import history
from mainspring.workflows.requests import CancelTimer, StartTimer


def test_a_timer_has_its_time() -> None:
    run = Run()
    run.decide(StartTimer(3, "t", 2.5, "x"))
    event = run.events[-1]
    assert isinstance(event, history.TimerStarted)
    assert (event.fire_us, event.start_to_fire, event.control, event.number) == (
        BEGIN + 2_500_000,
        2.5,
        "x",
        3,
    )
    assert SECOND == 1_000_000


def test_an_id_is_used_once_at_a_time() -> None:
    run = Run()
    run.decide(StartTimer(1, "t", 1), StartTimer(2, "t", 1), CancelTimer(3, "t"), StartTimer(4, "t", 1))
    assert [type(event).__name__ for event in run.last_draft.events[2:]] == [
        "TimerStarted",
        "StartTimerFailed",
        "TimerCanceled",
        "TimerStarted",
        "DecisionTaskScheduled",
    ]
    assert run.last_draft.events[3].cause == "TIMER_ID_ALREADY_IN_USE"  # type: ignore[attr-defined]


def test_an_unknown_timer() -> None:
    run = Run()
    run.decide(CancelTimer(1, "t"))
    event = run.events[-2]
    assert isinstance(event, history.CancelTimerFailed)
    assert event.cause == "TIMER_ID_UNKNOWN"
