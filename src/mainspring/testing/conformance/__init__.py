"""What every engine has to do, as tests that it has to pass. They need pytest.

Make a test class of your own from ``EngineSuite`` and say how to make an engine::

    class TestMyEngine(EngineSuite):
        @pytest.fixture
        def make(self, tmp_path: Path) -> Make:
            return lambda: MyEngine(tmp_path / "jobs")

Each call of ``make`` returns an engine, not yet opened, on the content that was committed so far; the engine before it has been
closed, or was abandoned as if its process had been killed. For an engine that several nodes have open at once, derive from
``SharedEngineSuite``; there, others may still be open. ``JobsSuite`` and ``SharedJobsSuite`` are for engines that keep no limits;
``ScheduleSuite`` and ``SharedScheduleSuite`` are the same for schedules, and ``RetentionSuite`` is for those whose histories end.
``machine`` (which needs Hypothesis) compares an engine with a model.
"""

from __future__ import annotations

from mainspring.testing.conformance.driver import Make, Store
from mainspring.testing.conformance.retaining import RetentionSuite
from mainspring.testing.conformance.schedules import ScheduleSuite
from mainspring.testing.conformance.shared import SharedEngineSuite, SharedJobsSuite
from mainspring.testing.conformance.shared_schedules import SharedScheduleSuite
from mainspring.testing.conformance.suite import EngineSuite, JobsSuite

__all__ = [
    "EngineSuite",
    "JobsSuite",
    "Make",
    "RetentionSuite",
    "ScheduleSuite",
    "SharedEngineSuite",
    "SharedJobsSuite",
    "SharedScheduleSuite",
    "Store",
]
