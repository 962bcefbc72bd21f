"""Scales, ticks and labels, which all drawings share."""

from __future__ import annotations

import datetime as dt
from itertools import combinations
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from mainspring.faces.dashboard.drawings.axes import (
    LETTER,
    MOST_BREAKS,
    CompressedScale,
    Scale,
    apart,
    rows_of,
    time_ticks,
)

MIDNIGHT = dt.datetime(2030, 1, 31, tzinfo=dt.UTC).timestamp()
LABELS = st.lists(st.tuples(st.floats(0, 960), st.text("abc", min_size=1, max_size=24)), max_size=20)


@given(LABELS)
def test_no_two_texts_of_a_row_overlap(labels: list[tuple[float, str]]) -> None:
    labels = sorted(labels)
    placed = list(zip(labels, rows_of(labels), strict=True))
    for ((place, text), row), ((other, other_text), other_row) in combinations(placed, 2):
        if row == other_row:
            assert other - place >= (len(text) + len(other_text)) * LETTER / 2


def test_ticks_of_hours_are_full_hours_of_the_zone_and_a_new_day_has_its_date() -> None:
    ticks = time_ticks(Scale(MIDNIGHT, MIDNIGHT + 86400, 0, 960), ZoneInfo("Asia/Kolkata"), 12)
    assert [tick.text for tick in ticks][:3] == ["06:00", "08:00", "10:00"]
    assert ticks[0].at == 20, "half an hour after 05:30, with 40 for an hour"
    assert "01 Feb" in [tick.text for tick in ticks]
    assert "00:00" not in [tick.text for tick in ticks]


def test_ticks_after_a_change_of_the_clock_have_the_new_time() -> None:
    begin = dt.datetime(2030, 3, 31, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    ticks = time_ticks(Scale(begin, begin + 6 * 3600, 0, 600), ZoneInfo("Europe/Berlin"))
    assert [tick.text for tick in ticks] == ["31 Mar", "01:00", "03:00", "04:00", "05:00", "06:00", "07:00"]
    assert [tick.at for tick in ticks] == [0, 100, 200, 300, 400, 500, 600]


def test_width_is_time_and_only_gaps_that_hide_the_rest_are_cut_short() -> None:
    for times, work, lengths in (
        ([0.0, 0.001, 4.0], [(0.001, 4.0)], []),
        ([0.0, 3000.0, 3600.0], [(3000.0, 3600.0)], []),
        ([0.0, 3600.0, 3604.0], [(3600.0, 3604.0)], [3600.0]),
        ([0.0, 50.0, 50.001], [(50.0, 50.001)], []),  # a gap of some seconds is no long one
        ([0.0, 1.0, 90_000.0, 90_001.0], [(1.0, 90_000.0)], []),  # work is never cut short
        ([0.0, 1.0, 90_000.0, 90_001.0], [(0.0, 1.0), (90_000.0, 90_001.0)], [89_999.0]),
        ([0.0, 1.0, 90_000.0, 90_001.0], [(0.0, 100_000.0), (1.0, 2.0)], []),
        ([0.0, 10.0, 90_000.0], [], [89_990.0]),
        ([0.0, 90_000.0], [], []),
    ):
        scale = CompressedScale(times, 0, 1000, work)
        assert [length for _, length in scale.gaps] == lengths, times
        span = times[-1] - sum(lengths)
        for begin, end in work:
            if not lengths and end <= times[-1]:
                assert abs(scale(end) - scale(begin) - 1000 * (end - begin) / span) < 0.2, times


def test_many_long_gaps_are_cut_short_together_or_not_at_all() -> None:
    for number, cut in ((MOST_BREAKS, MOST_BREAKS), (MOST_BREAKS + 3, 0)):
        times, work = [0.0], []
        for gap in range(number):
            work.append((times[-1], times[-1] + 1))
            times += [times[-1] + 1, times[-1] + 1001 + gap]
        assert len(CompressedScale(times, 0, 1000, work).gaps) == cut


def test_places_that_are_too_near_are_left_out() -> None:
    assert apart([30, 0, 5, 12, 17, 21], 6) == [0, 12, 21, 30]
