"""The tour has all pages, and a tab notes everything that goes wrong on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.faces.dashboard.pages import PAGES

from .a_tab import signed_in
from .a_tour import TOUR

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .a_site import Site

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tour_has_all_pages() -> None:
    assert set(TOUR) == {page.path for page in PAGES} | {"/login"}


def test_the_documentation_shows_all_pages() -> None:
    text = (DOCS / "how-to/look-in-a-browser.md").read_text("utf-8")
    pictures = {stop.picture for stop in TOUR.values()}
    assert {one.stem for one in (DOCS / "images/pages").glob("*.png")} == pictures
    assert [picture for picture in pictures if f"images/pages/{picture}.png)" not in text] == []


@pytest.mark.parametrize(
    ("fault", "event", "noted"),
    [
        ("document.body.append(Object.assign(document.createElement('script'), {text: '1'}))", "console", "script"),
        ("document.body.setAttribute('style', 'color:red')", "console", "style"),
        (
            "document.body.append(Object.assign(new Image(), {src: 'http://localhost:9/a.png'}))",
            "console",
            "localhost:9",
        ),
        ("document.body.setAttribute('onclick', '1'); document.body.click()", "console", "event handler"),
        ("console.error('a fault')", "console", "a fault"),
        ("setTimeout(() => { throw new Error('a fault') })", "pageerror", "a fault"),
        ("fetch('/nothing')", "console", "404"),
    ],
)
def test_a_fault_in_a_tab_fails_its_test(chromium: Browser, empty: Site, fault: str, event: str, noted: str) -> None:
    with (
        pytest.raises(AssertionError, match=noted),
        signed_in(chromium, empty) as tab,
        tab.page.expect_event(event),
    ):
        tab.page.evaluate(f"() => {{ {fault} }}")
