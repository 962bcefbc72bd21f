"""Pictures of all pages for the documentation: made by ``pytest tests/browser/test_screenshots.py --screenshots``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.system.servers import eventually

from .a_site import shown_site
from .a_tab import signed_in
from .a_tour import TOUR, address
from .pictures import with_palette

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = Path(__file__).parents[2] / "docs/images/pages"
SIZE = {"width": 1280, "height": 800}


@pytest.mark.timeout(600)
def test_screenshots(chromium: Browser, tmp_path: Path) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with shown_site(tmp_path) as site, contextlib.ExitStack() as stack:
        status = "namespaces/default/status"
        eventually(lambda: site.call("GET", status)["failing"]["functions"], "the node has counted the failures")
        tab = stack.enter_context(signed_in(chromium, site, viewport=SIZE, color_scheme="light"))
        failed = site.call("GET", "namespaces/default/jobs?state=failed&function=resize")["items"][0]["handle"]
        worker = site.call("GET", "namespaces/default/workers")["items"][0]["id"]
        operation = site.call("GET", "namespaces/default/operations")["items"][0]["id"]
        shown = {
            "/jobs/{handle}": failed,
            "/functions/{function}": "resize",
            "/schedules/{name}": "report",
            "/schedules/{name}/edit": "report",
            "/workflows/{key}": "waiting",
            "/workers/{worker}": worker,
            "/operations/{id}": operation,
            "/webhooks/{name}": "crm",
            "/listeners/{name}": "alert",
            "/resources/{name}": "printer",
        }
        for path, stop in TOUR.items():
            assert tab.open(address(path, shown.get(path, ""))).status == 200, path
            (PICTURES / f"{stop.picture}.png").write_bytes(with_palette(tab.page.screenshot(full_page=True)))
