"""Strangers, other sites and crafted forms, and their limits."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.faces.dashboard.calls import RESERVED, segment
from mainspring.faces.dashboard.pages import ACTIONS, PAGES
from mainspring.faces.rest.routes import ROUTES

from .a_browser import browsing

FORMS = [
    *(f"/actions/{action.key}" for action in ACTIONS),
    *(page.path for page in PAGES if page.post is not None),
    *("/settings/view", "/login", "/logout", "/nothing"),
]


def test_no_form_of_another_site_is_accepted() -> None:
    """Also of those that only show something, or keep a wish: a browser sends its credentials with all of them."""

    async def test() -> None:
        async with browsing() as (browser, _):
            for path in FORMS:
                for site in ("cross-site", "same-site", "none, cross-site"):
                    answer = await browser.send(path.replace("{name}", "s"), {"theme": "dark"}, site=site)
                    assert (answer.status, "set-cookie" in answer.headers) == (403, False), path

    asyncio.run(test())


def test_a_form_without_the_headers_of_browsers_needs_a_token_and_not_a_cookie() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for headers, status in (
                ([("cookie", "mainspring=session-admin")], 403),
                ([("cookie", "mainspring=session-admin"), ("origin", "http://evil.example")], 403),
                ([("cookie", "mainspring=session-admin"), ("origin", "null")], 403),
                ([("cookie", "mainspring=session-admin"), ("origin", "http://127.0.0.1:8080")], 303),
                ([("authorization", "Bearer admin")], 303),
            ):
                answer = await browser.send_raw("/settings/view", b"theme=dark", headers)
                assert answer.status == status, headers

    asyncio.run(test())


@pytest.mark.parametrize("prefix", ["", "/queue"])
def test_no_form_leads_to_another_site(prefix: str) -> None:
    async def test() -> None:
        async with browsing(prefix=prefix) as (browser, _):
            for given in (
                *("//evil.example/", "///evil.example/", "/\\evil.example/", "/\t/evil.example", "/\n/evil.example"),
                *(
                    "https://evil.example/",
                    "javascript:alert(1)",
                    "\\\\evil.example",
                    "/\u2044evil.example",
                    "%2F%2Fevil",
                ),
                *(
                    "/a\r\nset-cookie: x=y",
                    "/" + "x" * 5000,
                    " //evil.example",
                    "/\x00/evil.example",
                    "http:evil.example",
                ),
            ):
                for path, token in (("settings/view", "admin"), ("actions/marks_add", "admin"), ("login", None)):
                    fields = {"label": "x", "token": "admin", "next": given if path == "login" else prefix + given}
                    answer = await browser.send(f"{prefix}/{path}", fields, token=token)
                    assert answer.status == 303
                    location = re.sub(r"[\t\r\n]", "", answer.headers["location"]).replace("\\", "/")  # as browsers do
                    assert urlsplit(urljoin("http://here/", location)).netloc == "here", (path, given)
                    assert token is None or len(location) < 5000  # browsers refuse very long headers
                    assert "?" not in location  # no letter was replaced

    asyncio.run(test())


def test_cookies_are_for_pages_of_this_node_alone() -> None:
    async def test() -> None:
        async with browsing(prefix="/queue") as (browser, _):
            for path, fields in (
                ("/queue/settings/view", {"theme": "dark"}),
                ("/queue/actions/marks_add", {"label": "x"}),
            ):
                for proto, secure in (("http", False), ("https", True)):
                    answer = await browser.send(path, fields, more=[("x-forwarded-proto", proto)])
                    flags = answer.headers["set-cookie"].split("; ")
                    assert {"Path=/queue", "HttpOnly", "SameSite=Lax"} <= set(flags)
                    assert ("Secure" in flags) == secure

    asyncio.run(test())


def test_a_planted_cookie_puts_no_words_on_a_page() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for notice in ("Call 0123", "marks_add%20", "%3Cb%3E"):
                browser.cookies = {"mainspring-notice": notice, "mainspring-view": "theme=x&zone=../../etc/passwd"}
                page = await browser.open("/nodes")
                assert page.main.all("p", role="status") == []
                assert page.root.one("html").attributes["data-zone"] == ""

    asyncio.run(test())


def test_an_action_is_done_in_the_namespace_of_its_page() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for namespace in ("default", "team"):
                await browser.send(f"/actions/functions_pause?namespace={namespace}", {"path.function": "f"})
            page = await browser.open("/functions/f?namespace=team")
            after = await browser.act(page, "functions_resume")
            assert after.main.all("details", **{"data-action": "functions_pause"})
            still = await browser.open("/functions/f")
            assert still.main.all("details", **{"data-action": "functions_resume"})
            # A field of the form is no namespace: that of the address holds for the call and for the page that follows.
            fields = {"path.function": "f", "path.namespace": "team", "next": "/"}
            await browser.send("/actions/functions_pause", fields)
            assert page.status == 200
            team = await browser.open("/functions/f?namespace=team")
            assert team.main.all("details", **{"data-action": "functions_pause"})

    asyncio.run(test())


def test_names_with_paths_in_them_reach_no_other_call() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for name in ("../../tokens", "..", "%2e%2e", "x/../../tokens", "a\0b", "a\nb", "a?b#c", "..\\..\\tokens"):
                for path in ("jobs", "functions", "schedules", "workflows", "workers", "operations"):
                    page = await browser.open(f"/{path}/{quote(name, safe='')}")
                    assert page.status in {200, 404, 422}, (path, name)
                    assert "Tokens" not in page.title
                answer = await browser.send("/actions/jobs_delete", {"path.handle": name})
                assert answer.status in {404, 422}, name
                answer = await browser.send("/actions/marks_add?namespace=" + quote(name), {"label": "x"})
                assert answer.status in {404, 422}, name

    asyncio.run(test())


def test_no_name_is_taken_for_another_part_of_a_path() -> None:
    """A schedule may be called ``preview``: its calls are not those of the path of that name."""
    paths = {route.path for route in ROUTES} | {page.path for page in PAGES}
    taken = set()
    for path in paths:
        beginning, _, last = path.rpartition("/")
        beside = [one for one in paths if re.fullmatch(re.escape(beginning) + r"/\{[a-z]+\}(/.*)?", one)]
        if beside and "{" not in last:
            taken.add(last)
    assert taken == set(RESERVED)
    assert all(segment(name) != name for name in taken)


def test_a_schedule_may_have_the_name_of_a_call() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for name in ("preview", "new"):
                await browser.call("POST", "schedules", {"name": name, "function": "f", "cron": "* * * * *"})
                links = (await browser.open("/schedules")).main.all("a")
                path = next(one.attributes["href"] for one in links if one.text == name)
                page = await browser.open(path)
                assert (page.status, page.title) == (200, f"{name} · Mainspring")
                page = await browser.act(page, "schedules_remove")
                assert "was removed" in page.main.text

    asyncio.run(test())


CRAFTED: list[tuple[str, dict[str, str]]] = [
    *((f"/actions/{action.key}", {}) for action in ACTIONS if "{" in action.path.replace("{namespace}", "")),
    ("/actions/jobs_retry", {"path.handle": "H:n:1", "args": "[" * 100_000}),
    ("/actions/jobs_retry", {"path.handle": "H:n:1", "delay": "9" * 30}),
    ("/actions/jobs_retry", {"path.handle": "H:n:1", "delay": "nan"}),
    ("/actions/jobs_retry", {"path.handle": "H:n:1", "delay": "1e999"}),
    ("/operations/new", {"subject": "[" * 100_000, "action": "retry"}),
    ("/operations/new", {"subject": "[]", "action": "retry"}),
    ("/operations/new", {"subject": '{"handles":["H:n:1"]}', "action": "explode", "matched": "²"}),
    ("/schedules/new", {"name": "s", "cron": "* * * * *", "args": "[" * 100_000}),
    ("/settings/tokens", {f"field{number}": "x" for number in range(10_000)}),
    ("/settings/view", {"theme": "x" * (3 << 20)}),
]


def test_forms_that_no_page_shows_are_refused_in_words() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for path, fields in CRAFTED:
                answer = await browser.send(path, fields)
                assert answer.status == 422, (path, list(fields.items())[-1:])
                assert b'class="problem" role="alert"' in answer.body or b'class="fault"' in answer.body

    asyncio.run(test())


def test_days_without_neighbours_are_refused() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for day in ("0001-01-01", "9999-12-31", "soon", "2030-02-30"):
                assert (await browser.open(f"/schedules?day={day}")).status == 422

    asyncio.run(test())


def test_every_answer_has_a_policy_and_is_kept_by_nobody() -> None:
    """Also refusals, files that are missing, and the sign-in: an answer without a policy would be a place to begin."""

    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", args=["<script>"])
            await browser.call("POST", f"jobs/{handle}/cancel", {})
            style = (await browser.open("/nodes")).root.all("link")[0].attributes["href"]
            answers = {
                path: (await browser.open(path)).answer
                for path in (
                    *("/", "/nothing", "/jobs/%ff", "/jobs/H:n:1", "/jobs?find=x", "/login", "/logout", "/assets/x/y"),
                    *("/schedules?day=x", "/operations/new", "/api/v1/x", "/api/v1/whoami", "//evil.example", style),
                    f"/api/v1/namespaces/default/jobs/{handle}/payload",
                )
            }
            answers["no session"] = (await browser.open("/jobs", token=None)).answer
            answers["another host"] = (await browser.open("/jobs", host="evil.example")).answer
            for path, token in (("/settings/view", "admin"), ("/actions/marks_add", "admin"), ("/login", None)):
                answers[f"form {path}"] = await browser.send(path, {"token": "admin", "label": "x"}, token=token)
                answers[f"wrong {path}"] = await browser.send(path, {"token": "wrong"}, token=token)
                answers[f"foreign {path}"] = await browser.send(path, {}, token=token, site="cross-site")
            for name, answer in answers.items():
                policy = answer.headers["content-security-policy"].split("; ")
                assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy), name
                assert "unsafe" not in answer.headers["content-security-policy"], name
                assert answer.headers["x-content-type-options"] == "nosniff", name
                assert name == style or answer.headers["cache-control"] == "no-store", name
                assert all(value.isprintable() for value in answer.headers.values()), name
            download = answers[f"/api/v1/namespaces/default/jobs/{handle}/payload"]
            assert "sandbox" in download.headers["content-security-policy"]
            assert download.headers["content-disposition"].startswith("attachment")
            assert download.headers["content-type"] == "application/octet-stream"

    asyncio.run(test())


def test_the_name_of_a_user_stays_text() -> None:
    """A proxy sends it in a header: it may have any letters."""

    async def test() -> None:
        name = "</summary><script>alert(1)</script>\"' onclick=x {{ 7*7 }}"
        async with browsing() as (browser, _):
            browser.admit("proxied", Caller(name, (Grant(Role.ADMIN, "*"),)))
            await browser.send("/actions/marks_add", {"label": "x"}, token="proxied")
            for path in ("/", "/audit", "/nodes"):
                page = await browser.open(path, token="proxied")
                assert page.status == 200
                assert len(page.root.all("script")) == 2, path
                assert name in page.root.text, path

    asyncio.run(test())


def test_no_link_changes_anything() -> None:
    """Browsers and other programs follow links ahead of their users."""

    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", args=[1])
            await browser.submit("g", delay=1000)
            await browser.call("POST", f"jobs/{handle}/cancel", {})
            await browser.call("POST", "schedules", {"name": "s", "function": "f", "cron": "0 0 1 1 *"})
            await browser.call("POST", "functions/g/pause", {})
            await browser.call("POST", "marks", {"label": "x"})

            async def content() -> list[Any]:
                kinds = ("jobs", "schedules", "functions", "operations", "audit", "marks")
                found = [await browser.call("GET", kind) for kind in kinds]
                for function in found[2]["items"]:
                    del function["registered"]  # a node tells only some seconds after its start
                return found

            before = await content()
            opened, ahead = {""}, {"/"}
            while ahead:
                path = ahead.pop()
                opened.add(path)
                page = await browser.open(path)
                assert page.status < 400, path
                links = {one.attributes.get("href", "").partition("#")[0] for one in page.root.all("a")}
                ahead |= {
                    link for link in links if link.startswith("/") and "day=" not in link
                } - opened  # days go on for ever
            assert {f"/jobs/{quote(handle, safe='')}", "/schedules/s", "/functions/g", "/schedules/new"} <= opened
            assert await content() == before

    asyncio.run(test())
