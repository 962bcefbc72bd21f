"""Forms of actions: refused ones are shown again, and the shown calls work as they are."""

from __future__ import annotations

import datetime as dt
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import pytest
from tests.unit.api.a_node import run

from mainspring.faces.dashboard.pages.access import TOKENS_PATH as TOKENS
from mainspring.faces.dashboard.pages.jobs import RETRY

from .a_browser import browsing
from .a_matrix import matrix

if TYPE_CHECKING:
    from .a_browser import Browser, Element, Shown

NIGHTLY = {"name": "nightly", "function": "report", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def _form(page: Shown, action: str) -> Element:
    return page.main.one("form", action=f"/actions/{action}")


def _lines(form: Element) -> dict[str, str]:
    """Return the shown lines by the word before them."""
    shown = [one.text.partition(" ") for one in form.all("p", class_="parity")]
    return {name: line for name, _, line in shown}


async def _paste(browser: Browser, line: str) -> int:
    """Do what a shown ``curl`` line does, and return the status of the answer."""
    program, x, method, *words = shlex.split(line)
    assert (program, x) == ("curl", "-X")
    *options, address = words
    headers, body = {}, b""
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "-H":
            name, _, text = value.partition(": ")
            headers[name.lower()] = text
        else:
            assert option == "-d"
            body = value.encode()
    assert headers.pop("authorization") == "Bearer $MAINSPRING_TOKEN"
    answer = await browser.raw(method, urlsplit(address).path, body, headers)
    return answer.status


def test_the_calls_that_forms_of_schedules_show_work_as_they_are() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            page = await browser.open("/schedules/nightly")
            for action in ("schedules_trigger", "schedules_backfill", "schedules_remove"):
                assert await _paste(browser, _lines(_form(page, action))["HTTP"]) < 300, action
            assert (await browser.open("/schedules/nightly")).status == 404

    run(test())


def test_a_shown_call_changes_no_object_that_somebody_else_has_changed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            page = await browser.open("/schedules/nightly")
            await browser.call("POST", "schedules/nightly/pause")
            assert await _paste(browser, _lines(_form(page, "schedules_remove"))["HTTP"]) == 412

    run(test())


def test_the_command_and_the_call_of_a_form_for_past_times_begin_in_the_past() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            await browser.call("POST", "schedules", NIGHTLY)
            words = shlex.split(
                _lines(_form(await browser.open("/schedules/nightly"), "schedules_backfill"))["Command"]
            )
            begin = dt.datetime.fromisoformat(words[words.index("--from") + 1])
            assert begin.tzinfo is not None
            assert 86_400 <= built.clock.wall() - begin.timestamp() < 86_400 + 3600

    run(test())


def test_the_shown_lines_of_an_unchanged_edit_change_nothing() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", {**NIGHTLY, "cron": "5 4 * * *"})
            page = await browser.open("/schedules/nightly/edit")
            lines = _lines(page.main.one("form", class_="panel"))
            assert "--cron '5 4 * * *' --timezone Europe/Berlin" in lines["Command"]
            before = await browser.call("GET", "schedules/nightly")
            assert await _paste(browser, lines["HTTP"]) == 200
            after = await browser.call("GET", "schedules/nightly")
            assert before["revision"] == after["revision"]

    run(test())


def test_a_refused_form_is_shown_again_with_what_was_typed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("resize")
            await browser.call("POST", f"jobs/{handle}/cancel")
            page = await browser.open(f"/jobs/{handle}")
            refused = await browser.act(page, "jobs_retry", {"delay": "7", "args": '["cat", 1'})
            assert refused.status == 422
            form = _form(refused, "jobs_retry")
            assert form.one("textarea", name="args").text == '["cat", 1'
            assert form.one("input", name="delay").attributes["value"] == "7"
            assert form.one("strong", id="fault-args").text.startswith("Arguments: this is not valid JSON")
            assert refused.main.one("details").attributes.keys() >= {"open"}
            page = await browser.act(refused, "jobs_retry", {"args": '["cat", 1]', "delay": ""})
            assert page.status == 200
            assert "pending" in page.main.text

    run(test())


def test_a_form_that_comes_too_late_leads_back_to_its_page_alone() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", NIGHTLY)
            page = await browser.open("/schedules/nightly")
            await browser.call("POST", "schedules/nightly/pause")
            refused = await browser.act(page, "schedules_remove")
            assert refused.status == 412
            assert "It is now: paused, cron" in refused.main.text
            assert refused.main.all("form") == []
            assert refused.main.all("a")[0].attributes["href"] == "/schedules/nightly"

    run(test())


def test_a_refused_token_is_shown_again_with_what_was_typed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            given = {"name": "ci", "role": "operator", "functions": "pay*", "expires_at": "soon"}
            refused = await browser.post(TOKENS, given)
            assert refused.status == 422
            assert refused.main.one("input", name="functions").attributes["value"] == "pay*"
            chosen = [one.attributes["value"] for one in refused.main.all("option") if "selected" in one.attributes]
            assert chosen == ["operator"]
            assert refused.main.one("strong", id="fault-expires_at").text.startswith("Expires is no time")
            refused = await browser.post(TOKENS, {**given, "expires_at": "", "namespace": "no such name!"})
            assert refused.status == 422
            assert "No token was created" in refused.main.one("p", role="alert").text
            assert refused.main.one("input", name="name").attributes["value"] == "ci"

    run(test())


@pytest.mark.parametrize(
    ("overlap", "notice"),
    [
        ("allow", "The schedule was fired now."),
        ("queue", "The schedule runs when its earlier run has ended."),
        ("forbid", "The schedule was not fired: an earlier run goes on"),
    ],
)
def test_the_notice_of_a_schedule_has_the_outcome_of_a_time_during_an_earlier_run(overlap: str, notice: str) -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", {**NIGHTLY, "overlap": overlap})
            page = await browser.act(await browser.open("/schedules/nightly"), "schedules_trigger")
            assert page.main.one("p", role="status").text == "The schedule was fired now."
            page = await browser.act(page, "schedules_trigger")
            assert page.main.one("p", role="status").text.startswith(notice)

    run(test())


def test_a_schedule_whose_job_joins_a_live_one_says_so() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", {**NIGHTLY, "unique": "one"})
            await browser.submit("report", unique="one")
            page = await browser.act(await browser.open("/schedules/nightly"), "schedules_trigger")
            assert "A job with the same unique was live" in page.main.one("p", role="status").text

    run(test())


def test_a_run_that_is_not_parked_any_more_says_so() -> None:
    async def test() -> None:
        async with matrix("order") as node:
            path, _ = await node.object_of("workflows_unpark", "order")
            page = await node.browser.act(await node.browser.open(path), "workflows_unpark")
            assert "The run was not parked any more" in page.main.one("p", role="status").text

    run(test())


def test_too_many_past_times_are_counted_and_the_form_is_shown_again() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            await browser.call("POST", "schedules", {"name": "often", "function": "f", "every": 60})
            page = await browser.open("/schedules/often")
            assert _form(page, "schedules_backfill").one("input", name="max").attributes["value"] == "100"
            begin = dt.datetime.fromtimestamp(built.clock.wall() - 86_400, dt.UTC).isoformat()
            refused = await browser.act(page, "schedules_backfill", {"from": begin})
            assert refused.status == 409
            assert "1440 fire times are in the range, and at most 100 are expected" in refused.main.text
            form = _form(refused, "schedules_backfill")
            assert form.one("input", name="max").attributes["value"] == "100"
            page = await browser.act(refused, "schedules_backfill", {"max": "1440"})
            assert page.title.startswith("backfill op-")

    run(test())


def test_operators_retry_without_the_arguments_that_only_developers_give() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("resize")
            await browser.call("POST", f"jobs/{handle}/cancel")
            names = {}
            for token in ("operator", "developer"):
                page = await browser.open(f"/jobs/{handle}", token=token)
                names[token] = [one.attributes["name"] for one in _form(page, "jobs_retry").all("textarea")]
                assert ("--args" in _form(page, "jobs_retry").text) == (token == "developer")
            assert names == {"operator": [], "developer": ["args"]}
            refused = await browser.act(
                await browser.open(f"/jobs/{handle}"), "jobs_retry", {"args": "[7]", "delay": "9"}, token="operator"
            )
            assert refused.status == 403
            form = _form(refused, "jobs_retry")
            assert form.one("textarea", name="args").text == "[7]"
            assert form.one("input", name="delay").attributes["value"] == "9"
            page = await browser.act(refused, "jobs_retry", {"args": ""}, token="operator")
            assert "scheduled" in page.main.text

    run(test())


def test_the_form_of_a_retry_has_the_present_arguments_and_sends_only_changed_ones() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            whole = {"path": "cat.png", "width": 12345678901234567}
            handle = await browser.submit("resize", args=whole)
            await browser.call("POST", f"jobs/{handle}/cancel")
            page = await browser.open(f"/jobs/{handle}", token="developer")
            assert _form(page, "jobs_retry").one("textarea", name="args").text == "", "without the right to payloads"
            page = await browser.open(f"/jobs/{handle}")
            shown = _form(page, "jobs_retry").one("textarea", name="args").text
            assert msgspec.json.decode(shown) == whole
            assert "--args" not in _lines(_form(page, "jobs_retry"))["Command"]
            await browser.act(page, "jobs_retry")
            assert (await browser.call("GET", f"jobs/{handle}/arguments"))["value"] == whole
            await browser.call("POST", f"jobs/{handle}/cancel")
            page = await browser.open(f"/jobs/{handle}")
            typed = shown.replace("cat", "dog") + "]"
            refused = await browser.act(page, "jobs_retry", {"args": typed})
            assert _form(refused, "jobs_retry").one("textarea", name="args").text == typed
            await browser.act(refused, "jobs_retry", {"args": typed[:-1]})
            assert (await browser.call("GET", f"jobs/{handle}/arguments"))["value"]["path"] == "dog.png"

    run(test())


def test_unchanged_arguments_need_no_further_permission_and_are_not_sent() -> None:
    assert RETRY.body({"args": "[1]", "present.args": "[1]", "delay": "7"}) == {"delay": 7}
    assert RETRY.body({"args": "[2]", "present.args": "[1]"}) == {"args": [2]}
    assert RETRY.body({"args": "", "present.args": "[1]"}) == {}


def test_a_job_is_submitted_in_a_browser() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize", args=[1])
            page = await browser.open("/jobs")
            form = _form(page, "jobs_submit")
            assert [one.attributes["value"] for one in form.one("datalist").all("option")] == ["resize"]
            refused = await browser.act(page, "jobs_submit", {"args": "[1]"})
            assert "Function is missing" in refused.main.text
            typed = {"function": "mail", "args": '["ann"]', "unique": "u", "priority": "high", "delay": "60"}
            page = await browser.act(page, "jobs_submit", typed)
            assert "This is the new job." in page.root.text
            (job,) = (await browser.call("GET", "jobs?function=mail"))["items"]
            assert (job["state"], job["unique"], job["priority"]) == ("scheduled", "u", "high")
            assert job["handle"] in page.main.one("h1").text
            assert (await browser.call("GET", f"jobs/{job['handle']}/arguments"))["value"] == ["ann"]
            page = await browser.act(await browser.open("/functions/mail"), "jobs_submit", {"unique": "u"})
            assert "A job with this unique had not ended" in page.root.text
            assert job["handle"] in page.main.one("h1").text
            for token, number in (("operator", 0), ("developer", 1)):
                page = await browser.open("/functions/mail", token=token)
                assert len(page.main.all("details", **{"data-action": "jobs_submit"})) == number

    run(test())
