"""Compares the commands of workflow code with those in its history.

A command is compared by kind, number, name and arguments. The durations of timers are not compared: a recorded timer keeps
its time, and a changed duration applies to later ones. A local step is compared when its result is found in the history, by
its function and by a digest of function, arguments and result.

Arguments of earlier code are those of a call although its types have changed safely since. A field that a record lacks is no
difference if the value of today's code has its default: it was added since. Neither is the way in which an argument is given, by
position or by name, nor that of a number, 1 or 1.0. A digest can only be compared with that of what earlier code would have
recorded, so `earlier_payloads` builds that.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from itertools import chain, combinations, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.client import pydantic_models
from mainspring.client.json_types import encode_json, to_plain
from mainspring.client.payload import Signature
from mainspring.errors import PayloadError
from mainspring.jobs.model import describe_failure
from mainspring.workflows import history
from mainspring.workflows import requests as decisions
from mainspring.workflows.history import MarkerName
from mainspring.workflows.history_json import RedactedPayload, same_digest, same_payload, same_values
from mainspring.workflows.model import Parked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mainspring.workflows.requests import Decision

if TYPE_CHECKING:
    Same = Callable[[bytes], bool]
    """Returns whether a recorded payload is that of a command, although their bytes differ."""

SHOWN: Final = 10
"""Commands that a mismatch shows before and after the first difference."""
_TEXT: Final = 60
"""Characters of a command's arguments that a mismatch shows."""


class Mismatch(Exception):  # noqa: N818 - a finding, not an error
    """The code and the history differ. It never leaves this package."""

    def __init__(self, recorded: str, code: str) -> None:
        super().__init__(recorded, code)
        self.recorded = recorded
        self.code = code


# ---- commands and their events ----

_CLOSES: Final = (
    decisions.CompleteWorkflowExecution,
    decisions.FailWorkflowExecution,
    decisions.CancelWorkflowExecution,
    decisions.ContinueAsNewWorkflowExecution,
)
_EVENTS: Final[dict[type[Any], tuple[type[Any], ...]]] = {
    decisions.ScheduleActivityTask: (history.ActivityTaskScheduled, history.ScheduleActivityTaskFailed),
    decisions.RequestCancelActivityTask: (
        history.ActivityTaskCancelRequested,
        history.RequestCancelActivityTaskFailed,
    ),
    decisions.StartTimer: (history.TimerStarted, history.StartTimerFailed),
    decisions.CancelTimer: (history.TimerCanceled, history.CancelTimerFailed),
    decisions.RecordMarker: (history.MarkerRecorded, history.RecordMarkerFailed),
    decisions.StartChildWorkflowExecution: (
        history.StartChildWorkflowExecutionInitiated,
        history.StartChildWorkflowExecutionFailed,
    ),
    # These are always carried out; their failure is an answer.
    decisions.SignalExternalWorkflowExecution: (history.SignalExternalWorkflowExecutionInitiated,),
    decisions.RequestCancelExternalWorkflowExecution: (history.RequestCancelExternalWorkflowExecutionInitiated,),
    decisions.CompleteWorkflowExecution: (
        history.WorkflowExecutionCompleted,
        history.CompleteWorkflowExecutionFailed,
    ),
    decisions.FailWorkflowExecution: (history.WorkflowExecutionFailed, history.FailWorkflowExecutionFailed),
    decisions.CancelWorkflowExecution: (history.WorkflowExecutionCanceled, history.CancelWorkflowExecutionFailed),
    decisions.ContinueAsNewWorkflowExecution: (
        history.WorkflowExecutionContinuedAsNew,
        history.ContinueAsNewWorkflowExecutionFailed,
    ),
}
"""The events of each decision: carried out, and failed if it can."""
_NAMES: Final = ("activity_id", "timer_id", "name")
RECORDS: Final = frozenset(event for pair in _EVENTS.values() for event in pair)
"""Events that record a command, if their ``decision_completed`` is set."""
CLOSING: Final = frozenset(_EVENTS[kind][0] for kind in _CLOSES)
"""Events that close the run."""


def is_close(decision: Decision) -> bool:
    """Return whether a decision closes the run."""
    return isinstance(decision, _CLOSES)


