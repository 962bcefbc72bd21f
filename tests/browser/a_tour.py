"""Each page that tests open in Chromium, and scenes: what pages show that has no address of its own.

`TOUR` has all pages of the registry, or ``test_tour.py`` fails. Barriers, hostile texts and pictures use it.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .a_site import Site
    from .a_tab import Tab

N: Final = "namespaces/default"
KIND: Final = ("state", "status", "paused")
"""Fields of objects whose pages differ."""
_PARAMETER: Final = re.compile(r"\{\w+\}")


class Stop(NamedTuple):
    """A page."""

    picture: str
    """The name of its picture in the documentation."""
    objects: str = ""
    """The list of the API with what the page is about: one object of it."""
    name: str = ""
    """The field of the object that is in the page's path."""
    query: str = ""
    """The query with which the page shows something."""


TOUR: Final[Mapping[str, Stop]] = {
    "/": Stop("overview"),
    "/jobs": Stop("jobs"),
    "/jobs/{handle}": Stop("job", "jobs?limit=1000", "handle"),
    "/functions": Stop("functions"),
    "/functions/{function}": Stop("function", "functions", "function"),
    "/schedules": Stop("schedules"),
    "/schedules/{name}": Stop("schedule", "schedules", "name"),
    "/schedules/new": Stop("new-schedule"),
    "/schedules/{name}/edit": Stop("edit-schedule", "schedules", "name"),
    "/workflows": Stop("workflows"),
    "/workflows/{key}": Stop("workflow", "workflows", "id"),
    "/workers": Stop("workers"),
    "/workers/{worker}": Stop("worker", "workers", "id"),
    "/nodes": Stop("nodes"),
    "/operations": Stop("operations"),
    "/operations/new": Stop("new-operation", query="?action=retry&state=failed"),
    "/operations/{id}": Stop("operation", "operations", "id"),
    "/events": Stop("events"),
    "/listeners": Stop("listeners"),
    "/listeners/{name}": Stop("listener", "listeners", "name"),
    "/webhooks": Stop("webhooks"),
    "/webhooks/{name}": Stop("webhook", "webhooks", "name"),
    "/resources": Stop("resources"),
    "/resources/{name}": Stop("resource", "resources", "name"),
    "/audit": Stop("audit"),
    "/settings/tokens": Stop("tokens"),
    "/settings/namespaces": Stop("namespaces"),
    "/login": Stop("login"),
}
"""By the path of the registry; the sign-in is the API's page."""
SMALL: Final = "/nodes"
"""For scenes of parts that all pages have: axe-core takes three times as long for a page with many rows."""
FIXED: Final = tuple(path for path, stop in TOUR.items() if not stop.objects)
"""The pages that are about no single object."""


def address(path: str, name: str = "") -> str:
    """Return the address of a page, for an object with a name."""
    return _PARAMETER.sub(lambda _: quote(name, safe=""), path) + TOUR[path].query


def of_all_objects(site: Site) -> list[str]:
    """Return the addresses of the pages of all objects."""
    return [address(path, one[TOUR[path].name]) for path, listed in _objects(site) for one in listed]


def of_each_kind(site: Site) -> list[str]:
    """Return the addresses of all pages, with one object in each state."""
    found = [address(path) for path in FIXED]
    for path, listed in _objects(site):
        kinds = {(*(one.get(field) for field in KIND), bool(one.get("workers"))): one for one in listed}
        found += [address(path, one[TOUR[path].name]) for one in kinds.values()]
    return found


def _objects(site: Site) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path, stop in TOUR.items():
        if stop.objects:
            yield path, site.call("GET", f"{N}/{stop.objects}")["items"]


@contextlib.contextmanager
def refused(tab: Tab, status: str) -> Iterator[None]:
    """Expect an answer with a code, and forgive that the console reports it, which it may do after the page is shown."""
    with tab.page.expect_console_message(lambda message: status in message.text):
        yield
    tab.forgive(status)


def settings_of_the_view(tab: Tab) -> None:
    tab.open(SMALL)
    tab.page.locator("details.menu summary").click()
    expect(tab.page.get_by_label("Colours")).to_be_visible()


def list_of_keys(tab: Tab) -> None:
    tab.open(SMALL)
    tab.page.keyboard.press("?")
    expect(tab.page.get_by_role("dialog", name="Keys")).to_be_visible()


def confirmation_of_an_action(tab: Tab) -> None:
    tab.open("/settings/tokens")
    tab.page.locator("summary").get_by_text("Revoke…").first.click()
    expect(tab.page.locator("details[open] button.grave")).to_be_visible()


