"""A tab of the browser that is signed in, and notes everything that goes wrong in it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Response

    from .a_site import Site

AXE = Path(__file__).parents[1] / "interop/node/node_modules/axe-core/axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
"""The rules of axe-core: WCAG 2.2, levels A and AA."""
RUN_AXE = (
    "tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']}).then(({violations}) => ({violations}))"
)
"""Only violations are described and sent here: a page has thousands of elements that pass."""
TIMEOUT = 20_000
"""Milliseconds until something has to be on the page. A browser opens a stream again after up to 6 seconds."""
expect.set_options(timeout=TIMEOUT)
NOTE_EVENTS = """{
  const listen = EventSource.prototype.addEventListener;
  EventSource.prototype.addEventListener = function (name, act) {
    listen.call(this, name, (event) => {
      act(event);
      if (event instanceof MessageEvent) document.documentElement.dataset.received = name;
    });
  };
}"""
"""Notes in the page that its script has shown an event of its stream: an open stream may not have sent any yet."""


class Tab:
    """A tab."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site
        self.faults: list[str] = []
        """Errors in the console, reports of the content security policy among them; failed scripts; requests to other hosts."""
        page.on("console", lambda one: self._note(one.type == "error", f"{one.text} at {one.location['url']}"))
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on(
            "request", lambda request: self._note(not request.url.startswith(site.url), f"other host: {request.url}")
        )

    def _note(self, is_fault: bool, text: str) -> None:
        if is_fault:
            self.faults.append(text)

    def forgive(self, text: str) -> None:
        """Forget the faults with a text, which are part of the test."""
        self.faults = [fault for fault in self.faults if text not in fault]

    def open(self, path: str) -> Response:
        """Open a page and return its answer."""
        answer = self.page.goto(self.site.url + path)
        assert answer is not None
        return answer

    def open_live(self, path: str) -> None:
        """Open a page, and return once it has shown the first event of its stream: later changes are news to it."""
        self.open(path)
        expect(self.page.locator("html[data-received]")).to_be_attached()
        self.page.evaluate("window.mark = 'same page'")

    def sign_in(self) -> None:
        """Sign in with the site's token."""
        self.open("/login")
        self.page.get_by_label("Token").fill(self.site.token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", level=1).wait_for()

    def violations(self) -> list[str]:
        """Return what axe-core finds on the page."""
        if not self.page.evaluate("Boolean(window.axe)"):
            # By the protocol, because the policy forbids other scripts to the page.
            self.page.evaluate(AXE.read_text("utf-8"))
        found: dict[str, Any] = self.page.evaluate(RUN_AXE, TAGS)
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
            for one in found["violations"]
        ]


@contextlib.contextmanager
def opened(browser: Browser, site: Site, **options: Any) -> Iterator[Tab]:
    """Open a tab in a context of its own, and check at the end that nothing went wrong in it.

    ``options`` are those of a context, such as ``color_scheme``, ``viewport`` and ``java_script_enabled``.
    """
    context = browser.new_context(**options)
    try:
        context.set_default_timeout(TIMEOUT)
        context.add_init_script(NOTE_EVENTS)
        tab = Tab(context.new_page(), site)
        yield tab
        assert not tab.faults, tab.faults
    finally:
        context.close()


@contextlib.contextmanager
def signed_in(browser: Browser, site: Site, **options: Any) -> Iterator[Tab]:
    """Open a tab as `opened` does, and sign in."""
    with opened(browser, site, **options) as tab:
        tab.sign_in()
        yield tab
