"""The rights that a decider needs for the commands in its decisions.

A decider has the permission ``develop`` for the workflow, since it has registered for it. So it may do everything to the run
itself. A command about something else needs the same permission for that, as a client would. Otherwise, a token for one workflow
would reach every function. A run whose decider lacks a permission is parked, so that a person may give it, and unpark the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from mainspring.access.roles import Permission
from mainspring.namespaces import key
from mainspring.workflows.decisions import model
from mainspring.workflows.model import PART, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.access.caller import Caller
    from mainspring.workflows.decisions.model import Decision, DecisionBase


class _Part(msgspec.Struct, array_like=True):
    """The begin of the input of a part of a map; `deciding.map_parts` has all of it."""

    activity: model.ScheduleActivityTask


_decode_part = msgspec.msgpack.Decoder(_Part).decode


def _of_activity(decision: model.ScheduleActivityTask) -> Iterator[bytes]:
    yield decision.function


def _of_part(decision: model.ContinueAsNewWorkflowExecution | model.StartChildWorkflowExecution) -> Iterator[bytes]:
    """Yield the function that a run calls in place of its own code, if its input is that of a part of a map.

    Another worker may decide about that run, with more rights.
    """
    if decision.input.startswith(PART):
        try:
            part = _decode_part(decision.input[len(PART) :])
        except ValueError:
            return  # no worker reads it either
        yield from _of_activity(part.activity)


def _of_child(decision: model.StartChildWorkflowExecution) -> Iterator[bytes]:
    yield decision.type.encode()
    yield from _of_part(decision)


def _of_run_itself(decision: DecisionBase) -> Iterator[bytes]:
    del decision
    return iter(())


COMMANDS: Final[dict[type[DecisionBase], Callable[[Any], Iterator[bytes]]]] = {
    model.ScheduleActivityTask: _of_activity,
    model.StartChildWorkflowExecution: _of_child,
    model.ContinueAsNewWorkflowExecution: _of_part,
    # The workflow of the other run is looked up when the request is delivered: see `limited`.
    model.SignalExternalWorkflowExecution: _of_run_itself,
    model.RequestCancelExternalWorkflowExecution: _of_run_itself,
    model.ScheduleLambdaFunction: _of_run_itself,
    model.RequestCancelActivityTask: _of_run_itself,
    model.CompleteWorkflowExecution: _of_run_itself,
    model.FailWorkflowExecution: _of_run_itself,
    model.CancelWorkflowExecution: _of_run_itself,
    model.RecordMarker: _of_run_itself,
    model.StartTimer: _of_run_itself,
    model.CancelTimer: _of_run_itself,
}
"""For each command, the functions for which the decider needs the permission ``develop``, beside its workflow."""
if COMMANDS.keys() != set(get_args(model.Decision)):
    raise TypeError(f"COMMANDS lacks {set(get_args(model.Decision)) - COMMANDS.keys()}")
_OTHERS: Final = (model.SignalExternalWorkflowExecution, model.RequestCancelExternalWorkflowExecution)


def refusal(decisions: Sequence[Decision], caller: Caller, namespace: str) -> str:
    """Return why a caller may not make decisions, with the first command that it may not give; empty if it may."""
    for decision in decisions:
        for name in COMMANDS[type(decision)](decision):
            function = function_text(key(namespace, name))
            if not caller.may(Permission.DEVELOP, namespace, function):
                return (
                    f"{type(decision).__name__} {decision.number}: {caller.name!r} lacks the permission 'develop' for the"
                    f" function {function!r}: give it to the token of the worker, or start a worker with another token,"
                    " and unpark the run"
                )
    return ""


def limited(decisions: Sequence[Decision], reach: tuple[str, ...]) -> tuple[Decision, ...]:
    """Return decisions whose requests to other runs reach only workflows of some patterns."""
    return tuple(msgspec.structs.replace(one, reach=reach) if isinstance(one, _OTHERS) else one for one in decisions)
