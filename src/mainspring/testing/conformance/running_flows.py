"""Runs of workflows from their start to their end: part of the contract of an engine."""

# ruff: noqa: D102 - the tests' names describe them
from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.testing.conformance.flows import SECOND
from mainspring.workflows.model import Status

if TYPE_CHECKING:
    from mainspring.testing.conformance.flows import Flows


class RunningFlows:
    """Tests of starts, decisions and ends."""

    def test_a_run_from_its_start_to_its_end(self, flows: Flows) -> None:
        run = flows.start()
        assert flows.kinds(run) == ["WorkflowExecutionStarted", "DecisionTaskScheduled"]
        activity = flows.held_activity(run)
        assert flows.fuse(run, activity, flows.timer(5)).verdict == "recorded"
        assert flows.tasks() == []
        flows.now_us += 5 * SECOND
        assert flows.alarms().due == [(run, flows.now_us)]
        flows.ring(run)
        flows.store.reopen()
        flows.store.recover()
        decided = flows.decide(run, flows.task(run), flows.close(b"result"))
        assert (decided.verdict, decided.status) == ("recorded", Status.COMPLETED)
        root = flows.root(run)
        assert (root.state, root.result, root.ended_us) == (State.SUCCEEDED, b"result", flows.now_us)
        assert flows.kinds(run)[-4:] == [
            "DecisionTaskScheduled",
            "DecisionTaskStarted",
            "DecisionTaskCompleted",
            "WorkflowExecutionCompleted",
        ]
