from __future__ import annotations

import pytest

from mainspring.bulk import rules
from mainspring.bulk.rules import FAILURES_KEPT, Action, BulkOperation, Outcome, Result, Spec, Status
from mainspring.errors import UsageError
from mainspring.jobs.model import RUNS, Job, State
from mainspring.queries import JobFilter

FAILED = JobFilter(states=(State.FAILED,))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec(action=Action.RETRY), "needs a filter or handles"),
        (Spec(action=Action.RETRY, where=FAILED, ids=(1,)), "not both"),
        (Spec(action=Action.RETRY, where=JobFilter()), "would match every job"),
        (Spec(action=Action.CANCEL, ids=tuple(range(1, 1002))), "at most 1000 handles, not 1001"),
        (Spec(action=Action.CANCEL, where=FAILED), "no job that is failed can match: only jobs that have not ended"),
        (Spec(action=Action.RETRY, where=JobFilter(states=(State.RUNNING,))), "no job that is running can match"),
        (Spec(action=Action.DELETE, where=JobFilter(states=(State.RUNNING,))), "only ended jobs can be deleted"),
        (Spec(action=Action.RESCHEDULE, where=JobFilter(function=b"f")), "which needs it"),
        (Spec(action=Action.RETRY, where=FAILED, due_us=1), "for the action reschedule"),
        (Spec(action=Action.RETRY, where=FAILED, rate=0), "above 0"),
        (Spec(action=Action.RETRY, where=FAILED, most=-1), "at least 0"),
    ],
)
def test_requests_that_are_refused(spec: Spec, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rules.check_spec(spec)


def test_a_filter_is_fixed_when_an_operation_is_created() -> None:
    where = rules.narrowed(Action.RETRY, JobFilter(function=b"f"), 1000)
    assert where == JobFilter(states=rules.STATES[Action.RETRY], function=b"f", created_to_us=1001)
    assert rules.narrowed(Action.RETRY, FAILED, 1000).states == (State.FAILED,)
    assert rules.narrowed(Action.RETRY, JobFilter(created_to_us=5), 1000).created_to_us == 5
    assert rules.narrowed(Action.RETRY, JobFilter(created_to_us=5000), 1000).created_to_us == 1001


def job(job_id: int, state: State = State.FAILED, function: bytes = b"f") -> Job:
    return Job(job_id, function, b"", state=state)


def test_jobs_are_chosen_as_they_are_now() -> None:
    root = job(4)
    root.term = RUNS
    jobs = {1: job(1), 2: job(2, State.PENDING), 3: job(3, function=b"team\x1ff"), 4: root}
    by_filter = rules.choose(Spec(action=Action.RETRY, where=FAILED), [1, 2, 3, 4, 5], jobs, "default")
    assert by_filter.ids == [1]
    assert {one.job: one.outcome for one in by_filter.results} == {
        2: Outcome.NO_MATCH,
        3: Outcome.NO_MATCH,
        4: Outcome.CONFLICT,
        5: Outcome.NO_MATCH,
    }
    (of_run,) = (one.message for one in by_filter.results if one.job == 4)
    why = "it is a run of a workflow, and a run cannot be retried: start another one with mainspring workflows start f"
    assert of_run == why, "the words that a retry of one job has"
    by_handle = rules.choose(Spec(action=Action.RETRY, ids=(1, 2, 3, 5)), [1, 2, 3, 5], jobs, "default")
    assert {one.job: one.outcome for one in by_handle.results} == {
        2: Outcome.CONFLICT,
        3: Outcome.NOT_FOUND,
        5: Outcome.NOT_FOUND,
    }


def operation(**spec: object) -> BulkOperation:
    return BulkOperation(id=1, created_us=1, spec=Spec(action=Action.RETRY, where=FAILED, **spec))  # type: ignore[arg-type]


def test_progress_counts_outcomes_and_keeps_the_first_failures() -> None:
    bulk = operation()
    for number in range(3):
        results = [Result(number * 20 + one, Outcome.CONFLICT, "x") for one in range(15)]
        bulk = rules.advance(bulk, [*results, Result(99, Outcome.RETRIED)], 7, 2)
    assert bulk.progress.counts == {Outcome.CONFLICT: 45, Outcome.RETRIED: 3}
    assert len(bulk.progress.failures) == FAILURES_KEPT
    assert [one.job for one in bulk.progress.failures[:2]] == [0, 1]
    assert (bulk.revision, bulk.progress.after, bulk.progress.changed) == (3, 7, 3)
    assert rules.done(bulk.progress) == 48


def test_an_operation_is_done_once_no_worker_has_to_be_asked_to_stop() -> None:
    bulk = rules.advance(operation(), [Result(5, Outcome.STOPPING)], 5, 2, is_last=True)
    assert (bulk.status, bulk.progress.stopping) == (Status.RUNNING, (5,))
    bulk = rules.advance(bulk, [], 5, 3, is_last=True)
    assert (bulk.status, bulk.ended_us, bulk.progress.stopping) == (Status.DONE, 3, ())


def test_the_expected_number_limits_a_step() -> None:
    assert rules.allowed(operation(), 9) == 9
    bulk = rules.advance(operation(most=3), [Result(1, Outcome.RETRIED), Result(2, Outcome.CONFLICT)], 1, 2)
    assert rules.allowed(bulk, 9) == 2
    assert "the expected 3 jobs" in rules.too_many(bulk)
