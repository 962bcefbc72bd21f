"""Histories as JSON: in files that people can read and a replay can use, and as Amazon SWF's API shows them.

A file is an object with ``format``, ``type``, ``version``, ``args`` and ``events``. ``args`` shows the arguments to a reader; the
events have everything. Each event is an object with its number (``id``), its type (``event``), its time (``at_us``, microseconds
since 1970) and those of its attributes that are not at their defaults. An integer that JSON's readers would round is a string.

A value of bytes, such as a payload, is a string if it is UTF-8 text, and otherwise ``{"base64": …}``. A redacted payload is
``{"redacted": size, "digest": …, "placeholder": …}``: see `redacted_event`. Payloads are compared by their digests.

For SWF's events see https://docs.aws.amazon.com/amazonswf/latest/apireference/API_HistoryEvent.html. SWF writes durations and
ids of runs as strings. It leaves out optional attributes without a value.
"""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from mainspring.codecs import described
from mainspring.errors import UsageError
from mainspring.workflows import history

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.workflows.history import Event


DIGEST_VERSION: Final = 1
_VERSION_BITS: Final = 4
_VERSIONS: Final = (1 << _VERSION_BITS) - 1
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def digest_of(*parts: bytes) -> int:
    """Return a digest of byte strings (BLAKE2b-64), whose lowest bits are its version."""
    hashed = blake2b(b"".join([b"%d:%b" % (len(part), part) for part in parts]), digest_size=8)
    return int.from_bytes(hashed.digest(), "big") >> _VERSION_BITS << _VERSION_BITS | DIGEST_VERSION


def same_digest(recorded: int, computed: int) -> bool:
    """Return whether two digests are the same; a recorded one of another version is."""
    return recorded == computed or recorded & _VERSIONS != DIGEST_VERSION


def canonical(payload: bytes) -> bytes:
    """Return JSON with sorted keys; other bytes as they are."""
    try:
        return _encode_sorted(msgspec.json.decode(payload))
    except _UNREADABLE:
        return payload


def is_json(payload: bytes) -> bool:
    """Return whether bytes are JSON."""
    try:
        msgspec.json.decode(payload)
    except _UNREADABLE:
        return False
    return True


class RedactedPayload(bytes):
    """A placeholder for a payload of ``size`` bytes. ``digest`` is that of the original; None: it matches every payload."""

    size: int
    digest: int | None

    def __new__(cls, placeholder: bytes, size: int, digest: int | None) -> Self:
        """Create a placeholder."""
        self = super().__new__(cls, placeholder)
        self.size = size
        self.digest = digest
        return self

    def stands_for(self, payload: bytes) -> bool:
        """Return whether it may stand for a payload."""
        return self.digest is None or same_digest(self.digest, digest_of(canonical(payload)))


def same_payload(recorded: bytes, computed: bytes) -> bool:
    """Return whether two payloads are the same.

    Neither the order of the keys of JSON objects counts, nor the form of a number, 1 or 1.0.
    """
    if isinstance(recorded, RedactedPayload):
        return recorded.stands_for(computed)
    if recorded == computed:
        return True
    try:
        return same_values(msgspec.json.decode(recorded), msgspec.json.decode(computed))
    except _UNREADABLE:
        return False


