"""The times for which decisions of runs are not fused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.worker.workflows import activities
from mainspring.worker.workflows.activities import FIRST_DELAY, LONGEST_DELAY, FuseDelays

if TYPE_CHECKING:
    import pytest

LINK: Any = "link"
OTHER: Any = "other"


def delay(delays: FuseDelays, now: float) -> float:
    """Return for how long decisions of run 1 are not fused."""
    waits = (step / 2 for step in range(1000))
    return next(wait for wait in waits if delays.allow(LINK, 1, now + wait))


def test_a_delay_doubles_up_to_a_limit_and_begins_anew_after_a_quiet_time() -> None:
    delays, now, seen = FuseDelays(), 1000.0, []
    assert delays.allow(LINK, 1, now)
    for _ in range(9):
        delays.overtaken(LINK, 1, now)
        seen.append(delay(delays, now))
        now += seen[-1]
    assert seen == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    delays.overtaken(LINK, 1, now + 2 * LONGEST_DELAY)
    assert delay(delays, now + 2 * LONGEST_DELAY) == FIRST_DELAY


def test_a_delay_is_that_of_one_run_of_one_node() -> None:
    delays = FuseDelays()
    delays.overtaken(LINK, 1, 0.0)
    assert not delays.allow(LINK, 1, 0.0)
    assert delays.allow(LINK, 2, 0.0)
    assert delays.allow(OTHER, 1, 0.0)


def test_a_bounded_number_of_delays_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activities, "MOST_DELAYS", 3)
    delays = FuseDelays()
    for run in (1, 2, 3, 1, 4):
        delays.overtaken(LINK, run, 0.0)
    assert [run for run in range(1, 5) if not delays.allow(LINK, run, 0.0)] == [1, 3, 4]
