"""The pages of listeners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.unit.api.a_node import Side, run

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.listeners import DeclaredListener, DeclareListeners
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.model import failure

from .a_browser import browsing

if TYPE_CHECKING:
    from mainspring.server.build import Built

    from .a_browser import Shown


async def declare(built: Built, *names: str, namespace: str = "default", **more: Any) -> None:
    """Let an App declare listeners of failed jobs."""
    listeners = [DeclaredListener(name=name, **{"types": ["job.cancelled"], **more}) for name in names]
    request = DeclareListeners(app="shop", listeners=listeners, functions=list(names), namespace=namespace)
    await built.api.call(request)


def buttons(page: Shown) -> set[str]:
    return {one.attributes["data-action"] for one in page.main.all("details", class_="action")}


def test_the_list_has_what_the_command_shows() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            page = await browser.open("/listeners")
            assert "There is none in this namespace" in page.main.text
            await declare(built, "alert", functions=("pay*",), tags=("eu",))
            await declare(built, "alert", "<b>other</b>", everywhere=True)
            page = await browser.open("/listeners")
            assert page.rows() == [
                ["<b>other</b>", "\N{HEAVY CHECK MARK} active", "job.cancelled in all namespaces", "shop", "0", "0"],
                ["alert", "\N{HEAVY CHECK MARK} active", "job.cancelled in all namespaces", "shop", "0", "0"],
            ]
            assert "There is none" in (await browser.open("/listeners?namespace=team")).main.text
            for link in page.main.one("tbody").all("a"):
                assert (await browser.open(link.attributes["href"])).status == 200

    run(test())


def test_a_listener_is_paused_resumed_and_removed() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            await declare(built, "alert", functions=("pay*",), tags=("eu",))
            page = await browser.open("/listeners/alert")
            for text in ("Types of events job.cancelled", "About functions pay*", "With tags eu", "App shop"):
                assert text in page.main.text
            page = await browser.act(page, "listeners_pause", {"reason": "the chat is down"})
            assert "the chat is down" in page.main.text
            handle = await browser.submit("pay", tags=["eu"])
            await browser.call("POST", f"jobs/{handle}/cancel", {"reason": "test"})
            page = await browser.open("/listeners/alert")
            assert "Events that wait 1" in page.main.text
            assert (await browser.open("/listeners")).rows()[0][1].endswith("paused the chat is down")
            page = await browser.act(page, "listeners_resume")
            assert "The listener goes on" in page.main.text
            page = await browser.act(page, "listeners_remove")
            assert "The listener is removed" in page.main.text
            assert (await browser.open("/listeners/alert")).status == 404

    run(test())


def test_a_delivery_that_was_given_up_is_shown_there_and_on_the_overview() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            await declare(built, "alert")
            service, side = built.node.service, Side()
            worker = Worker(side)
            service.workers.register(worker, b"alert", Ability())
            handle = await browser.submit("pay")
            await browser.call("POST", f"jobs/{handle}/cancel", {"reason": "test"})
            service.workers.ready(worker, 1)
            while not side.given:  # noqa: ASYNC110 - a worker has no event for it
                await asyncio.sleep(0)
            service.settling.failed(side.given[0], failure("ValueError", "the chat is down"), final=True)
            while (await browser.call("GET", "listeners/alert"))["failures"] == 0:  # noqa: ASYNC110 - it is stored soon
                await asyncio.sleep(0)
            page = await browser.open("/listeners/alert")
            assert "Given up in a row 1" in page.main.text
            assert "Last failure" in page.main.text
            assert "the chat is down" in page.main.one("dl").text
            assert page.rows()[0][1].endswith("failed")
            (row,) = (await browser.open("/listeners")).rows()
            assert row[-1] == "1"
            assert built.node.deliverer is not None
            built.node.deliverer.changed()  # as it does every ten seconds
            while "failed for good" not in (page := await browser.open("/")).main.text:  # noqa: ASYNC110 - it is read soon
                await asyncio.sleep(0)
            assert "1 delivery to the listener alert failed for good. Show it" in page.main.text
            link = next(one for one in page.main.all("a") if one.text == "Show it")
            assert link.attributes["href"] == "/listeners/alert"

    run(test())


def test_buttons_are_for_those_who_may_press_them() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            browser.admit("alerts", Caller("alerts", (Grant(Role.OPERATOR, functions=("alert*",)),)))
            browser.admit("pay", Caller("pay", (Grant(Role.ADMIN, functions=("pay*",)),)))
            await declare(built, "alert")
            assert buttons(await browser.open("/listeners/alert")) == {"listeners_pause", "listeners_remove"}
            assert buttons(await browser.open("/listeners/alert", token="alerts")) == {"listeners_pause"}
            assert buttons(await browser.open("/listeners/alert", token="viewer")) == set()
            assert (await browser.open("/listeners/alert", token="pay")).status in {403, 404}
            assert "alert" not in [row[0] for row in await _rows(await browser.open("/listeners", token="pay"))]

    run(test())


async def _rows(page: Shown) -> list[list[str]]:
    return page.rows() if page.main.all("tbody") else []
