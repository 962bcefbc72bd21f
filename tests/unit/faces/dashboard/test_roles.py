"""Each button is shown to exactly those callers whose call the API accepts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from mainspring.access.caller import Caller
from mainspring.access.roles import Grant, Role
from mainspring.faces.dashboard.actions import EXAMPLES
from mainspring.faces.dashboard.pages import ACTIONS

from .a_browser import browsing

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
ELSEWHERE = ("workers", "nodes", "operations", "workflows", "tokens")
"""Kinds of objects that a node in memory without workers does not have, and tokens, which have a test below."""


async def page_of(browser: Browser, key: str, function: str, number: int) -> tuple[str, dict[str, str]]:
    """Make an object on which an action makes sense; return the path of its page and the parameters of the call."""
    kind, _, verb = key.partition("_")
    name = f"{function}{number}"
    if kind == "jobs":
        handle = await browser.submit(name)
        if verb in {"retry", "delete"}:
            await browser.call("POST", f"jobs/{handle}/cancel", {})
        return f"/jobs/{handle}", {"handle": handle}
    if kind == "functions":
        await browser.call("POST", f"functions/{name}/pause", {})
        if verb == "pause":
            await browser.call("POST", f"functions/{name}/resume", {})
        if verb == "limits_delete":
            await browser.call("PUT", f"functions/{name}/limits", {"concurrency": 1}, headers=[("if-match", "*")])
        return f"/functions/{name}", {"function": name}
    if kind == "schedules":
        await browser.call("POST", "schedules", {"name": name, "function": name, "cron": "0 0 1 1 *"})
        if verb == "resume":
            await browser.call("POST", f"schedules/{name}/pause", {})
        return f"/schedules/{name}", {"name": name}
    return "/audit", {}


async def is_shown(browser: Browser, path: str, key: str, caller: str) -> bool:
    page = await browser.open(path, token=caller)
    return page.status < 400 and bool(page.main.all("details", **{"data-action": key}))


async def is_accepted(browser: Browser, key: str, parameters: dict[str, str], caller: str) -> bool:
    """Return whether the API does not refuse the caller; it may refuse the state."""
    action = BY_KEY[key]
    fields = {one.name: EXAMPLES.get(one.kind, "x") for one in action.fields if one.required}
    fields |= {f"path.{name}": value for name, value in parameters.items()}
    answer = await browser.send(f"/actions/{key}", {**fields, "version": "0"}, token=caller)
    return answer.status not in {FORBIDDEN, HIDDEN}


def admit(browser: Browser) -> None:
    for name, grants in CALLERS.items():
        browser.admit(name.replace(" ", "-"), Caller(name, grants))


@pytest.mark.parametrize("function", [PAY, MAIL])
def test_each_action_is_shown_to_the_callers_whose_call_is_accepted(function: str) -> None:
    async def test() -> None:
        shown = accepted = 0
        async with browsing() as (browser, _):
            admit(browser)
            number = 0
            for key in sorted(key for key in BY_KEY if not key.startswith(ELSEWHERE)):
                for name in CALLERS:
                    caller, number = name.replace(" ", "-"), number + 1
                    path, parameters = await page_of(browser, key, function, number)
                    is_there = await is_shown(browser, path, key, caller)
                    if path == "/audit":  # the page is for administrators; the overview has the button, too
                        is_there = await is_shown(browser, "/", key, caller)
                    may = await is_accepted(browser, key, parameters, caller)
                    assert is_there == may, (key, name, is_there, may)
                    shown, accepted = shown + is_there, accepted + may
        assert shown > 50

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
