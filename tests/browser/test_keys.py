"""Single keys as commands."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from playwright.sync_api import expect

from .a_tab import signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .a_site import Site


def test_rows_are_reached_selected_and_opened(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open("/jobs")
        rows = tab.page.locator("main tbody tr")
        for key, row in (("j", 0), ("j", 1), ("k", 0), ("k", 0), ("j", 1)):
            tab.page.keyboard.press(key)
            expect(rows.nth(row)).to_be_focused()
        tab.page.keyboard.press("x")
        expect(tab.page.get_by_role("checkbox", checked=True)).to_have_count(1)
        tab.page.keyboard.press("c")
        expect(tab.page.get_by_label("Selected jobs")).to_have_value("cancel")
        handle = quote(rows.nth(1).get_attribute("id") or "", safe="")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url(f"**/operations/new?action=cancel&handle={handle}")


def test_an_action_takes_the_row_if_none_is_selected(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open("/jobs")
        rows = tab.page.locator("main tbody tr")
        for key in "jjr":
            tab.page.keyboard.press(key)
        expect(rows.nth(1).get_by_role("checkbox")).to_be_checked()
        rows.nth(1).focus()
        for key in "jc":
            tab.page.keyboard.press(key)
        expect(tab.page.get_by_role("checkbox", checked=True)).to_have_count(1)
        expect(tab.page.get_by_label("Selected jobs")).to_have_value("cancel")


def test_a_slash_finds_the_field_of_a_filtered_list(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open("/schedules?state=active")
        tab.page.keyboard.press("/")
        expect(tab.page.get_by_label("Part of the name")).to_be_focused()


def test_help_opens_and_closes(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open("/nodes")
        link = tab.page.get_by_role("link", name="Jobs", exact=True)
        link.focus()
        tab.page.keyboard.press("?")
        expect(tab.page.get_by_role("dialog", name="Keys")).to_be_visible()
        tab.page.keyboard.press("Escape")
        expect(tab.page.get_by_role("dialog", name="Keys")).to_be_hidden()
        expect(link).to_be_focused()


def test_escape_leaves_a_form(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open(f"/jobs/{full.submit('mail', args=['later'])}")
        tab.page.keyboard.press("c")
        reason = tab.page.get_by_label("Reason").and_(tab.page.locator("[open] *"))
        reason.focus()
        tab.page.keyboard.type("jkxrcg?/")
        expect(reason).to_have_value("jkxrcg?/")
        tab.page.keyboard.press("Escape")
        expect(tab.page.locator("details.action[open]")).to_have_count(0)
        expect(tab.page.locator("summary:focus")).to_have_text("Cancel…")


def test_a_viewer_turns_keys_off(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full) as tab:
        tab.open("/jobs")
        tab.page.locator("details.menu summary").click()
        tab.page.get_by_label("Single keys").select_option("0")
        tab.page.get_by_role("button", name="Use these").click()
        tab.page.wait_for_load_state()
        tab.open("/jobs")
        for key in "j?/":
            tab.page.keyboard.press(key)
        expect(tab.page.locator("main tr:focus, main input:focus, dialog[open]")).to_have_count(0)


def test_a_key_for_a_page_that_the_menu_lacks_goes_nowhere(chromium: Browser, full: Site) -> None:
    """Stores of some kinds keep no workflows. An error of the script would fail the test."""
    with signed_in(chromium, full) as tab:
        tab.open("/nodes")
        tab.page.locator("nav [data-path='/workflows']").evaluate("one => one.remove()")
        tab.page.locator("nav [data-path='/jobs']").evaluate("one => one.remove()")
        requested: list[str] = []
        tab.page.on("request", lambda one: requested.append(one.url) if one.is_navigation_request() else None)
        for key in ("g", "w", "f", "/", "g", "Control", "f"):
            tab.page.keyboard.press(key)
        assert not requested
        tab.page.keyboard.press("g")
        tab.page.keyboard.press("f")
        tab.page.wait_for_url("**/functions")
