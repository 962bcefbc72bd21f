"""A node's log lines about attempts that no worker logs: one line for each, with the recorded facts."""

from __future__ import annotations

import pytest
from tests.unit.jobs.a_node import Node, side

from mainspring.clock import from_us
from mainspring.ids import Handles
from mainspring.jobs.model import Options, Retry, State, failure
from mainspring.log_limit import AttemptLog
from mainspring.server.log_writer import FailedAttempts

ERROR = failure("WorkFailed", "the worker sent WORK_FAIL")
RETRY = Options(retry=Retry(max_attempts=2, initial=2.0, jitter=0.5))


class Lines(AttemptLog):
    """Records the lines that would be written."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, lambda _seconds, _function: None)
        self.written: list[tuple[object, ...]] = []

    def write(self, *values: object) -> None:
        self.written.append(values)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def node(lines: Lines) -> Node:
    failed = FailedAttempts(lines, Handles({1: "n"}), lambda: 5000.0)
    return Node(attempts_ended=(failed.ended,))


def test_a_failure_of_a_plain_worker_is_logged_with_the_next_retry(node: Node, lines: Lines) -> None:
    worker = node.stream()
    job = node.background("1", options=RETRY)
    node.settling.failed(side(worker).given[0], ERROR)
    assert lines.written == []
    node.commit()
    ((how, function, handle, attempt, error, next_retry),) = lines.written
    assert (how, function, attempt, error) == ("failed", "f", 1, "WorkFailed: the worker sent WORK_FAIL")
    assert handle == f"H:n:{job.id}"
    assert next_retry == from_us(node.stored(job.id).due_us)


def test_an_attempt_that_its_worker_reported_is_not_logged(node: Node, lines: Lines) -> None:
    worker = node.stream(places=4)
    for _ in range(4):
        node.background("1", options=RETRY)
    given = list(side(worker).given)
    node.settling.failed(given[0], ERROR, reported=True)
    node.settling.succeeded(given[1], b"")
    node.settling.released(given[2])
    node.settling.cancelled(given[3], "asked")
    node.commit()
    assert lines.written == []


def test_a_lost_attempt_is_retried_at_once_or_is_the_last(node: Node, lines: Lines) -> None:
    node.background("1", options=RETRY)
    for _ in range(2):
        worker = node.worker()
        node.given(worker)
        node.service.workers.gone(worker)
        node.commit()
    first, second = lines.written
    assert first[0] == second[0] == "lost"
    assert first[3:] == (1, "its worker's connection ended", 5000.0)
    assert second[3:] == (2, "WorkerLost: its worker's connection ended; attempt 2 was the last", None)


def test_a_loss_that_does_not_count_has_an_attempt_number(node: Node, lines: Lines) -> None:
    worker = node.stream()
    node.background("1", options=RETRY)
    node.service.workers.gone(worker)
    node.commit()
    (line,) = lines.written
    assert line[3:] == (1, "its worker's connection ended; loss 1 of at most 5", 5000.0)


@pytest.mark.parametrize("plain", [True, False])
def test_a_timeout_is_logged(node: Node, lines: Lines, plain: bool) -> None:
    worker = node.worker(timeout=2.0) if plain else node.stream(timeout=2.0)
    node.background("1")
    node.given(worker)
    node.wait(2.1)
    ((how, _, _, attempt, error, next_retry),) = lines.written
    assert (how, attempt) == ("timed out", 1)
    assert "ran for longer than 2s" in str(error)
    assert next_retry == (5000.0 if plain else None)


def test_foreground_jobs_are_logged_too(node: Node, lines: Lines) -> None:
    worker = node.stream()
    node.foreground("1")
    node.settling.failed(side(worker).given[0], ERROR)
    assert [line[0] for line in lines.written] == ["failed"]


def test_a_function_that_fails_often_gets_ten_lines_a_second(node: Node, lines: Lines) -> None:
    worker = node.stream(places=30)
    node.submit(*[node.job(str(at)) for at in range(30)])
    node.commit()
    for held in list(side(worker).given):
        node.settling.failed(held, ERROR)
    node.commit()
    assert len(lines.written) == 10


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_attempt_that_was_lost_with_its_node_is_logged_once(node: Node, lines: Lines, attempts: int) -> None:
    node.stream()
    job = node.background("1", options=Options(retry=Retry(max_attempts=attempts)))
    node.background("2", options=Options(retry=Retry(max_attempts=attempts)))  # it does not run
    node.wait(2.0)
    assert node.state(job.id) is State.RUNNING, "recorded"
    restarted = node.restart()
    (lost,) = lines.written
    assert lost == ("lost", "f", f"H:n:{job.id}", 1, "its node was lost", "unknown")
    restarted.stream()
    restarted.commit()
    given_up = ("given up", "f", f"H:n:{job.id}", 1, "WorkerLost: its node was lost at the last attempt", None)
    assert lines.written[1:] == ([given_up] if attempts == 1 else [])
