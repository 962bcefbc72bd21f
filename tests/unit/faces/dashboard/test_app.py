"""Pages, files and forms in front of the API."""

from __future__ import annotations

import hashlib

import pytest
from tests.unit.api.a_node import run

from mainspring.faces.dashboard.app import ASSET_NAMES, HTMX, HTMX_SHA256, STRICT, Assets
from mainspring.faces.dashboard.pages import ACTIONS
from mainspring.faces.dashboard.pages.fleet import DRAIN_NODE
from mainspring.faces.rest.registry import Inputs
from mainspring.faces.rest.routes import ROUTES

from .a_browser import browsing


def test_a_stranger_is_led_to_the_sign_in_and_back() -> None:
    async def test() -> None:
        async with browsing(prefix="/queue") as (browser, _):
            answer = await browser.open("/nodes?namespace=a%26b", token=None)
            assert answer.status == 303
            assert answer.answer.headers["location"] == "/queue/login?next=%2Fnodes%3Fnamespace%3Da%2526b"

    run(test())


def test_a_link_of_another_site_leads_to_its_page_although_browsers_leave_out_the_cookie_at_first() -> None:
    async def test() -> None:
        async with browsing(prefix="/queue") as (browser, _):
            path = "/jobs?function=a%26%22b"
            page = await browser.open(path, token=None, more=[("sec-fetch-site", "cross-site")])
            assert page.status == 200
            assert page.root.one("a").attributes["href"] == f"/queue{path}"
            refresh = [one for one in page.root.all("meta") if one.attributes.get("http-equiv") == "refresh"]
            assert [one.attributes["content"] for one in refresh] == [f"0;url=/queue{path}"]
            for site in ("same-origin", "same-site", "none"):
                page = await browser.open(path, token=None, more=[("sec-fetch-site", site)])
                assert page.answer.headers["location"].startswith("/queue/login?"), "the second refusal is the last"

    run(test())


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "//evil.example/?a=b"])
def test_a_link_of_another_site_leads_to_no_other_site(path: str) -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open(path, token=None, more=[("sec-fetch-site", "cross-site")])
            assert page.status == 303
            assert page.answer.headers["location"].startswith("/login?next=%2F")

    run(test())


def test_every_page_has_the_strict_headers() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for path in ("/nodes", "/nothing"):
                page = await browser.open(path)
                for name, value in STRICT.items():
                    assert page.answer.headers[name.decode()] == value.decode()
                assert "unsafe" not in page.answer.headers["content-security-policy"]

    run(test())


def test_every_page_names_the_release_of_the_node() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for path in ("/", "/jobs", "/functions", "/schedules", "/workers", "/nodes"):
                page = await browser.open(path)
                assert page.root.one("footer").text.strip().startswith("Mainspring 9.9 ")

    run(test())


def test_a_page_of_a_name_that_the_node_lacks_is_refused_by_the_api() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert (await browser.open("/nodes", host="evil.example")).status == 421

    run(test())


def test_forms_of_other_sites_change_nothing() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("mail")
            form = {"path.function": "mail", "next": "/nodes"}
            for site, status, shown in (("cross-site", 403, "mail"), ("same-origin", 303, "mail ■ paused")):
                assert (await browser.send("/actions/functions_pause", form, site=site)).status == status
                assert (await browser.open("/functions")).rows()[0][0] == shown

    run(test())


def test_a_form_leads_back_to_its_page_and_never_to_another_site() -> None:
    async def test() -> None:
        async with browsing(prefix="/queue") as (browser, _):
            for given, following in (
                ("/queue/nodes?x=1", "/queue/nodes?x=1"),
                ("//evil.example/queue/", "/queue/"),
                ("/queue//evil.example", "/queue//evil.example"),
                ("https://evil.example/", "/queue/"),
                ("/\\evil.example", "/queue/"),
                ("/queue/\r\nset-cookie: a=b", "/queue/"),
                ("", "/queue/"),
            ):
                answer = await browser.send("/queue/settings/view", {"theme": "dark", "next": given})
                assert (answer.status, answer.headers["location"]) == (303, following)

    run(test())


