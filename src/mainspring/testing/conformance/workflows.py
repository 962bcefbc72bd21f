"""The contract of every engine with workflows, as tests that it has to pass."""

# ruff: noqa: D102 - the tests' names describe them
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreError
from mainspring.jobs import store as job_ops
from mainspring.testing.conformance.chaining_flows import ChainingFlows
from mainspring.testing.conformance.child_flows import ChildFlows
from mainspring.testing.conformance.early_flows import EarlyFlows
from mainspring.testing.conformance.flows import FlowFixtures
from mainspring.testing.conformance.listing_flows import ListingFlows
from mainspring.testing.conformance.requesting_flows import RequestingFlows
from mainspring.testing.conformance.retrying_flows import RetryingFlows
from mainspring.testing.conformance.running_flows import RunningFlows
from mainspring.testing.conformance.set_aside_flows import SettingAsideFlows
from mainspring.testing.conformance.starting_flows import StartingFlows
from mainspring.testing.conformance.timing_flows import TimingFlows
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key
from mainspring.workflows.requests import Signal

if TYPE_CHECKING:
    from mainspring.storage.engine import Engine
    from mainspring.testing.conformance.flows import Flows


class WorkflowSuite(
    StartingFlows,
    RunningFlows,
    ChainingFlows,
    RetryingFlows,
    RequestingFlows,
    EarlyFlows,
    TimingFlows,
    ListingFlows,
    ChildFlows,
    SettingAsideFlows,
    FlowFixtures,
):
    """The contract of ``mainspring.workflows.store``. After each test the whole content is checked."""

    def test_a_group_that_fails_leaves_nothing(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        before = (flows.shown(run), flows.history(run), flows.store.counts())
        live = list(flows.store.lifecycle.live)
        completion = flows.completing(run, None, flows.timer(60), settled=[activity.id])
        operations = [
            job_ops.Settle([flows.settled(activity)]),
            ops.Decide([completion], flows.now_us),
            ops.SignalRuns([Signal(Key(job=run), "a", b"")], flows.now_us),
            flows.starting(flows.new()),
            job_ops.Submit([flows.store.job(b"big", b"x" * 100_000) for _ in range(50)]),
        ]
        with self.spoiled(flows.store.engine), pytest.raises(StoreError):
            flows.group(*operations)
        assert (flows.shown(run), flows.history(run), flows.store.counts()) == before
        assert flows.store.lifecycle.live == live
        flows.check()
        decided = flows.fuse(run, activity, flows.timer(60))
        assert decided.verdict == "recorded"
        assert decided.events[0].id == before[0].row.events + 1

    def spoiled(self, engine: Engine) -> Any:  # noqa: ARG002
        """Return a context in which large groups fail; the test is skipped for engines without one."""
        pytest.skip("nothing can be spoiled in this engine")
