"""Parked runs."""

from __future__ import annotations

import pytest
from tests.unit.workflows.drafts import BEGIN, JOB, Run, ended

from mainspring.jobs.model import State as JobState
from mainspring.jobs.owners import AttemptEnded
from mainspring.workflows import execution
from mainspring.workflows.draft import MOST_LOSSES, RETRY_AFTER_US, decision_lost, needs_decision, park, unpark
from mainspring.workflows.model import Parked, due_us

MISMATCH = Parked("mismatch", "differs")
LOST = AttemptEnded(JOB, "lose", 3, 1, 0, b"", None)


def lose(run: Run, times: int) -> None:
    for _ in range(times):
        run.do(decision_lost, LOST)


def parked(build: str = "a") -> Run:
    run = Run()
    run.do(park, MISMATCH, build)
    return run


def test_a_run_needs_a_decision_while_a_task_is_scheduled() -> None:
    run = Run()
    assert needs_decision(run.state, run.parking)
    run.decide()
    assert not needs_decision(run.state, run.parking)


def test_a_parked_run_takes_events_and_no_decision() -> None:
    run = parked()
    assert not needs_decision(run.state, run.parking)
    assert run.parking.parked_us == BEGIN
    assert run.signal().verdict == "recorded"
    assert not needs_decision(run.state, run.parking)
    assert run.do(unpark)
    assert needs_decision(run.state, run.parking)
    assert run.parking.parked_us == 0
    assert not run.do(unpark)


def test_another_build_gets_the_run_and_one_that_failed_does_not() -> None:
    run = parked("a")
    assert not run.do(unpark, "a")
    assert run.do(unpark, "b")
    run.do(park, MISMATCH, "b")
    assert run.parking.builds == ("a", "b")
    assert not run.do(unpark, "a")
    assert run.do(unpark)
    assert not run.parking.builds, "by hand every build may try once more"


def test_the_fifth_loss_parks_the_run() -> None:
    run = Run()
    lose(run, MOST_LOSSES - 1)
    assert needs_decision(run.state, run.parking)
    lose(run, 1)
    assert run.parking.parked is not None
    assert run.parking.parked.kind == "losses"
    assert run.recorded == []


def test_a_run_that_is_parked_after_losses_is_tried_once_more() -> None:
    run = Run()
    lose(run, MOST_LOSSES)
    assert due_us(run.state, run.parking) == BEGIN + RETRY_AFTER_US
    run.ring(RETRY_AFTER_US / 1_000_000 - 1)
    assert not needs_decision(run.state, run.parking)
    run.ring(1)
    assert needs_decision(run.state, run.parking)
    lose(run, 1)
    assert not needs_decision(run.state, run.parking), "one loss is enough now"


def test_no_build_gets_a_run_at_once_that_was_parked_after_losses() -> None:
    run = Run()
    lose(run, MOST_LOSSES)
    assert not run.do(unpark, "a"), "its workers may be those that crash"
    run.ring(RETRY_AFTER_US / 1_000_000)
    assert run.decide(parked=Parked("defect", "no"), build="a").verdict == "parked"
    assert run.do(unpark, "b"), "the builds are known now"


def test_a_run_that_was_parked_after_losses_is_unparked_by_hand() -> None:
    run = Run()
    lose(run, MOST_LOSSES)
    assert run.do(unpark)
    assert run.parking.builds == ()


def test_a_run_that_is_parked_otherwise_is_not_tried_by_time() -> None:
    run = parked()
    assert due_us(run.state, run.parking) == run.state.close_by_us
    run.ring(RETRY_AFTER_US)
    assert not needs_decision(run.state, run.parking) or run.state.status


@pytest.mark.parametrize(("event", "counted"), [("lose", True), ("retry", True), ("release", False), ("snooze", False)])
def test_a_decision_that_is_handed_back_is_no_loss(event: str, counted: bool) -> None:
    run = Run()
    run.do(decision_lost, LOST._replace(event=event))
    assert run.parking.losses == counted


def test_a_decision_job_that_is_cancelled_by_hand_is_a_loss() -> None:
    run = Run()
    assert not run.do(decision_lost, ended(JOB, JobState.CANCELLED))
    assert run.parking.losses == 1
    assert needs_decision(run.state, run.parking)


def test_a_loss_after_the_close_is_late() -> None:
    run = Run()
    run.do(execution.terminate)
    lose(run, MOST_LOSSES)
    assert run.parking.losses == 0


def test_a_loss_while_parked_is_late() -> None:
    run = parked()
    lose(run, 1)
    assert run.parking.losses == 0


def test_a_closed_run_is_not_parked() -> None:
    run = Run()
    lose(run, MOST_LOSSES)
    run.do(execution.terminate)
    assert run.parking.parked is None
    assert due_us(run.state, run.parking) == 0
