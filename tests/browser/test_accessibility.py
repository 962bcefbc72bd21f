"""Each page by axe-core: on light and dark, wide and narrow, with work and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

import pytest

from .a_tab import signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .a_site import Site

PAGES = (
    "/",
    "/jobs",
    "/functions",
    "/functions/resize",
    "/schedules",
    "/schedules/new",
    "/workflows",
    "/workers",
    "/nodes",
    "/operations",
    "/operations/new?action=retry&state=failed",
    "/audit",
    "/settings/tokens",
    "/login",
    "/nothing",
)
VIEWS: Final[tuple[tuple[Literal["light", "dark"], int], ...]] = (
    ("light", 1280),
    ("dark", 1280),
    ("light", 320),
    ("dark", 320),
)


@pytest.mark.parametrize("kind", ["full", "empty"])
def test_no_page_has_a_barrier(chromium: Browser, request: pytest.FixtureRequest, kind: str) -> None:
    site: Site = request.getfixturevalue(kind)
    found = {}
    with signed_in(chromium, site) as tab:
        for path in pages_of(site):
            tab.open(path)
            tab.page.evaluate("document.querySelectorAll('main details').forEach(one => one.open = true)")
            for scheme, width in VIEWS:
                tab.page.emulate_media(color_scheme=scheme)
                tab.page.set_viewport_size({"width": width, "height": 800})
                found[path, scheme, width] = tab.violations()
                overhang = tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if overhang > 0:
                    found[path, scheme, width].append(f"{overhang} pixels wider than the window")
        tab.forgive("404")  # of the page that is not there
    assert {view: faults for view, faults in found.items() if faults} == {}


def pages_of(site: Site) -> list[str]:
    """Return the paths of all pages, with one of each kind of object."""
    jobs = site.call("GET", "namespaces/default/jobs?state=succeeded&state=failed&state=cancelled&limit=1000")["items"]
    newest = {job["state"]: job["handle"] for job in jobs}
    workers = site.call("GET", "namespaces/default/workers")["items"]
    schedules = site.call("GET", "namespaces/default/schedules")["items"]
    runs = site.call("GET", "namespaces/default/workflows")["items"]
    operations = site.call("GET", "namespaces/default/operations")["items"]
    return [
        *PAGES,
        "/jobs?state=failed",
        *(f"/schedules/{quote(schedule['name'], safe='')}" for schedule in schedules),
        *(f"/schedules/{quote(schedule['name'], safe='')}/edit" for schedule in schedules),
        *(f"/workflows/{quote(run['workflow_id'], safe='')}" for run in runs),
        *(f"/workers/{quote(worker['id'], safe='')}" for worker in workers),
        *(f"/operations/{operation['id']}" for operation in operations),
        *(f"/jobs/{handle}" for handle in newest.values()),
    ]
