"""The first page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from tests.unit.api.a_node import run
from tests.unit.faces.rest.a_server import whole_node

from mainspring.api.namespaces import FailingFunction, Failures, JobCounts, NamespaceNode, NamespaceStatus, OldestJob
from mainspring.faces.dashboard.app import Dashboard
from mainspring.faces.dashboard.pages.overview import troubles

from .a_browser import Browser, browsing

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


def _node(name: str, state: str = "live", version: str = "1.0") -> NamespaceNode:
    return NamespaceNode(name, 1, state, version, None, 1, 15.0, 0, None, 0, [])


def _status(waiting: int = 0, oldest: float | None = None) -> NamespaceStatus:
    oldest_job = None if oldest is None else OldestJob("f", oldest)
    return NamespaceStatus("default", JobCounts(waiting, waiting, 0, 0), 0, oldest_job, None, None)


def test_trouble_is_said_in_sentences() -> None:
    nodes = [_node("a"), _node("b", "dead", "1.1")]
    assert troubles(_status(), nodes, workers=1) == ["The node b is dead.", "Nodes have different versions: 1.0, 1.1."]
    assert troubles(_status(1200), [_node("a")], workers=0) == ["1,200 jobs wait, and no worker is connected."]
    assert troubles(_status(1, 301.0), [_node("a")], workers=1) == ["A job of f has waited for 301 s."]
    assert troubles(_status(1, 299.0), [_node("a")], workers=1) == []


def test_the_overview_shows_queued_jobs_failures_and_next_fires() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/")
            assert "✔ well 1 node lives, 0 workers are connected." in page.main.text
            await browser.submit("resize")
            schedule = {"name": "nightly", "function": "report", "cron": "30 2 * * *"}
            await browser.call("POST", "schedules", schedule)
            page = await browser.open("/")
            assert "✖ trouble 1 jobs wait, and no worker is connected." in page.main.text
            assert page.rows()[0][0] == "nightly"
            page = await browser.act(page, "marks_add", {"label": "web <4.2>"})
            assert "web <4.2> ·" in page.main.text
            viewer = await browser.open("/", token="viewer")
            assert (viewer.status, viewer.main.all("form")) == (200, [])

    run(test())


def test_another_namespace_has_an_overview_of_its_own() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            page = await browser.open("/?namespace=team")
            assert "trouble" not in page.main.text
            links = {one.attributes["href"] for one in page.root.all("a") if one.attributes["href"].startswith("/jobs")}
            assert links
            assert all("namespace=team" in link for link in links)

    run(test())


def test_both_pages_show_failing_functions() -> None:
    failing = FailingFunction("resize", 3, "2030-01-31T12:00:00Z", "ValueError", "no <picture>", "H:n1:7")
    status = NamespaceStatus(
        "default", JobCounts(0, 0, 0, 0), 1, None, None, Failures("2030-01-31T11:00:00Z", [failing])
    )

    async def test() -> None:
        async with whole_node() as (client, built):
            inner = client.app

            async def api(scope: Scope, receive: Receive, send: Send) -> None:
                if not scope["path"].endswith("/status"):
                    await inner(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": msgspec.json.encode(status)})

            client.app = Dashboard(api, now=built.clock.wall, version="9.9")  # type: ignore[assignment]
            browser = Browser(client, "")
            await browser.submit("other")
            for path in ("/", "/functions"):
                page = await browser.open(path)
                assert page.rows()[0][:2] == ["resize", "3"]
                assert page.rows()[0][3] == "ValueError no <picture>"

    run(test())
