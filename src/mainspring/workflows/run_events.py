"""Events about runs, by the changes of a transaction: begins, ends, runs that are parked or go on, and slots that they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import ResourceFields, RunFields
from mainspring.jobs.model import decode_failure, failure
from mainspring.sizes import brief_line
from mainspring.workflows.history import LACKING, Close, WorkflowExecutionSignaled, is_hold_answer
from mainspring.workflows.hold_calls import decode_answer
from mainspring.workflows.model import Status, depth_of
from mainspring.workflows.observers import ended_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mainspring.workflows.history import Event
    from mainspring.workflows.model import State
    from mainspring.workflows.store import RunRow

TYPES: Final = types.RUNS | {types.RESOURCE_DENIED}
"""Those of the events."""
_ENDS: Final = {
    Status.COMPLETED: types.RUN_COMPLETED,
    Status.FAILED: types.RUN_FAILED,
    Status.CANCELED: types.RUN_CANCELLED,
    Status.TIMED_OUT: types.RUN_TIMED_OUT,
    Status.TERMINATED: types.RUN_TERMINATED,
}


def events_of(
    row: RunRow, state: State, recorded: Sequence[Event], *, is_new: bool, parked_us: int
) -> Iterator[NewEvent]:
    """Yield the events about a run as it is after a transaction.

    ``recorded`` is what the transaction appends to its history; ``parked_us``: since when it was parked before, 0 if it was not.
    """
    if is_new and not state.continued_run:
        yield _event(types.RUN_STARTED, row, state)
    if state.status:
        close = next((one for one in reversed(recorded) if isinstance(one, Close)), None)
        name = _ENDS.get(row.status)
        if close is not None and name is not None:
            ended = ended_root(row, close)
            error = b"" if ended is None else ended.error
            yield _event(name, row, state, error, ran_us=max(row.closed_us - row.started_us, 0))
    elif row.parked is not None and row.parked_us != parked_us:
        yield _event(types.RUN_PARKED, row, state, failure(row.parked.kind, row.parked.message))
    elif parked_us and not row.parked_us:
        yield _event(types.RUN_UNPARKED, row, state)
    for one in recorded:
        if isinstance(one, WorkflowExecutionSignaled) and one.name == LACKING and is_hold_answer(one):
            for resource in decode_answer(one.input).lacks:
                yield NewEvent(types.RESOURCE_DENIED, row.namespace, row.type, resource, row.root, ResourceFields())


def _event(name: str, row: RunRow, state: State, error: bytes = b"", **fields: Any) -> NewEvent:
    if error:
        problem = decode_failure(error)
        fields["error_type"], fields["error"] = problem.type, brief_line(problem.message)
    return NewEvent(
        name,
        row.namespace,
        row.type,
        row.workflow_id,
        row.root,
        RunFields(
            run=row.id,
            version=row.version,
            tags=state.tags,
            attempt=state.attempt,
            parent=state.parent_run,
            depth=depth_of(state, state.last_us),
            **fields,
        ),
        state.tags,
    )
