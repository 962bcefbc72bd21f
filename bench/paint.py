"""The first paint of pages in Chromium, whose cache is empty for each load."""

from __future__ import annotations

import shutil
import statistics
from typing import TYPE_CHECKING, Any, Final

from generator import LoadError
from measure import NotMeasured, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser

_ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu")
"""Debian's Chromium refuses its sandbox to root, as which CI runs. Without a GPU it would emulate one, which is slower."""
_PAINTED: Final = """() => new Promise(resolve => new PerformanceObserver(painted => {
  const first = painted.getEntriesByName('first-contentful-paint')[0];
  if (!first) return;
  const loaded = performance.getEntriesByType('navigation')[0];
  const files = performance.getEntriesByType('resource').filter(one => one.renderBlockingStatus === 'blocking');
  resolve({
    paint: first.startTime, first_byte: loaded.responseStart, whole_page: loaded.responseEnd,
    style: Math.max(0, ...files.map(one => one.responseEnd)),
  });
}).observe({type: 'paint', buffered: true}))"""
"""The milliseconds from the begin of the navigation to the first text on the screen, and to what comes before it."""
_TIMEOUT: Final = 20_000
"""Milliseconds."""


def first_paints(address: str, token: str, paths: Sequence[str], loads: int) -> Run:
    """Return the median of the milliseconds of the slowest page; the details have all figures of all pages.

    The pages take turns. Each load is that of a browser that has never seen the site, but for its session. Raises NotMeasured
    without Chromium or the package that steers it.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise NotMeasured("playwright is not installed: `make setup` installs it") from None
    program = shutil.which("chromium")
    if program is None:
        raise NotMeasured("chromium is not installed")
    times: dict[str, list[dict[str, float]]] = {path: [] for path in paths}
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
            session = _session(browser, address, token)
            for _ in range(loads):
                for path in paths:
                    times[path].append(_load(browser, session, address + path))
            version = browser.version
            browser.close()
    except Error as error:
        raise LoadError(f"Chromium: {error}") from error
    pages = {path: _figures(found) for path, found in times.items()}
    slowest = max(page["paint"]["p50_ms"] for page in pages.values())
    return Run(slowest, {"chromium": version, "loads": loads, "pages": pages})


def _session(browser: Browser, address: str, token: str) -> Any:
    """Sign in, and return the cookies."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", level=1, name="Overview").wait_for()
    state = context.storage_state()
    context.close()
    return state


def _load(browser: Browser, session: Any, url: str) -> dict[str, float]:
    context = browser.new_context(storage_state=session)
    try:
        context.set_default_timeout(_TIMEOUT)
        page = context.new_page()
        answer = page.goto(url)
        if answer is None or answer.status != 200:
            raise LoadError(f"{url}: {answer and answer.status}")
        found: dict[str, float] = page.evaluate(_PAINTED)
        return found
    finally:
        context.close()


def _figures(loads: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the median, the 95th percentile and the largest of each time."""
    found = {}
    for name in loads[0]:
        ranked = sorted(one[name] for one in loads)
        at = min(len(ranked) * 95 // 100, len(ranked) - 1)
        figures = {"p50_ms": statistics.median(ranked), "p95_ms": ranked[at], "slowest_ms": ranked[-1]}
        found[name] = {figure: round(value, 1) for figure, value in figures.items()}
    return found
