"""The contract of every engine with workflows, as tests that it has to pass."""

from __future__ import annotations

from mainspring.testing.conformance.flows import FlowFixtures
from mainspring.testing.conformance.running_flows import RunningFlows


class WorkflowSuite(RunningFlows, FlowFixtures):
    """The contract of ``mainspring.workflows.store``. After each test the whole content is checked."""
