"""The page of events, and the ways to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.api.a_node import run

from mainspring.access.caller import Caller, Grant, Role
from mainspring.callbacks import awaited
from mainspring.event_log.store import SweepEvents

from .a_browser import browsing

if TYPE_CHECKING:
    from mainspring.server.build import Built

    from .a_browser import Browser

N = "/api/v1/namespaces"


async def cancelled(browser: Browser, function: str, **job: object) -> str:
    handle = await browser.submit(function, **job)
    await browser.call("POST", f"jobs/{handle}/cancel", {"reason": "test"})
    return handle


async def swept(built: Built, most: int) -> None:
    """Delete all events but the newest ones."""
    await awaited(built.node.commits.committed(SweepEvents(0, most)))


def test_without_anybody_who_wants_events_the_page_says_so_and_can_want_them() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await cancelled(browser, "pay")
            page = await browser.open("/events")
            assert "No event is recorded" in page.main.text
            link = next(one for one in page.main.all("a") if one.text == "Record those to come")
            page = await browser.open(link.attributes["href"])
            assert "are recorded until" in page.main.text
            handle = await cancelled(browser, "pay", tags=["eu"])
            page = await browser.open("/events")
            row = page.rows()[-1]
            assert row[1:3] == ["job.cancelled", f"{handle} of pay"]
            assert "tags eu" in row[3]
            assert "by " in row[3]

    run(test())


def test_the_filter_is_that_of_the_api_and_stays_in_the_form() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.open("/events?record=true")
            pay, mail = await cancelled(browser, "pay", tags=["eu"]), await cancelled(browser, "mail")
            await browser.call("POST", "schedules", {"name": "nightly", "function": "mail", "every": 3600})
            await browser.call("POST", "schedules/nightly/pause", {})
            for query, objects in (
                ("type=job.*", [f"{mail} of mail", f"{pay} of pay"]),
                ("type=job.failed+job.cancelled", [f"{mail} of mail", f"{pay} of pay"]),
                ("type=job.*&function=p*", [f"{pay} of pay"]),
                ("tag=eu", [f"{pay} of pay"]),
                (f"job={mail}&type=job.*", [f"{mail} of mail"]),
                ("type=schedule.*&subject=nightly", ["nightly"]),
                ("tag=none", []),
            ):
                page = await browser.open(f"/events?{query}")
                found = [row[2] for row in page.rows()] if page.main.all("tbody") else []
                assert found == objects, query
            form = page.main.one("form", class_="filter")
            assert form.one("input", name="tag").attributes["value"] == "none"
            refused = await browser.open("/events?type=no.such")
            assert (refused.status, "names no type of event" in refused.main.text) == (422, True)

    run(test())


def test_pages_follow_by_cursor_and_the_last_one_says_what_was_deleted() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            await browser.open("/events?record=true")
            for _ in range(70):
                await cancelled(browser, "pay")
            first = await browser.open("/events?type=job.*")
            assert (len(first.rows()), "were deleted" in first.main.text) == (50, False)
            older = next(one for one in first.main.all("a") if one.attributes.get("rel") == "next")
            second = await browser.open(older.attributes["href"])
            assert (len(second.rows()), "were deleted" in second.main.text) == (20, False)
            assert second.main.attributes["data-stream"] == "", "an older page does not change"
            await swept(built, 10)
            last = await browser.open("/events")
            assert len(last.rows()) == 10
            assert "events up to number" in last.main.text

    run(test())


def test_each_event_leads_to_its_object_in_its_own_namespace() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.open("/events?everywhere=true&record=true")
            handle = await cancelled(browser, "a/b <c>")
            hook = {"name": "crm", "url": "http://127.0.0.1:1025/", "types": "job.failed"}
            await browser.send("/webhooks?namespace=team", hook)
            await browser.raw("POST", f"{N}/team/webhooks/crm/pause", b"{}", {"content-type": "application/json"})
            await browser.call("POST", "functions/pay/pause", {"reason": "<b>why</b>"})
            page = await browser.open("/events?everywhere=true")
            links = {one.attributes["href"] for one in page.main.one("tbody").all("a")}
            assert f"/jobs/{handle.replace(':', '%3A')}" in links
            assert "/webhooks/crm?namespace=team" in links
            assert "/functions/pay" in links
            assert "/functions/a%2Fb%20%3Cc%3E" in links
            for link in links:
                if not link.startswith("/events"):
                    assert (await browser.open(link)).status in {200, 404}, link
            assert "<b>why</b>" in page.main.text

    run(test())


def test_nobody_sees_the_events_of_others() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            browser.admit("pay", Caller("pay", (Grant(Role.VIEWER, functions=("pay*",)),)))
            browser.admit("team", Caller("team", (Grant(Role.ADMIN, "team"),)))
            await browser.open("/events?record=true&everywhere=true")
            await cancelled(browser, "pay")
            await cancelled(browser, "mail")
            everything = {row[2].rpartition(" ")[2] for row in (await browser.open("/events?type=job.*")).rows()}
            assert everything == {"pay", "mail"}
            seen = await browser.open("/events", token="pay")
            assert {row[2].rpartition(" ")[2] for row in seen.rows()} == {"pay"}
            assert not seen.main.all("input", name="everywhere")
            assert (await browser.open("/events?everywhere=true", token="pay")).status == 403
            assert (await browser.open("/events", token="team")).status == 403
            assert "No event is recorded" in (await browser.open("/events?namespace=team", token="team")).main.text

    run(test())


def test_objects_lead_to_their_events() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.open("/events?record=true")
            handle = await cancelled(browser, "pay")
            await browser.call("POST", "schedules", {"name": "nightly", "function": "mail", "every": 3600})
            await browser.call("POST", "schedules/nightly/pause", {})
            await browser.call("POST", "functions/mail/pause", {})
            for path, kind in (
                (f"/jobs/{handle}", "job.cancelled"),
                ("/schedules/nightly", "schedule.paused"),
                ("/functions/mail", "function.paused"),
            ):
                page = await browser.open(path)
                link = next(
                    one.attributes["href"]
                    for one in page.main.all("a")
                    if one.attributes["href"].startswith("/events?")
                )
                assert kind in [row[1] for row in (await browser.open(link)).rows()], path

    run(test())


def test_cursors_are_shown_and_removed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("PUT", "events/cursors/alerts", {"type": ["job.failed"], "function": "pay*"})
            page = await browser.open("/events")
            assert page.rows()[0][:2] == ["alerts", "job.failed of pay*"]
            assert not (await browser.open("/events", token="viewer")).main.all("details", class_="action")
            page = await browser.act(page, "events_remove_cursor")
            assert "The cursor is removed" in page.main.text
            assert "alerts" not in page.main.text

    run(test())
