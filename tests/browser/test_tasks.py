"""Ten tasks, by the keyboard alone and by a mouse without a script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import pytest
from playwright.sync_api import expect

from .a_tab import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator

    from .a_site import Site
    from .a_tab import Tab

MOST_TABS = 150
"""Presses of the key Tab to reach something."""
IS_FOCUSED = "one => one === document.activeElement"
FOCUSED_ROW = "document.activeElement.closest('tr')?.innerText ?? ''"


class User(Protocol):
    """Somebody with a tab."""

    tab: Tab
    name: str
    """A part of the names of what this user changes."""

    def go(self, page: str) -> None:
        """Open a page of the menu."""

    def find(self, handle: str) -> None:
        """Find a job."""

    def open_row(self, text: str) -> None:
        """Open what a row is about."""

    def unfold(self, action: str, place: Locator) -> None:
        """Open the form of an action."""

    def fill(self, label: str, text: str) -> None:
        """Fill a field of the form that is open."""

    def press(self, target: Locator) -> None:
        """Press a button, or follow a link."""


class Typist:
    """Uses no mouse."""

    name = "keys"

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self._keyboard = tab.page.keyboard

    def go(self, page: str) -> None:
        key = {"Jobs": "j", "Functions": "f", "Schedules": "s", "Workflows": "w", "Overview": "o"}.get(page)
        if key is None:
            self.press(self.tab.page.get_by_role("navigation").get_by_role("link", name=page, exact=True))
        else:
            self._keyboard.press("g")
            self._keyboard.press(key)
        expect(self.tab.page.get_by_role("heading", level=1)).to_have_text(page)
        self.tab.page.wait_for_load_state("domcontentloaded")  # keys are commands from then on

    def find(self, handle: str) -> None:
        self.go("Overview")
        self._keyboard.press("/")
        expect(self.tab.page.get_by_label("Find")).to_be_focused()
        self._keyboard.type(handle)
        self._keyboard.press("Enter")
        expect(self.tab.page.get_by_role("heading", level=1)).to_contain_text(handle)
        self.tab.page.wait_for_load_state("domcontentloaded")

    def open_row(self, text: str) -> None:
        before = None
        while text not in (row := self.tab.page.evaluate(FOCUSED_ROW)):
            assert row != before, f"no row has {text!r}"
            before = row
            self._keyboard.press("j")
        self._keyboard.press("Enter")
        expect(self.tab.page.get_by_role("heading", level=1)).to_contain_text(text)
        self.tab.page.wait_for_load_state("domcontentloaded")

    def unfold(self, action: str, place: Locator) -> None:
        if key := {"Retry": "r", "Cancel": "c"}.get(action):
            self._keyboard.press(key)
            expect(_button(place, action)).to_be_focused()
        else:
            self.press(place.locator("summary").get_by_text(f"{action}…", exact=True))

    def fill(self, label: str, text: str) -> None:
        self._reach(self.tab.page.locator("details[open]").get_by_label(re.compile(f"^{label}\\b")))
        self._keyboard.type(text)

    def press(self, target: Locator) -> None:
        self._reach(target)
        self._keyboard.press("Enter")

    def _reach(self, target: Locator) -> None:
        for _ in range(MOST_TABS):
            if target.evaluate(IS_FOCUSED):
                return
            self._keyboard.press("Tab")
        raise AssertionError(f"the key Tab does not reach {target}")


class Clicker:
    """Uses a mouse, in a browser that runs no script."""

    name = "mouse"

    def __init__(self, tab: Tab) -> None:
        self.tab = tab

    def go(self, page: str) -> None:
        self.tab.page.get_by_role("navigation").get_by_role("link", name=page, exact=True).click()

    def find(self, handle: str) -> None:
        self.go("Jobs")
        self.tab.page.get_by_label("Find").fill(handle)
        self.tab.page.get_by_role("button", name="Go", exact=True).click()

    def open_row(self, text: str) -> None:
        self.tab.page.get_by_role("rowheader").get_by_role("link", name=text).click()

    def unfold(self, action: str, place: Locator) -> None:
        place.locator("summary").get_by_text(f"{action}…", exact=True).click()

    def fill(self, label: str, text: str) -> None:
        self.tab.page.locator("details[open]").get_by_label(re.compile(f"^{label}\\b")).fill(text)

    def press(self, target: Locator) -> None:
        target.click()


@pytest.fixture(scope="module", params=["keyboard", "no script"])
def user(request: pytest.FixtureRequest, chromium: Browser, full: Site) -> Iterator[User]:
    """Return somebody who has signed in."""
    is_typist = request.param == "keyboard"
    with opened(chromium, full, java_script_enabled=is_typist) as tab:
        user: User = Typist(tab) if is_typist else Clicker(tab)
        sign_in(user)
        yield user


def sign_in(user: User) -> None:
    """Sign in with the site's token."""
    user.tab.open("/login?next=/nodes")
    page = user.tab.page
    if isinstance(user, Typist):
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type(user.tab.site.token)
    else:
        page.get_by_label("Token").fill(user.tab.site.token)
    user.press(page.get_by_role("button", name="Sign in"))
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()


