"""How long jobs of a function waited and ran, as a table with bars."""

from __future__ import annotations

from typing import Any

from tests.unit.api.a_node import run

from mainspring.api.functions import BucketInfo, DurationNumbers, FunctionInfo, Series
from mainspring.faces.dashboard.drawings.functions import Row, histogram

from .a_browser import browser_of

BOUNDS = [0.001, 0.01, 0.5, 2.5, 3600.0]


def _durations(*counts: int) -> DurationNumbers:
    return DurationNumbers(sum(counts), 0.0, 0.0, 0.0, list(counts))


def _series(*durations: tuple[DurationNumbers | None, DurationNumbers | None]) -> Series:
    nothing: dict[str, Any] = dict.fromkeys(BucketInfo.__struct_fields__, 0)
    buckets = [
        BucketInfo(**nothing | {"at": f"2030-01-31T11:{minute:02}:00Z", "wait": wait, "run": ran, "succeeded": 1})
        for minute, (wait, ran) in enumerate(durations)
    ]
    return Series("f", 60.0, buckets, BOUNDS)


def test_the_rows_are_the_ranges_from_the_shortest_duration_to_the_longest() -> None:
    found = histogram(_series((_durations(0, 3), _durations(0, 0, 0, 1)), (None, None), (_durations(0, 2, 1), None)))
    assert found is not None
    assert found.rows == [Row("up to 10 ms", 5, 0), Row("up to 500 ms", 1, 0), Row("up to 2.5 s", 0, 1)]
    assert (found.waited, found.ran, found.most_waited, found.most_ran) == (6, 1, 5, 1)


def test_the_longest_durations_are_above_the_last_bound() -> None:
    found = histogram(_series((None, _durations(0, 0, 0, 0, 1, 7))))
    assert found is not None
    assert found.rows == [Row("up to 1 h", 0, 1), Row("over 1 h", 0, 7)]


def test_without_durations_there_is_no_histogram() -> None:
    assert histogram(_series((None, None), (_durations(), None))) is None


def test_the_page_of_a_function_shows_the_numbers_with_bars() -> None:
    async def test() -> None:
        shown = dict.fromkeys(FunctionInfo.__struct_fields__) | {"function": "f", "paused": False, "waiting": 0}
        shown |= {"running": 0, "running_at_all_nodes": 0, "workers": 0}
        answers = {
            "/series": _series((_durations(4, 1), _durations(0, 0, 5))),
            "/errors": {"function": "f", "since": "2030-01-31T11:00:00Z", "errors": []},
            "/marks": {"items": []},
            "/functions/f": shown,
        }
        page = await browser_of(answers, 1_896_000_000.0).open("/functions/f")
        (table,) = [one for one in page.main.all("table") if "by duration" in one.text]
        assert table.one("caption").text == "Ended attempts of the last hour, by duration"
        rows = [[cell.text for cell in (row.one("th"), *row.all("td"))] for row in table.one("tbody").all("tr")]
        assert rows == [["up to 1 ms", "4", "0"], ["up to 10 ms", "1", "0"], ["up to 500 ms", "0", "5"]]
        bars = [(bar.attributes["value"], bar.attributes["max"]) for bar in table.all("meter")]
        assert bars == [("4", "4"), ("1", "4"), ("5", "5")]
        assert table.one("tfoot").text == "All 5 5"

    run(test())
