"""Tables with long names: times and short words stay whole, and no page is wider than its window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .a_tab import signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .a_site import Site

N = "namespaces/default"
LONG = ("billing.invoices.monthly_summary_for_customers_" * 5)[:200]
SCAN = """() => {
  const broken = [document.documentElement.scrollWidth > innerWidth && 'page'].filter(Boolean);
  const range = document.createRange();
  for (const cell of document.querySelectorAll('main td, main tbody th')) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text; (text = texts.nextNode());) for (const found of text.data.matchAll(/\\S+/g)) {
      if (!/^[\\w.:]{2,12}$/.test(found[0])) continue;
      range.setStart(text, found.index);
      range.setEnd(text, found.index + found[0].length);
      if (new Set([...range.getClientRects()].map(one => Math.round(one.top))).size > 1) broken.push(found[0]);
    }
  }
  return broken.concat([...document.querySelectorAll('main .rows td time')].filter(one =>
    innerWidth > 1024 && one.getClientRects().length > 1).map(one => one.textContent));
}"""
"""Returns words of at most 12 letters that a lack of room has broken, and on wide screens the times that are on two lines."""


@pytest.mark.parametrize("width", [1280, 800])
def test_short_words_and_times_are_not_broken(chromium: Browser, full: Site, width: int) -> None:
    for length in (40, 200):
        name = LONG[:length]
        handle = full.submit(name, delay=1000, unique=name[:60])
        full.call("POST", f"{N}/functions/{name}/pause", {"reason": name})
        full.call("POST", f"{N}/jobs/{handle}/cancel", {"reason": name})
    with signed_in(chromium, full) as tab:
        page = tab.page
        page.set_viewport_size({"width": width, "height": 900})
        found = {}
        for path in ("/", "/jobs", "/functions", "/schedules", "/operations", "/audit"):
            page.goto(full.url + path)
            if broken := page.evaluate(SCAN):
                found[path] = broken
        assert found == {}
