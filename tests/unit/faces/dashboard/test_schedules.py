"""The pages of schedules and their drawings."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.unit.api.a_node import run

from mainspring.api.schedules import FireInfo, ScheduleLine, Timeline, TimelineBucket
from mainspring.faces.dashboard.drawings.schedules import (
    DAY_LEFT,
    DAY_WIDTH,
    MOST_CELLS,
    OCCASIONS,
    STEPS,
    day,
    family,
    step_of,
)
from mainspring.faces.dashboard.pages.schedules import ROWS

from .a_browser import browsing

MIDNIGHT = dt.datetime(2030, 1, 31, tzinfo=dt.UTC)
NIGHTLY = {"name": "nightly", "function": "report", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def _bucket(hour: int, **numbers: int) -> TimelineBucket:
    counts = dict.fromkeys(("fired", "succeeded", "failed", "skipped", "due"), 0) | numbers
    return TimelineBucket(at=(MIDNIGHT + dt.timedelta(hours=hour)).isoformat(), **counts)


def _timeline(*lines: ScheduleLine) -> Timeline:
    end = MIDNIGHT + dt.timedelta(days=1)
    return Timeline(list(lines), since=MIDNIGHT.isoformat(), until=end.isoformat(), step=3600.0)


def _run(time: int, **given: Any) -> FireInfo:
    values: dict[str, Any] = dict.fromkeys(FireInfo.__struct_fields__) | {
        "schedule": "s",
        "state": "fired",
        "cause": "time",
        "attempt": 1,
        "finished": True,
        "fire_time": (MIDNIGHT + dt.timedelta(days=time)).isoformat(),
    }
    return FireInfo(**(values | given))


def test_a_part_of_the_day_is_failed_if_most_of_it_failed_and_else_has_a_mark_of_that_length() -> None:
    line = ScheduleLine(
        "nightly",
        "f",
        "active",
        complete=True,
        buckets=[
            _bucket(1, fired=3, succeeded=1, failed=2),
            _bucket(2, fired=2, succeeded=2),
            _bucket(3, fired=1),
            _bucket(12, due=4),
            _bucket(14, fired=309, succeeded=303, failed=6),
            _bucket(16, fired=9, succeeded=4, failed=4),
            _bucket(18, fired=9, succeeded=5, failed=3),
        ],
    )
    other = ScheduleLine("hourly", "f", "active", complete=True, buckets=[_bucket(1, skipped=1)])
    drawn = day(_timeline(line, other), MIDNIGHT.timestamp() + 6 * 3600, dt.UTC)
    assert drawn is not None
    assert [cell.kind for cell in drawn.lines[0].cells] == [
        *("failed", "succeeded", "running", "scheduled"),
        *("succeeded", "failed", "running"),
    ]
    assert drawn.lines[0].cells[0].words == "1 succeeded, 2 failed"
    parts = [cell.failed for cell in drawn.lines[0].cells]
    assert parts == [0, 0, 0, 0, pytest.approx(6 / 309), 0, pytest.approx(3 / 8)]
    few, some = (float(mark.rpartition("h")[2]) for mark in drawn.failures.split("M")[1:])
    assert few == 3.0
    assert some == pytest.approx(drawn.cell * 3 / 8, abs=0.1)
    assert drawn.lines[1].cells[0].kind == "skipped"
    assert (drawn.most, drawn.fires) == (309, 338)
    assert drawn.now == DAY_LEFT + (DAY_WIDTH - DAY_LEFT) / 4


def test_a_day_without_fires_is_not_drawn() -> None:
    assert day(_timeline(ScheduleLine("s", "f", "active", complete=True, buckets=[])), 0, dt.UTC) is None


def test_a_day_shows_the_change_of_its_zones_clock() -> None:
    zone = ZoneInfo("Europe/Berlin")
    for month, number, text in ((3, 31, "+1 h"), (10, 27, "-1 h")):
        begin = dt.datetime(2030, month, number, tzinfo=zone)
        end = begin + dt.timedelta(days=1)
        times = [one.astimezone(dt.UTC) for one in (begin, begin + dt.timedelta(hours=12), end)]
        bucket = TimelineBucket(times[1].isoformat(), 1, 1, 0, 0, 0)
        line = ScheduleLine("s", "f", "active", complete=True, buckets=[bucket])
        drawn = day(Timeline([line], since=times[0].isoformat(), until=times[2].isoformat(), step=3600.0), 0, zone)
        assert drawn is not None
        assert drawn.jump is not None
        assert (drawn.jump.text, drawn.jump.at) == (text, f"2030-{month:02}-{number}T01:00:00+00:00")
        hours = (times[2] - times[0]).total_seconds() / 3600
        passed = 2 if month == 3 else 3
        assert drawn.jump.x == round(DAY_LEFT + (DAY_WIDTH - DAY_LEFT) * passed / hours, 1)
    ordinary = day(_timeline(ScheduleLine("s", "f", "active", complete=True, buckets=[_bucket(1, fired=1)])), 0, zone)
    assert ordinary is not None
    assert ordinary.jump is None


def test_a_change_of_the_clock_at_midnight_is_at_the_end_of_a_day() -> None:
    zone = ZoneInfo("America/Havana")
    begin, end = (dt.datetime(2030, 3, number, tzinfo=zone).astimezone(dt.UTC) for number in (9, 10))
    line = ScheduleLine("s", "f", "active", complete=True, buckets=[TimelineBucket(begin.isoformat(), 1, 1, 0, 0, 0)])
    drawn = day(Timeline([line], since=begin.isoformat(), until=end.isoformat(), step=3600.0), 0, zone)
    assert drawn is not None
    assert drawn.jump is not None
    assert (drawn.jump.x, drawn.jump.text) == (DAY_WIDTH, "+1 h")


def test_a_day_is_on_the_clock_of_the_viewer() -> None:
    line = ScheduleLine("s", "f", "active", complete=True, buckets=[_bucket(1, skipped=1), _bucket(2, due=1)])
    drawn = day(_timeline(line), MIDNIGHT.timestamp() + 86400, ZoneInfo("Asia/Kolkata"))
    assert drawn is not None
    assert [cell.clock for cell in drawn.lines[0].cells] == ["06:30", "07:30"]
    assert (drawn.ticks[0].text, drawn.ticks[0].at) == ("06:00", round(DAY_LEFT + (DAY_WIDTH - DAY_LEFT) / 48, 1))
    assert [cell.span is None for cell in drawn.lines[0].cells] == [False, True], "skipped times have an address"
    assert drawn.now is None, "the day is over"


def test_the_page_of_a_day_says_when_the_clock_changes() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            browser.cookies = {"mainspring-view": "zone=Europe%2FBerlin"}
            await browser.call("POST", "schedules", {**NIGHTLY, "cron": "0 */4 * * *"})
            for date, change, at in (("2098-03-30", "+1 h", "03:00:00 CEST"), ("2098-10-26", "-1 h", "02:00:00 CET")):
                page = await browser.open(f"/schedules?day={date}")
                assert f"The clock of the zone changes by {change} at {date} {at}" in page.main.text
                texts = [one.text for one in page.main.one("svg").all("text")]
                assert f"clock {change}" in texts
            assert "The clock of the zone" not in (await browser.open("/schedules?day=2098-03-31")).main.text

    run(test())


def test_a_day_has_few_enough_cells() -> None:
    often = [1800.0 * number for number in range(50)]
    for number in range(ROWS + 1):
        step = step_of([often] * number)
        cells = [number * len({time // one for time in often}) for one in (step, *STEPS[: STEPS.index(step)])]
        cells = list(dict.fromkeys(cells))  # half an hour and a quarter have as many
        assert cells[0] <= MOST_CELLS < min(cells[1:], default=MOST_CELLS + 1)
    assert step_of([[3600.0]] * MOST_CELLS) == STEPS[0], "each has one cell"


def test_the_shapes_of_a_day_do_not_overlap() -> None:
    assert step_of([[0.0, 1800.0], [900.0, 2700.0]]) == 900
    assert step_of([[0.0, 900.0]]) == 1800


def test_a_family_shares_its_occasions() -> None:
    drawn = family(
        {"parent": [_run(1, outcome="succeeded"), _run(0, outcome="failed")], "child": [_run(1, state="skipped")]},
        ZoneInfo("Asia/Kolkata"),
    )
    assert drawn is not None
    parent, failed, child = drawn.cells
    assert (parent.kind, failed.kind, child.kind) == ("succeeded", "failed", "skipped")
    assert parent.x == child.x > failed.x
    assert parent.y < child.y
    assert [one.text for one in drawn.labels] == ["31 Jan 05:30 to 01 Feb 05:30"]
    many = family({"s": [_run(number) for number in range(OCCASIONS + 10)]}, dt.UTC)
    assert many is not None
    assert len(many.occasions) == len(many.cells) == OCCASIONS
    assert many.occasions[-1] == _run(OCCASIONS + 9).fire_time
    assert [(one.x, one.anchor, one.text) for one in many.labels] == [
        (DAY_LEFT, "start", "10 Feb 00:00"),
        (many.width, "end", "11 Mar 00:00"),
    ]
    assert family({"s": []}, dt.UTC) is None


def test_schedules_are_listed_with_their_day() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "@app.scheduled" in (await browser.open("/schedules")).main.text
            await browser.call("POST", "schedules", NIGHTLY)
            page = await browser.open("/schedules")
            assert page.rows(1)[0][0] == "nightly" if page.main.all("svg") else page.rows()[0][0] == "nightly"
            later = await browser.open("/schedules?day=2099-01-31")
            assert later.main.one("desc").text.startswith("1 fire times of 1 schedules in steps of 15 min")
            assert later.main.all("caption")[0].text == (
                "1 fire times of 1 schedules on the clock of UTC, in steps of 15 min, at most 1 in one step"
            )
            assert later.rows(0) == [["nightly", "01:30 1 to come"]]
            assert (await browser.open("/schedules?day=soon")).status == 422

    run(test())


def test_a_schedule_is_run_paused_resumed_backfilled_and_removed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            page = await browser.open("/schedules/nightly")
            assert len(page.main.one("ol").all("li")) == 10
            page = await browser.act(page, "schedules_trigger")
            assert len(page.rows()) == 1
            page = await browser.act(page, "schedules_pause")
            assert "None: it is paused" in page.main.text
            page = await browser.act(page, "schedules_resume")
            page = await browser.act(
                page, "schedules_backfill", {"from": "2026-01-01T00:00", "to": "2026-01-03T12:00:00"}
            )
            assert page.main.one("h1").text.startswith("backfill op-")
            refused = await browser.act(await browser.open("/schedules/nightly"), "schedules_backfill", {"from": ""})
            assert refused.status == 422
            page = await browser.act(await browser.open("/schedules/nightly"), "schedules_remove")
            assert "There are no schedules" in page.main.text

    run(test())


def test_a_parent_is_removed_after_its_children_and_a_removed_schedule_leads_to_the_list() -> None:
    async def test() -> None:
        async with browsing(prefix="/queue") as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            await browser.call("POST", "schedules", {"name": "mail", "function": "mail", "parents": ["nightly"]})
            page = await browser.open("/schedules/nightly")
            refused = await browser.act(page, "schedules_remove")
            assert "Schedule 'nightly' is a parent of 'mail': remove its children first" in refused.main.text
            await browser.act(await browser.open("/schedules/mail"), "schedules_remove")
            await browser.act(await browser.open("/schedules/nightly"), "schedules_remove")
            for action in ("schedules_remove", "schedules_trigger"):
                gone = await browser.act(page, action)
                assert gone.status == 404, action
                link = next(one for one in gone.main.all("a") if one.text == "how things are now")
                assert link.attributes["href"] == "/queue/schedules", action

    run(test())


def test_a_schedule_with_a_hostile_name_stays_text() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            name = "</text><script>alert(1)</script>"
            await browser.call("POST", "schedules", NIGHTLY | {"name": name})
            page = await browser.open("/schedules?day=2099-01-31")
            assert page.main.all("script") == []
            link = page.main.all("a")[-2].attributes["href"]
            assert (await browser.open(link)).main.one("h1").text == name

    run(test())


def test_a_long_list_of_schedules_has_pages_and_a_filter() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for number in range(ROWS + 3):
                await browser.call("POST", "schedules", {**NIGHTLY, "name": f"s{number:02}"})
            await browser.call("POST", "schedules/s00/pause")
            page = await browser.open("/schedules")
            names = [row[0] for row in page.rows(-1)]
            (further,) = page.main.all("a", rel="next")
            page = await browser.open(further.attributes["href"])
            assert page.main.all("a", rel="next") == []
            rest = page.rows(-1)
            assert [*names, *(row[0] for row in rest)] == [*(f"s{number:02}" for number in range(1, ROWS + 3)), "s00"]
            assert rest[-1][1:3] == ["■ paused", "\N{EN DASH}"]
            page = await browser.open("/schedules?name=S1")
            assert len(page.rows(-1)) == 10
            assert "10 of 53 match the filter" in page.main.text
            assert [row[0] for row in (await browser.open("/schedules?state=paused")).rows(-1)] == ["s00"]
            assert "No schedule matches" in (await browser.open("/schedules?name=none")).main.text

    run(test())


def test_the_list_shows_the_last_outcome() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            handle = (await browser.call("POST", "schedules/nightly/trigger"))["handle"]
            assert (await browser.open("/schedules")).rows(-1)[0][3].startswith("\N{EN DASH}")
            await browser.call("POST", f"jobs/{handle}/cancel")
            assert "cancelled" in (await browser.open("/schedules")).rows(-1)[0][3]
            head = (await browser.open("/schedules/nightly")).main.all("p")[0].text
            assert "last ■ cancelled" in head

    run(test())


def test_the_list_shows_the_last_outcome_beside_schedules_that_fire_often() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for name in ("often", "rare", "never"):
                await browser.call("POST", "schedules", {**NIGHTLY, "name": name})
            for name, number in (("rare", 1), ("often", 5)):
                for _ in range(number):
                    handle = (await browser.call("POST", f"schedules/{name}/trigger"))["handle"]
                    await browser.call("POST", f"jobs/{handle}/cancel")
            last = {row[0]: row[3] for row in (await browser.open("/schedules")).rows(-1)}
            assert {name for name, text in last.items() if "cancelled" in text} == {"often", "rare"}

    run(test())


def test_a_schedule_shows_its_times_on_its_own_clock_too() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            page = await browser.open("/schedules/nightly")
            first = page.main.one("ol").all("li")[0].text
            assert first.endswith(("02:30:00 CET", "02:30:00 CEST"))
            assert page.main.one("ol").all("time")[0].text.endswith("UTC")
            for zone in ("Europe%2FBerlin", "Europe%2FParis"):
                browser.cookies["mainspring-zone"] = zone
                page = await browser.open("/schedules/nightly")
                assert page.main.one("ol").all("li")[0].text.count("02:30:00") == 1
            browser.cookies["mainspring-zone"] = "No/Where"
            assert "UTC" in (await browser.open("/schedules/nightly")).root.one("footer").text

    run(test())


def test_a_schedule_leads_to_its_children() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            await browser.call("POST", "schedules", {"name": "mail", "function": "mail", "parents": ["nightly"]})
            handle = (await browser.call("POST", "schedules/nightly/trigger"))["handle"]
            page = await browser.open("/schedules/nightly")
            assert [one.text for one in page.main.one("dl").all("a")] == ["report", "those about it", "mail"]
            drawn = page.main.one("svg")
            assert [one.text for one in drawn.all("text") if one.attributes.get("text-anchor") == "end"] == [
                "nightly",
                "mail",
            ]
            assert handle in page.main.text

    run(test())


def test_a_part_of_the_day_leads_to_its_fires_and_these_to_their_jobs() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            page = await browser.act(await browser.open("/schedules/nightly"), "schedules_trigger")
            job = page.main.one("tbody").one("a").attributes["href"]
            shown = await browser.open("/schedules")
            links = [one.attributes["href"] for one in shown.main.all("table")[0].all("a")]
            link = next(one for one in links if "since=" in one)
            fires = await browser.open(link)
            assert fires.main.one("tbody").one("a").attributes["href"] == job
            assert "Only those from 20" in fires.main.text
            other = await browser.open("/schedules/nightly?since=2001-01-01T00:00:00&until=2001-01-02T00:00:00")
            assert "It has not fired in this time." in other.main.text
            assert (await browser.open("/schedules/nightly?since=soon")).status == 422
            later = await browser.open("/schedules?day=2099-01-31")
            (cell,) = [text for text in later.main.one("svg").all("text") if "data-link" in text.attributes]
            due = later.main.one("a", id=cell.attributes["data-link"]).attributes["href"]
            assert due == "/schedules/nightly"

    run(test())


def test_a_schedule_is_given_to_the_code_of_an_app() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            await browser.call("POST", "schedules", NIGHTLY | {"name": "weekly"})
            await browser.call("POST", "schedules/weekly/adopt", {"app": "old shop"})
            assert [row[-1] for row in (await browser.open("/schedules")).rows(-1)] == [
                "report",
                "report of the App old shop",
            ]
            page = await browser.open("/schedules/nightly")
            assert "Made by hand" in page.main.text
            (form,) = page.main.all("details", **{"data-action": "schedules_adopt"})
            assert "mainspring schedules adopt nightly --app APP" in form.text
            assert "/schedules/nightly/adopt" in form.text
            assert [one.attributes["value"] for one in form.all("option")] == ["old shop"], "Apps with other schedules"
            refused = await browser.act(page, "schedules_adopt", {"app": " "})
            assert refused.status == 422
            page = await browser.act(page, "schedules_adopt", {"app": "old shop"})
            assert "Made by the App old shop" in page.main.text
            (form,) = page.main.all("details", **{"data-action": "schedules_adopt"})
            assert not form.all("option"), "it belongs to that one already"
            rows = (await browser.open("/audit?object=nightly")).rows()
            assert any("schedules.adopt" in row and "old shop" in " ".join(row) for row in rows)

    run(test())


def test_pages_name_a_schedule_that_is_set_aside_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "no time zone 'Site/Elsewhere' is known here"

    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            monkeypatch.setattr("mainspring.api.handlers.schedules.fault_of", lambda _: fault)
            for query in ("", "?state=set_aside"):
                (row,) = (await browser.open(f"/schedules{query}")).rows(-1)
                assert row[1].endswith(f"set_aside {fault}")
            assert (await browser.open("/schedules?state=active")).main.all("td", **{"data-label": "State"}) == []
            text = (await browser.open("/schedules/nightly")).main.text
            assert "set_aside" in text
            assert f"so it does not fire there: {fault}" in text

    run(test())
