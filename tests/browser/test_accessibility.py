"""Each page by axe-core: on light and dark, wide and narrow, with work and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pytest

from .a_tab import opened, signed_in
from .a_tour import SCENES, SIGNED_OUT, of_each_kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from playwright.sync_api import Browser

    from .a_site import Site
    from .a_tab import Tab

View = tuple[Literal["light", "dark"], int]
VIEWS: Final[tuple[View, ...]] = (("light", 1280), ("dark", 320))
"""Each colour and each width once: axe-core takes a second for a page with many rows."""
ALL_VIEWS: Final[tuple[View, ...]] = (*VIEWS, ("light", 320), ("dark", 1280))
"""For pages with few rows, and for one with many: a narrow page might have colours of its own."""
MANY_ROWS: Final = "/jobs"
Barriers = dict[tuple[str, str, int], list[str]]
"""Faults by the page and the view."""


def barriers(tab: Tab, name: str, views: Iterable[View] = VIEWS) -> Barriers:
    """Return the faults of the page that a tab shows, by the view. The page is loaded once, and looked at in all views."""
    found: Barriers = {}
    for scheme, width in views:
        tab.page.emulate_media(color_scheme=scheme)
        tab.page.set_viewport_size({"width": width, "height": 800})
        faults = tab.violations()
        overhang = tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if overhang > 0:
            faults.append(f"{overhang} pixels wider than the window")
        if faults:
            found[name, scheme, width] = faults
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    return found


@pytest.mark.parametrize("name", ["full", "empty"])
def test_no_page_has_a_barrier(chromium: Browser, name: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(name)
    has_few_rows = name == "empty"
    found: Barriers = {}
    with signed_in(chromium, site) as tab:
        for address in of_each_kind(site):
            assert tab.open(address).status == 200, address
            tab.page.evaluate("document.querySelectorAll('main details').forEach(one => one.open = true)")
            found |= barriers(tab, address, ALL_VIEWS if has_few_rows or address == MANY_ROWS else VIEWS)
    assert found == {}


def test_no_scene_has_a_barrier(chromium: Browser, full: Site) -> None:
    found: Barriers = {}
    with signed_in(chromium, full) as tab:
        for scene in SCENES:
            scene(tab)
            found |= barriers(tab, scene.__name__)
    with opened(chromium, full) as tab:
        for scene in SIGNED_OUT:
            scene(tab)
            found |= barriers(tab, scene.__name__)
    assert found == {}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("document.querySelector('main h1').innerHTML = '<button></button>'", "button-name"),
        ("document.querySelector('main h1').className = 'top'; document.body.style.color = '#777'", "color-contrast"),
        ("document.querySelector('main').style.width = '2000px'", "pixels wider"),
    ],
)
def test_barriers_are_found(chromium: Browser, empty: Site, fault: str, rule: str) -> None:
    with signed_in(chromium, empty) as tab:
        tab.page.evaluate(fault)
        found = barriers(tab, "planted")
    assert any(rule in text for faults in found.values() for text in faults)
