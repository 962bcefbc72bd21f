"""Each button is shown to exactly those callers whose call the API accepts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.faces.dashboard.actions import EXAMPLES
from mainspring.faces.dashboard.pages import ACTIONS

from .a_browser import browsing
from .a_matrix import matrix

if TYPE_CHECKING:
    from .a_browser import Browser

FORBIDDEN, HIDDEN = 403, 404
PAY, MAIL = "pay", "mail"
CALLERS: Final[dict[str, tuple[Grant, ...]]] = {
    **{role.name: (Grant(role),) for role in Role},
    **{f"{role.name} of payments": (Grant(role, functions=("pay*",)),) for role in Role},
    **{f"{role.name} elsewhere": (Grant(role, "team"),) for role in Role},
    **{f"{role.name} everywhere": (Grant(role, "*", payloads=True),) for role in Role},
    "viewer who operates payments": (Grant(Role.VIEWER), Grant(Role.OPERATOR, functions=("pay*",))),
}
BY_KEY = {action.key: action for action in ACTIONS}


async def is_shown(browser: Browser, path: str, key: str, caller: str) -> bool:
    page = await browser.open(path, token=caller)
    return page.status == 200 and bool(page.main.all("details", **{"data-action": key}))


async def is_accepted(browser: Browser, key: str, parameters: dict[str, str], caller: str) -> bool:
    """Return whether the API does not refuse the caller; it may refuse the state."""
    action = BY_KEY[key]
    fields = {one.name: EXAMPLES.get(one.kind, "x") for one in action.fields if one.required}
    fields |= {"function": PAY}  # lists offer what a caller may do with some function
    fields |= {f"path.{name}": value for name, value in parameters.items()}
    answer = await browser.send(f"/actions/{key}", fields | ({"version": "0"} if action.if_match else {}), token=caller)
    return answer.status not in {FORBIDDEN, HIDDEN}


def admit(browser: Browser) -> None:
    for name, grants in CALLERS.items():
        browser.admit(name.replace(" ", "-"), Caller(name, grants))


@pytest.mark.parametrize("function", [PAY, MAIL])
def test_each_action_is_shown_to_the_callers_whose_call_is_accepted(function: str) -> None:
    async def test() -> None:
        shown: set[str] = set()
        refused: set[str] = set()
        async with matrix(PAY, MAIL) as node:
            browser = node.browser
            admit(browser)
            for key in sorted(key for key in BY_KEY if not key.startswith("tokens")):  # these have a test below
                for name in CALLERS:
                    caller = name.replace(" ", "-")
                    path, parameters = await node.object_of(key, function)
                    is_there = await is_shown(browser, path, key, caller)
                    if path == "/audit":  # the page is for administrators; the overview has the button, too
                        is_there = await is_shown(browser, "/", key, caller)
                    before = await node.shown_by_the_api(path)
                    may = await is_accepted(browser, key, parameters, caller)
                    assert is_there == may, (key, name, is_there, may)
                    if may:
                        shown.add(key)
                    else:
                        refused.add(key)
                        assert await node.shown_by_the_api(path) == before, (key, name)
        assert shown == refused == {key for key in BY_KEY if not key.startswith("tokens")}

    asyncio.run(test())


def test_tokens_are_revoked_by_those_who_see_them() -> None:
    async def test() -> None:
        seen = set()
        async with browsing() as (browser, _):
            admit(browser)
            for name in CALLERS:
                caller = name.replace(" ", "-")
                await browser.send("/settings/tokens", {"name": "t", "role": "viewer"})
                token = (await browser.open("/settings/tokens")).main.all("input", name="rotate")[0].attributes["value"]
                page = await browser.open("/settings/tokens", token=caller)
                is_there = page.status < FORBIDDEN and bool(page.main.all("input", name="path.token", value=token))
                assert is_there == await is_accepted(browser, "tokens_revoke", {"token": token}, caller), name
                seen.add(is_there)
        assert seen == {True, False}

    asyncio.run(test())


def test_forms_for_many_jobs_and_for_schedules_are_shown_to_those_who_may_send_them() -> None:
    async def test() -> None:
        seen = set()
        async with browsing() as (browser, _):
            admit(browser)
            await browser.submit(PAY)
            schedule = {"name": "s", "function": PAY, "cron": "* * * * *", "do": "save"}
            for number, name in enumerate(CALLERS):
                caller = name.replace(" ", "-")
                page = await browser.open(f"/jobs?function={PAY}", token=caller)
                has_form = any(one.attributes.get("action") == "/operations/new" for one in page.root.all("form"))
                counted = await browser.open(f"/operations/new?action=cancel&function={PAY}", token=caller)
                assert has_form == (counted.status == 200), name
                page = await browser.open("/schedules", token=caller)
                has_link = any(one.attributes["href"] == "/schedules/new" for one in page.root.one("main").all("a"))
                saved = await browser.send("/schedules/new", schedule | {"name": f"s{number}"}, token=caller)
                assert has_link == (saved.status == 303), (name, saved.status)
                seen |= {has_form, has_link}
        assert seen == {True, False}

    asyncio.run(test())
