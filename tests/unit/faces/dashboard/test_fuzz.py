"""Addresses and forms at random: valid, nearly valid, and nonsense. Each gets an answer in words, and none is a defect."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.faces.dashboard.app import SETTINGS
from mainspring.faces.dashboard.pages import ACTIONS, PAGES
from mainspring.faces.dashboard.pages.access import FIELDS as OF_TOKENS
from mainspring.faces.dashboard.pages.jobs import FILTERS
from mainspring.faces.dashboard.schedule_form import FIELDS, NAME

from .a_browser import browsing

if TYPE_CHECKING:
    from mainspring.faces.dashboard.actions import Field

    from .a_browser import Browser

DEEP = "[" * 100_000
ODD = (
    *("", "0", "-1", "1e999", "nan", "9" * 25, "9" * 5000, "²", "1/0s", "99999999999999d", "0001-01-01", "9999-12-31"),
    *(
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "..",
        ".",
        "../../tokens",
        "%2e%2e",
        "a/b",
        "new",
        "batch",
    ),
    *(
        "\0",
        "\n",
        "a\r\nSet-Cookie: x=y",
        "é\u202e",
        "x" * 5000,
        "<b>",
        "{0}",
        "{handle}",
        "%",
        "%s",
        "[]",
        "{}",
        "null",
    ),
    *(
        '{"handles":[[]]}',
        '{"filter":1}',
        DEEP,
        "*",
        "preview",
        "retry",
        "H:n:1000000000001",
        "f",
        "s",
        "1",
        "2030-01-31",
    ),
)
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=12))
DECLARED: tuple[Field, ...] = (
    *FILTERS,
    *FIELDS,
    *OF_TOKENS,
    NAME,
    *(one for action in ACTIONS for one in action.fields),
)
NAMES = sorted(
    {one.name for one in DECLARED}
    | {f"path.{name}" for name in ("handle", "name", "function", "node", "worker", "token", "id", "key", "namespace")}
    | {"find", "state", "cursor", "day", "step", "status", "type", "id", "who", "what", "namespace", "next", "handle"}
    | {"action", "subject", "matched", "typed", "is_typed", "do", "version", "rotate", "theme", "zone", "keyboard"}
)
VALID: dict[str, dict[str, str]] = {
    "/schedules/new": {"name": "t", "cron": "* * * * *", "do": "preview"},
    "/operations/new": {"action": "retry", "subject": '{"filter":{"function":"f"}}', "matched": "1", "function": "f"},
    "/settings/tokens": {"name": "t", "role": "viewer"},
}
"""Fields with which the form of a page is accepted."""
OBJECTS = {"path.name": "s", "path.function": "f", "path.handle": "H:n:1000000000001", "path.id": "1", "path.key": "k"}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, str]]:
    """Draw a method, a path and fields."""
    actions = [f"/actions/{action.key}" for action in ACTIONS]
    page = draw(st.sampled_from([*(one.path for one in PAGES), *actions, SETTINGS, "/actions/nothing"]))
    path = re.sub(
        r"\{\w+\}", lambda _: draw(st.one_of(TEXTS.map(_segment), st.sampled_from(["%ff", "%zz", "s", "f"]))), page
    )
    fields = dict(VALID.get(page, {})) if draw(st.booleans()) else {}
    if page in actions and draw(st.integers(0, 4)):
        fields |= OBJECTS
    fields |= draw(st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=4))
    return draw(st.sampled_from(["GET", "POST", "POST"])), path, fields


def _segment(text: str) -> str:
    return quote(text[:100], safe="", errors="surrogatepass") or "x"


async def status_of(browser: Browser, method: str, path: str, fields: dict[str, str]) -> int:
    if method == "POST":
        return (await browser.send(path, fields)).status
    fields = {name: text[:1000] for name, text in fields.items()}
    return (await browser.open(f"{path}?{urlencode(fields, errors='surrogatepass')}")).status


@settings(max_examples=15)
@given(st.lists(requests(), min_size=20, max_size=30))
def test_no_address_and_no_form_is_answered_with_a_defect(many: list[tuple[str, str, dict[str, str]]]) -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", {"name": "s", "function": "f", "cron": "* * * * *"})
            await browser.submit("f")
            for method, path, fields in many:
                status = await asyncio.wait_for(status_of(browser, method, path, fields), 20)
                assert status < 500, (method, path, fields)

    asyncio.run(test())
