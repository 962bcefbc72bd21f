"""The random groups of a ``FlowMachine``: strategies for their parts, and for the decisions of runs. Needs Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from mainspring.jobs.model import failure
from mainspring.jobs.rules import Event
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.requests import (
    CancelTimer,
    CompleteWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    FailWorkflowExecution,
    RequestCancelActivityTask,
    RequestCancelExternalWorkflowExecution,
    ScheduleActivityTask,
    SignalExternalWorkflowExecution,
    StartChildWorkflowExecution,
    StartTimer,
)

EXTERNAL = b"external"
"""The input of all signals of runs."""
LATER = b"later"
"""A function that becomes a workflow in the course of a test."""
PICKS = st.integers(0, 1000)
UNIQUES = st.sampled_from([b"", b"", b"u", b"v"])
_COMMANDS = (
    *(ScheduleActivityTask(0, name, b"charge", input=b"x" * 300) for name in "abcd"),
    ScheduleActivityTask(0, "e", b"charge", schedule_to_start=3.0),
    *(RequestCancelActivityTask(0, name) for name in "abc"),
    *(StartTimer(0, name, seconds) for name in "abc" for seconds in (1.0, 5.0)),
    CancelTimer(0, "a"),
    StartChildWorkflowExecution(0, "", "order", "", b"child"),
    StartChildWorkflowExecution(1, "u", "order", "", b"named", child_policy=ChildPolicy.REQUEST_CANCEL),
    StartChildWorkflowExecution(2, "", "order", "1", b"left", child_policy=ChildPolicy.ABANDON),
    StartChildWorkflowExecution(3, "", "later", ""),
    *(SignalExternalWorkflowExecution(0, name, "s", 0, EXTERNAL) for name in ("u", "v")),
    SignalExternalWorkflowExecution(0, "", "s", 0, EXTERNAL, child=2),
    RequestCancelExternalWorkflowExecution(0, "", child=1),
)
COMMANDS = st.lists(st.integers(0, len(_COMMANDS) - 1).map(lambda at: _COMMANDS[at]), max_size=4)
"""Drawn by their numbers: Hypothesis refuses strategies with a long representation."""
CLOSES = st.sampled_from(
    [
        *[None] * 4,
        CompleteWorkflowExecution(0, b"done"),
        FailWorkflowExecution(0, "no"),
        ContinueAsNewWorkflowExecution(0, b"next"),
        ContinueAsNewWorkflowExecution(0, b"next", unread=(3, 4, 6, 8)),
        ContinueAsNewWorkflowExecution(0, b"same", delay=2.0, attempt=2, failure=failure("WorkFailed", "no")),
    ]
)
ENDS = st.sampled_from([Event.SUCCEED, Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.LOSE])
_DECIDE = st.tuples(st.just("decide"), st.tuples(PICKS, COMMANDS, CLOSES, st.integers(0, 2)))
_FUSE = st.tuples(st.just("fuse"), st.tuples(PICKS, COMMANDS, CLOSES))
_END = st.tuples(st.just("end"), st.tuples(PICKS, ENDS))
NARROW = b"narrow"
"""A workflow with limits of open runs."""
PARTS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), UNIQUES),
        st.tuples(st.just("wait"), UNIQUES),
        st.tuples(st.just("begin"), st.integers(1, 3)),
        st.tuples(st.just("signal"), st.tuples(PICKS, st.integers(0, 3))),
        st.tuples(st.just("named"), UNIQUES),
        st.tuples(st.just("early"), st.integers(0, 5)),
        st.tuples(st.just("register"), st.integers(0, 2)),
        st.tuples(st.just("cancel"), PICKS),
        st.tuples(st.just("terminate"), PICKS),
        st.tuples(st.just("ring"), st.integers(0, 6)),
        st.tuples(st.just("unpark"), st.none()),
        st.tuples(st.just("forget"), st.integers(1, 3)),
        st.tuples(st.just("errands"), st.none()),
        st.tuples(st.just("more"), st.tuples(PICKS, COMMANDS, st.booleans())),
        st.tuples(st.just("park"), st.integers(0, 3)),
        st.tuples(st.just("fork"), st.tuples(PICKS, st.sampled_from(["rerun", "first", "last"]), st.booleans())),
        st.tuples(st.just("lose"), PICKS),
        st.tuples(st.just("narrow"), st.integers(0, 5)),
        st.tuples(st.just("fill"), st.integers(0, 3)),
        *(_DECIDE, _DECIDE, _DECIDE, _FUSE, _FUSE, _END, _END),
        st.tuples(st.just("pause"), st.tuples(PICKS, st.integers(0, 5))),
        st.tuples(st.just("resume"), PICKS),
    ),
    min_size=2,
    max_size=6,
)
