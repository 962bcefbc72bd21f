"""The form of a schedule: its fields, what has changed in them, and the command and the call that save it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.api.schedules import AddSchedule
from mainspring.faces.dashboard.actions import Field, FormError, declared, read_field
from mainspring.faces.dashboard.rendering import command_line
from mainspring.faces.dashboard.words import field_time
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.api.schedules import ScheduleDetails

OVERLAPS: Final = (
    ("allow", "run beside the earlier one"),
    ("forbid", "skip the time"),
    ("queue", "wait for the earlier one"),
    ("replace", "cancel the earlier one"),
)
PRIORITIES: Final = (("high", "high"), ("normal", "normal"), ("low", "low"))
NAME: Final = Field(name="name", label="Name", required=True, longest=200)
TIMING: Final = tuple(
    declared(AddSchedule, name, **more)
    for name, more in (
        ("cron", {"hint": "such as 30 2 * * MON-FRI, or @daily"}),
        ("every", {"hint": "such as 10s or 1h30m"}),
        ("at", {"hint": ""}),
        ("parents", {"hint": "a name on each line"}),
        ("timezone", {"hint": "such as Europe/Berlin; empty: UTC"}),
        ("start", {"hint": ""}),
        ("end", {"hint": ""}),
        ("exclude", {"hint": "2030-12-24, one on each line"}),
        ("jitter", {"hint": "such as 30s"}),
        ("misfire", {"kind": "text", "choices": (), "hint": "skip, once, all, or how many of the newest"}),
        ("overlap", {"choices": OVERLAPS, "hint": ""}),
        ("wait_for_children", {"hint": ""}),
    )
)
JOB: Final = (
    declared(AddSchedule, "function", hint="empty: the schedule's name"),
    declared(AddSchedule, "args", hint="JSON"),
    declared(AddSchedule, "priority", choices=PRIORITIES, hint=""),
    Field(name="max_attempts", label="Attempts", kind="number", option="--max-attempts", hint="empty: one"),
    declared(AddSchedule, "timeout", hint="such as 5m"),
    declared(AddSchedule, "unique", hint=""),
    declared(AddSchedule, "expires", hint=""),
    declared(AddSchedule, "start_within", hint="such as 5m"),
    declared(AddSchedule, "deadline", hint="such as 2h"),
    declared(AddSchedule, "tags", hint="one on each line"),
)
FIELDS: Final = TIMING + JOB
DEFAULTS: Final = {"misfire": "once", "overlap": "allow", "priority": "normal"}
EXAMPLE: Final = {"cron": "30 2 * * *"}
MOST_DIGITS: Final = 20
WHEN: Final = ("cron", "every", "at", "parents")
_CLEARED: Final[Mapping[str, Any]] = {
    "timezone": "UTC",
    "jitter": 0.0,
    "exclude": [],
    "misfire": "once",
    "wait_for_children": False,
    "function": "",
    "args": "",
    "unique": "",
    "tags": [],
}
"""The values of emptied fields; that of all others is null."""
_NONE: Final = frozenset({"start", "end", "timeout", "expires", "start_within", "deadline"})
"""Options that take ``none``."""
_WORDS: Final = (
    ("the function's name", "function"),
    ("no time zone", "timezone"),
    ("a cron expression", "cron"),
    ("max_attempts", "max_attempts"),
)
"""How messages about a field begin, where it is not its name."""


def read(form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the fields that are not empty, and what is wrong with the others."""
    values: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for one in FIELDS:
        text = form.get(one.name, "").replace("\r\n", "\n")
        try:
            value = read_field(one, text)
        except FormError as error:
            faults[one.name] = str(error)
            continue
        if value is None:
            continue
        if one.kind == "json":
            value = text.strip()  # as it was typed: decoding would change long numbers
        elif one.name == "misfire" and value.isdecimal() and len(value) <= MOST_DIGITS:
            value = int(value)  # longer ones stay texts, which the API refuses
        values[one.name] = value
    if not faults and not any(name in values for name in WHEN):
        faults["cron"] = (
            "A schedule needs a cron expression, an interval, a time, or other schedules that it runs after"
        )
    return values, faults