def matches(event: Any, decision: Any, same: Same | None = None) -> bool:
    """Return whether an event records a decision. ``same`` tells whether a recorded payload is that of the decision."""

    def is_same(recorded: bytes, computed: bytes) -> bool:
        if recorded.__class__ is bytes and recorded == computed:
            return True
        return same_payload(recorded, computed) or (same is not None and same(recorded))

    if (reason := _failure_of(event)) and (own := _failure_of(decision)):
        return reason == own  # whether another attempt follows is no difference of the code
    kind = type(event)
    if kind not in _EVENTS[type(decision)]:
        return False
    if kind is history.ActivityTaskScheduled:
        return bool(
            event.activity_id == decision.activity_id
            and event.function == decision.function
            and is_same(event.input, decision.input)
        )
    if kind is history.TimerStarted:
        return bool(event.timer_id == decision.timer_id)
    if kind is history.MarkerRecorded:
        return bool(
            event.name == decision.name
            and event.number == decision.number
            and event.function == decision.function
            and same_digest(event.digest, decision.digest)
        )
    if kind in _OTHER_RUNS:
        return event.number == decision.number and _same_request(event, decision, is_same)
    if kind is history.WorkflowExecutionCompleted:
        return is_same(event.result, decision.result)
    if kind is history.WorkflowExecutionContinuedAsNew:
        stated = not decision.version or event.version == decision.version
        return bool(event.attempt == decision.attempt and stated) and is_same(event.input, decision.input)
    if kind is history.WorkflowExecutionFailed:
        return bool(event.reason == decision.reason)
    return all(getattr(event, name, None) == getattr(decision, name, None) for name in _NAMES)


def _failure_of(one: Any) -> str:
    """Return why an event or a decision closes a run as failed, whether another attempt follows or not; empty for others."""
    if isinstance(one, (history.WorkflowExecutionFailed, decisions.FailWorkflowExecution)):
        return str(one.reason)
    if isinstance(one, (history.WorkflowExecutionContinuedAsNew, decisions.ContinueAsNewWorkflowExecution)):
        return describe_failure(one.failure).partition(":")[0] if one.attempt > 1 else ""
    return ""


_OTHER_RUNS: Final = frozenset({*history.kinds(history.Initiated), history.StartChildWorkflowExecutionFailed})


def _same_request(event: Any, decision: Any, is_same: Callable[[bytes, bytes], bool]) -> bool:
    """Return whether an event records a decision about another run, as far as its number does not say so."""
    if isinstance(decision, decisions.StartChildWorkflowExecution):
        if event.type != decision.type or (decision.workflow_id and event.workflow_id != decision.workflow_id):
            return False
        failed = type(event) is history.StartChildWorkflowExecutionFailed
        return failed or is_same(event.input, decision.input)
    # The node fills in the names of a child.
    if not decision.child and (event.workflow_id, event.run) != (decision.workflow_id, decision.run):
        return False
    if isinstance(decision, decisions.SignalExternalWorkflowExecution):
        return bool(event.name == decision.name) and is_same(event.input, decision.input)
    return True


# ---- words ----


def describe_event(event: Any) -> str:
    """Return one line for a recorded command."""
    if isinstance(event, history.MarkerRecorded):
        if event.name == MarkerName.STEP:
            return f"step #{event.number} {event.function}"
        return _describe(decisions.RecordMarker, event)
    for kind, records in _EVENTS.items():
        if isinstance(event, records):
            text = _describe(kind, event)
            return text if isinstance(event, records[0]) else f"{text} (failed: {event.cause})"
    return type(event).__name__


def describe_decision(decision: Any) -> str:
    """Return one line for a command of the code."""
    return _describe(type(decision), decision)


def _describe(kind: type[Any], one: Any) -> str:
    if kind is decisions.ScheduleActivityTask:
        given = getattr(one, "input", None)
        shown = "" if given is None else f" {_shorten(given)}"
        return f"activity #{one.activity_id} {one.function.decode('utf-8', 'replace')}{shown}"
    if kind is decisions.RequestCancelActivityTask:
        return f"cancel activity #{one.activity_id}"
    if kind is decisions.StartTimer:
        return f"timer #{one.timer_id}"
    if kind is decisions.CancelTimer:
        return f"cancel timer #{one.timer_id}"
    if kind is decisions.RecordMarker:
        number = getattr(one, "number", 0)
        if one.name == MarkerName.PATCH and getattr(one, "native", False):
            return f"patch {one.function}"
        return f"{_marker_title(one.name)} #{number} {getattr(one, 'function', '')}".rstrip()
    if kind is decisions.StartChildWorkflowExecution:
        given = getattr(one, "input", None)
        shown = "" if given is None else f" {_shorten(given)}"
        return f"child #{one.number} {one.type}{shown}"
    if kind is decisions.SignalExternalWorkflowExecution:
        return f"signal #{one.number} {one.name} {_shorten(one.input)}".rstrip()
    if kind is decisions.RequestCancelExternalWorkflowExecution:
        return f"cancel another run #{one.number}"
    if kind is decisions.CompleteWorkflowExecution:
        return f"return {_shorten(getattr(one, 'result', b''))}".rstrip()
    if kind is decisions.FailWorkflowExecution:
        return f"fail with {getattr(one, 'reason', '')}".rstrip()
    if kind is decisions.ContinueAsNewWorkflowExecution and one.attempt > 1:
        return f"fail with {describe_failure(one.failure)}, and begin again"
    if kind is decisions.ContinueAsNewWorkflowExecution:
        return f"continue as new {_shorten(getattr(one, 'input', b''))}".rstrip()
    return "end as cancelled"


