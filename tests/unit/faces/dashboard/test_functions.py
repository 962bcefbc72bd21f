"""The pages of functions."""

from __future__ import annotations

from tests.unit.api.a_node import run

from .a_browser import browsing


def test_functions_are_listed_with_their_work() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "@app.task" in (await browser.open("/functions")).main.text
            for _ in range(2):
                await browser.submit("resize")
            await browser.call("POST", "functions/mail/pause", {"reason": "down"})
            page = await browser.open("/functions")
            assert [row[:2] for row in page.rows()] == [["mail ■ paused", "0"], ["resize", "2"]]
            assert page.rows()[1][3] == "✖ none"

    run(test())


def test_a_function_is_paused_and_resumed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            page = await browser.open("/functions/resize")
            page = await browser.act(page, "functions_pause", {"reason": "the disk is full"})
            assert "■ paused the disk is full" in page.main.text
            page = await browser.act(page, "functions_resume")
            assert "■ paused" not in page.main.text

    run(test())


def test_limits_are_changed_from_what_the_viewer_has_seen() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            old = await browser.open("/functions/resize")
            page = await browser.act(old, "functions_limits_set", {"concurrency": "5", "rate": "100/1m"})
            assert "Limits: 5 at a time, 100/1m (set by a command)." in page.main.text
            lost = await browser.act(old, "functions_limits_set", {"concurrency": "7"})
            assert lost.status == 412
            page = await browser.open("/functions/resize")
            assert page.main.all("input", name="rate")[0].attributes["value"] == "100/1m"
            page = await browser.act(page, "functions_limits_set", {"rate": ""})
            assert "Limits: 5 at a time (set" in page.main.text
            page = await browser.act(page, "functions_limits_delete")
            assert "Limits: none" in page.main.text
            wrong = await browser.act(page, "functions_limits_set", {"rate": "often"})
            assert (wrong.status, "'often' is not a rate" in wrong.main.text) == (422, True)

    run(test())


def test_the_shown_curl_lines_of_a_function_do_what_its_buttons_do() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            for action, shown in (
                ("functions_pause", "■ paused"),
                ("functions_resume", "Limits: none"),
                ("functions_limits_set", "Limits: none (set by a command)."),
                ("functions_limits_delete", "Limits: none."),
            ):
                answer = await browser.paste(await browser.open("/functions/resize"), action)
                assert answer.status < 300, answer.body
                assert shown in (await browser.open("/functions/resize")).main.text
            await browser.act(await browser.open("/functions/resize"), "functions_limits_set", {"concurrency": "5"})
            old = await browser.open("/functions/resize")
            await browser.act(old, "functions_limits_set", {"concurrency": "7"})
            assert (await browser.paste(old, "functions_limits_set")).status == 412, "somebody else has changed them"

    run(test())


def test_a_function_with_a_slash_has_a_page() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("a/b")
            page = await browser.open("/functions")
            assert page.main.all("a")[0].attributes["href"] == "/functions/a%2Fb"
            assert (await browser.open("/functions/a%2Fb")).main.one("h1").text == "a/b"
            assert (await browser.open("/functions/a/b")).status == 404

    run(test())
