"""The details of a run, its changes and the events of its history, as commands print them for people."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.api.workflows import ShowRun
from mainspring.cli.calls import call
from mainspring.cli.display import print_fields, print_json, print_table, printable
from mainspring.jobs.model import JobFailure
from mainspring.quantities import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mainspring.client.blocking import Client

EVENT_COLUMNS: Final = ("id", "time", "event", "what")
ACTIVITY_COLUMNS: Final = ("number", "function", "state", "attempt", "worker", "scheduled_at", "handle", "error")
CHILD_COLUMNS: Final = ("number", "type", "id", "handle", "policy")
TIMER_COLUMNS: Final = ("number", "fires_at", "duration", "guards")
MISMATCH_COLUMNS: Final = ("recorded", "code")
LONGEST_TEXT: Final = 200
"""Characters of a payload in a line; ``--json`` prints all."""


def print_run(run: Mapping[str, Any]) -> None:
    """Print all details of a run: fields, then its activities, children and timers, and both sides of a mismatch."""
    plain = {name: value for name, value in run.items() if not isinstance(value, dict | list)}
    lists = {name: ", ".join(run[name]) for name in ("steps", "receives")}
    parked = run.get("parked") or {}
    sizes = {name: format_size(run[name]) for name in ("input_size", "output_size", "history_size")}
    shown: dict[str, Any] = {**plain, **sizes, **lists, "unread": run.get("unread") or None}
    shown["progress"] = progress_text(run.get("progress"))
    shown["parked"] = f"{parked['kind']}: {parked['message']}" if parked else None
    if parked.get("builds"):
        shown["builds"] = ", ".join(parked["builds"])
    print_fields({name: value for name, value in shown.items() if value not in (None, "", False)})
    for name, columns in (
        ("activities", ACTIVITY_COLUMNS),
        ("children", CHILD_COLUMNS),
        ("timers", TIMER_COLUMNS),
    ):
        if run.get(name):
            print(f"\n{name}")
            print_table(columns, run[name])
    if parked.get("recorded") or parked.get("code"):
        print("\nfirst difference")
        print_difference(parked)


def progress_text(progress: Mapping[str, Any] | None) -> str | None:
    """Return a report of progress as text, such as ``30 of 100: resizing``; None for none."""
    if progress is None:
        return None
    numbers = f"{progress['done']:,} of {progress['total']:,}"
    return f"{numbers}: {progress['text']}" if progress["text"] else numbers


def print_difference(parked: Mapping[str, Any]) -> None:
    """Print both sides of a mismatch."""
    print_table(("", *MISMATCH_COLUMNS), list(_sides(parked)))


def _sides(parked: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    recorded, code = parked["recorded"], parked["code"]
    for at in range(max(len(recorded), len(code))):
        yield {
            "": ">" if at == parked["at"] else "",
            "recorded": recorded[at] if at < len(recorded) else "",
            "code": code[at] if at < len(code) else "",
        }


class EventRows:
    """Turns events of a history, in order, into rows with `EVENT_COLUMNS`. It keeps the names of scheduled activities."""

    def __init__(self) -> None:
        self._scheduled: dict[int, str] = {}

    def row(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of an event, which has the form of Amazon SWF."""
        kind: str = event["eventType"]
        attributes: Mapping[str, Any] = event.get(f"{kind[0].lower()}{kind[1:]}EventAttributes", {})
        return {
            "id": event["eventId"],
            "time": _time(event["eventTimestamp"]),
            "event": kind,
            "what": " ".join(self._parts(kind, event["eventId"], attributes)),
        }

    def _parts(self, kind: str, number: int, attributes: Mapping[str, Any]) -> Iterator[str]:
        activity = attributes.get("activityType")
        if activity is not None:
            self._scheduled[number] = f"{activity['name']} #{attributes['activityId']}"
            yield self._scheduled[number]
        elif "activityId" in attributes:
            yield f"#{attributes['activityId']}"
        elif (scheduled := self._scheduled.get(attributes.get("scheduledEventId", 0))) is not None:
            yield scheduled
        if (workflow := attributes.get("workflowType")) is not None:
            yield f"{workflow['name']}@{workflow['version']}"
        if kind != "WorkflowExecutionStarted":
            yield from _other_run(attributes)
        error = _error(attributes.get("details"))
        for name, write in _SHOWN.items():
            if error and name == "reason":
                continue  # the error begins with it
            if attributes.get(name) not in (None, "") and (text := write(attributes[name])):
                yield error if error and name == "details" else text


def _other_run(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the run to which an event sends something, or from which it comes."""
    other = attributes.get("workflowExecution", attributes)
    if name := other.get("workflowId") or other.get("runId"):
        yield name
    if sender := attributes.get("externalWorkflowExecution"):
        yield f"from {sender.get('workflowId') or sender['runId']}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(text: Any) -> str:
    line = str(text)
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"


def _error(details: object) -> str:
    """Return the error that details describe, without its traceback; empty if they are none."""
    try:
        found = msgspec.json.decode(str(details), type=JobFailure)
    except msgspec.DecodeError:
        return ""
    return _short(f"{found.type}: {found.message}")


_SHOWN: Final[Mapping[str, Callable[[Any], str]]] = {
    "timerId": lambda number: f"timer #{number}",
    "startToFireTimeout": lambda seconds: format_duration(float(seconds)),
    "signalName": str,
    "markerName": str,
    "function": str,
    "identity": str,
    "attempt": lambda number: f"attempt {number}" if number > 1 else "",
    "cause": str,
    "timeoutType": str,
    "reason": _short,
    "input": _short,
    "result": _short,
    "details": _short,
}
"""The attributes in a line, in order, and how they are written."""

COLUMNS: Final = ("status", "events", "progress", "waits_for")
UNFINISHED: Final = frozenset({"open", "scheduled", "pending"})
"""The statuses of runs that may get more events."""
INTERVAL: Final = 0.5
"""Seconds between two requests."""


def follow_run(client: Client, key: str, *, json: bool) -> None:
    """Print a run now and after each change, until it is closed: a line of columns, or with ``json`` an object."""
    if not json:
        _print(dict(zip(COLUMNS, COLUMNS, strict=True)))
    printed: Any = None
    while True:
        run = call(client, ShowRun(key))
        row = {**run, "progress": progress_text(run.get("progress"))}
        shown = [row["run"], *(row[column] for column in COLUMNS[:3])]  # the time that timers have left always changes
        if shown != printed:
            printed = shown
            if json:
                print_json(run)
            else:
                _print(row)
        if run["status"] not in UNFINISHED:
            return
        time.sleep(INTERVAL)


def _print(row: dict[str, Any]) -> None:
    sys.stdout.write("\t".join(printable(row[column]) for column in COLUMNS) + "\n")
    sys.stdout.flush()
