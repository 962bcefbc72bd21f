"""The pages of webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.api.a_node import run

from mainspring.access.caller import Role
from mainspring.faces.dashboard.pages import webhooks

from .a_browser import browsing

if TYPE_CHECKING:
    from .a_browser import Browser, Shown

FORM = {"name": "crm", "url": "http://127.0.0.1:1025/a-secret-path", "types": "job.failed run.*", "functions": "pay*"}


def test_a_webhook_is_added_and_its_secret_is_shown_once() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "There is none in this namespace" in (await browser.open("/webhooks")).main.text
            added = await browser.send("/webhooks", FORM)
            assert (added.status, "whsec_" in added.body.decode()) == (200, True)
            listed = await browser.open("/webhooks")
            assert "whsec_" not in listed.main.text
            assert "a-secret-path" not in listed.main.text
            assert "http://127.0.0.1:1025/…" in listed.main.text
            shown = await browser.open("/webhooks/crm")
            assert "job.failed, run.*" in shown.main.text
            rotated = await browser.send("/webhooks/crm", {})
            assert (rotated.status, "whsec_" in rotated.body.decode()) == (200, True)
            assert "whsec_" not in (await browser.open("/webhooks/crm")).main.text

    run(test())


def test_a_refused_form_is_shown_with_the_reason() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for values, reason in (
                ({"url": "http://10.0.0.1/"}, "an address to which nothing may be sent"),
                ({"types": "no.such"}, "names no type of event"),
                ({"types": ""}, "Types of events is missing"),
            ):
                page = await browser.send("/webhooks", FORM | values)
                assert page.status == 422
                assert reason in page.body.decode()
                assert 'value="crm"' in page.body.decode()

    run(test())


def test_the_forms_are_for_administrators_and_a_paused_webhook_shows_why() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.send("/webhooks", FORM)
            await browser.call("POST", "webhooks/crm/pause", {"reason": "the receiver moves"})
            seen = await browser.open("/webhooks", token="viewer")
            assert "the receiver moves" in seen.main.text
            assert "Add a webhook" not in seen.main.text
            shown = await browser.open("/webhooks/crm", token="viewer")
            assert "New secret" not in shown.main.text
            assert "a-secret-path" not in shown.main.text
            assert "a-secret-path" in (await browser.open("/webhooks/crm")).main.text

    run(test())


WHOLE = {
    "url": "http://127.0.0.1:1025/hook",
    "types": "job.failed job.succeeded",
    "functions": "pay*\r\nre fund",
    "tags": "eu\r\nnew",
    "everywhere": "1",
    "template": "{{ type }}\r\nis it",
    "content": "text",
    "headers": "X-Team: shop\r\n X-Key : a: b ",
}
STORED = {
    "url": "http://127.0.0.1:1025/hook",
    "types": ["job.failed", "job.succeeded"],
    "functions": ["pay*", "re fund"],
    "tags": ["eu", "new"],
    "everywhere": True,
    "format": "template",
    "template": "{{ type }}\nis it",
    "content": "text",
    "headers": ["X-Key", "X-Team"],
}


async def _stored(browser: Browser) -> dict[str, Any]:
    shown = await browser.call("GET", "webhooks/crm")
    return {name: sorted(shown[name]) if name == "headers" else shown[name] for name in STORED}


def _fields(page: Shown) -> set[str]:
    return {
        one.attributes["name"]
        for kind in ("input", "textarea", "select")
        for one in page.main.all(kind)
        if "name" in one.attributes
    }


def test_the_forms_have_all_fields_of_a_webhook() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert (await browser.send("/webhooks", {"name": "crm", **WHOLE})).status == 200
            assert await _stored(browser) == STORED
            page = await browser.open("/webhooks/crm")
            assert _fields(page) >= STORED.keys()
            same = await browser.act(page, "webhooks_edit")
            assert (same.status, await _stored(browser)) == (200, STORED)
            for changes, stored in (
                ({"functions": "refund", "tags": "  "}, {"functions": ["refund"], "tags": []}),
                ({"everywhere": ""}, {"everywhere": False}),
                ({"format": "standard"}, {"format": "standard", "template": ""}),
                ({"template": "slack"}, {"format": "template", "template": "slack"}),
                ({"headers": "X-New: 1"}, {"headers": ["X-New"]}),
                ({"headers": ""}, {"headers": []}),
                ({"functions": ""}, {"functions": []}),
            ):
                before = await _stored(browser)
                page = await browser.act(await browser.open("/webhooks/crm"), "webhooks_edit", changes)
                assert page.status == 200, changes
                assert await _stored(browser) == before | stored

    run(test())


def test_a_header_whose_value_is_not_shown_is_never_changed_to_the_sign_for_it() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.send("/webhooks", {"name": "crm", **WHOLE})
            page = await browser.open("/webhooks/crm")
            assert f"X-Team: {webhooks.HIDDEN}" in page.main.text
            assert "shop" not in page.main.text
            for typed, reason in (
                (f"X-Team: {webhooks.HIDDEN}\nX-New: 1", "other characters than printable ASCII"),
                ("X-Team", "NAME: VALUE"),
                ("X-Team: 1\nX-Team: 2", "there twice"),
            ):
                refused = await browser.act(page, "webhooks_edit", {"headers": typed})
                assert (refused.status, reason in refused.main.text) == (422, True), typed
                assert typed in refused.answer.body.decode(), "what was typed is not lost"
            assert await _stored(browser) == STORED

    run(test())


def test_only_administrators_of_all_namespaces_see_what_needs_them() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            browser.permit("here", Role.ADMIN, "default")
            assert "everywhere" in _fields(await browser.open("/webhooks"))
            assert "everywhere" not in _fields(await browser.open("/webhooks", token="here"))
            await browser.send("/webhooks", {"name": "crm", **WHOLE})
            page = await browser.open("/webhooks/crm", token="here")
            shown = {one.attributes.get("data-action", "") for one in page.main.all("details", class_="action")}
            assert shown == {"webhooks_test", "webhooks_redeliver", "webhooks_remove"}
            assert "New secret" not in page.main.text

    run(test())


def test_the_shown_commands_and_calls_are_of_the_namespace() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/webhooks?namespace=team")
            lines = " ".join(one.text for one in page.main.all("code"))
            assert (
                "mainspring webhooks add NAME --url https://crm.example.com/events --type job.failed --namespace team"
                in lines
            )
            assert "/namespaces/team/webhooks" in lines
            added = await browser.send("/webhooks?namespace=team", FORM)
            assert "There is none in this namespace" in (await browser.open("/webhooks")).main.text, added
            page = await browser.open("/webhooks/crm?namespace=team")
            assert "mainspring webhooks rotate crm --namespace team" in page.main.text

    run(test())


@pytest.mark.parametrize(("overlap", "secrets"), [("", 2), ("1h", 2), ("0s", 1)])
def test_the_old_secret_signs_for_as_long_as_the_form_says(overlap: str, secrets: int) -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.send("/webhooks", FORM)
            rotated = await browser.send("/webhooks/crm", {"overlap": overlap})
            assert ("The old one signs no more" in rotated.body.decode()) == (secrets == 1)
            assert (await browser.call("GET", "webhooks/crm"))["secrets"] == secrets
            assert (await browser.send("/webhooks/crm", {"overlap": "long"})).status == 422

    run(test())
