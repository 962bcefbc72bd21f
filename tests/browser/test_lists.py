"""Tabs, filters and pages of a list replace the rows, and the page with its stream stays."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from playwright.sync_api import expect

from .a_tab import signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Request

    from .a_site import Site
    from .a_tab import Tab

MARK = "window.mark"


def open_list(tab: Tab, path: str) -> list[Request]:
    """Open a page, and return the streams that it opens besides its own: a list that grows."""
    tab.open_live(path)
    streams: list[Request] = []
    tab.page.on("request", lambda request: streams.append(request) if "/live?" in request.url else None)
    return streams


def test_a_tab_replaces_the_rows_and_keeps_the_page(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        streams = open_list(tab, "/jobs")
        tab.page.locator(".tabs").get_by_role("link", name="failed").click()
        expect(tab.page.locator(".tabs [aria-current]")).to_contain_text("failed")
        assert "state=failed" in tab.page.url
        expect(tab.page.locator("tbody tr").first).to_be_in_viewport(ratio=1)
        states = tab.page.locator("tbody .state").all_inner_texts()
        assert states
        assert all("failed" in state for state in states)
        expect(tab.page.locator("#main")).to_be_focused()
        assert tab.page.evaluate(MARK)
        assert not streams
        tab.page.go_back()
        expect(tab.page.locator(".tabs [aria-current]")).to_contain_text("all")
        assert "state=" not in tab.page.url


def test_of_two_quick_clicks_the_last_one_counts(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        open_list(tab, "/jobs")
        tab.page.route("**/jobs?state=failed*", lambda _: None)  # without an answer
        tab.page.locator(".tabs").get_by_role("link", name="failed").click()
        with tab.page.expect_event("requestfailed"):
            tab.page.locator(".tabs").get_by_role("link", name="succeeded").click()
        expect(tab.page.locator(".tabs [aria-current]")).to_contain_text("succeeded")
        assert tab.page.evaluate(MARK)
        tab.forgive("htmx:afterRequest")  # htmx logs that it has given up the first one
        tab.forgive("htmx:sendAbort")


def test_the_forms_around_a_list_lead_back_to_its_tab(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        open_list(tab, "/jobs")
        tab.page.locator(".tabs").get_by_role("link", name="failed").click()
        expect(tab.page.locator(".tabs [aria-current]")).to_contain_text("failed")
        expect(tab.page.locator("#sign-in")).to_have_attribute("href", "/jobs?state=failed")
        tab.page.locator("details.menu summary").click()
        tab.page.get_by_role("button", name="Use these").click()
        tab.page.wait_for_url("**/jobs?state=failed")


def test_a_way_back_selects_no_other_jobs(chromium: Browser, full: Site) -> None:
    """Chromium restores the state of fields by their place, and another job may have come to it."""
    with signed_in(chromium, full) as tab:
        tab.open("/jobs")
        tab.page.get_by_role("checkbox").first.check()
        tab.page.get_by_role("button", name="Go on…").click()
        tab.page.wait_for_url("**/operations/new?**")
        full.submit("newer")
        tab.page.go_back()
        expect(tab.page.locator("tbody tr").first).to_contain_text("newer")
        expect(tab.page.get_by_role("checkbox", checked=True)).to_have_count(0)


def test_a_selection_goes_from_page_to_page(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        open_list(tab, "/jobs?state=failed")
        first = tab.page.get_by_role("checkbox").first
        handle = first.get_attribute("value") or ""
        first.check()
        tab.page.locator(".tabs").get_by_role("link", name="succeeded").click()
        expect(tab.page.get_by_text("1 selected job is not on this page")).to_be_visible()
        tab.page.get_by_role("checkbox").first.check()
        tab.page.locator(".tabs").get_by_role("link", name="failed").click()
        expect(tab.page.get_by_role("checkbox", name=handle)).to_be_checked()
        assert tab.page.url.count("handle=") == 2
        tab.page.reload()
        expect(tab.page.get_by_text("1 selected job is not on this page")).to_be_visible()
        tab.page.get_by_label("Find").fill("state:succeeded")
        tab.page.get_by_label("Find").press("Enter")
        tab.page.wait_for_url("**/jobs?state=succeeded&handle=*")
        tab.page.get_by_role("link", name="Show all jobs").first.click()
        expect(tab.page.get_by_role("checkbox", name=handle)).to_be_checked()
        tab.page.get_by_role("checkbox", name=handle).uncheck()
        tab.page.get_by_role("button", name="Go on…").click()
        tab.page.wait_for_url("**/operations/new?**")
        assert tab.page.url.count("handle=") == 1
        assert quote(handle, safe="") not in tab.page.url


def test_new_jobs_are_counted_from_the_rows_that_are_shown(chromium: Browser, empty: Site) -> None:
    with signed_in(chromium, empty) as tab:
        open_list(tab, "/jobs")
        empty.submit("counted")
        expect(tab.page.locator("#new")).to_have_text("new jobs at this node: 1")
        tab.page.locator("#new").click()
        expect(tab.page.locator("tbody tr").first).to_contain_text("counted")
        expect(tab.page.locator("#new")).to_be_hidden()
        empty.submit("counted")
        expect(tab.page.locator("#new")).to_have_text("new jobs at this node: 1")
        assert tab.page.evaluate(MARK)


def test_what_is_no_list_becomes_a_page(chromium: Browser, full: Site) -> None:
    handle = full.submit("found")
    with signed_in(chromium, full) as tab:
        open_list(tab, "/jobs")
        tab.page.get_by_label("Find").fill(handle)
        tab.page.get_by_role("button", name="Go", exact=True).click()
        tab.page.wait_for_url(f"**/jobs/{quote(handle)}")
        assert not tab.page.evaluate(f"Boolean({MARK})"), "a job is another page, with another stream"
        open_list(tab, "/jobs")
        tab.page.get_by_label("Find").fill("state:nonsense")
        tab.page.get_by_role("button", name="Go", exact=True).click()
        expect(tab.page.get_by_role("alert")).to_contain_text("nonsense")
        tab.forgive("status of 4")


def test_the_end_of_a_session_leads_to_the_sign_in(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        open_list(tab, "/jobs")
        assert tab.page.request.post(f"{full.url}/logout", headers={"Origin": full.url}).status == 200
        tab.page.locator(".tabs").get_by_role("link", name="failed").click()
        tab.page.wait_for_url("**/login?next=*state%3Dfailed")
        tab.forgive("401")


def test_a_link_on_another_site_leads_to_its_page(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        path = "/jobs?state=failed"
        elsewhere = f'<a href="{full.url}{path}">look</a>'
        tab.page.route(
            "http://elsewhere.example/", lambda route: route.fulfill(body=elsewhere, content_type="text/html")
        )
        tab.page.goto("http://elsewhere.example/")
        tab.faults.remove("other host: http://elsewhere.example/")
        tab.page.get_by_role("link", name="look").click()
        tab.page.wait_for_url(f"{full.url}{path}")
        expect(tab.page.locator(".tabs [aria-current]")).to_contain_text("failed")
