"""Pages and buttons for what the store does not keep: nobody is led to them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.faces.dashboard.actions import EXAMPLES
from mainspring.faces.dashboard.pages import ACTIONS, PAGES
from mainspring.features import Feature

from .a_browser import browsing

if TYPE_CHECKING:
    from .a_browser import Browser, Shown

NEEDS: Final = (
    Feature.ACCESS,
    Feature.LIMITS,
    Feature.JOB_CHANGES,
    Feature.WORKFLOWS,
    Feature.OPERATIONS,
    Feature.EVENTS,
)
"""The features that pages and buttons need."""
REFUSED: Final = "is on the other pages"


def without(need: Feature, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store in memory lack something."""
    monkeypatch.setattr(MemoryEngine, "lacks", frozenset({need}))


def buttons(page: Shown) -> set[str]:
    return {
        one.attributes["data-action"]
        for one in page.main.all("details", class_="action")
        if "data-action" in one.attributes
    }


async def fill(browser: Browser) -> dict[str, str]:
    """Make an object of each kind that pages have actions for, and return the parameters of their calls."""
    handle = await browser.submit("f")
    await browser.call("POST", "schedules", {"name": "s", "function": "f", "cron": "0 0 1 1 *"})
    return {"handle": handle, "function": "f", "name": "s"}


@pytest.mark.parametrize("need", NEEDS)
def test_the_menu_and_the_buttons_are_those_of_what_the_store_keeps(
    need: Feature, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        without(need, monkeypatch)
        async with browsing() as (browser, _):
            names = await fill(browser)
            assert (await browser.raw("GET", "/api/v1/whoami", b"", {})).json["lacks"] == [need]
            menu = {
                one.attributes["href"]
                for one in (await browser.open("/nodes")).root.one("nav", **{"aria-label": "Pages"}).all("a")
            }
            assert menu == {page.path for page in PAGES if page.menu and page.needs != need}
            for path in menu:
                assert (await browser.open(path)).status == 200, path
            for one in PAGES:
                if one.needs == need:
                    page = await browser.open(one.path)
                    assert (page.status, REFUSED in page.main.text) == (404, True), one.path
            shown: set[str] = set()
            for path in ("/", f"/jobs/{names['handle']}", "/functions/f", "/schedules/s"):
                page = await browser.open(path)
                assert page.status == 200, path
                shown |= buttons(page)
                assert need != "access" or not [
                    one for one in page.main.all("a") if one.attributes["href"].startswith("/audit")
                ]
            for action in ACTIONS:
                wanted = [name for name in re.findall(r"\{(\w+)\}", action.path) if name != "namespace"]
                form = {f"path.{name}": names.get(name, "x") for name in wanted} | {"version": "0"}
                form |= {one.name: EXAMPLES.get(one.kind, "x") for one in action.fields if one.required}
                answer = await browser.send(f"/actions/{action.key}", form)
                is_refused = answer.status == 422 and REFUSED in answer.body.decode()
                assert is_refused == (action.needs == need), action.key
                assert action.needs != need or action.key not in shown, action.key
            assert shown, "some buttons are left"

    asyncio.run(test())


def test_no_jobs_are_selected_where_the_store_keeps_no_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        for has_forms in (True, False):
            async with browsing() as (browser, _):
                await browser.submit("f")
                page = await browser.open("/jobs?function=f")
                assert bool(page.main.all("input", type="checkbox")) == has_forms
                assert bool(page.main.all("form", action="/operations/new")) == has_forms
            without(Feature.OPERATIONS, monkeypatch)

    asyncio.run(test())
