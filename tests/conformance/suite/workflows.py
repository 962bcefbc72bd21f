"""The contract of every engine with workflows, as tests that it has to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreError
from mainspring.jobs import store as job_ops
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key
from mainspring.workflows.requests import Signal
from tests.conformance.suite.chaining_flows import ChainingFlows
from tests.conformance.suite.child_flows import ChildFlows
from tests.conformance.suite.early_flows import EarlyFlows
from tests.conformance.suite.flows import FlowFixtures
from tests.conformance.suite.forking_flows import ForkingFlows
from tests.conformance.suite.listing_flows import ListingFlows
from tests.conformance.suite.pausing_flows import PausingFlows
from tests.conformance.suite.place_flows import PlaceFlows
from tests.conformance.suite.requesting_flows import RequestingFlows
from tests.conformance.suite.retrying_flows import RetryingFlows
from tests.conformance.suite.run_hold_flows import RunHoldFlows
from tests.conformance.suite.running_flows import RunningFlows
from tests.conformance.suite.set_aside_flows import SettingAsideFlows
from tests.conformance.suite.starting_flows import StartingFlows
from tests.conformance.suite.timing_flows import TimingFlows

if TYPE_CHECKING:
    from mainspring.storage.engine import Engine
    from tests.conformance.suite.flows import Flows


class WorkflowGroups(FlowFixtures):
    """Groups of operations on runs and jobs. After each test the whole content is checked."""

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

    def spoiled(self, engine: Engine) -> Any:
        """Return a context in which large groups fail; the test is skipped for engines without one."""
        pytest.skip("nothing can be spoiled in this engine")


class WorkflowSuite(
    StartingFlows,
    RunningFlows,
    ChainingFlows,
    RetryingFlows,
    RequestingFlows,
    EarlyFlows,
    TimingFlows,
    ListingFlows,
    PlaceFlows,
    PausingFlows,
    ChildFlows,
    ForkingFlows,
    RunHoldFlows,
    SettingAsideFlows,
    WorkflowGroups,
):
    """The contract of ``mainspring.workflows.store``."""
