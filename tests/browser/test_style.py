"""The style in narrow windows and on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from mainspring.appearance import look_of

from .a_tab import signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .a_site import Site


def test_the_menu_of_the_viewer_fits_into_a_narrow_window(chromium: Browser, empty: Site) -> None:
    with signed_in(chromium, empty, viewport={"width": 320, "height": 800}) as tab:
        tab.page.locator("details.menu summary").click()
        panel = tab.page.locator("details.menu .panel").bounding_box()
        assert panel is not None
        assert panel["x"] >= 0
        assert panel["x"] + panel["width"] <= 320


def test_paper_is_white_and_has_tables(chromium: Browser, full: Site) -> None:
    with signed_in(chromium, full, color_scheme="dark") as tab:
        tab.open("/schedules")
        tab.page.emulate_media(media="print")
        tab.page.set_viewport_size({"width": 700, "height": 1000})
        expect(tab.page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
        red, green, blue = bytes.fromhex(look_of("active").light.removeprefix("#"))
        expect(tab.page.locator("#work .look-good").first).to_have_css("color", f"rgb({red}, {green}, {blue})")
        expect(tab.page.locator("#work tbody tr").first).to_have_css("display", "table-row")
        box, drawing = tab.page.locator(".wide").bounding_box(), tab.page.locator("svg.drawing").bounding_box()
        assert box is not None
        assert drawing is not None
        assert drawing["width"] <= box["width"]