def same_values(one: Any, other: Any) -> bool:
    """Return whether two values of JSON are the same, whatever the form of their numbers."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same_values(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same_values, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def without_values(payload: bytes, *, is_error: bool = False) -> bytes:
    """Return the placeholder of a payload: the same structure without its values. Bytes other than JSON become none.

    Of an error, as `jobs.model.JobFailure` has it, the name of its type stays.
    """
    try:
        value = msgspec.json.decode(payload)
    except _UNREADABLE:
        return b""
    if is_error and isinstance(value, dict) and isinstance(value.get("type"), str):
        return msgspec.json.encode({"type": value["type"], "message": ""})
    return msgspec.json.encode(_without_values(value))


def _without_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_values(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_values(one) for one in value]
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        return ""
    return value if value is None else type(value)()


FORMAT: Final = "mainspring-history/1"
_LARGEST: Final = 2**53
"""Readers of JSON may round larger integers."""
_EVENT: Final = "event"


class HistoryFile(NamedTuple):
    """The history of one run."""

    name: str
    """The workflow id."""
    type: str
    version: str
    events: list[Event]
    redacted: bool
    """Whether placeholders stand for payloads."""


# ---- events to JSON ----


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as a value of JSON."""
    values: dict[str, Any] = {"id": event.id, _EVENT: type(event).__name__, "at_us": event.at_us}
    for field in _FIELDS[type(event).__name__][2:]:
        value = getattr(event, field.name)
        if field.required or value != field.default or isinstance(value, RedactedPayload):
            values[field.name] = _to_json(value)
    return values


def _to_json(value: Any) -> Any:
    if isinstance(value, RedactedPayload):
        return {"redacted": value.size, "digest": str(value.digest), "placeholder": bytes(value).decode()}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LARGEST:
        return str(value)
    return value


def encode_history(events: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the file of events that `event_to_json` has made. The first one must be there. One event is on each line."""
    first = events[0]
    head = {"format": FORMAT, "type": first["type"], "version": first["version"], "args": _args(first.get("input", ""))}
    lines = [f"{_text(key)}: {_text(value)}" for key, value in head.items()]
    rows = ",\n".join(_text(event) for event in events)
    return ("{" + ",\n".join(lines) + ',\n"events": [\n' + rows + "\n]}\n").encode()


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _args(written: Any) -> Any:
    """Return the arguments for a reader: as JSON if they are JSON."""
    text = written.get("placeholder") if isinstance(written, dict) else written
    if isinstance(text, str) and text and is_json(text.encode()):
        return msgspec.json.decode(text)
    return written


# ---- and back ----


def decode_history(data: bytes, source: str) -> HistoryFile:
    """Return the history in a file, whose name is ``source``. Raises UsageError if it is none, with the place and the remedy."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{source} is broken: it is not JSON ({error}); export the run again") from None
    if not isinstance(found, dict) or not isinstance(written := found.get("format"), str):
        raise UsageError(f"{source} is no history: it has no format; give a file of mainspring workflows export")
    if written != FORMAT:
        raise UsageError(
            f"{source} has the format {written!r}, and this version of Mainspring reads {FORMAT!r}: use the version that wrote it"
        )
    rows = found.get("events")
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{source} is broken: it has no events; export the run again")
    events: list[Event] = []
    for number, row in enumerate(rows, 1):
        try:
            event = event_from_json(row)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{source} is broken: event {number}: {error}; export the run again") from None
        if event.id != number:
            raise UsageError(f"{source} is broken: event {number} is missing, and event {event.id} is in its place")
        events.append(event)
    first = events[0]
    if not isinstance(first, history.WorkflowExecutionStarted):
        raise UsageError(f"{source} is broken: its first event is {type(first).__name__}, not WorkflowExecutionStarted")
    redacted = any(_redacted(event) for event in events)
    shown = _comparable(events) if redacted else events
    return HistoryFile(first.workflow_id or source, first.type, first.version, shown, redacted)


