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


def test_of_many_gaps_the_longest_are_cut_short() -> None:
    times, gaps = [0.0], [1000.0 + number for number in range(MOST_BREAKS + 3)]
    for gap in gaps:
        times += [times[-1] + 1, times[-1] + 1 + gap]
    scale = CompressedScale(times, 0, 1000)
    assert [length for _, length in scale.gaps] == gaps[3:]


def test_places_that_are_too_near_are_left_out() -> None:
    assert apart([30, 0, 5, 12, 17, 21], 6) == [0, 12, 21, 30]
