from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from mainspring.clock import Clock


def test_both_kinds_of_time_stand_still_until_they_are_moved() -> None:
    clock = ManualClock(1000.0)
    times: Clock = clock
    assert (times.wall(), times.monotonic()) == (1000.0, 0.0)
    clock.advance(2.5)
    assert (times.wall(), times.monotonic()) == (1002.5, 2.5)


def test_only_the_wall_clock_is_stepped() -> None:
    clock = ManualClock(1000.0)
    clock.step(-3600)
    assert (clock.wall(), clock.monotonic()) == (-2600.0, 0.0)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="step"):
        ManualClock().advance(-1)
