"""The pages of resources, and the requests behind them."""

from __future__ import annotations

from tests.unit.api.a_node import run
from tests.unit.api.test_instances import with_an_instance

from .a_browser import browsing


def test_a_resource_is_shown_with_its_holders_and_can_be_freed_and_drained() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "There is no resource" in (await browser.open("/resources")).main.text
            items = {"p1": ["colour"], "p2": []}
            await browser.call("PUT", "resources/printer", {"items": items})
            held = await browser.call("POST", "resources/printer/hold", {"duration": 60.0, "labels": ["colour"]})
            assert held["item"] == "p1"
            assert "1 of 2" in (await browser.open("/resources")).main.text
            shown = await browser.open("/resources/printer")
            assert "colour" in shown.main.text
            assert held["holder"] in shown.main.text
            assert "busy" in shown.main.text
            await browser.call("POST", "resources/printer/drain", {"item": "p2", "reason": "jam"})
            assert "draining" in (await browser.open("/resources/printer")).main.text
            await browser.call("DELETE", f"resources/printer/holds/{held['holder']}")
            assert "Nobody holds a slot" in (await browser.open("/resources/printer")).main.text

    run(test())


def test_the_forms_are_for_operators() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("PUT", "resources/licence", {"total": 1})
            await browser.call("POST", "resources/licence/hold", {"duration": 60.0})
            assert "Drain" in (await browser.open("/resources/licence")).main.text
            seen = await browser.open("/resources/licence", token="viewer")
            assert "Drain" not in seen.main.text
            assert "Free" not in seen.main.text

    run(test())


def test_the_instances_of_a_managed_resource_are_shown() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            name = await with_an_instance(built)
            shown = await browser.open("/resources/spark")
            assert "From 0 to 3 instances" in shown.main.text
            assert "busy" in shown.main.text
            assert name in shown.main.text
            assert "Defined by" in shown.main.text

    run(test())
