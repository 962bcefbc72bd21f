"""Pages under the path of a proxy that passes it on, or removes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.api.a_node import run

from mainspring.faces.dashboard.pages import PAGES

from .a_browser import browsing

if TYPE_CHECKING:
    from .a_browser import Browser, Element

PREFIX = "/team/queue"
NEW = "/operations/new"
FIXED = sorted(page.path for page in PAGES if "{" not in page.path)
ADDRESSES = {"a": "href", "link": "href", "script": "src", "img": "src", "form": "action"}
LOADED = ("hx-get", "hx-post", "data-stream")
"""Attributes of any element with the address of something that a script loads."""
NEXT = "next"
"""The hidden field with the path of a page."""


def addresses(element: Element) -> list[str]:
    """Return all addresses in an element."""
    found = []
    for child in element.children:
        if isinstance(child, str):
            continue
        names = [ADDRESSES[child.tag]] if child.tag in ADDRESSES else []
        found += [child.attributes[name] for name in names if name in child.attributes]
        found += [child.attributes[name] for name in LOADED if child.attributes.get(name)]  # empty: nothing is loaded
        if child.tag == "input" and child.attributes.get("name") == NEXT:
            found.append(child.attributes["value"])
        found += addresses(child)
    return found


async def filled(browser: Browser) -> list[tuple[str, str]]:
    """Make something of each kind, and return the paths and the queries of all pages."""
    handle = await browser.submit("mail")
    await browser.submit("scan")
    await browser.call("POST", "schedules", {"name": "nightly", "function": "mail", "cron": "0 3 * * *"})
    operation = (await browser.call("POST", "operations", {"action": "cancel", "filter": {"function": "scan"}}))["id"]
    await browser.done(operation)
    shown = [f"/jobs/{handle}", "/functions/mail", "/schedules/nightly", f"/operations/{operation}", "/nothing"]
    plain = [(path, "") for path in (*FIXED, *shown) if path != NEW]
    return [*plain, (NEW, "?action=cancel&function=mail"), ("/jobs", "?state=pending&function=mail")]


@pytest.mark.parametrize("end", ["", "/"])
def test_every_address_on_every_page_has_the_prefix_whether_the_proxy_removes_it_or_not(end: str) -> None:
    async def test() -> None:
        async with browsing(prefix=PREFIX) as (browser, _):
            for path, query in await filled(browser):
                asked = path.rstrip("/") + end
                passed = await browser.open(asked + query)
                removed = await browser.behind_a_removing_proxy.open((asked or "/") + query)
                expected = 404 if path == "/nothing" else 200
                assert (path, passed.status, removed.status) == (path, expected, expected)
                found = addresses(passed.root)
                assert (path, found) == (path, addresses(removed.root))
                assert (path, [one for one in found if not one.startswith((f"{PREFIX}/", "#"))]) == (path, [])
                assert len(found) > len(FIXED)

    run(test())


def test_files_of_pages_are_found_whether_the_proxy_removes_the_prefix_or_not() -> None:
    async def test() -> None:
        async with browsing(prefix=PREFIX) as (browser, _):
            page = await browser.open("/nodes")
            files = [one.attributes["src"] for one in page.root.all("script")]
            files += [one.attributes["href"] for one in page.root.all("link")]
            for path in (file.removeprefix(PREFIX) for file in files):
                for proxied in (browser, browser.behind_a_removing_proxy):
                    answer = (await proxied.open(path, token=None)).answer
                    assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)

    run(test())


def test_forms_and_the_sign_in_lead_back_under_the_prefix() -> None:
    async def test() -> None:
        async with browsing(prefix=PREFIX) as (browser, _):
            fields = {"label": "web 4.2", "next": f"{PREFIX}/audit?what=marks.add"}
            for begin, proxied in ((PREFIX, browser), ("", browser.behind_a_removing_proxy)):
                answer = await proxied.send(f"{begin}/actions/marks_add", fields)
                assert (answer.status, answer.headers["location"]) == (303, f"{PREFIX}/audit?what=marks.add")
                assert f"; Path={PREFIX};" in answer.headers["set-cookie"]
                stranger = await proxied.open("/jobs?state=failed", token=None)
                location = stranger.answer.headers["location"]
                assert (stranger.status, location) == (303, f"{PREFIX}/login?next=%2Fjobs%3Fstate%3Dfailed")
                sign_in = await proxied.open(location.removeprefix(PREFIX), token=None)
                assert sign_in.main.one("form").attributes["action"] == f"{PREFIX}/login"
                answer = await proxied.send(
                    f"{begin}/login", {"token": "admin", "next": "/jobs?state=failed"}, token=None
                )
                assert (answer.status, answer.headers["location"]) == (303, f"{PREFIX}/jobs?state=failed")
                signed_in = await proxied.open("/jobs?state=failed", token=None)
                assert signed_in.status == 200

    run(test())


@pytest.mark.parametrize("prefix", ["/api", "/jobs", "/assets"])
def test_a_prefix_may_be_a_path_of_the_node_if_the_proxy_passes_it_on(prefix: str) -> None:
    async def test() -> None:
        async with browsing(prefix=prefix) as (browser, _):
            handle = await browser.submit("mail")
            assert (await browser.open("/jobs")).rows()[0][2] == handle
            answer = (await browser.open(f"/api/v1/namespaces/default/jobs/{handle}")).answer
            assert answer.json["handle"] == handle
            style = (await browser.open("/jobs")).root.all("link", rel="stylesheet")[0].attributes["href"]
            assert (await browser.open(style.removeprefix(prefix), token=None)).status == 200

    run(test())


def test_two_installations_under_two_paths_of_one_host_keep_their_sessions_and_settings_apart() -> None:
    async def test() -> None:
        cookies: list[tuple[str, str]] = []
        for prefix in ("/team", "/team/queue", ""):
            async with browsing(prefix=prefix) as (browser, _):
                answer = await browser.send(f"{prefix}/login", {"token": "admin"}, token=None)
                assert answer.status == 303
                name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
                cookies.append((name, value))
                answer = await browser.send(f"{prefix}/settings/view", {"theme": "dark", "next": f"{prefix}/"})
                assert f"; Path={prefix or '/'};" in answer.headers["set-cookie"]
        assert len({name for name, _ in cookies}) == 3
        async with browsing(prefix="/team") as (browser, _):
            browser.cookies = dict(cookies[1:])
            assert (await browser.open("/jobs", token=None)).status == 303, "those of others are no session here"
            browser.cookies = dict(cookies)
            assert (await browser.open("/jobs", token=None)).status == 200

    run(test())


def test_of_two_cookies_the_one_of_the_longest_path_counts() -> None:
    async def test() -> None:
        async with browsing(prefix="/team") as (browser, _):
            browser.cookies = {"mainspring-view": "theme=dark; mainspring-view=theme=light"}
            assert (await browser.open("/jobs")).root.one("html").attributes["data-theme"] == "dark"

    run(test())
