"""The pages of workflows, from fixed answers of the API."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from tests.unit.api.a_node import run

from mainspring.api.access import GrantSpec, Identity
from mainspring.api.workflows import (
    ActivityInfo,
    ChildInfo,
    ParkingInfo,
    PauseInfo,
    ProgressInfo,
    RunDetails,
    RunHoldInfo,
    RunInfo,
    TimerInfo,
)

from .a_browser import browser_of
from .a_matrix import matrix
from .test_attempts import job as a_job

if TYPE_CHECKING:
    from collections.abc import Callable

AT = "2030-01-31T12:00:00Z"
NOON = dt.datetime.fromisoformat(AT).timestamp()
NOTHING = "\N{EN DASH}"
RUN: dict[str, Any] = {
    "handle": "H:n:1",
    "id": "summer",
    "type": "album",
    "version": "1",
    "status": "open",
    "started_at": AT,
    "closed_at": None,
    "events": 3,
    "waits_for": "approved",
    "run": "H:n:1@1",
}
DETAILS: dict[str, Any] = {
    **dict.fromkeys(RunDetails.__struct_fields__),
    "cancel_requested": False,
    "attempt": 1,
    "input_size": 10,
    "output_size": 0,
    "history_size": 90,
    "unread": {},
    **{name: [] for name in ("activities", "children", "timers", "steps", "receives", "holds")},
    **RUN,
}


def test_parked_runs_come_first() -> None:
    async def test() -> None:
        parked = RunInfo(**RUN, parked_at=AT)
        browser = browser_of({"/workflows": {"items": [parked], "next": None}}, 0.0)
        page = await browser.open("/workflows")
        assert [one.text for one in page.main.all("h2")] == ["Parked", "All runs"]
        assert page.main.all("caption")[0].one("a").attributes["href"] == "/workflows?status=parked"
        page = await browser.open("/workflows?type=album")
        assert page.main.all("h2") == []
        assert len(page.rows()) == 1

    run(test())


def test_an_overdue_run_is_marked() -> None:
    async def test() -> None:
        late = RunInfo(**RUN, parked_at=None, overdue_since=AT)
        page = await browser_of({"/workflows": {"items": [late], "next": None}}, 0.0).open("/workflows?status=overdue")
        ((status, *_),) = page.rows()
        assert "overdue since" in status

    run(test())


def test_a_search_that_has_used_up_its_budget_says_how_far_it_has_come() -> None:
    async def test() -> None:
        short = {"items": [], "next": "H:n:9@9", "searched_to": AT}
        page = await browser_of({"/workflows": short}, 0.0).open("/workflows?type=rare")
        assert "No run of those searched so far matches." in page.main.text
        following = page.main.one("nav", **{"aria-label": "Pages of runs"})
        assert following.text.startswith("Searched back to 2030-01-31 12:00:00 UTC")
        (link,) = following.all("a")
        assert (link.text, link.attributes["href"]) == ("Continue", "/workflows?type=rare&cursor=H%3An%3A9%409")

    run(test())


def test_the_list_asks_for_the_runs_that_its_address_names() -> None:
    async def test() -> None:
        asked: list[dict[str, list[str]]] = []

        def answer(query: dict[str, list[str]]) -> dict[str, Any]:
            asked.append(query)
            return {"items": [], "next": None}

        browser = browser_of({"/workflows": answer, "/nodes": {"items": []}}, 0.0)
        rows, newest_parked = ["50"], {"parked": ["true"], "limit": ["5"]}
        for query, expected in (
            ("", [{"limit": rows}, newest_parked]),
            ("status=burning", [{"limit": rows}, newest_parked]),
            ("cursor=7", [{"limit": rows, "cursor": ["7"]}]),
            ("status=open", [{"limit": rows, "open": ["true"]}]),
            ("status=paused", [{"limit": rows, "paused": ["true"]}]),
            ("status=overdue", [{"limit": rows, "overdue": ["true"]}]),
            ("status=parked&cursor=7", [{"limit": rows, "parked": ["true"], "cursor": ["7"]}]),
            ("status=timed_out&type=album", [{"limit": rows, "status": ["timed_out"], "type": ["album"]}]),
            ("id=summer", [{"limit": rows, "id": ["summer"]}]),
        ):
            asked.clear()
            page = await browser.open(f"/workflows?{query}")
            assert asked == expected, query
            is_filtered = "=" in query and query not in {"status=burning", "cursor=7"}
            given = dict(pair.split("=") for pair in query.split("&") if pair)
            (current,) = page.main.one("ul", class_="tabs").all("a", **{"aria-current": "true"})
            is_status = given.get("status", "burning") != "burning"
            assert current.text == (given["status"].replace("_", " ") if is_status else "all"), query
            fields = {one.attributes["name"]: one.attributes["value"] for one in page.main.one("form").all("input")}
            kept = {"type": given.get("type", ""), "id": given.get("id", "")}
            assert fields == kept | ({"status": given["status"]} if is_status else {}), query
            assert ("No run matches" in page.main.text) == is_filtered, query

    run(test())


def test_a_run_has_the_buttons_of_its_state_for_those_who_operate_its_type() -> None:
    async def test() -> None:
        parking = ParkingInfo("mismatch", "the code differs", [], [], 0, [])
        pause = PauseInfo("the bank is down", "ada", None, 2)
        answers: dict[str, Any] = {"/history": {"items": [], "next": None}}
        for given, functions, buttons in (
            ({}, [], ["signal", "pause", "cancel", "terminate"]),
            ({"paused": pause, "paused_at": AT}, [], ["signal", "resume", "pause", "cancel", "terminate"]),
            ({"started_at": None}, [], ["signal", "cancel", "terminate"]),
            ({"parked": parking}, [], ["unpark", "signal", "pause", "cancel", "terminate"]),
            ({"status": "completed", "closed_at": AT}, [], []),
            ({"parked": parking}, ["alb*"], ["unpark", "signal", "pause", "cancel", "terminate"]),
            ({"parked": parking}, ["order"], []),
        ):
            shown = RunDetails(**{**DETAILS, **given})
            who = Identity("o", None, [GrantSpec("operator", functions=functions)])
            page = await browser_of({**answers, "/workflows/summer": shown, "/whoami": who}, 0.0).open(
                "/workflows/summer"
            )
            forms = [one.attributes["data-action"] for one in page.main.all("details", class_="action")]
            assert forms == [f"workflows_{one}" for one in buttons]
            state = page.main.one("div", id="state").text
            assert ("Paused by ada" in state and "the bank is down" in state) == ("paused" in given)

    run(test())


def test_the_page_of_an_open_run_follows_it() -> None:
    async def test() -> None:
        answers = {"/workflows/summer": RunDetails(**DETAILS), "/history": {"items": [], "next": None}}
        page = await browser_of(answers, 0.0).open("/workflows/summer")
        assert page.main.attributes["data-stream"] == "/api/v1/namespaces/default/live?run=summer"
        assert "Open work" in page.main.one("div", id="work").text
        assert "Result" not in page.main.text
        links = [one.attributes["href"] for one in page.main.all("dl", class_="details")[-1].all("a")]
        assert links == ["/jobs/H%3An%3A1", "/events?job=H%3An%3A1"]
        answers["/workflows/summer"] = RunDetails(
            **{**DETAILS, "status": "completed", "closed_at": AT, "output_size": 7}
        )
        page = await browser_of(answers, 0.0).open("/workflows/summer")
        assert page.main.attributes["data-stream"] == ""
        assert page.main.one("div", id="work").text == ""
        assert "7 B" in page.main.text

    run(test())


WORK: dict[str, Any] = {
    "activities": [
        ActivityInfo("1", "resize", "H:n:7", "running", "w1", 2, AT, "no <picture>"),
        ActivityInfo("2", "mail", "H:n:8", None, None, None, AT, None),
    ],
    "children": [ChildInfo("3", "album", "winter", "H:n:9", "terminate")],
    "timers": [TimerInfo("4", "2030-01-31T12:05:00Z")],
    "steps": ["tidy"],
    "receives": ["approved", "paid"],
    "unread": {"paid": 3},
    "holds": [
        RunHoldInfo("printer", "held", 1, "p1", "7", AT),
        RunHoldInfo("licence", "waits", 2, "", None, AT, lacks=["licence"], behind=["H:n:5", "H:n:6@6"]),
        RunHoldInfo("cluster", "waits", 9, "large", None, AT, impossible=True),
    ],
}
OPEN_ROWS = [
    ["activity", "resize", "▶ running", "1 min ago", "attempt 2 at w1 no <picture>"],
    ["activity", "mail", NOTHING, "1 min ago", ""],
    ["child", "album winter", "▶ running", NOTHING, "terminate with the run"],
    ["timer", "4", "◷ scheduled", "in 4 min", NOTHING],
    ["step", "tidy", "▶ running", NOTHING, NOTHING],
    ["resource", "printer", "▶ running", "1 min ago", "1 slots, p1, number 7"],
    ["resource", "licence", "○ pending", "1 min ago", "2 slots, behind H:n:5, H:n:6@6"],
    ["resource", "cluster", "○ pending", "1 min ago", "9 slots, large: the resource does not have them"],
    ["signal", "approved", "○ pending", NOTHING, NOTHING],
    ["signal", "paid", "○ pending", NOTHING, "3 unread"],
]


def test_an_open_run_has_all_that_it_waits_for_and_leads_to_it() -> None:
    async def test() -> None:
        answers: dict[str, Any] = {"/history": {"items": [], "next": None}}
        given = {
            "progress": ProgressInfo(30, 100, "resizing"),
            "cancel_requested": True,
            "cancel_reason": "the customer has called",
            "attempt": 2,
            "failure": "too slow",
        }
        shown = RunDetails(**{**DETAILS, **WORK, **given, "times_out_at": "2030-02-01T12:00:00Z"})
        page = await browser_of({**answers, "/workflows/summer": shown}, NOON + 60).open("/workflows/summer")
        assert page.rows() == OPEN_ROWS
        links = [one.attributes["href"] for one in page.main.one("tbody").all("a")]
        assert links == [
            *("/jobs/H%3An%3A7", "/jobs/H%3An%3A8", "/workflows/H%3An%3A9"),
            *("/resources/printer", "/resources/licence", "/resources/cluster"),
        ]
        state = page.main.one("div", id="state")
        for words in (
            "attempt 2",
            "started 1 min ago",
            "waits for approved",
            "was asked to cancel",
            "Asked to cancel: the customer has called",
            "30 of 100",
            "resizing",
        ):
            assert words in state.text, words
        assert "Times out" in page.main.text
        assert "Failure before too slow" in page.main.text
        assert "Nothing is open" not in page.main.text
        idle = RunDetails(**DETAILS)
        page = await browser_of({**answers, "/workflows/summer": idle}, NOON + 60).open("/workflows/summer")
        assert "Nothing is open" in page.main.text
        for words in ("attempt", "asked to cancel", "Progress", "Times out", "Failure before", "closed"):
            assert words not in page.main.text, words

    run(test())


def test_a_closed_run_says_why_and_leads_to_those_before_and_after_it() -> None:
    async def test() -> None:
        given = {
            "status": "failed",
            "closed_at": "2030-01-31T12:01:00Z",
            "error": "no <money>",
            "cancel_requested": True,
        }
        chain = {
            "parent": "H:n:3@3",
            "previous_run": "H:n:4@4",
            "next_run": "H:n:5@5",
            "forked_from": "H:n:6@6",
            "forked_to": "H:n:7@7",
        }
        shown = RunDetails(**{**DETAILS, **given, **chain})
        answers = {"/history": {"items": [], "next": None}, "/workflows/summer": shown}
        page = await browser_of(answers, NOON + 120).open("/workflows/summer")
        state = page.main.one("div", id="state").text
        assert "closed 1 min ago" in state
        assert "no <money>" in state
        for words in ("started", "waits for", "was asked to cancel"):
            assert words not in state, words
        leading = {one.text: one.attributes["href"] for one in page.main.one("dl").all("a")}
        assert {key: leading[key] for key in chain.values()} == {
            key: f"/workflows/{quote(key, safe='')}" for key in chain.values()
        }

    run(test())


def _history_of(*events: dict[str, Any]) -> Callable[[dict[str, list[str]]], dict[str, Any]]:
    """Return the answers of a history: the newest events, or one by its number."""

    def answer(query: dict[str, list[str]]) -> dict[str, Any]:
        if query["limit"] == ["1"]:
            return {"items": [one for one in events if str(one["eventId"]) in query["cursor"]]}
        return {"items": [events[-1]]}

    return answer


def test_a_run_begins_with_what_it_got_and_returned() -> None:
    async def test() -> None:
        started = {
            "eventId": 1,
            "eventTimestamp": NOON,
            "eventType": "WorkflowExecutionStarted",
            "workflowExecutionStartedEventAttributes": {"input": '{"number": 17}'},
        }
        completed = {
            "eventId": 9,
            "eventTimestamp": NOON,
            "eventType": "WorkflowExecutionCompleted",
            "workflowExecutionCompletedEventAttributes": {"result": '"<done>"'},
        }
        closed = {"status": "completed", "closed_at": AT, "events": 9, "input_size": 14, "output_size": 8}
        who = Identity("o", None, [GrantSpec("developer", payloads=True)])
        answers: dict[str, Any] = {
            "/history": _history_of(started, completed),
            "/workflows/summer": RunDetails(**{**DETAILS, **closed}),
            "/whoami": who,
        }
        page = await browser_of(answers, NOON).open("/workflows/summer")
        assert [one.text for one in page.main.one("div", id="data").all("pre")] == ['{"number": 17}', '"<done>"']
        another = page.main.one("details", **{"data-action": "workflows_start"})
        assert another.one("summary").text == "Start another run…"
        assert msgspec.json.decode(another.one("textarea", name="args").text) == {"number": 17}
        assert another.one("input", name="function").attributes["value"] == "album"
        headings = [one.text for one in page.main.all("h2")]
        assert headings.index("Arguments") < headings.index("Result") < headings.index("History")
        answers["/whoami"] = Identity("o", None, [GrantSpec("developer")])
        page = await browser_of(answers, NOON).open("/workflows/summer")
        assert page.main.one("div", id="data").all("pre") == []
        assert "--payloads" in page.main.one("div", id="data").text

    run(test())


def test_an_open_run_names_the_signals_that_it_waits_for_and_its_form_has_them() -> None:
    async def test() -> None:
        progress = ProgressInfo(3, 40, "")
        answers: dict[str, Any] = {"/history": {"items": []}}
        answers["/workflows/summer"] = RunDetails(**{**DETAILS, **WORK, "progress": progress})
        page = await browser_of(answers, NOON).open("/workflows/summer")
        state = page.main.one("div", id="state").text
        assert "It waits for signals: approved , paid" in state
        assert "3 of 40" in state
        form = page.main.one("form", action="/actions/workflows_signal")
        assert form.one("input", name="name").attributes["value"] == "approved"
        assert [one.attributes["value"] for one in form.one("datalist").all("option")] == ["approved", "paid"]
        assert form.one("input", name="name").attributes["list"] == form.one("datalist").attributes["id"]
        answers["/workflows/summer"] = RunDetails(**{**DETAILS, "timers": [TimerInfo("4", AT, 28800.0, "signal paid")]})
        page = await browser_of(answers, NOON).open("/workflows/summer")
        form = page.main.one("form", action="/actions/workflows_signal")
        assert form.one("input", name="name").attributes["value"] == ""
        assert page.rows()[0][-1] == "8 h for signal paid"

    run(test())


def test_a_failed_run_is_not_retried_in_the_words_of_the_command() -> None:
    async def test() -> None:
        words = (
            "This is a run of a workflow, and a run cannot be retried: "
            "start another one with mainspring workflows start album."
        )
        failed = RunDetails(**{**DETAILS, "status": "failed", "closed_at": AT})
        page = await browser_of({"/history": {"items": []}, "/workflows/summer": failed}, NOON).open(
            "/workflows/summer"
        )
        assert words in page.main.one("div", id="state").text
        job = a_job("failed", function="album", run="H:n:1")
        answers = {"/attempts": {"handle": "H:n:1", "attempts": []}, "/jobs/H:n:1": job}
        page = await browser_of(answers, NOON).open("/jobs/H:n:1")
        actions = page.main.one("div", id="actions")
        assert words in actions.text
        assert [one.attributes["href"] for one in actions.all("a")] == ["/workflows/H%3An%3A1"]

    run(test())


def test_a_run_is_started_in_a_browser() -> None:
    async def test() -> None:
        async with matrix("album") as node:
            page = await node.browser.open("/workflows")
            form = page.main.one("form", action="/actions/workflows_start")
            assert [one.attributes["value"] for one in form.one("datalist").all("option")] == ["album"]
            typed = {"function": "album", "args": '["summer"]', "id": "summer"}
            for words in ("The run has started.", "An open run had this workflow id already"):
                page = await node.browser.act(await node.browser.open("/workflows"), "workflows_start", typed)
                assert words in page.root.text
                assert "summer" in page.main.one("h1").text
            typed["function"] = "<unknown>"
            refused = await node.browser.act(await node.browser.open("/workflows"), "workflows_start", typed)
            assert "No worker has registered a workflow named <unknown>" in refused.main.text
            form = refused.main.one("form", action="/actions/workflows_start")
            assert form.one("input", name="function").attributes["value"] == "<unknown>"

    run(test())
