"""Tasks that ask for completion tokens, and workflows that wait for events from outside."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import (
    App,
    ConflictError,
    JobCancelled,
    JobFailed,
    NotFoundError,
    Retry,
    UsageError,
    WorkflowUsageError,
    current_job,
    workflow,
)
from mainspring.testing import in_memory

app = App("127.0.0.1:1")
tokens: list[str] = []


@app.task(retry=Retry(2, initial=1, jitter=0))
def review(document: str) -> str:  # type: ignore[return] # of the completion
    if document == "torn":
        current_job().completion_token()
        raise OSError(document)
    tokens.append(current_job().completion_token(expires="2d"))
    assert current_job().completion_token() == tokens[-1]


@app.task
async def areview(document: str) -> str:
    with pytest.raises(UsageError, match="acompletion_token"):
        current_job().completion_token()
    tokens.append(await current_job().acompletion_token(expires="1h"))
    return "ignored"


@app.task(run_timeout="10s")
def ask(document: str) -> int:  # type: ignore[return]
    tokens.append(current_job().completion_token())


@app.task
def forget(document: str) -> str:
    return document


@app.task
def wrong(expires: float) -> None:
    current_job().completion_token(expires=expires)


@app.workflow
async def publish(document: str) -> int:
    return await workflow.external_event(ask, document, expires="3d")


@app.workflow
async def careless(document: str) -> str:
    return await workflow.external_event(forget, document)


@app.workflow
async def alive(document: str) -> int:
    return await workflow.external_event(ask, document, expires="3d", heartbeat="1h")


@app.workflow
async def steps(document: str) -> Any:
    return await workflow.step(review, document)


@app.workflow
async def mistaken(document: str) -> str:
    with pytest.raises(WorkflowUsageError, match="takes a task and its arguments"):
        workflow.external_event(publish, document)
    return "no child"


@app.workflow
async def impatient(document: str) -> str:
    job = workflow.external_event(ask, document, expires="3d")
    await workflow.sleep("1h")
    job.cancel()
    return "cancelled"


def details(job: Any) -> Any:
    """Return a job with all its details."""
    return app.jobs.get(job.handle).row


@pytest.fixture(autouse=True)
def _no_tokens() -> None:
    tokens.clear()


def test_a_job_ends_with_its_completion_and_not_with_its_function() -> None:
    with in_memory(app) as memory:
        job = review.submit("a")
        memory.settle()
        row = details(job)
        assert (row.state, row.completion.state) == ("scheduled", "open")
        assert row.awaits_until == row.completion.expires_at
        app.completions.progress(tokens[0], 1, 3, "reads")
        row = details(job)
        assert (row.done, row.total, row.text) == (1, 3, "reads")
        memory.advance("47h")
        assert app.completions.complete(tokens[0], "fine").state == "completed"
        assert app.completions.complete(tokens[0], "fine").repeated
        with pytest.raises(ConflictError, match="with another answer"):
            app.completions.complete(tokens[0], "other")
        assert job.result() == "fine"


def test_the_function_may_be_a_coroutine_and_its_result_is_ignored() -> None:
    with in_memory(app) as memory:
        job = areview.submit("a")
        memory.settle()
        (line,) = app.jobs.get(job.handle).logs()
        assert "is ignored" in line.message
        app.completions.complete(tokens[0], "fine")
        assert job.result() == "fine"


def test_an_expired_token_fails_the_attempt_and_the_next_one_has_another() -> None:
    with in_memory(app) as memory:
        job = review.submit("a")
        memory.settle()
        memory.advance("2d")
        memory.advance("2s")
        assert len(tokens) == 2
        with pytest.raises(ConflictError, match="the token expired at"):
            app.completions.complete(tokens[0], "late")
        assert details(job).completion.number == 2
        memory.advance("2d")
        with pytest.raises(JobFailed, match="CompletionExpired"):
            job.result()


def test_an_error_of_the_function_fails_the_attempt() -> None:
    with in_memory(app) as memory:
        job = review.submit("torn")
        memory.advance("5s")
        with pytest.raises(JobFailed, match="OSError: torn"):
            job.result()


def test_a_failure_from_outside_is_retried_by_the_policy_unless_it_forbids_that() -> None:
    with in_memory(app) as memory:
        job = review.submit("a")
        memory.settle()
        app.completions.fail(tokens[0], "unreadable", type="Torn")
        memory.advance("2s")
        app.completions.complete(tokens[1], "fine")
        assert job.result() == "fine"
        job = review.submit("b")
        memory.settle()
        app.completions.fail(tokens[2], "unreadable", type="Torn", retry=False)
        with pytest.raises(JobFailed, match="Torn: unreadable"):
            job.result()


def test_a_cancelled_job_takes_no_answer() -> None:
    with in_memory(app) as memory:
        job = review.submit("a")
        memory.settle()
        job.cancel()
        with pytest.raises(ConflictError, match="its job is cancelled"):
            app.completions.complete(tokens[0], "late")
        with pytest.raises(JobCancelled):
            job.result()
        assert details(job).completion.late_answers == 1


def test_an_unknown_token_is_not_found() -> None:
    with in_memory(app), pytest.raises(NotFoundError):
        app.completions.complete("msc_x", "late")


def test_a_token_has_a_limited_life() -> None:
    with in_memory(app):
        for expires in (0.0, 367 * 86_400.0):
            with pytest.raises(JobFailed, match="366 days"):
                wrong.submit(expires).result()


def test_a_workflow_waits_for_an_event_whatever_happens_to_workers() -> None:
    with in_memory(app) as memory:
        job = publish.submit("a")
        memory.settle()
        memory.crash_worker()
        memory.advance("2d")  # longer than the time limit of the task, and than the default expiry
        app.completions.complete(tokens[0], 7)
        assert memory.result(job) == 7


def test_a_workflow_gets_the_expiry_of_its_event() -> None:
    with in_memory(app) as memory:
        job = publish.submit("a")
        memory.settle()
        memory.advance("3d")
        with pytest.raises(JobFailed, match="CompletionExpired: its completion did not come within 3d"):
            memory.result(job)


def test_a_workflow_gets_the_silence_of_its_event() -> None:
    with in_memory(app) as memory:
        job = alive.submit("a")
        memory.settle()
        for _ in range(3):
            memory.advance("50m")
            app.completions.heartbeat(tokens[0])
        memory.advance("61m")
        with pytest.raises(JobFailed, match="CompletionSilent"):
            memory.result(job)


def test_a_task_that_asks_for_no_token_fails_its_event() -> None:
    with in_memory(app) as memory, pytest.raises(JobFailed, match="NoCompletionToken"):
        memory.result(careless.submit("a"))


def test_a_step_has_no_token() -> None:
    with in_memory(app) as memory, pytest.raises(JobFailed, match="a step can have no completion token"):
        memory.result(steps.submit("a"))


def test_a_cancelled_event_takes_no_answer() -> None:
    with in_memory(app) as memory:
        job = impatient.submit("a")
        memory.settle()
        memory.advance("2h")
        assert memory.result(job) == "cancelled"
        with pytest.raises(ConflictError):
            app.completions.complete(tokens[0], 1)


def test_a_workflow_is_no_external_event_and_is_not_started() -> None:
    with in_memory(app):
        run = mistaken.submit("a")
        assert run.result(timeout=30) == "no child"
        assert [one.handle for one in app.runs.list()] == [run.handle]
