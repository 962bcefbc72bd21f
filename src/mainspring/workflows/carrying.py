"""The results that a rerun takes over from the run before.

A rerun begins with today's code and perhaps another input. It takes over the results of the calls that have succeeded: of local
steps, activities, children and side effects. They are its first events after WorkflowExecutionStarted, in the order of
their calls: one marker each, with one of the names in ``CARRIED``. A call of the new run gets such a result at once, if its
function and its arguments are the same, and then neither executes nor records anything. Of results with the same function and
arguments, each is given once, in their order: the n-th such call gets the n-th one. So another input repeats what
depends on it, and other code needs no equal beginning.

Failures are not taken over: what has failed executes again. Nor are timers: the new run waits anew.

A rerun of a rerun takes over what the earlier one took over, and what that has executed itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.errors import UsageError
from mainspring.workflows import history
from mainspring.workflows.history import MarkerName
from mainspring.workflows.history_json import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.workflows.history import Event

CARRIED: Final = frozenset(
    {
        MarkerName.CARRIED_STEP,
        MarkerName.CARRIED_ACTIVITY,
        MarkerName.CARRIED_CHILD,
        MarkerName.CARRIED_SIDE,
        MarkerName.GIVEN_RESULT,
    }
)
"""The markers at the begin of a rerun."""

KINDS: Final[dict[str, str]] = {
    MarkerName.CARRIED_STEP: "step",
    MarkerName.CARRIED_ACTIVITY: "activity",
    MarkerName.CARRIED_CHILD: "child",
    MarkerName.CARRIED_SIDE: "side effect",
    MarkerName.GIVEN_RESULT: "given",
}
"""Words for people."""

ANY_ARGUMENTS: Final = 0
"""The digest of a result for calls with any arguments: that of no arguments, as digests have a version."""


def arguments_digest(function: bytes, payload: bytes) -> int:
    """Return the digest of a call of an activity or a child."""
    return digest_of(function, payload)


def side_digest(function: str) -> int:
    """Return the digest of a call of a side effect, which has no arguments."""
    return digest_of(function.encode())


class Carried(NamedTuple):
    """A result for a rerun: the attributes of its marker."""

    name: str
    """One of ``CARRIED``."""
    function: str
    result: bytes
    digest: int
    """Of the call, and for a local step of its result, too; ``ANY_ARGUMENTS``: any call gets it."""
    event: int = 0
    """The event of the run before in which the call began; 0 for a result that a person gives."""
    occurrence: int = 0
    """For a given result: the number of the one call of the function that gets it; 0: each."""


def is_carried(event: Event) -> bool:
    """Return whether an event is a result that the run has taken over."""
    return isinstance(event, history.MarkerRecorded) and event.native and event.name in CARRIED


def marker_attributes(result: Carried) -> dict[str, Any]:
    """Return the attributes of the marker of a result, for `history.MarkerRecorded`."""
    return {
        "decision_completed": 0,
        "name": result.name,
        "details": result.result,
        "native": True,
        "number": result.event,
        "batch": result.occurrence,
        "digest": result.digest,
        "function": result.function,
    }


@dataclass(slots=True)
class Call:
    """A call of a run, and what became of it."""

    name: str
    """The name of its marker if it is carried."""
    function: str
    event: int
    occurrence: int
    """It is the n-th call of this function in the run."""
    digest: int = 0
    result: bytes | None = None
    """None: it has failed, was cancelled, or has not ended."""
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.function}#{self.occurrence}"


def calls_of(events: Iterable[Event]) -> list[Call]:
    """Return the calls of a run in the order of their events: a local step's is its result, others' are their begin."""
    found = _Calls()
    for event in events:
        take = _TAKERS.get(type(event))
        if take is not None:
            take(found, event)
    return found.calls


class _Calls:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.open: dict[int, Call] = {}
        """Activities and children that have not ended, by the events in which they began."""
        self._counts: dict[str, int] = {}

    def add(self, name: str, function: str, event: int, digest: int) -> Call:
        occurrence = self._counts[function] = self._counts.get(function, 0) + 1
        call = Call(name, function, event, occurrence, digest)
        self.calls.append(call)
        return call

    def end(self, event: int, result: bytes | None) -> None:
        call = self.open.pop(event, None)
        if call is not None:
            call.result, call.ended = result, True


def _marked(calls: _Calls, event: history.MarkerRecorded) -> None:
    if not event.native:
        return
    if event.name == MarkerName.STEP:
        call = calls.add(MarkerName.CARRIED_STEP, event.function, event.id, event.digest)
    elif event.name == MarkerName.SIDE:
        call = calls.add(MarkerName.CARRIED_SIDE, event.function, event.id, side_digest(event.function))
    elif event.name in CARRIED and event.name != MarkerName.GIVEN_RESULT:
        call = calls.add(event.name, event.function, event.id, event.digest)
    else:
        return
    call.result, call.ended = None if event.failed else bytes(event.details), True


def _scheduled(calls: _Calls, event: history.ActivityTaskScheduled) -> None:
    function = event.function.decode("utf-8", "surrogateescape")
    digest = event.digest or arguments_digest(event.function, event.input)
    calls.open[event.id] = calls.add(MarkerName.CARRIED_ACTIVITY, function, event.id, digest)


def _initiated(calls: _Calls, event: history.StartChildWorkflowExecutionInitiated) -> None:
    digest = event.digest or arguments_digest(event.type.encode(), event.input)
    calls.open[event.id] = calls.add(MarkerName.CARRIED_CHILD, event.type, event.id, digest)


def _completed(calls: _Calls, event: history.ActivityTaskCompleted) -> None:
    calls.end(event.scheduled, bytes(event.result))


def _child_completed(calls: _Calls, event: history.ChildWorkflowExecutionCompleted) -> None:
    calls.end(event.initiated, bytes(event.result))


def _failed(
    calls: _Calls,
    event: history.ActivityTaskFailed | history.ActivityTaskTimedOut | history.ActivityTaskCanceled,
) -> None:
    calls.end(event.scheduled, None)


def _child_failed(calls: _Calls, event: Any) -> None:
    calls.end(event.initiated, None)


_TAKERS: Final[dict[type[Any], Callable[[_Calls, Any], None]]] = {
    history.MarkerRecorded: _marked,
    history.ActivityTaskScheduled: _scheduled,
    history.ActivityTaskCompleted: _completed,
    history.ActivityTaskFailed: _failed,
    history.ActivityTaskTimedOut: _failed,
    history.ActivityTaskCanceled: _failed,
    history.StartChildWorkflowExecutionInitiated: _initiated,
    history.StartChildWorkflowExecutionFailed: _child_failed,
    history.ChildWorkflowExecutionCompleted: _child_completed,
    history.ChildWorkflowExecutionFailed: _child_failed,
    history.ChildWorkflowExecutionTimedOut: _child_failed,
    history.ChildWorkflowExecutionCanceled: _child_failed,
    history.ChildWorkflowExecutionTerminated: _child_failed,
}


class Choice(NamedTuple):
    """The calls whose results a rerun does not take over, and the results that a person gives it.

    A call is named by its function, or by function and occurrence, such as ``charge`` (each call) or ``charge#2`` (the second).
    """

    from_call: str = ""
    """Results from this call on are not taken over; a name without an occurrence means its first call. Empty: all are."""
    repeat: tuple[str, ...] = ()
    """Calls whose results are not taken over."""
    skip: Mapping[str, bytes] = {}
    """Encoded results for calls that are not to execute, whatever their arguments are."""


class Plan(NamedTuple):
    """The results that a rerun takes over, and the calls that it makes anew."""

    carried: tuple[Carried, ...]
    """In the order of the calls; given results come first."""
    kept: tuple[Call, ...]
    """The calls whose results they are."""
    repeated: tuple[Call, ...]
    """Calls that execute again if the new run makes them: chosen ones, and those without a result."""


def plan_rerun(events: Sequence[Event], choice: Choice, most: int) -> Plan:
    """Return what a rerun takes over from the events of a run: at most so many results.

    Raises UsageError for a choice that names no call of the run, and for too many results.
    """
    calls = calls_of(events)
    begin = _find(calls, choice.from_call).event if choice.from_call else 0
    repeat = [(_read(text, "repeat"), text) for text in choice.repeat]
    for wanted, text in repeat:
        if not any(_is(call, wanted) for call in calls):
            raise _unknown(text, calls)
    carried = [_given(text, result) for text, result in choice.skip.items()]
    given = [_read(text, "skip") for text in choice.skip]
    kept: list[Call] = []
    repeated: list[Call] = []
    for call in calls:
        if any(_is(call, one) for one in given):
            continue
        chosen = (begin and call.event >= begin) or any(_is(call, wanted) for wanted, _ in repeat)
        if chosen or call.result is None:
            repeated.append(call)
        else:
            kept.append(call)
            carried.append(Carried(call.name, call.function, call.result, call.digest, call.event))
    if len(carried) > most:
        raise UsageError(
            f"the run has {len(carried):,} results to carry, and a history has room for {most:,}: begin later calls anew, with "
            "the option from"
        )
    return Plan(tuple(carried), tuple(kept), tuple(repeated))


def _given(text: str, result: bytes) -> Carried:
    function, occurrence = _read(text, "skip")
    return Carried(MarkerName.GIVEN_RESULT, function, result, ANY_ARGUMENTS, 0, occurrence)


def find_call(events: Iterable[Event], text: str) -> Call:
    """Return the first call of a run that a text names, as of `Choice`. Raises UsageError if there is none."""
    return _find(calls_of(events), text)


def _find(calls: list[Call], text: str) -> Call:
    wanted = _read(text, "a call")
    for call in calls:
        if _is(call, wanted):
            return call
    raise _unknown(text, calls)


def _read(text: str, option: str) -> tuple[str, int]:
    """Return the function and the occurrence that a text names; 0: each."""
    function, sign, number = text.rpartition("#")
    if not sign:
        return text, 0
    if not function or not number.isascii() or not number.isdecimal() or not 0 < int(number) < 2**31:
        raise UsageError(f"{option}: {text!r} names no call: write its function, or function#n for its n-th call")
    return function, int(number)


def _is(call: Call, wanted: tuple[str, int]) -> bool:
    return call.function == wanted[0] and wanted[1] in (0, call.occurrence)


_SHOWN: Final = 10


def _unknown(text: str, calls: list[Call]) -> UsageError:
    names = list(dict.fromkeys(call.function for call in calls))
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return UsageError(f"the run has made no call {text!r}; it has called {shown or 'nothing'}")
