"""Events as Amazon SWF's API shows them; ``swf_attributes.txt`` lists the attributes of its model (``!``: required)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.jobs.model import Options, Retry
from mainspring.workflows import history
from mainspring.workflows.history import (
    ActivityTaskScheduled,
    Event,
    MarkerRecorded,
    WorkflowExecutionStarted,
)
from mainspring.workflows.history_json import swf_event

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES = Path(__file__).with_name("swf_attributes.txt").read_text("utf-8").splitlines()
NEVER_RECORDED = {48, 49, 50, 51, 52, 54}
ATTRIBUTES = {
    kind: names.split()
    for number, (kind, _, names) in enumerate((line.partition(": ") for line in LINES), 1)
    if number not in NEVER_RECORDED
}
NOT_STORED = {
    ("WorkflowExecutionStarted", "parentWorkflowExecution.workflowId"),
    ("DecisionTaskCompleted", "taskList.name"),
    ("DecisionTaskCompleted", "taskListScheduleToStartTimeout"),
}
"""Optional attributes of SWF that events here do not have."""
VALUES: dict[type, Any] = {int: 7, float: 60.0, str: "x", bytes: b"y", bool: True}


def event_of(kind: str, *, every: bool) -> Any:
    """Return an event with all attributes set, or with the required ones set to nothing."""
    cls: type[Event] = getattr(history, kind)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(cls):
        if every:
            values[field.name] = _some(field)
        elif field.required:
            values[field.name] = field.type() if field.type in VALUES else next(iter(field.type))
    return cls(**values)


def _some(field: msgspec.structs.FieldInfo) -> Any:
    if field.name == "options":
        return msgspec.msgpack.encode(Options(heartbeat=3.0))
    if field.type in VALUES:
        return VALUES[field.type]
    if isinstance(field.type, type) and issubclass(field.type, StrEnum):
        return next(iter(field.type))
    return ("x",) if field.name in {"tags", "reach"} else (7,)


def names_of(attributes: dict[str, Any]) -> Iterator[str]:
    for name, value in attributes.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value)
        else:
            yield name


def shown(event: Any, *, native: bool = False) -> dict[str, Any]:
    view = swf_event(event, native=native)
    (attributes,) = (view[name] for name in view if name.endswith("EventAttributes"))
    assert isinstance(attributes, dict)
    return attributes


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_the_view_has_all_attributes_of_swf_and_no_others(kind: str) -> None:
    expected = {name.rstrip("!") for name in ATTRIBUTES[kind] if (kind, name.rstrip("!")) not in NOT_STORED}
    assert set(names_of(shown(event_of(kind, every=True)))) == expected


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_the_view_has_required_attributes_without_a_value(kind: str) -> None:
    required = {name.rstrip("!") for name in ATTRIBUTES[kind] if name.endswith("!") and "ause" not in name}
    assert set(names_of(shown(event_of(kind, every=False)))) >= required


def test_all_events_of_swf_are_shown_but_those_that_are_never_recorded() -> None:
    names = [line.partition(": ")[0] for line in LINES]
    never = [name for number, name in enumerate(names, 1) if number in NEVER_RECORDED]
    assert all("LambdaFunction" in name for name in never)
    assert [name for name in names if name not in never] == list(history.KINDS)


def test_the_numbers_of_events_are_those_of_their_order_in_swf() -> None:
    numbers = [kind.__struct_config__.tag for kind in history.kinds(history.Event)]
    assert numbers == [number for number in range(1, len(LINES) + 1) if number not in NEVER_RECORDED]


def test_an_event_has_the_form_of_swf() -> None:
    event = ActivityTaskScheduled(5, 1_700_000_000_500_000, 4, "1", b"charge", input=b"[17]", start_to_close=120)
    assert swf_event(event) == {
        "eventTimestamp": 1_700_000_000.5,
        "eventType": "ActivityTaskScheduled",
        "eventId": 5,
        "activityTaskScheduledEventAttributes": {
            "decisionTaskCompletedEventId": 4,
            "activityId": "1",
            "activityType": {"name": "charge", "version": ""},
            "input": "[17]",
            "taskList": {"name": ""},
            "taskPriority": "1",
            "startToCloseTimeout": "120",
        },
    }


def test_native_attributes_are_shown_on_request() -> None:
    options = msgspec.msgpack.encode(Options(retry=Retry(max_attempts=5)))
    event = ActivityTaskScheduled(5, 0, 4, "1", b"charge", job=3_000_000_000_019, options=options, number=1)
    attributes = shown(event, native=True)
    assert (attributes["job"], attributes["number"]) == ("3000000000019", 1)
    assert attributes["options"]["retry"]["max_attempts"] == 5
    marker = MarkerRecorded(7, 0, 0, "step", b"9", native=True, number=1, digest=2**63 + 1, function="price")
    added = shown(marker, native=True).items() - shown(marker).items()
    assert dict(added) == {
        "native": True,
        "number": 1,
        "digest": "9223372036854775809",
        "attempt": 1,
        "function": "price",
    }


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert shown(WorkflowExecutionStarted(1, 0, "w", "1", b"\xff1"))["input"] == r"\xff1"


def test_durations_are_text_in_seconds() -> None:
    event = WorkflowExecutionStarted(1, 0, "w", "1", execution_timeout=31_622_400.0, task_timeout=0.5)
    attributes = shown(event)
    assert (attributes["executionStartToCloseTimeout"], attributes["taskStartToCloseTimeout"]) == ("31622400", "0.5")
