"""Payloads that are kept apart from their events: which, and what is in their place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import StoreError
from mainspring.workflows import history
from mainspring.workflows.history import HELD, MarkerName, encode_events
from mainspring.workflows.payloads import (
    LARGE,
    STUB,
    Apart,
    Stub,
    joined,
    may_split,
    split,
    stub_of,
    stubs_in,
)

RUN = 17
SMALL, BIG = b"s" * LARGE, b"b" * (LARGE + 1)


def signaled(number: int, data: bytes, **values: Any) -> history.WorkflowExecutionSignaled:
    return history.WorkflowExecutionSignaled(number, 0, "s", data, **values)


def marker(number: int, data: bytes, name: str = MarkerName.STEP) -> history.MarkerRecorded:
    return history.MarkerRecorded(number, 0, 0, name, data, native=True)


def test_a_payload_above_the_limit_is_apart() -> None:
    events = [signaled(1, SMALL), signaled(2, BIG), marker(3, BIG), history.TimerFired(4, 0, "1", 1)]
    stored, apart = split(RUN, events)
    assert apart == [Apart(RUN, 2, BIG), Apart(RUN, 3, BIG)]
    assert (stored[0], stored[3]) == (events[0], events[3])
    assert [stub.size for stub in stubs_in(stored).values()] == [len(BIG), len(BIG)]
    assert len(encode_events(stored[1:])) < 500
    assert joined(stored, {one.event: one.data for one in apart}) == events


def test_each_kind_of_event_with_a_payload_is_split() -> None:
    events = [
        history.WorkflowExecutionStarted(1, 0, "order", "1", BIG),
        history.WorkflowExecutionCompleted(2, 0, 1, BIG),
        history.WorkflowExecutionFailed(3, 0, 1, "why", BIG),
        history.ActivityTaskScheduled(4, 0, 1, "1", b"f", input=BIG),
        history.ActivityTaskCompleted(5, 0, 1, 1, BIG),
        history.StartChildWorkflowExecutionInitiated(6, 0, 1, "w", "order", "1", BIG),
        history.ChildWorkflowExecutionCompleted(7, 0, 1, 1, 1, "w", "order", "1", BIG),
        history.SignalExternalWorkflowExecutionInitiated(8, 0, 1, "w", 1, "s", BIG),
        marker(9, BIG, MarkerName.SIDE),
        marker(10, BIG, MarkerName.CARRIED_ACTIVITY),
    ]
    stored, apart = split(RUN, events)
    assert [one.event for one in apart] == [event.id for event in events]
    assert joined(stored, {one.event: one.data for one in apart}) == events


@pytest.mark.parametrize(
    "event",
    [
        marker(1, BIG, MarkerName.HOLD),
        marker(1, BIG, MarkerName.RELEASE),
        marker(1, BIG, MarkerName.WITHDRAW),
        history.WorkflowExecutionSignaled(1, 0, HELD, BIG, external_initiated=7),
    ],
)
def test_what_nodes_read_in_events_stays_there(event: history.Event) -> None:
    assert split(RUN, [event]) == ([event], [])
    assert stub_of(event) is None


@given(st.binary(max_size=70))
def test_nothing_is_taken_for_a_stub(data: bytes) -> None:
    for content in (data, STUB + data):
        events = [signaled(1, content)]
        stored, apart = split(RUN, events)
        assert bool(apart) == (stub_of(stored[0]) is not None) == content.startswith(STUB)
        assert joined(stored, {one.event: one.data for one in apart}) == events
        assert not apart or may_split(encode_events(events))


def test_a_stub_has_the_size_and_the_digest() -> None:
    ((stored,), _) = split(RUN, [signaled(1, BIG)])
    ((other,), _) = split(RUN, [signaled(1, BIG[:-1] + b"c")])
    first, second = stub_of(stored), stub_of(other)
    assert isinstance(first, Stub)
    assert isinstance(second, Stub)
    assert (first.size, second.size) == (len(BIG), len(BIG))
    assert first.digest != second.digest


@pytest.mark.parametrize(("apart", "error"), [({}, "is missing"), ({1: b"x" * len(BIG)}, "is not as it was stored")])
def test_a_lost_or_changed_payload_is_noticed(apart: dict[int, bytes], error: str) -> None:
    stored, _ = split(RUN, [signaled(1, BIG)])
    with pytest.raises(StoreError, match=f"the payload of event 1 {error}: 16,385 bytes"):
        joined(stored, apart)


def test_a_block_of_small_events_is_not_looked_at() -> None:
    assert not may_split(encode_events([signaled(1, b"x" * 1_000)]))
    assert may_split(encode_events([signaled(1, BIG)]))
