"""Snapshots of states."""

from __future__ import annotations

import msgspec
from tests.unit.workflows.drafts import Run

from mainspring.workflows import history
from mainspring.workflows.draft import fold
from mainspring.workflows.model import (
    DEPTH_LASTS_US,
    SNAPSHOT_FORMAT,
    State,
    decode_state,
    depth_of,
    encode_state,
)
from mainspring.workflows.requests import ScheduleActivityTask, StartTimer


def test_a_state_survives_its_snapshot() -> None:
    run = Run()
    run.decide(ScheduleActivityTask(1, "1", b"f", schedule_to_close=5), StartTimer(2, "2", 1))
    run.signal(request=9)
    assert decode_state(encode_state(run.state)) == run.state


def test_a_snapshot_of_another_format_is_ignored() -> None:
    other = msgspec.msgpack.encode((SNAPSHOT_FORMAT + 1, ["anything"]))
    assert decode_state(other) is None
    assert decode_state(b"") is None


def test_a_snapshot_of_an_older_version_lacks_the_last_fields() -> None:
    fields = msgspec.msgpack.decode(encode_state(State(last=3)))[1]
    older = msgspec.msgpack.encode((SNAPSHOT_FORMAT, fields[:-2]))
    assert decode_state(older) == State(last=3)


def test_a_sleeping_run_is_small() -> None:
    run = Run()
    run.decide(StartTimer(1, "1", 60))
    assert len(encode_state(run.state)) < 200


def test_jobs_of_open_activities() -> None:
    run = Run()
    run.decide(ScheduleActivityTask(1, "1", b"f"))
    assert {activity.job: activity.scheduled for activity in run.state.activities.values()} == {1001: 5}


def test_a_run_has_the_depth_of_its_start_and_of_signals_for_an_hour() -> None:
    state = State()
    fold([history.WorkflowExecutionStarted(1, 1_000_000, "order", "1", depth=2)], state)
    assert depth_of(state, 1_000_000) == 2
    late_us = 1_000_000 + DEPTH_LASTS_US
    assert (depth_of(state, late_us - 1), depth_of(state, late_us)) == (2, 0)
    fold([history.WorkflowExecutionSignaled(2, 2_000_000, "s", depth=1)], state)
    assert depth_of(state, 2_000_000) == 2, "a signal makes no run less deep"
    fold([history.WorkflowExecutionSignaled(3, 3_000_000, "s", depth=5)], state)
    assert (depth_of(state, late_us), depth_of(state, late_us + 2_000_000)) == (5, 0)
    fold([history.WorkflowExecutionSignaled(4, late_us + 2_000_000, "s", depth=1)], state)
    assert depth_of(state, late_us + 2_000_000) == 1, "an hour later it counts from the begin"