def refused_action(tab: Tab) -> None:
    """Revoke a token that somebody else has revoked meanwhile."""
    token = tab.site.call("POST", "tokens", {"name": "short-lived", "grants": [{"role": "viewer"}]})["id"]
    tab.open("/settings/tokens")
    row = tab.page.get_by_role("row").filter(has_text="short-lived")
    row.locator("summary").get_by_text("Revoke…").click()
    tab.site.call("DELETE", f"tokens/{token}")
    with refused(tab, "404"):
        row.get_by_role("button", name="Revoke", exact=True).click()
    expect(tab.page.get_by_role("alert").get_by_text("there is no token")).to_be_visible()


def secret_of_a_new_token(tab: Tab) -> None:
    tab.open("/settings/tokens")
    tab.page.locator("summary").get_by_text("Create a token…").click()
    tab.page.locator("details[open] input[name=name]").fill("visitor")
    tab.page.get_by_role("button", name="Create", exact=True).click()
    expect(tab.page.locator("section.notice")).to_contain_text("visitor")


def form_with_suggestions(tab: Tab) -> None:
    tab.open("/workflows")
    tab.page.locator("summary").get_by_text("Start a run…").click()
    expect(tab.page.locator("details[open] input[list]")).to_be_visible()


def next_times_of_a_new_schedule(tab: Tab) -> None:
    tab.open("/schedules/new?name=weekly&function=mail&cron=0+2+*+*+0&timezone=Europe%2FBerlin")
    tab.page.get_by_role("button", name="Show the next times").click()
    expect(tab.page.get_by_role("table", name="The next")).to_be_visible()


def wrong_field_of_a_new_schedule(tab: Tab) -> None:
    tab.open("/schedules/new?name=weekly&function=mail&cron=never")
    with refused(tab, "422"):
        tab.page.get_by_role("button", name="Show the next times").click()
    expect(tab.page.locator("[aria-invalid=true]")).to_have_count(1)


def no_such_page(tab: Tab) -> None:
    with refused(tab, "404"):
        tab.open("/nothing")


def no_such_action(tab: Tab) -> None:
    with refused(tab, "422"):
        tab.open("/operations/new?action=burn")


def unreadable_address(tab: Tab) -> None:
    with refused(tab, "400"):
        tab.open("/?" + "a=1&" * 2001)


def session_that_has_ended(tab: Tab) -> None:
    """Show the words of the script, without the seconds until it finds out."""
    tab.open(SMALL)
    tab.page.evaluate("document.getElementById('ended').hidden = false")


def form_of_a_webhook(tab: Tab) -> None:
    tab.open("/webhooks/crm")
    tab.page.locator("summary").get_by_text("Change…").click()
    expect(tab.page.locator("details[open] textarea[name=headers]")).to_be_visible()


def refused_new_webhook(tab: Tab) -> None:
    tab.open("/webhooks")
    tab.page.locator("summary").get_by_text("Add a webhook…").click()
    for name, value in (("name", "chat"), ("url", "https://10.0.0.1/"), ("types", "job.failed")):
        tab.page.locator(f"details[open] input[name={name}]").fill(value)
    with refused(tab, "422"):
        tab.page.get_by_role("button", name="Add", exact=True).click()
    expect(tab.page.get_by_role("alert")).to_contain_text("nothing may be sent")


def events_of_a_filter(tab: Tab) -> None:
    tab.open("/events?type=job.failed+run.*&record=true")
    expect(tab.page.get_by_text("Events that match are recorded until")).to_be_visible()


def failed_jobs(tab: Tab) -> None:
    tab.open("/jobs?state=failed")


SCENES: Final[tuple[Callable[[Tab], None], ...]] = (
    settings_of_the_view,
    list_of_keys,
    confirmation_of_an_action,
    refused_action,
    secret_of_a_new_token,
    form_with_suggestions,
    next_times_of_a_new_schedule,
    wrong_field_of_a_new_schedule,
    no_such_page,
    no_such_action,
    unreadable_address,
    session_that_has_ended,
    failed_jobs,
    form_of_a_webhook,
    refused_new_webhook,
    events_of_a_filter,
)
"""Of a viewer who has signed in."""


def sign_in(tab: Tab) -> None:
    tab.open("/jobs")
    expect(tab.page.get_by_label("Token")).to_be_visible()


def refused_sign_in(tab: Tab) -> None:
    tab.open("/login")
    tab.page.get_by_label("Token").fill("wrong")
    with refused(tab, "401"):
        tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("alert")).to_be_visible()


def sign_in_by_link(tab: Tab) -> None:
    tab.open("/login?link=one")
    expect(tab.page.get_by_label("Token")).to_have_count(0)


SIGNED_OUT: Final = (sign_in, refused_sign_in, sign_in_by_link)
"""Of somebody who has not signed in."""
