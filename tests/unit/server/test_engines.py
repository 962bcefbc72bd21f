from __future__ import annotations

from mainspring.server.engines import run_limits
from mainspring.server.settings import WorkflowSettings
from mainspring.workflows.model import Limits


def test_the_default_settings_are_the_default_limits_of_runs() -> None:
    assert run_limits(WorkflowSettings(), 900_000_000) == Limits()


def test_the_limits_of_runs_follow_the_settings_and_the_store() -> None:
    limits = run_limits(WorkflowSettings(timeout=60.0, events=2_000, open=5), 480)
    assert (limits.timeout, limits.events, limits.reserved, limits.warn_events) == (60.0, 2_000, 500, 800)
    assert (limits.open_activities, limits.open_timers, limits.largest) == (5, 5, 480)