def _marker_title(name: str) -> str:
    return _TITLES.get(name, f"marker {name}")


_TITLES: Final[dict[str, str]] = {
    MarkerName.SIDE: "side effect",
    MarkerName.HOLD: "hold",
    MarkerName.RELEASE: "release hold",
    MarkerName.WITHDRAW: "give up hold",
}


def _shorten(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


class Comparison:
    """The last commands on which code and history agree, and their first difference."""

    def __init__(self) -> None:
        self._agreed: deque[Any] = deque(maxlen=SHOWN)

    def agree(self, event: Any) -> None:
        """Note an event whose command the code has issued too."""
        self._agreed.append(event)

    def park(self, recorded: Iterable[str], code: Iterable[str]) -> Parked:
        """Return why the run is parked, given the lines of both sides from the first difference on."""
        before = [describe_event(event) for event in self._agreed]
        theirs, ours = list(recorded)[: SHOWN + 1], list(code)[: SHOWN + 1]
        return Parked(
            "mismatch",
            f"the code differs from the history: recorded is {_first(theirs)}, the code has {_first(ours)}; "
            "restore the code, or start a worker with code that makes the recorded commands",
            (*before, *theirs),
            (*before, *ours),
            len(before),
        )


def _first(lines: list[str]) -> str:
    return lines[0] if lines else "nothing"


_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_MOST: Final = 500
"""Payloads that are tried for a digest."""
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError, PayloadError)


class _Field(NamedTuple):
    """A field of a dataclass, a Struct or a model."""

    name: str
    key: str
    """Its name in JSON."""
    default: Any
    factory: Any

    def is_default(self, value: Any) -> bool:
        if self.factory is not msgspec.NODEFAULT:
            return bool(value == self.factory())
        return self.default is not msgspec.NODEFAULT and bool(value == self.default)


def same_arguments(codec: Any, args: tuple[Any, ...], kwargs: dict[str, Any], recorded: bytes) -> bool:
    """Return whether a recorded payload has the arguments of a call."""
    if isinstance(recorded, RedactedPayload):
        return False
    try:
        given = msgspec.json.decode(recorded) if recorded else []
        if not isinstance(codec, Signature):
            return bool(args or kwargs) and _fits(given, args[0] if args else kwargs)
        if codec.raw:
            return False
        theirs = codec.bound(given if isinstance(given, list) else () if isinstance(given, dict) else (given,), given)
        ours = codec.bound(args, kwargs)
        defaults = codec.defaults()
        return theirs.keys() <= ours.keys() | defaults.keys() and all(
            _fits(theirs[name], ours.get(name, defaults.get(name)))
            if name in theirs
            else name in defaults and bool(ours[name] == defaults[name])
            for name in ours.keys() | theirs.keys()
        )
    except _UNREADABLE:
        return False


def same_result(value: Any, recorded: bytes) -> bool:
    """Return whether a recorded payload is a value."""
    try:
        return not isinstance(recorded, RedactedPayload) and _fits(msgspec.json.decode(recorded), value)
    except _UNREADABLE:
        return False


def _fits(recorded: Any, value: Any) -> bool:
    """Return whether recorded JSON is a value of today's code."""
    fields = _fields_of(value)
    if fields and isinstance(recorded, dict):
        tag = _tag_of(value)
        if tag.keys() - recorded.keys() or any(recorded[key] != one for key, one in tag.items()):
            return False
        written = to_plain(value) if pydantic_models.is_known(type(value)) else {}
        return recorded.keys() <= {field.key for field in fields} | tag.keys() and all(
            _fits(recorded[field.key], _part(value, field, written))
            if field.key in recorded
            else field.is_default(getattr(value, field.name))
            for field in fields
        )
    if isinstance(value, (list, tuple)) and isinstance(recorded, list):
        return len(value) == len(recorded) and all(map(_fits, recorded, value))
    if isinstance(value, (set, frozenset)) and isinstance(recorded, list):  # results have them in any order
        plain = to_plain(value)
        return len(plain) == len(recorded) and all(
            map(same_values, *(sorted(one, key=_encode) for one in (recorded, plain)))
        )
    if isinstance(value, dict) and isinstance(recorded, dict) and all(isinstance(key, str) for key in value):
        return value.keys() == recorded.keys() and all(_fits(recorded[key], value[key]) for key in value)
    return same_values(recorded, to_plain(value))


