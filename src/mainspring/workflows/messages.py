"""The bodies of the packets between a node and a decider: MessagePack arrays, which grow at their ends.

The reference of the protocol extension describes the packets.

What a decider reports is checked here for values that the rules, the jobs slice or a store could not take. The rules judge
whether a report fits its run. These checks come before them, because a connection may send anything.
"""

from __future__ import annotations

import math
import sys
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec.structs import fields, replace

from mainspring.errors import UsageError
from mainspring.jobs import model
from mainspring.jobs.completion_rules import check_spans
from mainspring.jobs.model import FUNCTION_LIMIT, OWN_FUNCTION, UNIQUE_LIMIT, Options, decode_options, is_own
from mainspring.sizes import (
    ABOUT,
    CANNOT_READ,
    FAILURE,
    IDENTIFIER,
    PARKED_LINE,
    PARKED_LINES,
    PARKED_TEXT,
    TAGS,
    UNREAD,
    shorten,
)
from mainspring.streams.model import refused_streams
from mainspring.values.model import refused_values
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import (
    YEAR,
    Parked,
)
from mainspring.workflows.requests import (
    CancelWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    Decision,
    FailWorkflowExecution,
    RecordMarker,
    RequestCancelExternalWorkflowExecution,
    ScheduleActivityTask,
    SignalExternalWorkflowExecution,
    StartChildWorkflowExecution,
    StartTimer,
    StepResult,
    StepRetry,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflows.requests import DecisionBase


class SettlementMessage(msgspec.Struct, array_like=True, frozen=True):
    """The success of an activity that the decider has executed itself. It reports other ends with SETTLE."""

    handle: bytes
    token: bytes
    result: bytes


class DecideMessage(msgspec.Struct, array_like=True, frozen=True):
    """The report of a decider about one run; see `workflows.requests.Completion`. The body of DECIDE is an array of these."""

    run: int
    handle: bytes
    """The decision task's delivery; empty if fused."""
    token: bytes
    seen: int
    now_us: int
    batch: int
    more: bool
    steps: tuple[StepResult, ...] = ()
    decisions: tuple[Decision, ...] = ()
    settlements: tuple[SettlementMessage, ...] = ()
    about: bytes = b""
    parked: Parked | None = None
    build: str = ""
    log: bytes = b""
    """Lines that the code has logged, as `workflow_code.model.LogLines` encodes them; a node stores them with the report."""
    semantics: int = 0
    """The behaviour with which the code ran; see ``workflows.model.SEMANTICS``."""
    retries: tuple[StepRetry, ...] = ()
    """Steps that wait for their next attempts; only to a node whose decisions say ``retries``."""
    values: tuple[tuple[str, bytes], ...] = ()
    """Names and values that the code has published; a node stores them with the report."""
    streams: tuple[tuple[str, tuple[bytes, ...]], ...] = ()
    """Names of streams with the items that the code has written, likewise."""


class Lease(IntEnum):
    """The lease of a decider on a run after an answer."""

    NONE = 0
    """It has none: the decider must not go on with the run before the next decision, if its report said that it does."""
    KEPT = 1
    """It keeps the one that it had."""
    NEXT = 2
    """The next decision follows the answer, in an ASSIGN."""


class DecidedMessage(msgspec.Struct, array_like=True, frozen=True):
    """The answer about one run; see `workflows.requests.Decided`.

    The body of DECIDED has one for each entry of DECIDE, in order.
    """

    run: int
    verdict: Literal["recorded", "stale", "refused", "parked"]
    why: str = ""
    events: msgspec.Raw = msgspec.Raw(b"\x90")
    """A block of the events after ``seen``."""
    status: int = 0
    refused_close: bool = False
    lease: Lease = Lease.NONE


class DecisionInfo(msgspec.Struct, frozen=True):
    """The information in the ASSIGN of a decision, as JSON."""

    run: str
    """Decimal, because JSON's numbers are not exact everywhere."""
    first: int
    """The first event of the payload. A worker that lacks earlier ones asks for them with HISTORY."""
    last: int
    """The last event of the run."""
    now_us: int
    attempt: int = 1
    open: int = 1_000
    """Activities that the run may have open at a time, and the same number of timers."""
    largest: int = 900_000_000
    """Bytes of a payload or result."""
    retries: bool = False
    """Whether the node takes ``DecideMessage.retries``."""
    holds: bool = False
    """Whether the node grants slots of resources to runs: `workflows.run_holds`."""
    steps: str = ""
    """The key of the run, in hexadecimal digits, for steps in transactions of users; empty if the store records none."""


class ActivityInfo(msgspec.Struct, frozen=True):
    """The part of the information in an activity's ASSIGN that names its run, as JSON."""

    run: str = ""
    ref: int = 0
    """The event that scheduled the activity."""


encode_message: Final = msgspec.msgpack.Encoder().encode
decode_decide: Final = msgspec.msgpack.Decoder(list[DecideMessage]).decode
decode_decided: Final = msgspec.msgpack.Decoder(list[DecidedMessage]).decode
decode_decision_info: Final = msgspec.json.Decoder(DecisionInfo).decode
decode_activity_info: Final = msgspec.json.Decoder(ActivityInfo).decode
encode_runs: Final = msgspec.msgpack.Encoder().encode
decode_runs: Final = msgspec.msgpack.Decoder(list[int]).decode
"""To and from the body of FORGOTTEN."""


MOST_DECISIONS: Final = 10_000
"""Decisions, or results of steps, of one report."""
TEXT_LIMIT: Final = IDENTIFIER.most
"""Characters of a name or a reason."""
KEY_LIMIT: Final = 256
_MOST_RUN: Final = 10**18
_MOST_NUMBER: Final = 2**31 - 1
_MOST_US: Final = 253_370_764_800_000_000
"""The year 9999: later times cannot be shown."""
_MOST_SECONDS: Final = 100 * YEAR
_DURATIONS: Final = ("schedule_to_start", "schedule_to_close", "start_to_close", "heartbeat", "start_to_fire",
                     "execution_timeout", "task_timeout", "delay", "start_within", "deadline")  # fmt: skip
_CLOSES: Final = (FailWorkflowExecution, CancelWorkflowExecution)
_REQUESTS: Final = (SignalExternalWorkflowExecution, RequestCancelExternalWorkflowExecution)
_OF_JOBS: Final = {"retry", "timeout", "heartbeat", "start_within", "deadline", "completion"}
"""The options of an activity's job that a decider may set."""


def refusal(message: DecideMessage, largest: int, is_workflow: Callable[[bytes], bool]) -> str:
    """Return the reason why a report cannot be taken, which names the wrong value; empty if it can.

    ``largest`` is the number of bytes of a result or an input that the store takes.
    """
    if not is_run(message.run):
        return f"{message.run} is not the number of a run"
    if len(message.build) > TEXT_LIMIT or not 0 <= message.semantics <= _MOST_NUMBER:
        return f"the digest of its code has {len(message.build)} characters, or its semantics are {message.semantics}"
    if not (
        0 <= message.seen <= _MOST_NUMBER and 0 <= message.now_us <= _MOST_US and 0 <= message.batch <= _MOST_NUMBER
    ):
        return f"seen={message.seen}, now={message.now_us}, batch={message.batch} are not all in their ranges"
    if len(message.decisions) > MOST_DECISIONS or len(message.steps) > MOST_DECISIONS:
        return f"a report has at most {MOST_DECISIONS} decisions and as many results of steps"
    for step in message.steps:
        if not (
            0 < step.number <= _MOST_NUMBER and 0 <= step.batch <= _MOST_NUMBER and 0 < step.attempt <= _MOST_NUMBER
        ):
            return f"step {step.number} has a number, batch ({step.batch}) or attempt ({step.attempt}) out of range"
        if len(step.result) > largest or len(step.function) > TEXT_LIMIT or not 0 <= step.digest < 2**64:
            return f"the result of step {step.number} has {len(step.result)} bytes, the store takes {largest}"
    if why := refused_values(message.values) or refused_streams(message.streams):
        return why
    if len(message.retries) > MOST_DECISIONS:
        return f"a report has at most {MOST_DECISIONS} steps that wait"
    for waiting in message.retries:
        number, attempt, wait_us = waiting.number, waiting.attempt, waiting.wait_us
        if not (0 < number <= _MOST_NUMBER and 0 <= attempt <= _MOST_NUMBER and 0 <= wait_us <= _MOST_US):
            return f"step {number} has a number, attempt ({attempt}) or wait ({wait_us}) out of range"
    for decision in message.decisions:
        why = _refused(decision, largest)
        if not why and type(decision) is ScheduleActivityTask and is_workflow(decision.function):
            why = f"{decision.function.decode(errors='replace')} is a workflow, and an activity is a task's"
        if why:
            return f"{type(decision).__name__} {decision.number}: {why}"
    return ""


def _refused(decision: Decision, largest: int) -> str:
    if not 0 <= decision.number <= _MOST_NUMBER:
        return "its number is out of range"
    kind = type(decision)
    if kind is ScheduleActivityTask:
        assert isinstance(decision, ScheduleActivityTask)
        if not decision.function or len(decision.function) > FUNCTION_LIMIT or b"\0" in decision.function:
            return f"{decision.function[:FUNCTION_LIMIT]!r} is not the name of a function"
        if is_own(decision.function):
            return f"the function {decision.function!r} is refused: {OWN_FUNCTION}"
        if not 0 <= decision.task_priority <= 2:
            return f"the priority {decision.task_priority} is not 0, 1 or 2"
        if len(decision.key) > KEY_LIMIT:
            return f"its key has more than {KEY_LIMIT} bytes"
        why = _refused_options(decision.options)
        if why:
            return why
    elif kind is StartChildWorkflowExecution:
        assert isinstance(decision, StartChildWorkflowExecution)
        why = _refused_child(decision)
        if why:
            return why
    elif kind in _REQUESTS:
        assert isinstance(decision, SignalExternalWorkflowExecution | RequestCancelExternalWorkflowExecution)
        if not (0 <= decision.run < _MOST_RUN and 0 <= decision.child <= _MOST_NUMBER):
            return f"run={decision.run}, child={decision.child} are not both in their ranges"
    elif kind is RecordMarker:
        assert isinstance(decision, RecordMarker)
        if not 0 <= decision.digest < 2**64:
            return "its digest is out of range"
    elif kind is ContinueAsNewWorkflowExecution:
        assert isinstance(decision, ContinueAsNewWorkflowExecution)
        if not 0 < decision.attempt <= _MOST_NUMBER:
            return f"its attempt {decision.attempt} is out of range"
        if not 0 <= decision.task_priority <= 2:
            return f"the priority {decision.task_priority} is not 0, 1 or 2"
    elif kind is StartTimer:
        assert isinstance(decision, StartTimer)
        if not 0 <= decision.start_to_fire <= _MOST_SECONDS:
            return f"a timer of {decision.start_to_fire} s is out of range"
    return "" if _FIELDS[kind].are_within_limits(decision, largest) else _refused_field(decision, largest)


def _refused_field(decision: Decision, largest: int) -> str:
    """Return the first field that is not within its limit, with the limit; empty if all are."""
    kind = type(decision)
    for field in kind.__struct_fields__:
        value: Any = getattr(decision, field)
        is_failure = field == "failure" or (field == "details" and kind in _CLOSES)
        if is_failure and len(value) > FAILURE.most:
            return f"{field} has {len(value)} bytes, a failure has at most {FAILURE.most}"
        if isinstance(value, tuple):
            if why := _refused_tuple(field, value):
                return why
        elif isinstance(value, int):
            if not 0 <= value < 2**64:
                return f"{field} is {value}, which is out of range"
        elif isinstance(value, (bytes, str)):
            if len(value) > (largest if isinstance(value, bytes) else TEXT_LIMIT):
                return f"{field} has {len(value)} characters or bytes, which are too many"
        elif field in _DURATIONS and not (math.isfinite(value) and 0 <= value <= _MOST_SECONDS):
            return f"{field} is {value}, which is not from 0 s to a century"
    return ""


class _Fields:
    """The fields of a kind of decision, by their types: a few sums pass nearly all decisions, in a part of the time of a loop.

    A sum within the limit of each value shows that all are within it. `_refused_field` decides about the others.
    """

    def __init__(self, kind: type[DecisionBase]) -> None:
        by_type: dict[type, list[str]] = {}
        for field in fields(kind):
            of = get_origin(field.type) or field.type
            by_type.setdefault(int if of is bool else str if of is ChildPolicy else of, []).append(field.name)
        self._texts, self._data = _getter(by_type.pop(str, [])), _getter(by_type.pop(bytes, []))
        self._durations, self._tuples = _getter(by_type.pop(float, [])), _getter(by_type.pop(tuple, []))
        numbers = _getter(by_type.pop(int))
        assert numbers is not None  # each has its own number
        self._numbers = numbers
        if by_type:
            raise TypeError(f"{kind.__name__} has fields without a limit: {by_type}")
        self._most_data = FAILURE.most if {"details", "failure"} & set(kind.__struct_fields__) else sys.maxsize

    def are_within_limits(self, decision: Decision, largest: int) -> bool:
        """Return True if all values are within their limits; False if one may not be."""
        texts, data, durations = self._texts, self._data, self._durations
        if texts is not None and sum(map(len, texts(decision))) > TEXT_LIMIT:
            return False
        if data is not None and sum(map(len, data(decision))) > min(largest, self._most_data):
            return False
        if durations is not None:
            seconds = durations(decision)
            # A sum with NaN or an infinity fails the first comparison, whatever min() makes of NaN.
            if not (sum(seconds) <= _MOST_SECONDS and min(seconds) >= 0):
                return False
        if self._tuples is not None and any(self._tuples(decision)):
            return False
        numbers: tuple[int, ...] = self._numbers(decision)
        return sum(numbers) < 2**64 and min(numbers) >= 0


def _getter(names: Sequence[str]) -> Callable[[Decision], tuple[Any, ...]] | None:
    """Return a function that returns the values of some fields; None for no fields."""
    if not names:
        return None
    first = attrgetter(*names)
    return first if len(names) > 1 else lambda decision: (first(decision),)


_FIELDS: Final = {kind: _Fields(kind) for kind in get_args(Decision)}


def _refused_tuple(field: str, values: tuple[Any, ...]) -> str:
    """Return the reason why tags, or the numbers of unread signals, cannot be taken."""
    most = UNREAD.most if field == "unread" else TAGS.most
    if len(values) > most:
        return f"{field} has {len(values)} entries, the limit is {most}"
    for value in values:
        if isinstance(value, str) and len(value) > TEXT_LIMIT:
            return f"{field} has a text of {len(value)} characters, the limit is {TEXT_LIMIT}"
        if isinstance(value, int) and not 0 <= value <= _MOST_NUMBER:
            return f"{field} has {value}, which is out of range"
    return ""


def is_run(number: int) -> bool:
    """Return whether a number can be that of a run."""
    return 0 < number < _MOST_RUN


def within_limits(message: DecideMessage) -> DecideMessage:
    """Return a report with the texts for people within their limits: they are shortened, or left out."""
    parked, about = message.parked, message.about
    if parked is None and len(about) <= ABOUT.most:
        return message
    if len(about) > ABOUT.most:
        about = b""
    if parked is not None:
        parked = Parked(
            shorten(parked.kind, TEXT_LIMIT),
            shorten(parked.message, PARKED_TEXT.most),
            _lines(parked.recorded),
            _lines(parked.code),
            min(max(parked.at, 0), _MOST_NUMBER),
        )
    return replace(message, about=about, parked=parked)


def in_range(message: DecideMessage) -> DecideMessage:
    """Return a refused report with its numbers in their ranges, so that a store can record that its run is parked."""
    return replace(
        message,
        seen=min(max(message.seen, 0), _MOST_NUMBER),
        now_us=min(max(message.now_us, 0), _MOST_US),
        batch=min(max(message.batch, 0), _MOST_NUMBER),
        semantics=min(max(message.semantics, 0), _MOST_NUMBER),
        build=message.build[:TEXT_LIMIT],
    )


def _lines(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(shorten(line, PARKED_LINE.most) for line in lines[: PARKED_LINES.most])


def _refused_child(decision: StartChildWorkflowExecution) -> str:
    """Return the reason why a child cannot be one; the node finds out later whether its workflow is registered."""
    function = decision.type.encode()
    if not function or len(function) > FUNCTION_LIMIT or b"\0" in function or is_own(function):
        return f"{decision.type[:FUNCTION_LIMIT]!r} is not the name of a workflow"
    if not 0 <= decision.task_priority <= 2:
        return f"the priority {decision.task_priority} is not 0, 1 or 2"
    if len(decision.workflow_id.encode()) > UNIQUE_LIMIT or "\0" in decision.workflow_id:
        return f"the workflow id has more than {UNIQUE_LIMIT} bytes, or a NUL"
    if len(decision.key.encode()) > KEY_LIMIT:
        return f"its key has more than {KEY_LIMIT} bytes"
    return ""


def _refused_options(options: bytes) -> str:
    """Return the reason why an activity's job cannot have these options."""
    if not options:
        return ""
    try:
        given = decode_options(options)
        if given.retry is not None:
            model.check_retry(given.retry)
    except (*CANNOT_READ, UsageError) as error:
        return f"its options cannot be read: {error}"
    for name in Options.__struct_fields__:
        if name not in _OF_JOBS and getattr(given, name) != getattr(_NO_OPTIONS, name):
            return f"its options set {name}, which only nodes set"
    for name in ("timeout", "heartbeat", "start_within", "deadline"):
        seconds = getattr(given, name)
        if seconds is not None and not 0 < seconds <= _MOST_SECONDS:
            return f"its option {name} is {seconds}, which is not a duration"
    if given.completion is not None:
        expires, heartbeat = given.completion
        try:
            check_spans(expires, heartbeat or None)
        except UsageError as error:
            return str(error)
    return ""


_NO_OPTIONS: Final = Options()
