"""Histories in files: every event comes back as it was, and redacted payloads still compare as far as they can."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.jobs.model import failure
from mainspring.workflows import history as h
from mainspring.workflows.history_json import (
    FORMAT,
    RedactedPayload,
    decode_history,
    encode_history,
    event_from_json,
    event_to_json,
    redacted_event,
    same_digest,
    same_payload,
)

from .test_swf_events import event_of

KINDS = [kind.__name__ for kind in h.kinds(h.Event)]
EVENTS: list[h.Event] = [
    h.WorkflowExecutionStarted(1, 5, "order", "2", b'[17,"eva",true,1.5,null]', run=1 << 60, workflow_id="order-17", seed=3),
    h.DecisionTaskScheduled(2, 5),
    h.DecisionTaskStarted(3, 5, 2),
    h.DecisionTaskCompleted(4, 5, 2, 3, seen=2, now_us=5),
    h.ActivityTaskScheduled(5, 5, 4, "1", b"charge", input=b"[17]", key=b"eva"),
    h.MarkerRecorded(6, 5, 4, "side", b"7", native=True, number=1, digest=49),
    h.ActivityTaskFailed(7, 5, 5, 6, "OSError", failure("OSError", "secret")),
]  # fmt: skip


def file_of(events: list[Any], /, **changes: Any) -> bytes:
    """Return a file of events, or of any other ones."""
    rows = [event_to_json(event) for event in events]
    found = json.loads(encode_history([event_to_json(EVENTS[0])])) | {"events": rows}
    if isinstance(events[0], h.WorkflowExecutionStarted):
        found = json.loads(encode_history(rows))
    return json.dumps(found | changes).encode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [False, True])
def test_an_event_comes_back_as_it_was(kind: str, *, every: bool) -> None:
    event = event_of(kind, every=every)
    written = json.loads(json.dumps(event_to_json(event)))
    assert event_from_json(written) == event


@given(st.binary())
def test_any_payload_comes_back_as_it_was(data: bytes) -> None:
    event = h.WorkflowExecutionSignaled(1, 5, "approved", data)
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


def test_a_file_shows_the_arguments_and_no_large_integers() -> None:
    found = json.loads(file_of(EVENTS))
    assert (found["format"], found["type"], found["version"]) == (FORMAT, "order", "2")
    assert found["args"] == [17, "eva", True, 1.5, None]
    assert found["events"][0]["run"] == str(1 << 60)
    read = decode_history(file_of(EVENTS), "o.json")
    assert (read.name, read.type, read.version, read.events, read.redacted) == ("order-17", "order", "2", EVENTS, False)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff", "o.json is broken: it is not JSON"),
        (b"[]", "o.json is no history: it has no format"),
        (b"{}", "o.json is no history: it has no format"),
        (file_of(EVENTS, format="mainspring-history/2"), "has the format 'mainspring-history/2', and this version"),
        (file_of(EVENTS, events=[]), "it has no events"),
        (file_of([EVENTS[1]]), "event 1 is missing, and event 2 is in its place"),
        (file_of([EVENTS[0], EVENTS[2]]), "event 2 is missing, and event 3 is in its place"),
        (file_of([msgspec.structs.replace(EVENTS[1], id=1)]), "its first event is DecisionTaskScheduled"),
        (file_of(EVENTS, events=[{"id": 1}]), "event 1: it is no event"),
        (file_of(EVENTS, events=[{"id": 1, "event": "New", "at_us": 5}]), "no event has the type 'New'"),
        (file_of(EVENTS, events=[event_to_json(EVENTS[0]) | {"new": 1}]), "WorkflowExecutionStarted has no new"),
        (file_of(EVENTS, events=[event_to_json(EVENTS[0]) | {"seed": "x"}]), "event 1: "),
        (file_of(EVENTS, events=[event_to_json(EVENTS[0]) | {"input": 7}]), "bytes are text, base64 or redacted, not 7"),
        (file_of(EVENTS, events=[{"id": 1, "event": "WorkflowExecutionStarted", "at_us": 5}]), "lacks type"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_history_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        decode_history(data, "o.json")
    assert problem in str(refused.value)


def redacted() -> Any:
    data = file_of([redacted_event(event) for event in EVENTS])
    assert not any(secret in data for secret in (b"eva", b"17,", b"[17]", b"secret"))
    return decode_history(data, "o.json")


def test_a_redacted_history_keeps_the_structure_and_the_names_of_errors() -> None:
    found = redacted()
    assert found.redacted
    started, *_, scheduled, _, failed = found.events
    assert started.input == b'[0,"",false,0.0,null]'
    assert scheduled.key == b""
    assert failed.details == b'{"type":"OSError","message":""}'


def test_redacted_arguments_match_by_their_digests_until_the_code_gets_a_placeholder() -> None:
    found = redacted()
    assert same_payload(found.events[0].input, b'[17,"eva", true,1.5,null]')
    assert not same_payload(found.events[0].input, b"[18]")
    scheduled, side = found.events[4:6]
    assert same_payload(scheduled.input, b"[18]")
    assert same_digest(side.digest, 17)


def test_redacted_bytes_other_than_json_match_by_their_digest() -> None:
    started = msgspec.structs.replace(EVENTS[0], input=b"")
    scheduled = msgspec.structs.replace(EVENTS[4], input=b"\xff secret")
    events = [redacted_event(event) for event in [started, *EVENTS[1:4], scheduled]]
    read: Any = decode_history(file_of(events), "o.json").events[4]
    assert same_payload(read.input, b"\xff secret")
    assert not same_payload(read.input, b"")


def test_arguments_of_a_workflow_without_values_match_by_their_digests() -> None:
    events = [msgspec.structs.replace(EVENTS[0], input=b"[null]"), *EVENTS[1:5]]
    scheduled: Any = decode_history(file_of([redacted_event(event) for event in events]), "o.json").events[4]
    assert isinstance(scheduled.input, RedactedPayload)
    assert same_payload(scheduled.input, b"[17]")
    assert not same_payload(scheduled.input, b"[18]")