def test_a_form_of_a_stranger_leads_to_the_sign_in_and_then_to_the_first_page() -> None:
    async def test() -> None:
        async with browsing(prefix="/queue") as (browser, _):
            answer = await browser.send("/queue/actions/marks_add", {"label": "x"}, token=None)
            assert (answer.status, answer.headers["location"]) == (303, "/queue/login?next=%2F")

    run(test())


def test_a_result_is_shown_once_on_the_next_page_that_is_found() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.send("/actions/marks_add", {"label": "x"})
            assert (await browser.open("/jobs/H:n:1")).status == 404
            assert "line in all drawings" in (await browser.open("/nodes")).main.text
            assert "line in all drawings" not in (await browser.open("/nodes")).main.text

    run(test())


def test_the_look_is_kept_in_a_cookie() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            fields = {"theme": "dark", "zone": "Europe/Berlin", "density": "huge", "keyboard": "0", "next": "/nodes"}
            await browser.send("/settings/view", fields)
            await browser.send("/settings/view", {"updates": "0", "next": "/nodes"})
            page = await browser.open("/nodes")
            html = page.root.one("html").attributes
            assert (html["data-updates"], page.main.attributes["data-stream"]) == ("", "")
            assert (html["data-theme"], html["data-zone"], html["data-density"], html["data-keys"]) == (
                "dark",
                "Europe/Berlin",
                "normal",
                "0",
            )

    run(test())


def test_files_are_kept_by_browsers_until_they_change() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/nodes")
            paths = [one.attributes["src"] for one in page.root.all("script")]
            paths += [one.attributes["href"] for one in page.root.all("link")]
            assert len(paths) == len(ASSET_NAMES)
            for path in paths:
                answer = (await browser.open(path, token=None)).answer
                assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)
            old = (await browser.open("/assets/0000/style.css")).answer
            assert (old.status, old.headers["cache-control"]) == (200, "no-store")
            assert (await browser.open("/assets/0000/../app.py")).status == 404

    run(test())


def test_the_vendored_script_is_the_published_one() -> None:
    _, body = Assets().answer(f"/assets/x/{HTMX}", b"") or ({}, b"")
    assert hashlib.sha256(body).hexdigest() == HTMX_SHA256


def test_the_files_are_small() -> None:
    assets = Assets()
    sizes = {name: len((assets.answer(f"/assets/x/{name}", b"gzip") or ({}, b""))[1]) for name in ASSET_NAMES}
    assert sum(sizes.values()) <= 60 << 10
    whole = {name: len((assets.answer(f"/assets/x/{name}", b"") or ({}, b""))[1]) for name in ASSET_NAMES}
    assert whole["mainspring.js"] <= 12 << 10, "12,288 bytes"
    assert whole["style.css"] <= 20 << 10


def test_each_action_is_a_route_of_the_api_with_its_permission_and_fields() -> None:
    routes = {(route.method, route.path): route for route in ROUTES}
    for action in ACTIONS:
        route = routes[action.method, action.path]
        assert (route.operation, route.permission) == (action.operation, action.permission), action
        assert bool(route.if_match) == action.if_match, action
        body = Inputs(route).of_body
        accepted = (
            set() if body is None or not hasattr(body, "__struct_fields__") else set(body.__struct_encode_fields__)
        )
        if not route.body:
            assert {one.name for one in action.fields} | set(action.fixed) <= accepted, action


def test_each_action_has_a_name_of_its_own() -> None:
    keys = [action.key for action in ACTIONS]
    assert len(keys) == len(set(keys))


def test_the_api_behind_the_pages_answers_as_before() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f")
            path = f"/api/v1/namespaces/default/jobs/{handle}"
            assert (await browser.open(path)).answer.json["handle"] == handle

    run(test())


def test_a_command_has_the_values_of_its_form() -> None:
    action = DRAIN_NODE
    assert action.command_line("default", {"node": "a b"}, {}) == "mainspring nodes drain 'a b'"
    assert action.command_line("team", {"node": "n"}, {}).endswith(" --namespace team")


def test_addresses_that_cannot_be_read_are_refused_and_are_no_defect() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for path in ("/jobs/%ff", "/functions/%ed%a0%80", "/schedules/%ff", "/jobs?" + "a=1&" * 3000):
                assert (await browser.open(path)).status == 400, path[:30]
            assert (await browser.open("/jobs?" + "a=1&" * 3000, token=None)).status == 400

    run(test())
