"""The pages on stores that keep less, on a store that goes away and comes back, and on a full disk."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest

from mainspring.faces.dashboard.pages import PAGES

from .disks import small_file_system
from .http_port import ask, at_a_terminal, sign_in
from .servers import eventually
from .stores import POSTGRESQL, ZOOKEEPER, on_each_store

if TYPE_CHECKING:
    from pathlib import Path

    from .http_port import Printed
    from .stores import Store

MENU = [page.path for page in PAGES if page.menu]
LACKING = {
    POSTGRESQL: set(),
    ZOOKEEPER: {
        "/workflows",
        "/operations",
        "/audit",
        "/settings/tokens",
        "/events",
        "/listeners",
        "/webhooks",
        "/resources",
    },
}
"""The pages of what a store does not have."""
BUTTONS = {
    POSTGRESQL: {"handle": 3, "function": 3, "name": 5},
    ZOOKEEPER: {"handle": 2, "function": 1, "name": 4},
}
"""The numbers of buttons of a job, a function and a schedule."""
JSON = {"Content_Type": "application/json", "Sec_Fetch_Site": "same-origin"}
FORM = {"Content_Type": "application/x-www-form-urlencoded", "Sec_Fetch_Site": "same-origin"}


class Pages:
    """The pages of a node for a browser that has signed in by the node's link."""

    def __init__(self, node: Printed) -> None:
        self._address = node.address
        status, self._cookie = sign_in(node.address, link=node.link.partition("link=")[2])
        assert status == 303

    def open(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page."""
        status, _, body = ask(self._address, "GET", path, Cookie=self._cookie)
        return status, body.decode()

    def call(self, method: str, path: str, body: dict[str, str]) -> Any:
        """Call the API, below the namespace ``default``, and return the answer's JSON."""
        answer = ask(
            self._address, method, f"/api/v1/namespaces/default/{path}", json.dumps(body), Cookie=self._cookie, **JSON
        )
        assert answer[0] < 300, answer
        return answer[2]

    def send(self, path: str, **fields: str) -> tuple[int, str]:
        """Return the status and the text of the answer to a form."""
        status, _, body = ask(self._address, "POST", path, urlencode(fields), Cookie=self._cookie, **FORM)
        return status, body.decode()


def options(store: str) -> tuple[str, ...]:
    return ("serve", "--store", store, "--name", "n1", "--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0")


@on_each_store
def test_the_menu_and_the_buttons_lead_to_nothing_that_the_store_lacks(store: Store, tmp_path: Path) -> None:
    with at_a_terminal(*options(store.url), cwd=tmp_path) as node:
        pages = Pages(node)
        status, overview = pages.open("/")
        assert status == 200
        menu = set(re.findall(r'<a href="([^"]+)" data-path', overview))
        assert set(MENU) - menu == LACKING[store.kind]
        for path in MENU:
            status, text = pages.open(path)
            assert (status, "is on the other pages" in text) == ((200, False) if path in menu else (404, True)), path
        assert ("counts no failures" in overview) == (store.kind == ZOOKEEPER)
        handle = str(pages.call("POST", "jobs", {"function": "f"})["handle"])
        pages.call("POST", "schedules", {"name": "s", "function": "f", "cron": "0 0 1 1 *"})
        for path, name, value in (
            (f"/jobs/{quote(handle, safe='')}", "handle", handle),
            ("/functions/f", "function", "f"),
            ("/schedules/s", "name", "s"),
        ):
            buttons = re.findall(r'data-action="(\w+)"', pages.open(path)[1])
            assert len(buttons) == BUTTONS[store.kind][name], path
            for button in buttons:
                form = {f"path.{name}": value, "delay": "60", "from": "2030-01-01T00:00:00Z", "version": "0"}
                assert "is on the other pages" not in pages.send(f"/actions/{button}", **form)[1], button


@pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)
def test_pages_say_that_the_store_is_away_and_come_back_with_it(store: Store, tmp_path: Path) -> None:
    with store.routes(1) as (route,), at_a_terminal(*options(route.url), cwd=tmp_path) as node:
        pages = Pages(node)
        assert pages.open("/jobs")[0] == 200
        assert route.proxy is not None
        route.proxy.refuse()
        status, text = pages.open("/jobs")
        assert status == 503
        assert "Load the page again" in text
        assert "Traceback" not in text
        route.proxy.heal()
        eventually(lambda: pages.open("/jobs")[0] == 200, "the pages are back")


def test_on_a_full_disk_pages_are_read_and_actions_say_why_they_fail(tmp_path: Path) -> None:
    with (
        small_file_system(tmp_path) as disk,
        at_a_terminal(*options(f"sqlite:///{disk / 'jobs.db'}"), cwd=tmp_path) as node,
    ):
        pages = Pages(node)
        with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        fields = {"path.function": "f", "next": "/functions"}
        status, text = next(
            answer for _ in range(1000) if (answer := pages.send("/actions/functions_pause", **fields))[0] != 303
        )
        assert status == 503
        assert "No space is left" in text
        assert "It may have been done, or not" in text
        assert {path: pages.open(path)[0] for path in MENU} == dict.fromkeys(MENU, 200)
        (disk / "ballast").unlink()
        assert pages.send("/actions/functions_pause", **fields)[0] == 303