def _part(value: Any, field: _Field, written: dict[str, Any]) -> Any:
    """Return the value of a field to be compared. A model may have written it in its own way: then, what it has written."""
    part = getattr(value, field.name)
    has_own_form = (
        field.key in written and not isinstance(part, (list, tuple, set, frozenset, dict)) and not _fields_of(part)
    )
    return written[field.key] if has_own_form else part


def _fields_of(value: Any) -> list[_Field]:
    """Return the fields of a dataclass, Struct or model that is written as an object; nothing for other values."""
    if pydantic_models.is_model(type(value)):
        return [_Field(*one) for one in pydantic_models.fields_of(value)]
    if isinstance(value, msgspec.Struct):
        if value.__struct_config__.array_like:
            return []
        return [
            _Field(one.name, one.encode_name, one.default, one.default_factory)
            for one in msgspec.structs.fields(type(value))
        ]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    missing, none = dataclasses.MISSING, msgspec.NODEFAULT
    return [
        _Field(
            one.name,
            one.name,
            none if one.default is missing else one.default,
            none if one.default_factory is missing else one.default_factory,
        )
        for one in dataclasses.fields(value)
    ]


def _tag_of(value: Any) -> dict[str, Any]:
    config = getattr(value, "__struct_config__", None)
    return {} if config is None or config.tag is None else {config.tag_field: config.tag}


# ---- for digests ----


def earlier_payloads(codec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[bytes]:
    """Return what earlier code may have recorded for the arguments of a call, the likeliest first."""
    return islice(_earlier_payloads(codec, args, kwargs), _MOST)


def _earlier_payloads(codec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[bytes]:
    if not isinstance(codec, Signature) or codec.raw:
        return
    try:
        names = codec.bound(args, kwargs)
        found: dict[tuple[type[Any], str], bool] = {}
        _collect([*args, *kwargs.values()], found)
        defaults = codec.defaults()
        added = [key for key, always in found.items() if always]
        added += [(Signature, name) for name in names if name in defaults and bool(names[name] == defaults[name])]
        for without in chain.from_iterable(combinations(added, size) for size in range(len(added) + 1)):
            left_out = frozenset(without)
            plain = {k: _written(value, left_out) for k, value in names.items() if (Signature, k) not in left_out}
            for numbers in (_as_is, _as_integers, _as_floats):
                changed = numbers(plain)
                yield encode_json(list(changed.values()), codec.name) if changed else b""
                yield encode_json(changed, codec.name) if changed else b""
    except _UNREADABLE:
        return


def _collect(value: Any, found: dict[tuple[type[Any], str], bool]) -> None:
    """Find the fields with defaults, and whether all their values are defaults."""
    fields = _fields_of(value)
    for field in fields:
        inner = getattr(value, field.name)
        key = (type(value), field.key)
        found[key] = found.get(key, True) and field.is_default(inner)
        _collect(inner, found)
    if isinstance(value, (list, tuple, set, frozenset, dict)) and not fields:
        for one in value.values() if isinstance(value, dict) else value:
            _collect(one, found)


def _written(value: Any, without: frozenset[tuple[type[Any], str]]) -> Any:
    """Return a value as JSON has it, without these fields."""
    fields = _fields_of(value)
    if fields:
        plain = to_plain(value)
        for field in fields:
            if (type(value), field.key) in without:
                plain.pop(field.key, None)
            elif field.key in plain:
                plain[field.key] = _written(_part(value, field, plain), without)
        return plain
    if isinstance(value, (list, tuple)):
        return [_written(one, without) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _written(value[key], without) for key in sorted(value)}
    return to_plain(value)


def _as_is(value: Any) -> Any:
    return value


def _as_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _inside(value, _as_integers)


def _as_floats(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _inside(value, _as_floats)


def _inside(value: Any, change: Any) -> Any:
    if isinstance(value, list):
        return [change(one) for one in value]
    return {key: change(one) for key, one in value.items()} if isinstance(value, dict) else value
