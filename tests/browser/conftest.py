"""A real server with work of every kind, and Chromium in front of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright
from tests.conftest import find_program

from .a_site import Site, empty_site, full_site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

HERE_NAME = "tests/browser/"
SCREENSHOTS = f"{HERE_NAME}test_screenshots.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if HERE_NAME in item.nodeid:
            item.add_marker(pytest.mark.browser)
    photographers = [item for item in items if SCREENSHOTS in item.nodeid]
    if photographers and not config.getoption("--screenshots"):
        config.hook.pytest_deselected(items=photographers)
        items[:] = [item for item in items if item not in photographers]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start Chromium once for a file: an open one keeps an event loop, which other files may not see."""
    # The one without windows needs a third less of the processor; other distributions may not have it.
    program = shutil.which("chromium-headless-shell") or find_program("chromium")
    with sync_playwright() as playwright:
        # Debian's Chromium refuses its sandbox to root, as which CI runs; it opens pages of the tests alone. Without a GPU it
        # would emulate one, which takes half of its time.
        browser = playwright.chromium.launch(executable_path=str(program), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server with work of every kind, which the tests of a file share."""
    with full_site(tmp_path_factory.mktemp("full")) as site:
        yield site
        site.server.assert_healthy()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server without any work, which the tests of a file share."""
    with empty_site(tmp_path_factory.mktemp("empty")) as site:
        yield site
        site.server.assert_healthy()
