"""The pages of webhooks."""

from __future__ import annotations

from tests.unit.api.a_node import run

from .a_browser import browsing

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
            assert "run.completed" in shown.main.text
            rotated = await browser.send("/webhooks/crm", {})
            assert (rotated.status, "whsec_" in rotated.body.decode()) == (200, True)
            assert "whsec_" not in (await browser.open("/webhooks/crm")).main.text

    run(test())


def test_a_refused_form_is_shown_with_the_reason() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for values, reason in (
                ({"url": "http://10.0.0.1/"}, "an address that webhooks may not be sent to"),
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
