"""The end of a run that continues as new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.deciding.model import ContinueAsNew
from mainspring.workflows.decisions.model import ContinueAsNewWorkflowExecution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.deciding.api import Calls


def continuation_of(error: BaseException | None) -> ContinueAsNew | None:
    """Return the wish to continue as new that has left a workflow, also in the groups of task groups.

    None if there is none, or if the group has other errors, too: they fail the run.
    """
    if isinstance(error, ContinueAsNew):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [*_leaves(error)]
    wishes = [one for one in found if isinstance(one, ContinueAsNew)]
    return wishes[0] if len(wishes) == len(found) else None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def continue_as_new(found: ContinueAsNew, calls: Calls) -> ContinueAsNewWorkflowExecution:
    """Return the decision for it: the signals that the code has not received go along."""
    return ContinueAsNewWorkflowExecution(calls.next_number(), found.payload, unread=calls.unread_signals())
