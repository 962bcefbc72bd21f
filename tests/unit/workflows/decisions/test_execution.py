"""The begin of a run, requests from outside, and closes."""

from __future__ import annotations

from tests.unit.workflows.drafts import BEGIN, SECOND, Run

from mainspring.workflows import execution, history
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import REQUESTS_KEPT, YEAR, Status
from mainspring.workflows.requests import (
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    FailWorkflowExecution,
    ScheduleActivityTask,
)


def test_a_run_lasts_a_year_at_most() -> None:
    for timeout, expected in ((0, YEAR), (60, 60), (10 * YEAR, YEAR)):
        run = Run(timeout=timeout)
        assert run.state.close_by_us == BEGIN + int(expected * SECOND)


def test_a_signal_is_recorded_with_its_number() -> None:
    run = Run()
    answer = run.signal()
    assert (answer.verdict, answer.run, answer.root, answer.event) == ("recorded", 17, 17, 3)


def test_a_repeated_request_counts_once() -> None:
    run = Run()
    assert run.signal(request=5).verdict == "recorded"
    assert run.signal(request=5).verdict == "repeated"
    assert run.do(execution.request_cancel, request=5).verdict == "repeated"
    assert run.do(execution.request_cancel, request=6).verdict == "recorded"
    assert run.do(execution.request_cancel, request=6).verdict == "repeated"


def test_requests_without_keys_all_count() -> None:
    run = Run()
    assert [run.signal().verdict, run.signal().verdict] == ["recorded", "recorded"]
    assert run.do(execution.request_cancel).verdict == "recorded"
    assert run.do(execution.request_cancel).verdict == "recorded"


def test_the_last_hundred_keys_are_kept() -> None:
    run = Run()
    for request in range(1, REQUESTS_KEPT + 2):
        run.signal(request=request)
    assert len(run.state.requests) == REQUESTS_KEPT
    assert run.signal(request=2).verdict == "repeated"
    assert run.signal(request=1).verdict == "recorded"


def test_a_cancel_request_asks_for_a_decision() -> None:
    run = Run()
    run.decide()
    run.do(execution.request_cancel, reason="no stock")
    assert run.recorded == ["5 WorkflowExecutionCancelRequested", "6 DecisionTaskScheduled"]
    assert run.events[4].reason == "no stock"  # type: ignore[attr-defined]
    run.decide(CancelWorkflowExecution(1))
    assert run.state.status == Status.CANCELED


def test_terminate_ends_at_once() -> None:
    run = Run()
    run.decide(ScheduleActivityTask(1, "1", b"f"))
    answer = run.do(execution.terminate, reason="by eva", details=b"x")
    assert (answer.verdict, answer.event, answer.status) == ("recorded", 6, Status.TERMINATED)
    assert run.recorded == ["6 WorkflowExecutionTerminated"]
    event = run.events[-1]
    assert isinstance(event, history.WorkflowExecutionTerminated)
    assert (event.cause, event.reason, event.details) == ("OPERATOR_INITIATED", "by eva", b"x")
    assert event.child_policy is ChildPolicy.TERMINATE
    assert run.last_draft.withdrawn == [1001]


def test_terminate_may_replace_the_child_policy() -> None:
    run = Run(child_policy=ChildPolicy.REQUEST_CANCEL)
    run.do(execution.terminate, children=ChildPolicy.ABANDON)
    assert run.events[-1].child_policy is ChildPolicy.ABANDON  # type: ignore[attr-defined]


def test_requests_to_a_closed_run_are_late() -> None:
    run = Run()
    run.do(execution.terminate)
    for answer in (run.signal(), run.do(execution.request_cancel), run.do(execution.terminate)):
        assert (answer.verdict, answer.status, answer.event) == ("closed", Status.TERMINATED, 0)
    assert run.recorded == []


def test_a_request_that_the_run_has_taken_is_repeated_after_its_end_too() -> None:
    run = Run()
    run.signal(request=5)
    run.do(execution.terminate)
    assert [run.signal(request=number).verdict for number in (5, 6)] == ["repeated", "closed"]
    assert run.do(lambda draft: execution.request_cancel(draft, request=5)).verdict == "repeated"


def test_closes() -> None:
    done, failed = Run(), Run()
    done.decide(CompleteWorkflowExecution(1, b"7"))
    failed.decide(FailWorkflowExecution(1, "ValueError", b"{}"))
    assert (done.state.status, failed.state.status) == (Status.COMPLETED, Status.FAILED)
    assert done.events[-1].result == b"7"  # type: ignore[attr-defined]
    assert (failed.events[-1].reason, failed.events[-1].details) == ("ValueError", b"{}")  # type: ignore[attr-defined]
    assert done.state.closed_us == BEGIN
