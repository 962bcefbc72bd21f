"""The pages of functions."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from tests.unit.api.a_node import run
from tests.unit.jobs.a_node import Client, unexpected

from mainspring.api.access import GrantSpec, Identity
from mainspring.api.functions import BucketInfo, FunctionInfo
from mainspring.api.namespaces import (
    FailingFunction,
    Failures,
    JobCounts,
    NamespaceNode,
    NamespaceStatus,
    TroubledFunction,
)
from mainspring.api.schedules import Timeline
from mainspring.jobs.model import Job
from mainspring.namespaces import name_text

from .a_browser import browser_of, browsing


def test_functions_are_listed_with_their_work() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "@app.task" in (await browser.open("/functions")).main.text
            for _ in range(2):
                await browser.submit("resize")
            await browser.call("POST", "functions/mail/pause", {"reason": "down"})
            page = await browser.open("/functions")
            assert [row[:2] for row in page.rows()] == [["mail ■ paused", "0"], ["resize", "2"]]
            assert page.rows()[1][3] == "0"  # just after its start, the node cannot know the workers of others
            assert [row[4] for row in page.rows()] == ["0", "0"]

    run(test())


def test_a_function_is_paused_and_resumed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            page = await browser.open("/functions/resize")
            page = await browser.act(page, "functions_pause", {"reason": "the disk is full"})
            assert re.search(r"■ paused by admin since \S+ \S+ UTC ?: the disk is full", page.main.text)
            page = await browser.act(page, "functions_resume")
            assert "■ paused" not in page.main.text

    run(test())


def test_limits_are_changed_from_what_the_viewer_has_seen() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            old = await browser.open("/functions/resize")
            page = await browser.act(old, "functions_limits_set", {"concurrency": "5", "rate": "100/1m"})
            assert "Limits: 5 at a time, 100/1m (set by a command)." in page.main.text
            lost = await browser.act(old, "functions_limits_set", {"concurrency": "7"})
            assert lost.status == 412
            assert "It is now: 5 at a time, 100/1m." in lost.main.text
            await browser.call("POST", "functions/resize/pause", {"reason": "test"})
            lost = await browser.act(page, "functions_limits_delete")
            assert "It is now: 5 at a time, 100/1m, paused by admin." in lost.main.text
            await browser.call("POST", "functions/resize/resume", {})
            page = await browser.open("/functions/resize")
            assert page.main.all("input", name="rate")[0].attributes["value"] == "100/1m"
            page = await browser.act(page, "functions_limits_set", {"rate": ""})
            assert "Limits: 5 at a time (set" in page.main.text
            page = await browser.act(page, "functions_limits_delete")
            assert "Limits: none" in page.main.text
            wrong = await browser.act(page, "functions_limits_set", {"rate": "often"})
            assert (wrong.status, "'often' is not a rate" in wrong.main.text) == (422, True)

    run(test())


def test_the_shown_curl_lines_of_a_function_do_what_its_buttons_do() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            for action, shown in (
                ("functions_pause", "■ paused"),
                ("functions_resume", "Limits: none"),
                ("functions_limits_set", "Limits: none (set by a command)."),
                ("functions_limits_delete", "Limits: none."),
            ):
                answer = await browser.paste(await browser.open("/functions/resize"), action)
                assert answer.status < 300, answer.body
                assert shown in (await browser.open("/functions/resize")).main.text
            await browser.act(await browser.open("/functions/resize"), "functions_limits_set", {"concurrency": "5"})
            old = await browser.open("/functions/resize")
            await browser.act(old, "functions_limits_set", {"concurrency": "7"})
            assert (await browser.paste(old, "functions_limits_set")).status == 412, "somebody else has changed them"

    run(test())


def test_a_function_with_a_slash_has_a_page() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("a/b")
            page = await browser.open("/functions")
            assert page.main.all("a")[0].attributes["href"] == "/functions/a%2Fb"
            assert (await browser.open("/functions/a%2Fb")).main.one("h1").text == "a/b"
            assert (await browser.open("/functions/a/b")).status == 404

    run(test())


def test_a_function_shows_its_rates_and_its_newest_durations() -> None:
    async def test() -> None:
        moments = [f"2030-01-31T11:{minute:02}:00Z" for minute in range(60)]
        empty: dict[str, Any] = dict.fromkeys(BucketInfo.__struct_fields__, 0) | {"wait": None, "run": None}
        buckets = [{**empty, "at": at, "submitted": 12, "succeeded": 9} for at in moments]
        durations = {"number": 3, "mean": 0.02, "p50": 0.012, "p95": 0.04}
        buckets[40] |= {"wait": durations, "run": durations}
        buckets[57] |= {"wait": {**durations, "p95": 2.0}, "run": {**durations, "p50": 0.5, "p95": 90.0}}
        shown = dict.fromkeys(FunctionInfo.__struct_fields__) | {
            "function": "f",
            "paused": False,
            "waiting": 0,
            "running_at_all_nodes": 0,
        }
        answers = {
            "/series": {"function": "f", "step": 60.0, "buckets": buckets},
            "/errors": {"function": "f", "since": moments[0], "errors": []},
            "/marks": {"items": []},
            "/functions/f": {**shown, "running": 0, "workers": 0},
        }
        noon = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC).timestamp()
        text = (await browser_of(answers, noon).open("/functions/f")).main.one("dl", class_="tiles").text
        assert "In and out a minute 12.0 · 9.0" in text
        assert "Wait: median, 95% 12 ms · 2.0 s 3 min ago" in text
        assert "Run: median, 95% 500 ms · 1 min 30 s 3 min ago" in text

    run(test())


@pytest.mark.parametrize(("number", "shown"), [(0, "0"), (12, "12"), (None, "show")])
def test_dead_letters_lead_to_their_list(number: int | None, shown: str) -> None:
    async def test() -> None:
        one = dict.fromkeys(FunctionInfo.__struct_fields__) | {
            "function": "f",
            "paused": False,
            "waiting": 0,
            "running_at_all_nodes": 0,
        }
        one |= {"running": 0, "workers": 0, "dead_letters": number}
        status = NamespaceStatus("default", JobCounts(0, 0, 0, 0), 0, None, None, None)
        series = {"function": "f", "step": 60.0, "buckets": []}
        errors = {"function": "f", "since": "2030-01-31T11:00:00Z", "errors": []}
        lists = {"/status": status, "/functions": {"items": [one]}, "/marks": {"items": []}}
        browser = browser_of({**lists, "/series": series, "/errors": errors, "/functions/f": one}, 0.0)
        for path in ("/functions", "/functions/f"):
            page = await browser.open(path)
            links = [a.text for a in page.main.all("a") if a.attributes["href"] == "/jobs?function=f&state=failed"]
            assert links == ([shown] if number != 0 else [])
        assert f"Dead letters {shown}" in page.main.one("dl", class_="tiles").text

    run(test())


def test_the_limit_in_use_is_a_bar_that_counts_the_jobs_of_all_nodes() -> None:
    async def test() -> None:
        shown = dict.fromkeys(FunctionInfo.__struct_fields__) | {"function": "f", "paused": False, "waiting": 0}
        shown |= {"running": 1, "running_at_all_nodes": 7, "workers": 1, "concurrency": 9}
        series = {"function": "f", "step": 60.0, "buckets": []}
        errors = {"function": "f", "since": "2030-01-31T11:00:00Z", "errors": []}
        answers = {"/functions": {"items": [shown]}, "/functions/f": shown, "/series": series, "/errors": errors}
        status = NamespaceStatus("default", JobCounts(0, 0, 0, 0), 0, None, None, None)
        browser = browser_of({**answers, "/marks": {"items": []}, "/status": status}, 0.0)
        main = (await browser.open("/functions/f")).main
        (bar,) = main.all("meter")
        assert [bar.attributes[name] for name in ("value", "max", "data-live")] == ["7", "9", "running_at_all_nodes:f"]
        assert "7 of 9 at a time" in main.text
        assert "Running 7" in main.one("dl", class_="tiles").text
        assert (await browser.open("/functions")).rows()[0][2] == "7"

    run(test())


def test_waiting_jobs_are_shown_by_priority() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "functions/idle/pause", {})
            assert "by priority" not in (await browser.open("/functions/idle")).main.text
            for priority in ("high", "low", "low"):
                await browser.submit("resize", priority=priority)
            text = (await browser.open("/functions/resize")).main.one("dl", class_="tiles").text
            assert "Waiting 3 Waiting by priority 1 high · 0 normal · 2 low now" in text

    run(test())


@pytest.mark.parametrize(
    ("path", "first", "following"),
    [
        ("/functions", "First", "Further functions"),
        ("/workers", "First", "Further workers"),
        ("/jobs", "Newest", "Older"),
    ],
)
def test_lists_by_name_have_no_older_pages(path: str, first: str, following: str) -> None:
    async def test() -> None:
        status = NamespaceStatus("default", JobCounts(0, 0, 0, 0), 0, None, None, None)
        listed = {path: {"items": [], "next": "c2"}, "/status": status, "/v1/nodes": {"items": []}}
        page = await browser_of(listed, 0.0).open(f"{path}?cursor=c1")
        assert [link.text for link in page.main.all("nav", class_="pages")[0].all("a")] == [first, following]

    run(test())


def test_commands_name_the_port_of_the_node_that_shows_them() -> None:
    async def test() -> None:
        status = NamespaceStatus("default", JobCounts(0, 0, 0, 0), 0, None, None, None)
        for address, option in ((None, ""), ("127.0.0.1:4730", ""), ("127.0.0.1:5000", " --server 127.0.0.1:5000")):
            who = Identity("o", None, [GrantSpec("operator")], server=address)
            nothing: dict[str, Any] = {"items": []}
            lists = dict.fromkeys(("/functions", "/jobs", "/workers", "/schedules", "/workflows", "/marks"), nothing)
            fires = {
                "/fires": nothing,
                "/fires/timeline": Timeline([], since="1970-01-01T00:00:00Z", until="1970-01-02T00:00:00Z", step=1.0),
            }
            browser = browser_of({"/status": status, **lists, **fires, "/nodes": nothing, "/whoami": who}, 0.0)
            pages = [await browser.open(path) for path in ("/", *list(lists)[:-1])]
            codes = [one.text for page in pages for one in page.main.all("code")]
            assert f"mainspring worker app.py{option}" in codes
            assert f"mainspring submit hello '\"world\"'{option}" in codes
            assert f"mainspring submit hello '\"world\"' --background{option}" in codes
            assert f'mainspring schedules add nightly --function report --cron "30 2 * * *"{option}' in codes
            assert f"mainspring workflows start order --args 17{option}" in codes
            assert f"mainspring marks add LABEL{option}" in codes
            assert ("MAINSPRING_SERVER" in pages[0].main.text) == (not option)

    run(test())


@pytest.mark.parametrize("name", [b"b\xffd", b"b\\xffd", b"b\\\xffd", b"App\\Jobs", b"o@1 (decisions)"])
def test_a_function_with_any_bytes_is_steered_from_its_page(name: bytes) -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            service = built.node.service
            service.foreground.submit(Job(service.table.next_id(), name, b""), Client(), lambda _: None, unexpected)
            listed = await browser.open("/functions")
            (link,) = listed.main.one("table").all("a")[:1]
            page = await browser.open(link.attributes["href"])
            assert page.main.one("h1").text == link.text == name_text(name).replace(" (", "\\ (")
            page = await browser.act(page, "functions_pause", {"reason": "the disk is full"})
            assert re.search(r"■ paused by admin since \S+ \S+ UTC ?: the disk is full", page.main.text)
            assert service.functions.limits_of(name).paused, "and no function that the text would name as it is"
            page = await browser.act(page, "functions_limits_set", {"concurrency": "5"})
            assert "Limits: 5 at a time" in page.main.text
            assert [stored.concurrency for stored in [service.functions.limits_of(name).commanded] if stored] == [5]
            jobs = await browser.open(
                next(a for a in page.main.all("a") if "state=pending" in a.attributes["href"]).attributes["href"]
            )
            assert len(jobs.rows()) == 1

    run(test())


NO_FUNCTION: dict[str, Any] = dict.fromkeys(FunctionInfo.__struct_fields__) | {
    "paused": False,
    **dict.fromkeys(("waiting", "running", "running_at_all_nodes", "workers", "dead_letters"), 0),
}
NO_TROUBLE: dict[str, Any] = dict.fromkeys(TroubledFunction.__struct_fields__) | {
    "paused": False,
    **dict.fromkeys(("waiting", "running", "workers", "failures"), 0),
}


def test_functions_with_trouble_are_first_also_those_of_other_pages() -> None:
    async def test() -> None:
        values: dict[str, dict[str, Any]] = {
            "b": {},
            "c": {"dead_letters": 2},
            "d": {"paused": True},
            "e": {"waiting": 1, "registered": False},
            "f": {},
            "a": {"waiting": 5, "registered": True},
        }
        rows = [{**NO_FUNCTION, "function": name, **more} for name, more in values.items()]
        failing = FailingFunction("f", 3, "2030-01-31T12:00:00Z", "ValueError", "no", None)
        troubled = [
            TroubledFunction(**{**NO_TROUBLE, "function": name, "dead_letters": dead})
            for name, dead in (("c", 2), ("x<y>", 1), ("z", 0))
        ]
        status = NamespaceStatus(
            "default", JobCounts(0, 0, 0, 0), 0, None, None, Failures("2030-01-31T11:00:00Z", [failing]), troubled
        )
        browser = browser_of({"/status": status, "/functions": {"items": rows, "next": "t"}}, 0.0)
        page = await browser.open("/functions")
        assert [row[0].split()[0] for row in page.rows(1)] == ["c", "d", "e", "f", "a", "b"]
        assert "Those with trouble first, then by name; each page by itself" in page.main.text
        assert "On other pages of this list, with trouble: x<y>" in page.main.text
        assert page.main.all("a", href="/functions/x%3Cy%3E")
        later = await browser.open("/functions?cursor=t")
        assert [row[0] for row in later.rows()][:1] == ["b"]
        assert "with trouble" not in later.main.text

    run(test())


def test_functions_are_found_by_a_part_of_their_names() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for name in ("payroll", "mail", "Repay"):
                await browser.submit(name)
            page = await browser.open("/functions")
            form = page.main.one("form", role="search")
            assert form.attributes["action"] == "/functions"
            (field,) = (one.attributes["name"] for one in form.all("input"))
            found = await browser.open(f"/functions?{field}=PAY")
            assert [row[0] for row in found.rows()] == ["Repay", "payroll"]
            assert found.main.one("form", role="search").one("input").attributes["value"] == "PAY"
            none = await browser.open(f"/functions?{field}=%3Cb%3E")
            assert "No function has “<b>” in its name." in none.main.text
            assert "@app.task" not in none.main.text
            assert (await browser.open(f"/functions?{field}={'x' * 513}")).status == 422

    run(test())


@pytest.mark.parametrize("path", ["/", "/functions", "/functions/f"])
def test_workers_of_one_node_among_several_are_called_so(path: str) -> None:
    async def test() -> None:
        function = {**NO_FUNCTION, "function": "f", "waiting": 1, "registered": True, "workers": 3}
        shown = TroubledFunction(**{**NO_TROUBLE, "function": "f", "waiting": 1, "registered": True, "workers": 3})
        status = NamespaceStatus("default", JobCounts(1, 1, 0, 0), 1, None, None, None, [shown])
        nodes = [
            {**dict.fromkeys(NamespaceNode.__struct_fields__, 1), "name": name, "state": state, "functions": []}
            | {"version": "1.0", "started_at": None, "lease": 15.0}
            for name, state in (("a", "live"), ("b", "live"), ("c", "dead"))
        ]
        lists: dict[str, Any] = {end: {"items": []} for end in ("/schedules", "/jobs", "/marks")}
        lists |= {"/series": {"function": "f", "step": 60.0, "buckets": []}, "/functions/f": function}
        lists |= {"/errors": {"function": "f", "since": "2030-01-31T11:00:00Z", "errors": []}}
        lists |= {"/status": status, "/functions": {"items": [function]}}
        for number, word in ((2, "Workers here"), (1, "Workers")):
            some = {"items": [*nodes[:number], nodes[2]]}
            page = await browser_of({**lists, "/default/nodes": some, "/v1/nodes": {"items": []}}, 0.0).open(path)
            assert page.status == 200
            words = [one.text for kind in ("th", "dt") for one in page.main.all(kind)]
            assert [one for one in words if one.startswith("Workers")] == [word]

    run(test())


def test_workers_of_other_nodes_are_no_lack_of_workers() -> None:
    async def test() -> None:
        shown = dict.fromkeys(FunctionInfo.__struct_fields__) | {
            "paused": False,
            "running": 0,
            "running_at_all_nodes": 0,
        }
        rows = [
            {**shown, "function": name, "waiting": waiting, "workers": workers, "registered": registered}
            for name, waiting, workers, registered in (
                ("here", 1, 2, True),
                ("there", 1, 0, True),
                ("idle", 0, 0, False),
                ("unknown", 1, 0, None),
                ("nowhere", 1, 0, False),
            )
        ]
        status = NamespaceStatus("default", JobCounts(0, 0, 0, 0), 0, None, None, None)
        pages = {f"/functions/{row['function']}": row for row in rows}
        nothing = {"/series": {"function": "f", "step": 60.0, "buckets": []}, "/marks": {"items": []}}
        errors = {"/errors": {"function": "f", "since": "2030-01-31T11:00:00Z", "errors": []}}
        browser = browser_of({"/status": status, "/functions": {"items": rows}, **nothing, **errors, **pages}, 0.0)
        cells = {row[0]: row[3] for row in (await browser.open("/functions")).rows()}
        assert cells == {"nowhere": "✖ none", "here": "2", "there": "registered", "idle": "0", "unknown": "0"}
        for name, is_stuck in (("there", False), ("unknown", False), ("nowhere", True)):
            text = (await browser.open(f"/functions/{name}")).main.text
            assert ("no worker has registered this function" in text) is is_stuck

    run(test())


def test_a_workflow_is_listed_once_unless_its_decisions_need_somebody() -> None:
    async def test() -> None:
        values: dict[str, dict[str, Any]] = {
            "order": {},
            "order@1 (decisions)": {"workers": 1},
            "order@2 (decisions)": {"waiting": 1, "registered": False},
            "mine\\ (decisions)": {},
        }
        rows = [{**NO_FUNCTION, "function": name, **more} for name, more in values.items()]
        status = NamespaceStatus("default", JobCounts(0, 0, 0, 0), 0, None, None, None, [])
        page = await browser_of({"/status": status, "/functions": {"items": rows, "next": None}}, 0.0).open(
            "/functions"
        )
        assert [row[0].split(" ✖")[0] for row in page.rows()] == ["order@2 (decisions)", "mine\\ (decisions)", "order"]

    run(test())
