"""The contract of every engine, as tests that it has to pass. They need pytest.

Derive a test class from ``EngineSuite`` and define a fixture that makes an engine::

    class TestMyEngine(EngineSuite):
        @pytest.fixture
        def make(self, tmp_path: Path) -> Make:
            return lambda: MyEngine(tmp_path / "jobs")

Each call of ``make`` returns an engine, not yet opened, on the content committed so far. The previous engine has been closed, or
was abandoned as if its process had been killed. For an engine that several nodes have open at once, derive from
``SharedEngineSuite``; there, other engines may still be open. ``JobsSuite`` and ``SharedJobsSuite`` are for engines without
limits; ``ScheduleSuite`` and ``SharedScheduleSuite`` are the same for schedules, and ``RetentionSuite`` is for engines that
delete old fire times. ``EventSuite`` is for engines that keep events, ``SubscriptionSuite`` for those that deliver them,
``DeadlineSuite`` for those that keep deadlines, ``HoldSuite``, ``SharedHoldSuite`` and ``InstanceSuite`` for those that keep
resources,
``LogSuite`` for those that keep logs of jobs, ``SeriesSuite`` for those that keep series of functions, ``RunJobSuite`` and
``WorkflowSuite`` for those that keep runs of workflows, ``WorkSuite`` for those that keep work elsewhere.
``machine`` (which needs Hypothesis) compares an engine with a model.
"""

from __future__ import annotations

from tests.conformance.suite.completions import CompletionSuite, SharedCompletionSuite
from tests.conformance.suite.deadlines import DeadlineSuite
from tests.conformance.suite.driver import Make, Store
from tests.conformance.suite.events import EventSuite
from tests.conformance.suite.external import WorkSuite
from tests.conformance.suite.holds import HoldSuite, SharedHoldSuite
from tests.conformance.suite.instances import InstanceSuite
from tests.conformance.suite.logs import LogSuite
from tests.conformance.suite.retaining import RetentionSuite
from tests.conformance.suite.run_jobs import RunJobSuite
from tests.conformance.suite.schedules import ScheduleSuite
from tests.conformance.suite.series import SeriesSuite
from tests.conformance.suite.shared import SharedEngineSuite, SharedJobsSuite
from tests.conformance.suite.shared_schedules import SharedScheduleSuite
from tests.conformance.suite.subscriptions import SubscriptionSuite
from tests.conformance.suite.suite import EngineSuite, JobsSuite
from tests.conformance.suite.workflows import WorkflowSuite

__all__ = [
    "CompletionSuite",
    "DeadlineSuite",
    "EngineSuite",
    "EventSuite",
    "HoldSuite",
    "InstanceSuite",
    "JobsSuite",
    "LogSuite",
    "Make",
    "RetentionSuite",
    "RunJobSuite",
    "ScheduleSuite",
    "SeriesSuite",
    "SharedCompletionSuite",
    "SharedEngineSuite",
    "SharedHoldSuite",
    "SharedJobsSuite",
    "SharedScheduleSuite",
    "Store",
    "SubscriptionSuite",
    "WorkSuite",
    "WorkflowSuite",
]
