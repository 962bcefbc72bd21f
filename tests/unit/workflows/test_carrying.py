"""The results that a rerun takes over from the history of the run before."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import IllegalTransitionError, UsageError
from mainspring.workflows import history as h
from mainspring.workflows.carrying import Choice, calls_of, marker_attributes, plan_rerun
from mainspring.workflows.draft import fold
from mainspring.workflows.history_json import digest_of

ROOM = 1_000


def build(*events: tuple[type[Any], dict[str, Any]]) -> list[h.Event]:
    return [kind(id=number, at_us=number, **fields) for number, (kind, fields) in enumerate(events, 1)]


def step(function: str, result: bytes = b"1", *, failed: bool = False) -> tuple[type[Any], dict[str, Any]]:
    fields = {"decision_completed": 0, "name": "step", "details": result, "native": True, "function": function}
    return h.MarkerRecorded, fields | {"digest": digest_of(function.encode(), b"[]", b"", result), "failed": failed}


def activity(function: str, number: int) -> tuple[type[Any], dict[str, Any]]:
    return h.ActivityTaskScheduled, {
        "decision_completed": 1,
        "activity_id": str(number),
        "function": function.encode(),
        "input": b"[%d]" % number,
    }


def completed(scheduled: int, result: bytes = b"2") -> tuple[type[Any], dict[str, Any]]:
    return h.ActivityTaskCompleted, {"scheduled": scheduled, "started": 0, "result": result}


def failed(scheduled: int) -> tuple[type[Any], dict[str, Any]]:
    return h.ActivityTaskFailed, {"scheduled": scheduled, "started": 0}


HISTORY = build(
    step("read"),  # 1
    activity("charge", 1),  # 2
    activity("charge", 2),  # 3
    completed(3),  # 4
    failed(2),  # 5
    step("total", b"7"),  # 6
    activity("ship", 3),  # 7
)


def names(plan: Any) -> list[tuple[str, int]]:
    return [(one.function, one.event) for one in plan.carried]


def test_the_results_of_calls_that_have_succeeded_are_carried_in_the_order_of_the_calls() -> None:
    plan = plan_rerun(HISTORY, Choice(), ROOM)
    assert names(plan) == [("read", 1), ("charge", 3), ("total", 6)]
    assert [one.result for one in plan.carried] == [b"1", b"2", b"7"]
    assert [str(call) for call in plan.repeated] == ["charge#1", "ship#1"]


def test_results_from_a_chosen_call_on_are_not_carried() -> None:
    assert names(plan_rerun(HISTORY, Choice(from_call="charge#2"), ROOM)) == [("read", 1)]
    assert names(plan_rerun(HISTORY, Choice(from_call="read"), ROOM)) == []
    assert names(plan_rerun(HISTORY, Choice(from_call="ship"), ROOM)) == [("read", 1), ("charge", 3), ("total", 6)]


def test_chosen_calls_are_repeated_and_those_after_them_are_carried() -> None:
    assert names(plan_rerun(HISTORY, Choice(repeat=("charge",)), ROOM)) == [("read", 1), ("total", 6)]
    plan = plan_rerun(HISTORY, Choice(repeat=("charge#2", "total")), ROOM)
    assert names(plan) == [("read", 1)]
    assert [str(call) for call in plan.repeated] == ["charge#1", "charge#2", "total#1", "ship#1"]


def test_a_given_result_takes_the_place_of_a_call() -> None:
    plan = plan_rerun(HISTORY, Choice(skip={"charge#1": b"5", "extra": b"6"}), ROOM)
    assert [(one.function, one.occurrence, one.result) for one in plan.carried[:2]] == [
        ("charge", 1, b"5"),
        ("extra", 0, b"6"),
    ]
    assert names(plan)[2:] == [("read", 1), ("charge", 3), ("total", 6)]
    assert [str(call) for call in plan.repeated] == ["ship#1"]


def test_a_rerun_of_a_rerun_carries_what_the_first_one_did() -> None:
    first = plan_rerun(HISTORY, Choice(), ROOM)
    began = [(h.MarkerRecorded, marker_attributes(one)) for one in first.carried]
    second = plan_rerun(build(*began, activity("ship", 3), completed(4, b"9")), Choice(), ROOM)
    assert [(one.name, one.function, one.result, one.digest) for one in second.carried[:3]] == [
        (one.name, one.function, one.result, one.digest) for one in first.carried
    ]
    assert (second.carried[3].function, second.carried[3].result) == ("ship", b"9")


def test_a_given_result_is_not_carried_again() -> None:
    given = plan_rerun(HISTORY, Choice(skip={"ship": b"1"}), ROOM)
    began = [(h.MarkerRecorded, marker_attributes(one)) for one in given.carried]
    assert [one.function for one in plan_rerun(build(*began), Choice(), ROOM).carried] == ["read", "charge", "total"]


@pytest.mark.parametrize(
    "choice",
    [
        Choice(from_call="sail"),
        Choice(from_call="ship#2"),
        Choice(repeat=("sail",)),
        Choice(repeat=("charge#0",)),
        Choice(from_call="#1"),
        Choice(skip={"charge#x": b"1"}),
    ],
)
def test_a_choice_that_names_no_call_is_refused(choice: Choice) -> None:
    with pytest.raises(UsageError):
        plan_rerun(HISTORY, choice, ROOM)


def test_an_unknown_call_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="read, charge, total, ship"):
        plan_rerun(HISTORY, Choice(from_call="sail"), ROOM)


def test_more_results_than_a_history_has_room_for_are_refused() -> None:
    assert len(plan_rerun(HISTORY, Choice(), 3).carried) == 3
    with pytest.raises(UsageError, match="3 results"):
        plan_rerun(HISTORY, Choice(), 2)


def test_markers_of_users_are_no_calls() -> None:
    events = build((h.MarkerRecorded, {"decision_completed": 1, "name": "step", "function": "f"}))
    assert calls_of(events) == []


def test_a_failed_step_is_repeated() -> None:
    plan = plan_rerun(build(step("read", failed=True), step("read")), Choice(), ROOM)
    assert ([call.event for call in plan.repeated], names(plan)) == ([1], [("read", 2)])


def test_carried_results_stand_before_the_first_decision_alone() -> None:
    (result,) = plan_rerun(build(step("read")), Choice(), ROOM).carried
    marker = (h.MarkerRecorded, marker_attributes(result))
    begun = (h.WorkflowExecutionStarted, {"type": "order", "version": "1"})
    assert fold(build(begun, marker, marker, (h.DecisionTaskScheduled, {}))).last == 4
    with pytest.raises(IllegalTransitionError):
        fold(build(begun, (h.DecisionTaskScheduled, {}), marker))