def form_of(schedule: ScheduleDetails) -> dict[str, str]:
    """Return the texts of the fields for a stored schedule. Arguments that are no JSON are left out."""
    texts = {
        "cron": schedule.cron,
        "at": field_time(schedule.at or ""),
        "parents": "\n".join(schedule.parents),
        "timezone": schedule.timezone,
        "start": field_time(schedule.start or ""),
        "end": field_time(schedule.end or ""),
        "exclude": "\n".join(schedule.exclude),
        "misfire": str(schedule.misfire),
        "overlap": schedule.overlap,
        "wait_for_children": "1" if schedule.wait_for_children else "",
        "function": schedule.function,
        "args": _json(schedule.payload),
        "priority": schedule.priority,
        "max_attempts": "" if schedule.retry is None else str(schedule.retry.max_attempts),
        "unique": schedule.unique,
        "tags": "\n".join(schedule.tags),
    }
    durations = {
        name: getattr(schedule, name) for name in ("every", "jitter", "timeout", "expires", "start_within", "deadline")
    }
    texts |= {name: format_duration(seconds) for name, seconds in durations.items() if seconds}
    return {name: text or "" for name, text in texts.items()}


def _json(payload: bytes) -> str:
    try:
        text = payload.decode()
        msgspec.json.decode(payload)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return ""
    return text.strip().replace("\r\n", "\n")


def timing(schedule: ScheduleDetails) -> dict[str, Any]:
    """Return when a stored schedule runs, as values of fields: a change to them changes nothing."""
    values, _ = read(form_of(schedule))
    return {name: values[name] for name in (*WHEN, "timezone") if name in values}


def changes(schedule: ScheduleDetails, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from those of a stored schedule, with what emptied fields mean."""
    before, _ = read(form_of(schedule))
    changed = {
        one.name: values.get(one.name, _CLEARED.get(one.name))
        for one in FIELDS
        if values.get(one.name) != before.get(one.name)
    }
    if any(name in changed for name in WHEN):  # they replace each other
        changed = {name: value for name, value in changed.items() if name not in WHEN}
        changed |= {name: values[name] for name in WHEN if name in values}
    return changed


def body(values: Mapping[str, Any], before: ScheduleDetails | None = None) -> dict[str, Any]:
    """Return the body of the call that saves values."""
    found = {name: value for name, value in values.items() if name not in {"args", "max_attempts"}}
    if "args" in values:
        found |= {"args": msgspec.Raw(values["args"].encode())} if values["args"] else {"payload": ""}
    if "max_attempts" in values:
        kept: dict[str, Any] = {} if before is None or before.retry is None else msgspec.to_builtins(before.retry)
        number = values["max_attempts"]
        found["retry"] = None if number is None else {**kept, "max_attempts": number}
    return found


def command(namespace: str, verb: str, name: str, values: Mapping[str, Any]) -> str:
    """Return the command that saves values; empty if it has no option for one of them."""
    options: list[tuple[str, str | None]] = []
    for one in FIELDS:
        if one.name not in values:
            continue
        value = values[one.name]
        if value == [] or (value is None and one.name not in _NONE):
            return ""
        if one.kind == "flag":
            options.append((one.option if value else "--no-wait-for-children", None))
        elif isinstance(value, list):
            options += [(one.option, item) for item in value]
        elif value is None:
            options.append((one.option, "none"))
        else:
            options.append((one.option, format_duration(value) if one.kind == "duration" else str(value)))
    return command_line(["schedules", verb], [name], options, namespace)


def field_in(message: str, name: str, values: Mapping[str, Any]) -> str:
    """Return the field that a refusal is about; empty if that is not clear."""
    text = message.removeprefix(f"schedule {name!r}: ")
    if "cron" in values and text.startswith(repr(values["cron"])):
        return "cron"
    for beginning, field in (*_WORDS, *((one.name, one.name) for one in FIELDS)):
        if text == beginning or text.startswith(beginning + " "):
            return field
    return ""
