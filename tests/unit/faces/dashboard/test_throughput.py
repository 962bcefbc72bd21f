"""The drawing of a function's jobs over time, and the scales of all drawings."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.unit.api.a_node import run

from mainspring.api.access import MarkInfo
from mainspring.api.functions import BucketInfo, FunctionInfo, Series
from mainspring.faces.dashboard.drawings.axes import Scale, nice_ceiling, time_ticks
from mainspring.faces.dashboard.drawings.functions import DEPTH, HEIGHT, LEFT, WIDTH, throughput

from .a_browser import browser_of
from .test_legends import looks_of

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
    (bar,) = drawn.columns
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


def _waiting(*numbers: int | None) -> Series:
    """Return 60 minutes with these numbers of waiting jobs at the end, and with submits in the last one."""
    series = _series(submitted=1200, succeeded=3, failed=4)
    for bucket, number in zip(series.buckets[-len(numbers) :], numbers, strict=True):
        bucket.waiting = number
    return series


def test_waiting_jobs_are_an_area_with_a_scale_of_its_own() -> None:
    drawn = throughput(_waiting(None, 40, 40, 40, 10), [], dt.UTC)
    assert drawn is not None
    assert (drawn.most, drawn.most_waiting, drawn.waiting) == (2000, 50, 10)
    minute = (WIDTH - LEFT) / 60
    high, low = drawn.axis - HEIGHT * 0.8, drawn.axis - HEIGHT * 0.2
    corners = [tuple(map(float, corner.split(","))) for corner in drawn.area.split()]
    begin, change = round(WIDTH - 4 * minute, 1), round(WIDTH - minute, 1)
    assert corners == [
        (begin, drawn.axis),
        (begin, high),
        (change, high),
        (change, low),
        (WIDTH, low),
        (WIDTH, drawn.axis),
    ]
    assert [column.bucket.waiting for column in drawn.columns] == [40, 10], "a step is where a number changes"
    assert throughput(_series(submitted=1), [], dt.UTC).area == ""  # type: ignore[union-attr]
    emptied = throughput(_waiting(40, 0), [], dt.UTC)
    assert emptied is not None
    assert emptied.area.split()[-2] == f"{float(WIDTH)},{float(emptied.axis)}", "no waiting job is a number, too"


def test_jobs_that_wait_are_drawn_although_nothing_happens() -> None:
    series = _series()
    for bucket in series.buckets:
        bucket.waiting = 3
    drawn = throughput(series, [], dt.UTC)
    assert drawn is not None
    assert (len(drawn.columns), len(drawn.area.split())) == (1, 4)


def test_the_page_has_the_drawing_a_table_that_says_the_same_and_the_jobs_of_each_time() -> None:
    async def test() -> None:
        values: dict[str, Any] = dict.fromkeys(FunctionInfo.__struct_fields__) | {"function": "f", "paused": False}
        values |= dict.fromkeys(("waiting", "running", "running_at_all_nodes", "workers"), 0)
        answers = {
            "/functions/f": FunctionInfo(**values),
            "/series": _waiting(40, 10),
            "/errors": {"function": "f", "since": NOON.isoformat(), "errors": []},
            "/marks": {
                "items": [
                    MarkInfo(label, (NOON + dt.timedelta(minutes=minute)).isoformat(), "ann")
                    for label, minute in (("deploy 7", 30), ("deploy 8", 31), ("deploy 9", 55))
                ]
            },
        }
        page = await browser_of(answers, NOON.timestamp()).open("/functions/f")
        jobs = "/jobs?function=f&created_from=2030-01-31T12%3A59%3A00&created_to=2030-01-31T13%3A00%3A00"
        assert [row[1:5] for row in page.rows()] == [["1 200", "3", "4", "10"], ["0", "0", "0", "40"]]
        assert jobs in [link.attributes["href"] for link in page.main.one("tbody").all("a")]
        drawing = page.main.one("svg")
        (shape,) = drawing.all("rect", class_="link")
        assert page.main.one("a", id=shape.attributes["data-link"]).attributes["href"] == jobs
        description = drawing.one("desc").text
        assert description.startswith("1 200 submitted (line), 3 succeeded (bars above the axis), 4 attempts")
        assert "10 wait now" in description
        below = page.main.one("details", class_="same").text
        assert [one.text for one in page.main.one("tfoot").all("td")][:4] == ["1 200", "3", "4", "10"]
        assert "deploy 7 2030-01-31 12:30:00 UTC" in below
        assert "deploy 8 2030-01-31 12:31:00 UTC" in below
        texts = [one.text for one in drawing.all("text")]
        assert [text for text in texts if "deploy" in text] == ["deploy 7", "deploy 9"], "texts have room"
        assert len(drawing.all("line", class_="look-stopped")) == 3
        legend = next(one for one in page.main.all("p") if "submitted" in one.text)
        assert looks_of(drawing) == looks_of(legend)
        assert "by the scale on the right" in legend.text
        right = [one.text for one in drawing.all("text", x="724")]
        assert right == ["50", "0"], "the scale of waiting jobs"

    run(test())