def act(user: User, action: str, fields: dict[str, str] | None = None, place: Locator | None = None) -> None:
    """Open the form of an action, fill and send it."""
    where = place or user.tab.page.locator(".actions")
    user.unfold(action, where)
    for label, text in (fields or {}).items():
        user.fill(label, text)
    user.press(_button(where, action))


def _button(place: Locator, action: str) -> Locator:
    return place.get_by_role("button", name=action, exact=True)


def done(user: User, text: str) -> None:
    """Wait until the page says so."""
    expect(user.tab.page.locator("p.notice[role=status]")).to_contain_text(text)


def reasons(site: Site, what: str, handle: str) -> list[str]:
    """Return the reasons of acts on a job in the audit."""
    acts = site.call("GET", f"namespaces/default/audit?what={what}")["items"]
    return [act["reason"] for act in acts if act["object"] == handle]


def test_sign_out_and_in(chromium: Browser, full: Site, user: User) -> None:
    with opened(chromium, full, java_script_enabled=isinstance(user, Typist)) as tab:
        other = type(user)(tab)  # type: ignore[call-arg]
        sign_in(other)
        user_menu = tab.page.locator("details.menu")
        other.press(user_menu.locator("summary"))
        other.press(user_menu.get_by_role("button", name="Sign out"))
        expect(tab.page.get_by_label("Token")).to_be_visible()


def test_find_a_job_by_its_handle(full: Site, user: User) -> None:
    handle = full.submit("mail", args=[user.name])
    user.find(handle)
    expect(user.tab.page.get_by_role("heading", level=1)).to_contain_text(handle)


def test_show_failed_jobs_alone(full: Site, user: User) -> None:
    full.submit("resize", wait=True, args=["broken.png"])
    user.go("Jobs")
    user.press(user.tab.page.locator(".tabs").get_by_role("link", name=re.compile("^failed", re.IGNORECASE)))
    user.tab.page.wait_for_url("**/jobs?*state=failed*")
    states = user.tab.page.locator("td[data-label=State]").all_inner_texts()
    assert {state.split()[-1] for state in states} == {"failed"}


def test_retry_a_dead_letter(full: Site, user: User) -> None:
    handle = full.submit("resize", wait=True, args=["broken.png"])
    user.find(handle)
    act(user, "Retry")
    done(user, "waits for a worker again")
    assert reasons(full, "jobs.retry", handle) == [""]


def test_cancel_a_waiting_job_with_a_reason(full: Site, user: User) -> None:
    handle = full.submit("mail", args=["soon"])
    user.find(handle)
    act(user, "Cancel", {"Reason": "not now"})
    done(user, "The job is cancelled")
    assert full.call("GET", f"namespaces/default/jobs/{handle}")["state"] == "cancelled"
    assert reasons(full, "jobs.cancel", handle) == ["not now"]


def test_pause_a_function(full: Site, user: User) -> None:
    function = f"pause-{user.name}"
    full.submit(function)
    user.go("Functions")
    user.open_row(function)
    act(user, "Pause")
    done(user, "No more jobs of the function start")
    assert full.call("GET", f"namespaces/default/functions/{function}")["paused"]


def test_change_a_limit(full: Site, user: User) -> None:
    function = f"limit-{user.name}"
    full.submit(function)
    user.go("Functions")
    user.open_row(function)
    act(user, "Change the limits", {"Jobs at a time": "3"})
    done(user, "The limits apply")
    assert full.call("GET", f"namespaces/default/functions/{function}")["concurrency"] == 3


def test_run_a_schedule_now(full: Site, user: User) -> None:
    name = f"daily-{user.name}"
    schedule = {"function": "nightly", "cron": "0 1 * * *", "timezone": "UTC", "name": name}
    full.call("POST", "namespaces/default/schedules", schedule)
    user.go("Schedules")
    user.open_row(name)
    act(user, "Run now")
    done(user, "The schedule was fired now")
    assert len(full.call("GET", f"namespaces/default/fires?schedule={name}")["items"]) == 1


def test_signal_a_workflow(full: Site, user: User) -> None:
    key = f"waiting-{user.name}"
    full.call("POST", "namespaces/default/workflows", {"function": "album", "id": key, "args": [key, []]})
    user.go("Workflows")
    user.open_row(key)
    act(user, "Signal", {"Name": "approved", "Value": '{"by": "me"}'})
    done(user, "The run has got the signal")


def test_create_and_revoke_a_token(full: Site, user: User) -> None:
    name = f"guest-{user.name}"
    user.go("Tokens")
    user.unfold("Create a token", user.tab.page.locator("main"))
    user.fill("Name", name)
    user.press(_button(user.tab.page.locator("details[open]"), "Create"))
    expect(user.tab.page.locator("section.notice")).to_contain_text(name)
    row = user.tab.page.get_by_role("row").filter(has_text=name)
    act(user, "Revoke", place=row)
    done(user, "The token has ended here")
    assert name not in [one["name"] for one in full.call("GET", "tokens")["items"]]