def event_from_json(row: Any) -> Event:
    """Return the event of `event_to_json`. Raises ValueError, KeyError or TypeError if it is none."""
    if not isinstance(row, dict) or not isinstance(kind := row.get(_EVENT), str):
        raise ValueError("it is no event")  # noqa: TRY004 - the caller adds the file's name
    if kind not in _FIELDS:
        raise ValueError(f"no event has the type {kind!r}, at least in this version of Mainspring")
    fields = _FIELDS[kind]
    if unknown := row.keys() - {field.name for field in fields} - {_EVENT}:
        raise ValueError(f"{kind} has no {min(unknown)}, at least in this version of Mainspring")
    values: list[Any] = [_TAGS[kind]]
    hidden: dict[str, RedactedPayload] = {}
    for field in fields:
        if field.name not in row:
            if field.required:
                raise ValueError(f"{kind} lacks {field.name}")
            values.append(field.default)
            continue
        value = row[field.name]
        if field.type is bytes:
            value = _bytes_from_json(value)
            if isinstance(value, RedactedPayload):
                hidden[field.name] = value
                value = bytes(value)
        values.append(value)
    event = msgspec.convert(values, history.KINDS[kind], strict=False)
    return replace(event, **hidden) if hidden else event


def _bytes_from_json(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and "base64" in value:
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, dict) and "redacted" in value:
        return RedactedPayload(value["placeholder"].encode(), int(value["redacted"]), int(value["digest"]))
    raise ValueError(f"bytes are text, base64 or redacted, not {value!r:.60}")


_FIELDS: Final = {name: msgspec.structs.fields(kind) for name, kind in history.KINDS.items()}
_TAGS: Final = {name: kind.__struct_config__.tag for name, kind in history.KINDS.items()}
_KEPT: Final = frozenset({"function", "options"})
"""Values of bytes that are no payloads."""
_ERRORS: Final = frozenset({"details", "failure"})
"""Payloads that may be errors."""


# ---- redaction ----


def redacted_event(event: Event) -> Event:
    """Return an event without its payloads.

    A placeholder stands for each payload: it has the same structure and the same keys, but each text is empty, each number 0 and
    each boolean false, so that most code can still decode it. An error keeps its type alone. The digest of the payload stays.
    """
    changed: dict[str, Any] = {}
    for field in _FIELDS[type(event).__name__]:
        value = getattr(event, field.name)
        if field.type is bytes and field.name not in _KEPT and value:
            if field.name == "key":
                changed[field.name] = b""
                continue
            is_error = field.name in _ERRORS and getattr(event, "failed", True)
            placeholder = without_values(value, is_error=is_error)
            if placeholder != value:
                changed[field.name] = RedactedPayload(placeholder, len(value), digest_of(canonical(value)))
    if (text := event.client_text) and getattr(event, text):  # the reasons of failures are names of types
        changed[text] = ""
    return replace(event, **changed) if changed else event


def _redacted(event: Event) -> dict[str, RedactedPayload]:
    return {
        field.name: value
        for field in _FIELDS[type(event).__name__]
        if field.type is bytes and isinstance(value := getattr(event, field.name), RedactedPayload)
    }


def _comparable(events: list[Event]) -> list[Event]:
    """Return events whose redacted payloads match what code can compute from other redacted payloads.

    Up to the first placeholder that code gets, the arguments of its commands are the original ones, and are compared by their
    digests. Afterwards the arguments may differ, and any arguments match. The same holds for the results of steps from the first
    redacted one on, because their digests cover arguments and results together.
    """
    given = False
    shown: list[Event] = []
    for event in events:
        hidden = _redacted(event)
        changed: dict[str, Any] = {}
        is_command = getattr(event, "decision_completed", 0) != 0
        if given and is_command:
            changed = {name: RedactedPayload(bytes(value), value.size, None) for name, value in hidden.items()}
        given = given or (bool(hidden) and (not is_command or isinstance(event, history.MarkerRecorded)))
        if given and isinstance(event, history.MarkerRecorded):
            changed["digest"] = 0  # as a digest of another version: it matches every digest
        shown.append(replace(event, **changed) if changed else event)
    return shown


