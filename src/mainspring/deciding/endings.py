"""The end of a workflow's code: the decision that closes the run, or the reason to park it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.deciding.commands import check_size
from mainspring.deciding.continuing import another_attempt, continuation_of, continue_as_new, leaves_of
from mainspring.deciding.same_arguments import same_result
from mainspring.errors import PayloadError, UsageError, WorkflowUsageError
from mainspring.jobs.failures import JobFailure, encodable, place_of, text_of, traceback_of
from mainspring.workflows.decisions.model import (
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    FailWorkflowExecution,
)
from mainspring.workflows.model import Parked

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from mainspring.deciding.api import Calls
    from mainspring.deciding.matching import Same
    from mainspring.deciding.model import RunState
    from mainspring.workflows.decisions.model import Decision

_REASON_LIMIT: Final = 256
"""Characters of a failure's reason; SWF's limit."""
_DETAILS_LIMIT: Final = 30_000
"""Characters of the traceback."""

_encode = msgspec.json.Encoder().encode


def close_of(
    main: asyncio.Task[object], calls: Calls, encode: Callable[[object], bytes], *, cancel_requested: bool
) -> Decision:
    """Return the decision that closes the run of a finished main task. ``encode`` encodes its result, or raises PayloadError."""
    number, largest = calls.next_number(), calls.state.limits.largest
    failure = calls.closing.failure
    error = failure or (None if main.cancelled() else main.exception())
    continuation = continuation_of(error)
    if continuation is not None:
        return continue_as_new(number, continuation, calls)
    if failure is None and main.cancelled():
        if cancel_requested:
            return CancelWorkflowExecution(number)
        return _fail(
            number, "CancelledError", "the workflow cancelled itself: nobody has asked the run to cancel", None
        )
    if error is None:
        try:
            result = encode(main.result())
            check_size(result, largest, "the workflow's result", "store it elsewhere and return its name")
        except PayloadError as refused:
            error = refused
        else:
            return CompleteWorkflowExecution(number, result)
    lines = traceback_of(error, error.__traceback__)[-_DETAILS_LIMIT:]
    failed = _fail(number, encodable(type(error).__name__), text_of(error), lines)
    # A run that was to end itself is not begun again.
    return failed if cancel_requested else another_attempt(failed, error, calls) or failed


def same_close(main: asyncio.Task[object]) -> Same | None:
    """Return how to compare the result or the next arguments of a finished main task with recorded ones."""
    error = None if main.cancelled() else main.exception()
    if error is None:
        return None if main.cancelled() else partial(same_result, main.result())
    continuation = continuation_of(error)
    return None if continuation is None else continuation.same


def _is_defect(error: BaseException, state: RunState) -> bool:
    """Return whether an error is a defect of the code: one of ``park_on``, or a call that can never be right.

    A received value that does not fit its type is none: it may come from a client.
    """
    if isinstance(error, (*state.code.park_on, WorkflowUsageError)):
        return True
    is_refused = isinstance(error, UsageError) and not (isinstance(error, PayloadError) and error.received)
    return is_refused and state.semantics >= 1


def _fail(number: int, kind: str, message: str, lines: str | None) -> FailWorkflowExecution:
    return FailWorkflowExecution(
        number, kind[:_REASON_LIMIT], _encode(JobFailure(kind, message[:_DETAILS_LIMIT], lines))
    )


def defect_of(left: BaseException, state: RunState) -> Parked | None:
    """Return why an error that left the workflow parks its run; None: it fails the run.

    It parks the run if it is a defect, or a group that has one.
    """
    error = next(
        (one for one in (left, *(leaves_of(left) if state.semantics >= 1 else ())) if _is_defect(one, state)), None
    )
    if error is None:
        return None
    text = text_of(error)[:_DETAILS_LIMIT]
    return Parked(
        "defect", f"{type(error).__name__}: {text}{place_of(error)}; correct the code, and start a worker with it"
    )
