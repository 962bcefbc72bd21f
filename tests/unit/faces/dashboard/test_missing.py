"""Pages whose parts are refused or late, and pages while the store is away: they say so, and show the rest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.unit.api.a_node import run

from mainspring.faces.dashboard import calls, visit
from mainspring.faces.dashboard.calls import Problem

from .a_browser import browsing
from .a_matrix import matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from .a_browser import Browser

UNSUPPORTED = Problem("urn:mainspring:problem:unsupported", "Not here", 422, "this store has none of it")
AWAY = Problem("urn:mainspring:problem:unavailable", "The store cannot be reached", 503, "the store cannot be reached")
MISSING = "This part is missing. "
PARTS = {
    "/": (["/schedules"], ["/jobs"], ["/workflows"]),
    "/functions": (["/status"],),
    "/functions/f": (["/series"], ["/errors"], ["/audit"]),
    "/jobs/HANDLE": (["/attempts"], ["/arguments"], ["/logs"], ["/audit"]),
    "/schedules": (["/timeline"], ["/fires/outcomes"]),
    "/schedules/s": (["/next"], ["/fires"], ["/audit"]),
    "/operations/OPERATION": (["/operations/OPERATION/jobs"],),
}
"""The ends of the calls without which a page is shown."""


def failing(ends: set[str], problem: Problem | None = None, method: str = "GET") -> Callable[[ASGIApp], ASGIApp]:
    """Return what puts in front of an API that calls with these ends are refused; without a problem, they get no answer."""

    def through(api: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] != method or not any(scope["path"].endswith(end) for end in ends):
                await api(scope, receive, send)
                return
            if problem is None:
                await asyncio.Event().wait()
            assert problem is not None
            await send({"type": "http.response.start", "status": problem.status, "headers": []})
            await send({"type": "http.response.body", "body": msgspec.json.encode(problem)})

        return answer

    return through


async def fill(browser: Browser) -> dict[str, str]:
    """Make an object of each kind, and return their names."""
    handle = await browser.submit("f")
    await browser.call("POST", "schedules", {"name": "s", "function": "f", "cron": "0 0 1 1 *"})
    filters = {"action": "cancel", "filter": {"function": "f"}}
    operation = (await browser.call("POST", "operations", filters))["id"]
    await browser.done(operation)
    return {"HANDLE": handle, "OPERATION": operation}


def named(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize("is_late", [False, True])
def test_a_page_says_which_part_is_missing_and_shows_the_rest(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        ends: set[str] = set()
        async with browsing(through=failing(ends, None if is_late else UNSUPPORTED)) as (browser, _):
            names = await fill(browser)
            for path, parts in PARTS.items():
                whole = await browser.open(named(path, names))
                assert MISSING not in whole.main.text, path
                for part in parts:
                    ends.update(named(end, names) for end in part)
                    with monkeypatch.context() as patched:
                        if is_late:
                            patched.setattr(visit, "PART_TIME", 0.05)
                        page = await browser.open(named(path, names))
                    ends.clear()
                    assert page.status == 200, (path, part)
                    reason = visit.LATE.detail if is_late else "This store has none of it."
                    assert MISSING + reason in page.main.text, (path, part, page.main.text)
                    assert page.title == whole.title

    asyncio.run(test())


def test_the_page_of_a_run_is_shown_without_its_history() -> None:
    async def test() -> None:
        async with matrix("order", through=failing({"/history"}, UNSUPPORTED)) as node:
            path, _ = await node.object_of("workflows_cancel", "order")
            page = await node.browser.open(path)
            assert page.status == 200
            assert page.main.text.count(MISSING) == 1
            assert "The run has not begun" not in page.main.text
            assert page.main.all("details", **{"data-action": "workflows_cancel"})

    run(test())


def test_a_page_says_nothing_good_about_a_missing_part() -> None:
    async def test() -> None:
        ends: set[str] = set()
        async with browsing(through=failing(ends, UNSUPPORTED)) as (browser, _):
            names = await fill(browser)
            for path, end, lie in (
                ("/functions/f", "/series", "Nothing happened"),
                ("/functions/f", "/errors", "Nothing has failed"),
                ("/schedules", "/timeline", "No schedule fires"),
                ("/schedules/s", "/fires", "It has not fired yet"),
                ("/", "/schedules", "No schedule has a next time"),
                ("/", "/workflows", "well"),
                ("/jobs/HANDLE", "/logs", "The task has logged nothing"),
                ("/jobs/HANDLE", "/arguments", "They are not kept"),
                ("/jobs/HANDLE", "/audit", "No act names this job"),
                ("/functions/f", "/audit", "Nobody has paused"),
                ("/schedules/s", "/audit", "Nobody has changed"),
            ):
                ends.add(end)
                assert lie not in (await browser.open(named(path, names))).main.text, path
                ends.clear()

    asyncio.run(test())


def test_an_overview_without_the_dead_letters_does_not_say_that_all_is_well() -> None:
    async def test() -> None:
        async with browsing(through=failing({"/jobs"}, UNSUPPORTED)) as (browser, _):
            text = (await browser.open("/")).main.text
            assert "well" not in text
            assert "No attempt has failed" not in text

    asyncio.run(test())


def test_a_store_that_counts_no_failures_is_not_called_well() -> None:
    async def test() -> None:
        def through(api: ASGIApp) -> ASGIApp:
            async def answer(scope: Scope, receive: Receive, send: Send) -> None:
                async def without(message: dict[str, object]) -> None:
                    body = message.get("body")
                    if scope["path"].endswith("/status") and isinstance(body, bytes) and body:
                        message = {
                            **message,
                            "body": msgspec.json.encode({**msgspec.json.decode(body), "failing": None}),
                        }
                    await send(message)

                await api(scope, receive, without)  # type: ignore[arg-type]

            return answer

        async with browsing() as (browser, _):
            assert "No attempt has failed" in (await browser.open("/")).main.text
        async with browsing(through=through) as (browser, _):
            shown = (await browser.open("/")).main.text
            assert "No attempt has failed" not in shown
            assert "counts no failures" in shown

    asyncio.run(test())


def test_a_page_without_a_store_says_so_and_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "READ_TIME", 0.05)
    monkeypatch.setattr(calls, "WRITE_TIME", 1000.0)

    async def test() -> None:
        for problem in (AWAY, None):
            for end in ("/status", "/whoami"):
                async with browsing(through=failing({end}, problem)) as (browser, _):
                    page = await browser.open("/")
                    assert page.status == 503
                    assert page.main.all("a")[0].attributes["href"] == ""
                    assert "Load the page again" in page.main.text

    run(test())


def test_a_form_of_an_unconfirmed_caller_is_called_undone() -> None:
    async def test() -> None:
        async with browsing(through=failing({"/whoami"}, AWAY)) as (browser, _):
            answer = await browser.send("/actions/functions_pause", {"path.function": "f"})
            assert answer.status == 503
            assert b"Nothing was changed" in answer.body
            assert b"Load the page again" not in answer.body

    asyncio.run(test())


def test_an_action_without_a_confirmation_is_not_called_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WRITE_TIME", 0.05)
    monkeypatch.setattr(calls, "READ_TIME", 1000.0)

    async def test() -> None:
        for problem in (AWAY, None):
            async with browsing(through=failing({"/pause"}, problem, "POST")) as (browser, _):
                fields = {"path.function": "f", "next": "/functions/f"}
                answer = await browser.send("/actions/functions_pause", fields)
                assert answer.status == 503
                assert b"It may have been done, or not" in answer.body
                assert b'href="/functions/f"' in answer.body
                assert b"Nothing was changed" not in answer.body
                assert (b"The outcome is not known" in answer.body) == (problem is None)

    run(test())


def test_a_page_of_something_that_the_store_lacks_asks_for_no_other_request() -> None:
    async def test() -> None:
        async with browsing(through=failing({"/workflows"}, UNSUPPORTED)) as (browser, _):
            page = await browser.open("/workflows")
            assert page.status == 404
            assert "is on the other pages" in page.main.text
            assert "Go back" not in page.main.text

    asyncio.run(test())


def test_an_operation_without_a_choice_leads_to_the_list() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/operations/new?namespace=team")
            assert (page.status, page.answer.headers["location"]) == (303, "/operations?namespace=team")

    asyncio.run(test())
