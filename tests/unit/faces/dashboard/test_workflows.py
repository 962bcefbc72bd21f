"""The pages of workflows, from fixed answers of the API."""

from __future__ import annotations

from typing import Any

from tests.unit.api.a_node import run

from mainspring.api.workflows import RunDetails, RunInfo

from .a_browser import browser_of

AT = "2030-01-31T12:00:00Z"
RUN: dict[str, Any] = {
    "handle": "H:n:1",
    "workflow_id": "summer",
    "type": "album",
    "version": "1",
    "status": "open",
    "started_at": AT,
    "closed_at": None,
    "events": 3,
    "waits_for": "approved",
    "run": "H:n:1@1",
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


def test_the_page_of_an_open_run_follows_its_job() -> None:
    async def test() -> None:
        empty = dict.fromkeys(RunDetails.__struct_fields__) | {
            "cancel_requested": False,
            "attempt": 1,
            "input_size": 10,
            "output_size": 0,
            "history_size": 90,
            "unread": {},
            **{name: [] for name in ("activities", "children", "timers", "steps", "receives")},
        }
        answers = {"/workflows/summer": RunDetails(**{**empty, **RUN}), "/history": {"items": [], "next": None}}
        page = await browser_of(answers, 0.0).open("/workflows/summer")
        assert page.main.attributes["data-stream"] == "/api/v1/namespaces/default/live?job=H%3An%3A1"
        assert page.main.one("div", id="state").attributes["data-version"] == "running 1"
        assert "Open work" in page.main.one("div", id="work").text
        assert "Result" not in page.main.text
        answers["/workflows/summer"] = RunDetails(
            **{**empty, **RUN, "status": "completed", "closed_at": AT, "output_size": 7}
        )
        page = await browser_of(answers, 0.0).open("/workflows/summer")
        assert page.main.attributes["data-stream"] == ""
        assert page.main.one("div", id="work").text == ""
        assert "7 B" in page.main.text

    run(test())
