"""Histories in files: JSON that people can read, and that a replay can use.

A file is an object with ``format``, ``type``, ``version``, ``args`` and ``events``. ``args`` shows the arguments to a reader; the
events have everything. Each event is an object with its number (``id``), its type (``event``), its time (``at_us``, microseconds
since 1970) and those of its attributes that are not at their defaults. An integer that JSON's readers would round is a string.

A value of bytes, such as a payload, is a string if it is UTF-8 text, and otherwise ``{"base64": …}``. A redacted payload is
``{"redacted": size, "digest": …, "placeholder": …}``: see `redacted_event`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.errors import UsageError
from mainspring.workflows import history
from mainspring.workflows.history import Event
from mainspring.workflows.payloads import RedactedPayload, canonical, digest_of, is_json, without_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    event: Event = msgspec.convert(values, Event, strict=False)
    return replace(event, **hidden) if hidden else event


def _bytes_from_json(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and "base64" in value:
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, dict) and "redacted" in value:
        return RedactedPayload(value["placeholder"].encode(), int(value["redacted"]), int(value["digest"]))
    raise ValueError(f"bytes are text, base64 or redacted, not {value!r:.60}")


_TYPES: Final[Mapping[str, Any]] = {kind.__name__: kind for kind in Event.__args__}
_FIELDS: Final = {name: msgspec.structs.fields(kind) for name, kind in _TYPES.items()}
_TAGS: Final = {name: kind.__struct_config__.tag for name, kind in _TYPES.items()}
_KEPT: Final = frozenset({"function", "options"})
"""Values of bytes that are no payloads."""
_ERRORS: Final = frozenset({"details", "failure"})
"""Payloads that may be errors."""
_TEXTS: Final[Mapping[type[Any], str]] = {
    history.WorkflowExecutionCancelRequested: "reason",
    history.WorkflowExecutionTerminated: "reason",
}
"""Texts of clients. The reasons of failures are names of types."""


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
    if (text := _TEXTS.get(type(event))) is not None and getattr(event, text):
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
