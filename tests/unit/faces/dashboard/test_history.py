"""The drawing of a run's history."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.unit.api.a_node import run

from mainspring.api.workflows import ParkingInfo, RunDetails
from mainspring.faces.dashboard.drawings.axes import LETTER, CompressedScale, rows_of
from mainspring.faces.dashboard.drawings.workflows import (
    LEFT,
    LONGEST_COMMAND,
    MOST_COMMANDS,
    MOST_LANES,
    MOST_SIGNALS,
    TICKS_APART,
    WIDTH,
    history,
    lanes_of,
)
from mainspring.faces.dashboard.pages.workflows import row_of

from .a_browser import Browser, browser_of, browsing


def _event(number: int, at: float, kind: str, **attributes: Any) -> dict[str, Any]:
    return {
        "eventId": number,
        "eventTimestamp": at,
        "eventType": kind,
        f"{kind[0].lower()}{kind[1:]}EventAttributes": attributes,
    }


def _activity(number: int, at: float, end: str = "Completed", name: str = "charge") -> list[dict[str, Any]]:
    return [
        _event(number, at, "ActivityTaskScheduled", activityType={"name": name}),
        _event(number + 1, at + 1, "ActivityTaskStarted", scheduledEventId=number),
        _event(number + 2, at + 3, f"ActivityTask{end}", scheduledEventId=number, startedEventId=number + 1),
    ]


EVENTS = [
    _event(1, 100.0, "WorkflowExecutionStarted"),
    _event(2, 100.0, "DecisionTaskCompleted", scheduledEventId=1, startedEventId=1),
    *_activity(3, 100.0),
    *_activity(6, 104.0, "Failed", "ship"),
    _event(9, 108.0, "TimerStarted", timerId="2", startToFireTimeout="60", control="signal approved"),
    _event(10, 108.5, "WorkflowExecutionSignaled", signalName="approved"),
    _event(11, 109.0, "TimerCanceled", timerId="2", startedEventId=9),
    _event(12, 109.0, "StartChildWorkflowExecutionInitiated", workflowType={"name": "sub"}),
    _event(13, 109.5, "ChildWorkflowExecutionStarted", initiatedEventId=12),
]


def test_each_activity_timer_and_child_has_a_lane() -> None:
    lanes = lanes_of(EVENTS)
    assert [(lane.kind, lane.name, lane.state) for lane in lanes] == [
        ("activity", "charge", "succeeded"),
        ("activity", "ship", "failed"),
        ("timer", "timer 2: 1 min for signal approved", "not needed"),
        ("child", "sub", "running"),
    ]
    assert (lanes[0].scheduled, lanes[0].started, lanes[0].ended) == (100.0, 101.0, 103.0)
    assert lanes[3].ended is None


def test_a_timer_says_how_long_it_is_and_what_it_guards() -> None:
    for given, name in (
        ({"timerId": "2"}, "timer 2"),
        ({"timerId": "2", "startToFireTimeout": "259200"}, "timer 2: 3 d"),
        ({"timerId": "2", "startToFireTimeout": "0.5", "control": "a condition"}, "timer 2: 500 ms for a condition"),
        (
            {"timerId": "step-3", "startToFireTimeout": "4", "control": "2"},
            "timer step-3: 4.0 s for attempt 2 of the step",
        ),
    ):
        assert [lane.name for lane in lanes_of([_event(1, 0.0, "TimerStarted", **given)])] == [name]


def test_open_lanes_reach_the_present_and_flags_are_signals() -> None:
    drawn = history(EVENTS, 110.0, is_open=True)
    assert drawn is not None
    assert drawn.bars[-1].ended == WIDTH
    assert [name for _, name in drawn.signals] == ["approved"]
    assert (drawn.failures, len(drawn.ticks), drawn.span) == (1, 1, 10.0)
    assert drawn.bars[0].scheduled == LEFT
    closed = history(EVENTS, 99999.0, is_open=False)
    assert closed is not None
    assert closed.span == 9.5
    assert history([], 1.0, is_open=True) is None


def test_long_times_without_events_are_compressed_and_keep_their_order() -> None:
    times = [0.0, 1.0, 2.0, 86402.0, 86403.0]
    scale = CompressedScale(times, 0, 1000)
    places = [scale(time) for time in times]
    assert places == sorted(places)
    assert places[2] - places[1] > 200
    assert places[3] - places[2] == 100
    assert places[-1] == 1000
    assert [round(seconds) for _, seconds in scale.gaps] == [86400]
    steps = [scale(float(second)) for second in range(0, 86404, 7)]
    assert all(first <= second for first, second in pairwise(steps))


def test_a_single_gap_is_the_whole_picture() -> None:
    scale = CompressedScale([0.0, 3600.0], 0, 1000)
    assert (scale(0.0), scale(3600.0)) == (0, 1000)
    assert scale.gaps == []
    assert CompressedScale([5.0], 0, 1000)(5.0) == 0


def test_very_many_lanes_become_bands() -> None:
    events: list[dict[str, Any]] = []
    for number in range(8000):
        events += _activity(
            3 * number + 1, float(number), "Failed" if number % 100 == 0 else "Completed", f"f{number % 3}"
        )
    drawn = history(events, 9000.0, is_open=False)
    assert drawn is not None
    assert (drawn.is_banded, drawn.failures, len(drawn.bars)) == (True, 80, 3)
    assert drawn.bars[0].label == "2\N{NARROW NO-BREAK SPACE}667 f0"
    assert {bar.lane.state for bar in drawn.bars} == {"succeeded"}
    for bar in drawn.bars:
        assert bar.failures.count("M") == 1, "the few failures are the last part of a band"
        width = float(bar.failures.partition("h")[2].partition("v")[0])
        assert 3.0 <= width < 0.02 * (bar.ended - bar.started)
    assert 4 * MOST_LANES + len(drawn.ticks) + len(drawn.flags) + 2 * len(drawn.breaks) <= 500


def test_attributes_of_events_are_short_text() -> None:
    row = row_of(_event(7, 100.0, "ActivityTaskFailed", reason="ValueError", details="x" * 1000, scheduledEventId=3))
    assert (row.number, row.kind, row.name, row.at) == (
        7,
        "ActivityTaskFailed",
        "ValueError",
        "1970-01-01T00:01:40+00:00",
    )
    assert set(row.attributes) == {"reason", "details"}
    assert len(row.attributes["details"]) == 201


def test_a_node_without_runs_says_how_to_start_one() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "@app.workflow" in (await browser.open("/workflows")).main.text
            assert "No run matches" in (await browser.open("/workflows?status=parked")).main.text
            assert (await browser.open("/workflows/order-17")).status == 404

    run(test())


def a_run(**given: Any) -> RunDetails:
    values: dict[str, Any] = dict.fromkeys(RunDetails.__struct_fields__)
    values |= dict.fromkeys(("events", "attempt", "input_size", "output_size", "history_size"), 1)
    values |= {name: [] for name in ("activities", "children", "timers", "steps", "receives", "holds")}
    values |= {
        "handle": "H:n:1",
        "id": "order-17",
        "type": "order",
        "version": "1",
        "status": "open",
    }
    values |= {"run": "H:n:1@1", "cancel_requested": False, "unread": {}}
    return RunDetails(**(values | given))


def browser_of_events(events: list[dict[str, Any]], now: float, **given: Any) -> Browser:
    """Return a browser of a run with these events, which are sent newest first, in parts as they are asked for."""

    def part(query: dict[str, list[str]]) -> dict[str, Any]:
        is_reverse, limit = query.get("reverse") == ["true"], int(query["limit"][0])
        found = events[::-1] if is_reverse else events
        if "cursor" in query:
            cursor = int(query["cursor"][0])
            found = [one for one in found if (one["eventId"] <= cursor if is_reverse else one["eventId"] >= cursor)]
        return {"items": found[:limit], "next": str(found[limit]["eventId"]) if len(found) > limit else None}

    return browser_of({"/history": part, "/order-17": a_run(events=len(events), **given)}, now)


def test_a_parked_run_shows_the_recorded_commands_beside_those_of_the_code() -> None:
    async def test() -> None:
        recorded, code = ["activity charge", "activity <b>ship</b>"], ["activity charge", "timer 60 s", "activity mail"]
        parking = ParkingInfo("mismatch", "the code differs", recorded, code, 1, ["b1"])
        browser = browser_of_events(EVENTS, 120.0, parked=parking)
        page = await browser.open("/workflows/order-17")
        assert "✖ parked" in page.main.text
        assert page.rows()[:3] == [
            ["activity charge", "activity charge"],
            ["≠ activity <b>ship</b>", "timer 60 s"],
            ["\N{EN DASH}", "activity mail"],
        ]
        assert [row.text for row in page.main.all("tr", class_="differs")] == ["≠ activity <b>ship</b> timer 60 s"]
        assert page.main.all("form", action="/actions/workflows_unpark")
        drawing = next(one for one in page.main.all("svg") if "replayed" in one.text)
        texts = [one.text for one in drawing.all("text")]
        assert texts == [
            *("recorded", "replayed"),
            *("activity charge", "activity charge"),
            *("activity <b>ship</b>", "≠", "timer 60 s"),
            *("\N{EN DASH}", "activity mail"),
        ]
        assert len(drawing.all("line")) == 1, "the commands before the difference are joined"

    run(test())


def test_the_start_of_an_activity_is_unknown_where_it_is_recorded_with_the_end() -> None:
    lean = [
        _event(1, 100.0, "ActivityTaskScheduled", activityType={"name": "charge"}),
        _event(2, 160.0, "ActivityTaskStarted", scheduledEventId=1, attempt=3),
        _event(3, 160.0, "ActivityTaskCompleted", scheduledEventId=1, startedEventId=2),
    ]
    (lane,) = lanes_of(lean)
    assert (lane.started, lane.ended, lane.attempts) == (None, 160.0, 3)
    drawn = history(lean, 200.0, is_open=False)
    assert drawn is not None
    (bar,) = drawn.bars
    assert (bar.scheduled, bar.started, bar.ended) == (LEFT, LEFT, WIDTH)
    assert bar.path.count("M") == 3, "one part for each attempt"
    assert bar._replace(ended=LEFT + 5).path.count("M") == 1, "parts without room are one"


def test_failures_come_first_in_the_legend_and_among_bands() -> None:
    drawn = history(EVENTS, 110.0, is_open=True)
    assert drawn is not None
    assert drawn.legend == [("failed", 1), ("running", 1), ("succeeded", 1), ("not needed", 1)]
    events: list[dict[str, Any]] = []
    for number in range(100):
        name = "rare" if number == 50 else "often"
        events += _activity(3 * number + 1, float(number), "Failed" if name == "rare" else "Completed", name)
    banded = history(events, 200.0, is_open=False)
    assert banded is not None
    assert [(bar.lane.name, bar.lane.state, bar.failures) for bar in banded.bars] == [
        ("rare", "failed", ""),
        ("often", "succeeded", ""),
    ]


def test_a_drawing_has_the_newest_signals_the_sums_of_states_and_ticks_with_room_between_them() -> None:
    events = [_event(1, 0.0, "WorkflowExecutionStarted")]
    for number in range(50):
        events.append(_event(2 * number + 2, number / 10, "DecisionTaskCompleted"))
        events.append(_event(2 * number + 3, number / 10, "WorkflowExecutionSignaled", signalName=f"s{number}"))
    events += [*_activity(200, 5.0, "Failed"), *_activity(203, 6.0, "Failed"), *_activity(206, 7.0)]
    drawn = history(events, 60.0, is_open=False)
    assert drawn is not None
    assert drawn.legend == [("failed", 2), ("succeeded", 1)]
    assert (drawn.signals_number, len(drawn.signals)) == (50, MOST_SIGNALS)
    assert (drawn.signals[0][1], drawn.signals[-1][1]) == ("s10", "s49")
    crowded = history(
        [_event(number, number / 1000, "DecisionTaskCompleted") for number in range(1, 999)], 1.0, is_open=False
    )
    assert crowded is not None
    assert 50 < len(crowded.ticks) <= (WIDTH - LEFT) / TICKS_APART + 1
    assert all(second - first >= TICKS_APART for first, second in pairwise(crowded.ticks))


def test_very_many_timers_are_one_band() -> None:
    events = [_event(number, float(number), "TimerStarted", timerId=str(number)) for number in range(1, 100)]
    drawn = history(events, 100.0, is_open=False)
    assert drawn is not None
    assert [bar.label for bar in drawn.bars] == ["99 timers"]


def test_an_earlier_part_of_an_open_run_does_not_reach_the_present() -> None:
    async def test() -> None:
        browser = browser_of_events(EVENTS, 99999.0)
        for query, state in (("first=12&last=12", "open"), ("first=12", "running")):
            page = await browser.open(f"/workflows/order-17?{query}")
            assert page.rows()[0][2].endswith(state), query

    run(test())


def test_a_difference_of_very_many_long_commands_is_light_and_its_table_is_whole() -> None:
    async def test() -> None:
        commands = [f"activity {number} {'x' * 200}" for number in range(MOST_COMMANDS + 50)]
        for recorded, code in ((commands, commands[:-1]), ([], commands), (commands, [])):
            parking = ParkingInfo("mismatch", "the code differs", recorded, code, len(code) % len(commands), [])
            page = await browser_of_events(EVENTS, 120.0, parked=parking).open("/workflows/order-17")
            drawing = next(one for one in page.main.all("svg") if "replayed" in one.text)
            texts = [one.text for one in drawing.all("text")]
            assert all(len(text) <= LONGEST_COMMAND for text in texts)
            assert sum(text.endswith("…") for text in texts) == MOST_COMMANDS * (bool(recorded) + bool(code))
            assert len(page.rows()) == len(commands)

    run(test())


def test_a_run_that_is_parked_for_another_reason_has_no_drawing_of_a_difference() -> None:
    async def test() -> None:
        parking = ParkingInfo("no_code", "no worker has it", [], [], 0, [])
        page = await browser_of_events(EVENTS, 120.0, parked=parking).open("/workflows/order-17")
        assert "The code could not make the next decision (no_code)" in page.main.text
        assert not [one for one in page.main.all("svg") if "replayed" in one.text]

    run(test())


def test_what_has_not_ended_in_the_drawing_is_open_and_only_an_open_run_goes_on() -> None:
    for is_open, state in ((True, "running"), (False, "open")):
        drawn = history(EVENTS, 99999.0, is_open=is_open)
        assert drawn is not None
        assert drawn.bars[-1].lane.state == state


def test_lengths_of_short_gaps_side_by_side_do_not_overlap() -> None:
    times = [part * 100_000.0 + step for part in range(12) for step in (0, 1)]
    events = [_event(number, time, "TimerStarted", timerId=str(number)) for number, time in enumerate(times, start=1)]
    drawn = history(events, 0.0, is_open=False)
    assert drawn is not None
    assert len(drawn.breaks) == 11
    for one in drawn.breaks:
        for other in drawn.breaks:
            if one.x < other.x and one.row == other.row:
                assert other.x - one.x >= (len(one.text) + len(other.text)) * LETTER / 2
    assert drawn.height > drawn.lanes_height + max(one.row for one in drawn.breaks) * 14
    assert rows_of([(0, "1 d"), (5, "2 d"), (10, "3 d"), (100, "4 d")]) == [0, 1, 2, 0]


def test_the_address_says_which_events_are_drawn() -> None:
    async def test() -> None:
        events: list[dict[str, Any]] = []
        for number in range(800):
            events += _activity(3 * number + 1, float(number), name=f"f{number}")
        browser = browser_of_events(events, 900.0)
        page = await browser.open("/workflows/order-17")
        assert "events 1 401 to 2 400 of 2 400" in page.main.text
        earlier = next(one for one in page.main.all("a") if one.text == "Earlier")
        page = await browser.open(earlier.attributes["href"])
        assert "events 401 to 1 400 of" in page.main.text
        page = await browser.open("/workflows/order-17?first=4&last=9")
        assert [row[:4] for row in page.rows()] == [
            ["activity", "f1", "✔ succeeded", "1.0 s"],
            ["activity", "f2", "✔ succeeded", "1.0 s"],
        ]
        later = next(one for one in page.main.all("a") if one.text == "Later")
        assert later.attributes["href"] == "/workflows/order-17?first=10"
        newest = next(one for one in page.main.all("a") if one.text == "Newest")
        assert newest.attributes["href"] == "/workflows/order-17"
        page = await browser.open("/workflows/order-17?first=5000")
        assert "There are no such events" in page.main.text
        for query in ("first=x", "first=0", "last=-1", "first=9&last=4", "last=" + "9" * 400, "first=\u0664"):
            assert (await browser.open(f"/workflows/order-17?{query}")).status == 422, query

    run(test())


def test_a_history_of_25_000_events_has_a_light_page() -> None:
    async def test() -> None:
        events: list[dict[str, Any]] = []
        for number in range(5000):
            first = 5 * number + 1
            events += [
                _event(first, float(number * 1000), "WorkflowExecutionSignaled", signalName=f"s{number}"),
                *_activity(
                    first + 1, float(number * 1000), "Failed" if number % 7 == 0 else "Completed", f"f{number % 90}"
                ),
                _event(
                    first + 4, float(number * 1000 + 5), "DecisionTaskCompleted", scheduledEventId=1, startedEventId=1
                ),
            ]
        page = await browser_of_events(events, 9e9, status="completed", closed_at="2030-01-31T12:00:00Z").open(
            "/workflows/order-17"
        )  # which counts the shapes
        shapes = [one.attributes["d"] for one in page.main.one("svg").all("path")]
        assert MOST_LANES < len(shapes) <= 2 * MOST_LANES, "some have failures"
        ticks = [float(one.attributes["x1"]) for one in page.main.one("svg").all("line", class_="axis")]
        assert max(ticks) - min(ticks) > (WIDTH - LEFT) * 0.98, "ticks are everywhere, not at the end alone"
        assert "without 30 further types" in page.main.text
        assert len(page.answer.body) < 250_000

    run(test())


def test_the_page_of_a_run_has_its_legend_its_signals_and_its_events() -> None:
    async def test() -> None:
        signal = "WorkflowExecutionSignaled"
        sent = [_event(number, 110.0 + number, signal, signalName=f"s{number}") for number in range(14, 160)]
        events = [*EVENTS, *sent]
        browser = browser_of_events(events, 300.0)
        page = await browser.open("/workflows/order-17?namespace=team")
        legend = next(one.text for one in page.main.all("p") if "A line is a wait" in one.text)
        assert legend.startswith("✖ failed 1 · ▶ running 1 · ✔ succeeded 1 · ◷ not needed 1 · ")
        lanes, signals, table = page.main.all("table", class_="rows")
        assert [row.text.split()[0] for row in lanes.one("tbody").all("tr")] == [
            "activity",
            "activity",
            "timer",
            "child",
        ]
        assert lanes.one("tbody").all("tr")[0].all("td")[-2].text == "2.0 s", "it lasted"
        assert signals.one("caption").text == "147 signals; these are the newest"
        assert len(signals.one("tbody").all("tr")) == MOST_SIGNALS
        rows = table.one("tbody").all("tr")
        assert rows[0].attributes["id"] == "event-159"
        assert "WorkflowExecutionSignaled s159" in rows[0].text
        assert page.main.one("a", rel="next").attributes["href"] == "/workflows/order-17?namespace=team&cursor=59"
        form = next(one for one in page.main.all("form") if one.attributes["method"] == "get")
        assert {one.attributes["name"]: one.attributes["value"] for one in form.all("input")} == {
            "namespace": "team",
            "first": "",
            "last": "",
        }
        few = await browser_of_events(EVENTS[:2], 300.0).open("/workflows/order-17")
        assert "Draw from event" not in few.main.text
        assert len(few.main.all("table", class_="rows")) == 2

    run(test())


def test_a_band_names_the_number_of_its_failures() -> None:
    async def test() -> None:
        events: list[dict[str, Any]] = []
        for number in range(100):
            events += _activity(3 * number + 1, float(number), "Failed" if number < 7 else "Completed", "ship")
        page = await browser_of_events(events, 300.0).open("/workflows/order-17")
        assert page.rows()[0][:3] == ["activity", "100 ship", "✔ succeeded , ✖ failed 7 of them"]

    run(test())
