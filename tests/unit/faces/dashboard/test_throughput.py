"""The drawing of a function's jobs over time, and the scales of all drawings."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from mainspring.api.audit import MarkInfo
from mainspring.api.series import BucketInfo, Series
from mainspring.faces.dashboard.drawings.axes import Scale, nice_ceiling, time_ticks
from mainspring.faces.dashboard.drawings.throughput import DEPTH, HEIGHT, LEFT, WIDTH, throughput

NOON = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC)


def _series(**numbers: int) -> Series:
    """Return 60 minutes, in the last of which something happened."""
    buckets = [
        BucketInfo(
            at=(NOON + dt.timedelta(minutes=number)).isoformat(),
            wait=None,
            run=None,
            **dict.fromkeys(
                (
                    "submitted",
                    "succeeded",
                    "failed",
                    "retried",
                    "timed_out",
                    "lost",
                    "cancelled",
                    "released",
                    "snoozed",
                ),
                0,
            ),
        )
        for number in range(60)
    ]
    for name, number in numbers.items():
        setattr(buckets[-1], name, number)
    return Series("f", 60.0, buckets)


def test_nothing_is_drawn_if_nothing_happened() -> None:
    assert throughput(_series(), [], dt.UTC) is None


def test_bars_begin_at_the_axis_and_share_one_scale() -> None:
    drawn = throughput(_series(submitted=40, succeeded=50, failed=20, lost=5), [], dt.UTC)
    assert drawn is not None
    (bar,) = drawn.bars
    assert (drawn.most, bar.good, bar.bad) == (50, HEIGHT, DEPTH / 2)
    assert LEFT < bar.x < bar.x + bar.width <= WIDTH
    assert (drawn.submitted, drawn.good, drawn.bad, drawn.minutes) == (40, 50, 25, 1)
    assert len(drawn.line.split()) == 60
    assert drawn.line.split()[0].endswith(f",{drawn.axis}.0")


def test_marks_of_other_times_are_left_out() -> None:
    marks = [
        MarkInfo("deploy 7", (NOON + dt.timedelta(minutes=30)).isoformat(), "ann"),
        MarkInfo("deploy 6", (NOON - dt.timedelta(minutes=1)).isoformat(), "ann"),
        MarkInfo("deploy 8", (NOON + dt.timedelta(minutes=61)).isoformat(), "ann"),
    ]
    drawn = throughput(_series(submitted=1), marks, dt.UTC)
    assert drawn is not None
    assert [(flag.label, flag.x) for flag in drawn.flags] == [("deploy 7", (LEFT + WIDTH) / 2)]


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (2, 2), (3, 5), (11, 20), (50, 50), (51, 100), (999, 1000)]
)
def test_the_top_of_an_axis_is_a_round_number(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == ceiling


def test_ticks_are_at_round_times_of_the_zone() -> None:
    begin = NOON.timestamp() + 100
    ticks = time_ticks(Scale(begin, begin + 3600, 0, 600), ZoneInfo("Asia/Kolkata"))
    assert [tick.text for tick in ticks] == ["17:40", "17:50", "18:00", "18:10", "18:20", "18:30"]
    assert ticks[0].at == round(500 / 3600 * 600, 1)
    days = time_ticks(Scale(begin, begin + 30 * 86400, 0, 600), dt.UTC)
    assert 1 <= len(days) <= 8
    assert days[0].text.endswith("Feb")
