"""Hostile strings stay text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .a_tab import signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .a_site import Site

ELEMENTS = """() => [...document.querySelectorAll('*')].map(one => one.localName)"""
HANDLERS = """() => [...document.querySelectorAll('*')].flatMap(one => [...one.attributes])
  .filter(one => one.name.startsWith('on') || one.value.trim().startsWith('javascript:')).map(one => one.name)"""


def test_no_name_argument_or_error_becomes_an_element(chromium: Browser, full: Site) -> None:
    handles = [job["handle"] for job in full.call("GET", "namespaces/default/jobs?limit=1000")["items"]]
    with signed_in(chromium, full) as tab:
        for path in ("/jobs", "/jobs?state=failed", *(f"/jobs/{handle}" for handle in handles)):
            assert tab.open(path).status == 200, path
            assert "Mainspring" in tab.page.title(), path
            assert "hacked" not in tab.page.title(), path
            assert not {"img", "iframe", "object", "embed", "base"} & set(tab.page.evaluate(ELEMENTS)), path
            assert tab.page.evaluate(HANDLERS) == [], path
            assert tab.page.locator("main script").count() == 0, path
