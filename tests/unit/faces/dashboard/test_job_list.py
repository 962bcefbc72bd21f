"""The filters, tabs and pages of the list of jobs, and the buttons of a job in each state."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from tests.unit.api.a_node import run

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.access import GrantSpec, Identity
from mainspring.api.jobs import Attempt, Attempts, JobDetails, JobInfo, ListJobs
from mainspring.api.namespaces import JobCounts, NamespaceStatus
from mainspring.faces.dashboard.pages.jobs import FILTERS

from .a_browser import Browser, browser_of, browsing

NOON = "2030-01-31T12:00:00Z"
STATUS = NamespaceStatus(
    "default", JobCounts(total=60, waiting=10, running=20, scheduled=30), 1, None, None, None, dead_letters=40
)
GIVEN = {one.name: "2030-01-31T12:00:00Z" if one.kind == "time" else f"a {one.name}" for one in FILTERS}


def _job(**given: Any) -> JobInfo:
    values: dict[str, Any] = dict.fromkeys(JobInfo.__struct_fields__) | {
        "handle": "H:n:1",
        "function": "f",
        "unique": "",
    }
    return JobInfo(**(values | {"state": "failed", "priority": "normal", "attempt": 1} | given))


def _browser(jobs: list[JobInfo], asked: list[dict[str, list[str]]] | None = None, **listed: Any) -> Browser:
    def answer(query: dict[str, list[str]]) -> dict[str, Any]:
        if asked is not None:
            asked.append(query)
        return {"items": jobs, **listed}

    return browser_of({"/jobs": answer, "/status": STATUS, "/nodes": {"items": []}}, 1_900_000_000.0)


def test_the_list_asks_for_all_that_its_filter_has() -> None:
    async def test() -> None:
        assert {one.name for one in FILTERS} == set(ListJobs.__struct_fields__) - {
            *("namespace", "state", "cursor", "limit")
        }
        asked: list[dict[str, list[str]]] = []
        query = {**GIVEN, "state": ["failed", "expired"], "cursor": "c"}
        await _browser([], asked).open(f"/jobs?{urlencode(query, doseq=True)}")
        (sent,) = asked
        times = {name: ["2030-01-31T12:00:00+00:00"] for name in ("created_from", "created_to")}
        texts = {name: [value] for name, value in GIVEN.items()}
        assert sent == {**texts, **times, "state": ["failed", "expired"], "cursor": ["c"], "limit": ["50"]}

    run(test())


def test_both_forms_of_a_filtered_list_keep_the_whole_filter() -> None:
    async def test() -> None:
        query = urlencode({**GIVEN, "state": ["failed", "expired"]}, doseq=True)
        page = await _browser([_job()]).open(f"/jobs?{query}")
        forms = [one for one in page.main.all("form") if one.attributes["action"] in {"/jobs", "/operations/new"}]
        kept = []
        for form in forms:
            pairs = [
                (
                    one.attributes["name"],
                    one.attributes["value"].removesuffix("Z"),
                )  # browsers write times without a zone
                for one in form.all("input")
                if "value" in one.attributes
            ]
            kept.append(sorted(pairs))
        given = [(name, value.removesuffix("Z")) for name, value in GIVEN.items()]
        whole = sorted([*given, ("state", "failed"), ("state", "expired")])
        assert kept.count(whole) == 2, "the filter, and the change of all that match"

    run(test())


@pytest.mark.parametrize(
    ("query", "is_filtered"), [("state=failed", True), ("tag=t", True), ("", False), ("cursor=c", False)]
)
def test_a_filtered_list_says_so_and_a_plain_one_counts_new_jobs(query: str, is_filtered: bool) -> None:
    async def test() -> None:
        page = await _browser([_job()]).open(f"/jobs?{query}")
        assert ("All jobs that match" in page.main.text) == is_filtered
        assert ("that match the filter" in page.main.one("caption").text) == is_filtered
        assert bool(page.main.all("a", id="new")) == (query == "")
        empty = await _browser([]).open(f"/jobs?{query}")
        assert ("No job matches this filter" in empty.main.text) == is_filtered

    run(test())


def test_tabs_lead_to_their_states_with_their_numbers() -> None:
    async def test() -> None:
        page = await _browser([]).open("/jobs")
        tabs = {
            one.text: one.attributes["href"].partition("?")[2] for one in page.main.one("ul", class_="tabs").all("a")
        }
        assert tabs == {
            "all": "",
            "in flight": "state=pending&state=leased&state=running",
            "failed 40": "state=failed",
            "running 20": "state=running",
            "waiting 10": "state=pending&state=leased",
            "scheduled 30": "state=scheduled",
            "succeeded": "state=succeeded",
            "cancelled": "state=cancelled",
            "expired": "state=expired",
        }

    run(test())


def test_states_of_no_tab_are_named_with_the_filter() -> None:
    async def test() -> None:
        for query, words in (
            ("state=leased&state=running", "Filter: state leased or running"),
            ("state=pending&tag=t", "Filter: tag t , state pending"),
            ("state=pending&state=leased", "Filter"),
        ):
            page = await _browser([_job()]).open(f"/jobs?{query}")
            assert page.main.all("details", class_="action")[0].one("summary").text == words

    run(test())


def test_a_search_that_has_used_up_its_budget_says_how_far_it_has_come() -> None:
    async def test() -> None:
        for jobs, words in (([_job()], "Searched back to 2030-01-31 12:00:00 UTC"), ([_job()] * 50, "Older")):
            rows = [_job(handle=f"H:n:{number}") for number, _ in enumerate(jobs)]
            page = await _browser(rows, next="c1", searched_to=NOON).open("/jobs?tag=t")
            following = page.main.one("nav", **{"aria-label": "Pages of jobs"})
            assert following.text.startswith(words)
            (link,) = following.all("a")
            assert link.text == ("Older" if words == "Older" else "Continue")
            assert link.attributes["href"] == "/jobs?tag=t&cursor=c1"
        empty = await _browser([], next="c1", searched_to=NOON).open("/jobs?tag=t")
        assert "No job of those searched so far matches this filter" in empty.main.text

    run(test())


def test_an_error_is_one_short_line_of_the_list() -> None:
    async def test() -> None:
        page = await _browser([_job(error="x" * 500 + "\nsecond line")]).open("/jobs")
        assert page.rows()[0][-1] == "x" * 160
        page = await _browser([_job(error="first line\nsecond line")]).open("/jobs")
        assert page.rows()[0][-1] == "first line"

    run(test())


def _details(state: str, **given: Any) -> JobDetails:
    zeros = dict.fromkeys(("attempt", "input_size", "output_size", "done", "total"), 0)
    values: dict[str, Any] = dict.fromkeys(JobDetails.__struct_fields__) | zeros
    values |= {
        "handle": "H:n:1",
        "function": "f",
        "unique": "",
        "priority": "normal",
        "tags": [],
        "created_at": NOON,
    }
    return JobDetails(**(values | {"state": state} | given))


BUTTONS = {
    "scheduled": ["cancel", "snooze", "clone"],
    "pending": ["cancel", "snooze", "clone"],
    "leased": ["cancel", "snooze", "clone"],
    "running": ["cancel", "clone"],
    "failed": ["retry", "clone", "delete"],
    "cancelled": ["retry", "clone", "delete"],
    "expired": ["retry", "clone", "delete"],
    "succeeded": ["clone", "delete"],
}


def test_a_job_has_the_buttons_of_its_state() -> None:
    async def test() -> None:
        answers = {"/whoami": Identity("d", None, [GrantSpec("developer")]), "/attempts": Attempts("H:n:1", [])}
        for state, buttons in BUTTONS.items():
            job = _details(state, output_size=3)
            page = await browser_of({**answers, "/jobs/H:n:1": job}, 1_900_000_000.0).open("/jobs/H:n:1")
            forms = [one.attributes["data-action"] for one in page.main.all("details", class_="action")]
            assert forms == [f"jobs_{one}" for one in buttons], state

    run(test())


@pytest.mark.parametrize(
    ("arguments", "words", "has_download"),
    [
        ({"size": 0, "kept": True}, "submitted without arguments", False),
        ({"size": 0, "kept": False}, "submitted without arguments", False),
        ({"size": 2 << 20, "kept": True}, "too large for this page: 2.0 MiB", True),
        ({"size": 9, "kept": True, "redacted": True}, "They are withheld", False),
        ({"size": 9, "kept": False}, "They are not kept. Of a succeeded job", False),
        ({"size": 4, "kept": True, "value": None}, "null", True),
        ({"size": 4, "kept": True, "value": None, "redacted": True}, "null", False),
    ],
)
def test_a_job_without_its_arguments_says_why(arguments: dict[str, Any], words: str, has_download: bool) -> None:
    async def test() -> None:
        answers = {
            "/whoami": Identity("d", None, [GrantSpec("developer", payloads=True)]),
            "/attempts": Attempts("H:n:1", []),
            "/arguments": {"handle": "H:n:1", "redacted": False, **arguments},
            "/logs": {"items": []},
            "/jobs/H:n:1": _details("running", input_size=arguments["size"]),
        }
        page = await browser_of(answers, 1_900_000_000.0).open("/jobs/H:n:1")
        assert words in page.main.text
        assert ("Download the arguments" in page.main.text) == has_download

    run(test())


def _line(attempt: int, number: int, message: str, **given: Any) -> dict[str, Any]:
    line = {"attempt": attempt, "number": number, "at": NOON, "level": "info", "logger": "", "message": message}
    return {**line, "fields": {}, **given}


def _job_with_log(lines: list[dict[str, Any]], asked: list[dict[str, list[str]]], state: str = "running") -> Browser:
    def logs(query: dict[str, list[str]]) -> dict[str, Any]:
        asked.append(query)
        return {"items": lines}

    tried = [Attempt(number, "failed", NOON, NOON, 0.0, "n", "w", None, None) for number in (1, 2)]
    answers = {
        "/whoami": Identity("d", None, [GrantSpec("developer", payloads=True)]),
        "/attempts": Attempts("H:n:1", tried),
        "/arguments": {"handle": "H:n:1", "size": 0, "kept": True, "redacted": False},
        "/logs": logs,
        "/jobs/H:n:1": _details(state),
    }
    return browser_of(answers, 1_900_000_000.0)


def test_a_log_shows_its_attempts_and_its_gaps() -> None:
    async def test() -> None:
        lines = [_line(1, 1, "a"), _line(1, 9, "b", missed=7), _line(2, 1, "c"), _line(3, 2, "d", missed=1)]
        page = await _job_with_log(lines, []).open("/jobs/H:n:1")
        rows = [row[-1] for row in page.rows(1)]
        heads = ("Attempt 1", "Attempt 2", "Attempt 3")
        assert rows == [heads[0], "a", "7 lines are not kept", "b", heads[1], "c", heads[2], "1 line is not kept", "d"]
        assert [row[-1] for row in (await _job_with_log(lines[:1], []).open("/jobs/H:n:1")).rows(1)] == ["a"]

    run(test())


def test_a_log_is_filtered_by_its_links_and_does_not_follow_then() -> None:
    async def test() -> None:
        asked: list[dict[str, list[str]]] = []
        browser = _job_with_log([_line(1, 1, "a")], asked)
        page = await browser.open("/jobs/H:n:1")
        links = {one.text: one.attributes["href"] for one in page.main.all("a") if "#log" in one.attributes["href"]}
        assert links["2"] == "/jobs/H:n:1?attempt=2#log"
        assert "logs=" in page.main.attributes["data-stream"]
        page = await browser.open("/jobs/H:n:1?attempt=2&level=warning")
        assert asked[1] == {"tail": ["200"], "attempt": ["2"], "level": ["warning"]}
        assert "logs=" not in page.main.attributes["data-stream"], "it has all attempts and levels"
        chosen = [one.text for one in page.main.all("a", **{"aria-current": "true"})]
        assert chosen == ["2", "warning"]
        (download,) = [one for one in page.main.all("a") if one.text == "download all"]
        assert download.attributes["href"].endswith("/logs/text?attempt=2&level=warning")
        page = await _job_with_log([], [], "succeeded").open("/jobs/H:n:1?level=error")
        assert "No line of the log matches." in page.main.text
        assert [one.text for one in page.main.all("a", **{"aria-current": "true"})] == ["all", "error"]

    run(test())


def test_data_of_a_job_are_for_those_who_may_see_payloads_of_its_function() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            grants = Grant(Role.VIEWER), Grant(Role.VIEWER, functions=("pay*",), payloads=True)
            browser.admit("v", Caller("v", grants))
            for function, sees in (("pay", True), ("mail", False)):
                handle = await browser.submit(function, args=["a secret"])
                page = await browser.open(f"/jobs/{handle}", token="v")
                assert ("a secret" in page.main.text) == sees
                assert [one.text for one in page.main.all("h2")].count("Arguments") == sees

    run(test())