def swf_event(event: Event, *, native: bool = False) -> dict[str, Any]:
    """Return an event as SWF's API writes it in JSON. With ``native``, add the attributes that SWF does not have."""
    kind = type(event).__name__
    attributes: dict[str, Any] = {}
    for field in type(event).__struct_fields__[_HEAD:]:
        value = getattr(event, field)
        name = event.swf_names.get(field) or _NAMES.get(field)
        if name is None or field in event.own:
            if native and value not in _EMPTY:
                attributes[_camel(field)] = _CONVERTED.get(field, _plain)(value)
        elif value not in _EMPTY or name.endswith(_REQUIRED):
            _put(attributes, name.removesuffix(_REQUIRED), _CONVERTED.get(field, _plain)(value))
    return {
        "eventTimestamp": event.at_us / 1_000_000,
        "eventType": kind,
        "eventId": event.id,
        f"{kind[0].lower()}{kind[1:]}EventAttributes": attributes,
    }


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    """Set an attribute; one with a dot belongs to an object."""
    outer, _, inner = name.partition(".")
    if inner:
        attributes.setdefault(outer, {})[inner] = value
    else:
        attributes[name] = value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _plain(value: Any) -> Any:
    return _swf_text(value) if isinstance(value, bytes) else list(value) if isinstance(value, tuple) else value


def _swf_text(value: bytes) -> str:
    return described(value) or value.decode("utf-8", "backslashreplace")


def _seconds(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _strings(values: tuple[int, ...]) -> list[str]:
    return list(map(str, values))


_HEAD: Final = 2
"""The number and the time come first in each event."""
_EMPTY: Final[tuple[Any, ...]] = (0, "", b"", (), False)
_REQUIRED: Final = "!"
"""The last character of a name that SWF's API requires."""

_NAMES: Final[Mapping[str, str]] = {
    "activity_id": "activityId!",
    "cancel_requested": "latestCancelRequestedEventId",
    "cause": "cause",
    "child_policy": "childPolicy!",
    "context": "executionContext",
    "continued_run": "continuedExecutionRunId",
    "control": "control",
    "decision_completed": "decisionTaskCompletedEventId!",
    "details": "details",
    "execution_timeout": "executionStartToCloseTimeout",
    "external_initiated": "externalInitiatedEventId",
    "external_run": "externalWorkflowExecution.runId",
    "external_workflow_id": "externalWorkflowExecution.workflowId",
    "function": "activityType.name!",
    "heartbeat": "heartbeatTimeout",
    "identity": "identity",
    "initiated": "initiatedEventId!",
    "input": "input",
    "lambda_id": "id!",
    "lambda_role": "lambdaRole",
    "message": "message",
    "new_run": "newExecutionRunId!",
    "parent_initiated": "parentInitiatedEventId",
    "parent_run": "parentWorkflowExecution.runId",
    "reason": "reason",
    "result": "result",
    "schedule_to_close": "scheduleToCloseTimeout",
    "schedule_to_start": "scheduleToStartTimeout",
    "scheduled": "scheduledEventId!",
    "start_to_close": "startToCloseTimeout",
    "start_to_fire": "startToFireTimeout!",
    "started": "startedEventId!",
    "tags": "tagList",
    "task_list": "taskList.name!",
    "task_priority": "taskPriority",
    "task_timeout": "taskStartToCloseTimeout",
    "timeout": "timeoutType!",
    "timer_id": "timerId!",
    "type": "workflowType.name!",
    "version": "workflowType.version!",
}
"""SWF's names of attributes unless an event has others (``swf_names``); other attributes are not in SWF."""

_CONVERTED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "continued_run": str,
    "digest": str,
    "execution_timeout": _seconds,
    "external_run": str,
    "heartbeat": _seconds,
    "job": str,
    "new_run": str,
    "options": msgspec.msgpack.decode,
    "parent_run": str,
    "requests": _strings,
    "root": str,
    "run": str,
    "schedule_to_close": _seconds,
    "schedule_to_start": _seconds,
    "seed": str,
    "start_to_close": _seconds,
    "start_to_fire": _seconds,
    "task_priority": str,
    "task_timeout": _seconds,
}
"""Numbers that JSON's readers would round are strings, as SWF's durations are."""
