"""The decisions that continue a run as new, or begin it again after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.deciding.model import ContinueAsNew
from mainspring.jobs import model as jobs
from mainspring.jobs.retry import backoff
from mainspring.workflows.decisions.model import ContinueAsNewWorkflowExecution, FailWorkflowExecution
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.deciding.api import Calls


def continuation_of(error: BaseException | None) -> ContinueAsNew | None:
    """Return the request to continue as new that a workflow has raised, also inside the exception groups of task groups.

    None if there is none, or if a group has other errors, too: they fail the run.
    """
    if isinstance(error, ContinueAsNew):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [*leaves_of(error)]
    requests = [one for one in found if isinstance(one, ContinueAsNew)]
    return requests[0] if len(requests) == len(found) else None


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Return the errors of an exception group and of the groups inside of it; none if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            if isinstance(one, BaseExceptionGroup):
                yield from leaves_of(one)
            else:
                yield one


def continue_as_new(number: int, found: ContinueAsNew, calls: Calls) -> ContinueAsNewWorkflowExecution:
    """Return the decision to continue as new. The next run gets the signals that the code has not received."""
    return ContinueAsNewWorkflowExecution(number, found.payload, found.version, unread=calls.unread_signals())


def another_attempt(
    failed: FailWorkflowExecution, error: BaseException, calls: Calls
) -> ContinueAsNewWorkflowExecution | None:
    """Return the decision to begin a failed run again after a delay; None if the policy of its workflow does not allow it."""
    retry, started = calls.state.code.retry, calls.started
    if retry is None or started.attempt >= retry.max_attempts or not retry.allows(error):
        return None
    delay = backoff(msgspec.convert(retry.wire(), jobs.Retry), started.attempt, calls.rng.random())
    return ContinueAsNewWorkflowExecution(
        failed.number, started.input, delay=min(delay, YEAR), attempt=started.attempt + 1, failure=failed.details
    )
