"""The list of schedules and its day, and the relatives of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tests.unit.api.a_node import run

from mainspring.api.handlers import fires
from mainspring.faces.dashboard.drawings.schedules import OCCASIONS
from mainspring.faces.dashboard.pages.schedules import ROWS

from .a_browser import Browser, Shown, browsing

if TYPE_CHECKING:
    import pytest

NEVER = {"function": "f", "cron": "30 0 31 1 *", "timezone": "Europe/Berlin"}


async def _add(browser: Browser, *names: str, **given: Any) -> None:
    for name in names:
        await browser.call("POST", "schedules", {**NEVER, "name": name, **given})


def _listed(page: Shown) -> list[str]:
    return [row[0] for row in page.rows(-1)]


def test_a_full_page_has_no_next_one_without_a_further_schedule() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, *(f"s{number:02}" for number in range(ROWS)))
            page = await browser.open("/schedules")
            assert (len(_listed(page)), page.main.all("a", rel="next")) == (ROWS, [])
            await _add(browser, "t")
            page = await browser.open("/schedules")
            assert len(page.main.all("a", rel="next")) == 1
            assert "None of the schedules in the list below fires on this day." in page.main.text

    run(test())


def test_filters_of_the_list_stay_together() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, "Nightly", "hourly")
            await browser.call("POST", "schedules/hourly/pause")
            assert _listed(await browser.open("/schedules?name=nIGHT")) == ["Nightly"]
            assert _listed(await browser.open("/schedules?state=burning")) == ["Nightly", "hourly"]
            page = await browser.open("/schedules?state=paused&day=2099-01-31&name=our")
            assert _listed(page) == ["hourly"]
            form = page.main.one("form", role="search")
            sent = {one.attributes["name"]: one.attributes["value"] for one in form.all("input")}
            assert sent == {"state": "paused", "day": "2099-01-31", "name": "our"}
            for link in page.main.one("ul", class_="tabs").all("a"):
                assert "day=2099-01-31" in link.attributes["href"]
                assert "name=our" in link.attributes["href"]

    run(test())


def test_the_newest_outcome_counts_also_that_of_a_skipped_time() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, "s", overlap="forbid")
            handle = (await browser.call("POST", "schedules/s/trigger"))["handle"]
            await browser.call("POST", f"jobs/{handle}/cancel")
            assert "cancelled" in (await browser.open("/schedules")).rows(-1)[0][3]
            await browser.call("POST", "schedules/s/trigger")
            assert "cancelled" in (await browser.open("/schedules")).rows(-1)[0][3], "the new one has no outcome yet"

    run(test())


def test_a_day_is_that_of_the_viewers_zone() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, "s")
            days = set()
            for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):  # 25 hours apart
                browser.cookies = {"mainspring-zone": zone}
                page = await browser.open("/schedules")
                days.add(page.main.one("nav", **{"aria-label": "Days"}).text)
                assert page.main.all("h2")[0].text == "Today"
            assert len(days) == 2
            for zone, row in (("Europe/Berlin", ["s", "00:30 1 to come"]), ("UTC", None)):
                browser.cookies = {"mainspring-zone": zone}
                page = await browser.open("/schedules?day=2099-01-31")
                assert ("No schedule fires on this day." in page.main.text) == (row is None)
                assert row is None or page.rows(0) == [row]

    run(test())


def test_a_day_has_the_finest_steps_with_which_its_cells_fit() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, *(f"nightly{one}" for one in range(32)), cron="45 2 * * *", timezone="UTC")
            day = "/schedules?day=2099-01-31"
            page = await browser.open(day)
            assert "in steps of 15 min" in page.main.all("caption")[0].text
            assert page.rows(0)[0] == ["nightly0", "02:45 1 to come"]
            await _add(browser, *(f"often{one}" for one in range(3)), cron="*/15 * * * *", timezone="UTC")
            page = await browser.open(day)
            assert "in steps of 30 min" in page.main.all("caption")[0].text
            assert page.rows(0)[0] == ["nightly0", "02:30 1 to come"]
            assert page.rows(0)[-1][1].startswith("00:00 2 to come; 00:30 2 to come")
            assert "The drawing has" not in page.main.text, "it has all schedules"

    run(test())


def test_a_day_has_the_schedules_of_the_list() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, *(f"s{number:02}" for number in range(ROWS + 3)), cron="0 12 * * *")
            await browser.call("POST", "schedules/s07/pause")
            for query, names in (
                ("name=s1", [f"s1{number}" for number in range(10)]),
                ("name=s0&state=active", [f"s0{number}" for number in range(10) if number != 7]),
            ):
                page = await browser.open(f"/schedules?day=2099-01-31&{query}")
                assert [row[0] for row in page.rows(0)] == names
                assert f"The drawing has the {len(names)} schedules of the list below." in page.main.text
                sums = page.main.one("svg").all("text")[0].text
                assert sums == f"sum, at most {len(names)}"
            first = await browser.open("/schedules?day=2099-01-31")
            rest = await browser.open(first.main.one("a", rel="next").attributes["href"])
            drawn = [[row[0] for row in page.rows(0)] for page in (first, rest)]
            assert [len(names) for names in drawn] == [ROWS, 2]
            assert sorted(sum(drawn, ["s07"])) == [f"s{number:02}" for number in range(ROWS + 3)]
            assert {row[0] for row in rest.rows(-1)} == {*drawn[1], "s07"}

    run(test())


def test_a_day_with_very_many_fire_times_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(fires, "MOST_ROWS", 5)
        monkeypatch.setattr(fires, "MOST_STEPS", 11)
        async with browsing() as (browser, _):
            await _add(browser, "a", "b", cron="* * * * *")
            await _add(browser, "c", "d")
            page = await browser.open("/schedules?day=2099-01-31")
            assert "a, b: very many fire times. The drawing has those that are nearest to now." in page.main.text
            assert "the 2 schedules of the list below but the last 2 by name, because the others" in page.main.text
            assert [row[0] for row in page.rows(0)] == ["a", "b"]

    run(test())


def test_a_schedule_with_many_relatives_draws_some_and_names_the_number_of_the_others() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, *(f"p{number}" for number in range(7)))
            parents = [f"p{number}" for number in range(7)]
            await browser.call("POST", "schedules", {"name": "s", "function": "f", "parents": parents})
            for number in range(8):
                await browser.call("POST", "schedules", {"name": f"c{number}", "function": "f", "parents": ["s"]})
            await browser.call("POST", "schedules/p0/trigger")
            page = await browser.open("/schedules/s")
            names = [one.text for one in page.main.one("svg").all("text") if one.attributes["text-anchor"] == "end"]
            assert names == [*parents[:5], "s", *(f"c{number}" for number in range(5))]
            assert "5 more parents and children are not in the drawing." in page.main.text
            forms = {one.attributes["data-action"] for one in page.main.all("details", class_="action")}
            assert "schedules_backfill" not in forms, "it runs after its parents"
            page = await browser.open("/schedules/p0")
            assert "more parents and children" not in page.main.text
            assert page.main.all("details", **{"data-action": "schedules_backfill"})

    run(test())


def test_the_last_outcome_is_not_that_of_an_earlier_page_of_fires() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, "s")
            for _ in range(40):
                handle = (await browser.call("POST", "schedules/s/trigger"))["handle"]
                await browser.call("POST", f"jobs/{handle}/cancel")
            page = await browser.open("/schedules/s")
            assert "last ■ cancelled" in page.main.all("p")[0].text
            older = await browser.open(page.main.one("a", rel="next").attributes["href"])
            assert "Earlier fires" in older.main.text
            assert "last" not in older.main.all("p")[0].text

    run(test())


def test_earlier_fires_are_drawn_with_those_of_relatives_at_their_times() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, "parent")
            await browser.call("POST", "schedules", {"name": "child", "function": "g", "parents": ["parent"]})
            for _ in range(OCCASIONS + 10):
                handle = (await browser.call("POST", "schedules/parent/trigger"))["handle"]
                await browser.call("POST", f"jobs/{handle}/cancel")
            newest = await browser.open("/schedules/parent")
            older = await browser.open(newest.main.one("a", rel="next").attributes["href"])
            for page, number, title in ((newest, OCCASIONS, "The last fires"), (older, 10, "Earlier fires")):
                drawn = page.main.one("svg")
                assert drawn.one("title").text == title
                assert drawn.one("desc").text.startswith(f"{2 * number} fires at {number} times")
                table = page.rows(0)
                assert [row[0] for row in table] == [row[0] for row in page.rows(1)]
                assert {row[2] for row in table} == {"◆ skipped"}, "those of the child"
                labels = [one.text for one in drawn.all("text", class_="scale")]
                assert len(labels) == 2

    run(test())


def test_the_list_shows_its_place_and_the_ways_back() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await _add(browser, *(f"s{number:02}" for number in range(ROWS)))
            await browser.call("POST", "schedules", {"name": "child", "function": "f", "parents": ["s00"]})
            for query, current, days in (
                ("", "all", False),
                ("state=paused", "paused", False),
                ("state=active&day=2099-01-31", "active", True),
            ):
                page = await browser.open(f"/schedules?{query}")
                (tab,) = page.main.one("ul", class_="tabs").all("a", **{"aria-current": "true"})
                assert tab.text == current
                links = [one.text for one in page.main.one("nav", **{"aria-label": "Days"}).all("a")]
                assert ("today" in links) == days, query
                assert ("Today" in [one.text for one in page.main.all("h2")]) != days, query
            page = await browser.open("/schedules")
            pages = page.main.one("nav", **{"aria-label": "Pages of schedules"})
            assert [one.text for one in pages.all("a")] == ["Further schedules"]
            last = await browser.open(pages.one("a").attributes["href"])
            pages = last.main.one("nav", **{"aria-label": "Pages of schedules"})
            assert {one.text: one.attributes["href"] for one in pages.all("a")} == {"First": "/schedules"}
            when = {row[0]: row[4] for row in [*page.rows(-1), *last.rows(-1)]}
            assert when.pop("child") == "after s00", "it has no clock of its own"
            assert all("Europe/Berlin" in text for text in when.values())
            body, headers = msgspec.json.encode({**NEVER, "name": "other"}), {"content-type": "application/json"}
            assert (await browser.raw("POST", "/api/v1/namespaces/team/schedules", body, headers)).status == 201
            other = await browser.open("/schedules?namespace=team")
            form = other.main.one("form", role="search")
            assert ("namespace", "team") in [
                (one.attributes["name"], one.attributes["value"]) for one in form.all("input")
            ]

    run(test())
