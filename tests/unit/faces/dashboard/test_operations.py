"""Operations on many jobs, from the list of jobs to their results."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from tests.unit.api.a_node import run

from mainspring.api.operations import StartedOperation

from .a_browser import browser_of, browsing

if TYPE_CHECKING:
    from .a_browser import Browser, Shown


async def _confirmed(browser: Browser, page: Shown, **fields: str) -> Shown:
    """Send the form of a confirmation, and return the page of the operation once it is done."""
    form = page.main.one("form", action="/operations/new")
    filled = {one.attributes["name"]: one.attributes.get("value", "") for one in form.all("input")}
    answer = await browser.send("/operations/new", {**filled, **fields})
    assert answer.status == 303, answer.body.decode()
    path = answer.headers["location"]
    await browser.done(path.rpartition("/")[2])
    return await browser.open(path)


def test_all_jobs_that_match_are_counted_first_and_then_changed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for number in range(7):
                await browser.submit("resize", unique=str(number))
            other = await browser.submit("mail")
            page = await browser.open("/jobs?function=resize&state=pending")
            (form,) = [one for one in page.main.all("form", action="/operations/new") if "id" not in one.attributes]
            hidden = {one.attributes["name"]: one.attributes["value"] for one in form.all("input")}
            assert hidden == {"state": "pending", "function": "resize"}
            page = await browser.open("/operations/new?action=cancel&function=resize&state=pending")
            assert page.main.one("h1").text == "Cancel 7 jobs?"
            assert len(page.rows()) == 5
            assert "mainspring jobs cancel --state pending --function resize --expect 7" in page.main.text
            page = await _confirmed(browser, page, reason="not needed")
            assert "✔ done · 7 of 7" in page.main.text
            assert [row[0] for row in (await browser.open("/jobs?state=pending")).rows()] == [""]
            assert other in (await browser.open("/jobs?state=pending")).main.text
            assert (await browser.open("/operations")).rows()[0][2] == "7 of 7"

    run(test())


def test_the_shown_lines_of_a_reschedule_do_what_its_form_does() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            handle = await browser.submit("report", delay=60)
            page = await browser.open(f"/operations/new?action=reschedule&handle={handle}")
            time = page.main.one("input", name="run_at").attributes["value"]
            due = dt.datetime.fromisoformat(time).replace(tzinfo=dt.UTC)
            assert 3600 < due.timestamp() - built.clock.wall() <= 7200
            command, call = [one.text for one in page.main.all("code")]
            assert command == f"mainspring jobs update {handle} --run-at {due.isoformat()}"
            assert f'"run_at":"{due.isoformat()}"' in call
            assert "With more fields: reason, rate in the body" in page.main.text
            page = await browser.open("/operations/new?action=reschedule&function=report")
            assert len(page.main.all("code")) == 1, "no command moves all jobs of a filter"
            page = await browser.open("/operations/new?action=cancel&function=report")
            assert "With more fields: --reason, --rate in the command, reason, rate in the body" in page.main.text

    run(test())


def test_the_shown_lines_of_a_refused_confirmation_have_what_was_typed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("report", delay=60)
            page = await browser.open(f"/operations/new?action=cancel&handle={handle}")
            filled = {one.attributes["name"]: one.attributes.get("value", "") for one in page.main.all("input")}
            page = await browser.post("/operations/new", {**filled, "reason": "too late", "rate": "often"})
            assert page.status == 422
            command, call = [one.text for one in page.main.all("code")]
            assert command == f"mainspring jobs cancel {handle} --reason 'too late'"
            assert '"reason":"too late"' in call
            assert "With more fields: --rate in the command, rate in the body" in page.main.text

    run(test())


def test_selected_jobs_alone_are_changed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            first, second, third = [await browser.submit("resize", unique=str(number)) for number in range(3)]
            page = await browser.open("/jobs")
            boxes = page.main.all("input", type="checkbox", form="selection")
            assert [one.attributes["value"] for one in boxes] == [third, second, first]
            page = await browser.open(f"/operations/new?action=cancel&handle={first}&handle={third}")
            await _confirmed(browser, page)
            assert second in (await browser.open("/jobs?state=pending")).rows()[0][2]
            assert len((await browser.open("/jobs?state=cancelled")).rows()) == 2

    run(test())


def test_jobs_that_could_not_be_changed_are_selected_again() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            refused = await browser.submit("resize", unique="cat")
            await browser.call("POST", f"jobs/{refused}/cancel")
            await browser.submit("resize", unique="cat")
            operation = (await browser.call("POST", "operations", {"action": "retry", "handles": [refused]}))["id"]
            await browser.done(operation)
            page = await browser.open(f"/operations/{operation}")
            (link,) = [one for one in page.main.all("a") if one.text == "Select these jobs"]
            page = await browser.open(link.attributes["href"])
            assert page.main.one("input", name="handle", checked="").attributes["value"] == refused

    run(test())


def test_many_jobs_need_their_number_typed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for number in range(100):
                await browser.submit("resize", unique=str(number))
            page = await browser.open("/operations/new?action=cancel&function=resize")
            form = page.main.one("form", action="/operations/new")
            filled = {one.attributes["name"]: one.attributes.get("value", "") for one in form.all("input")}
            refused = await browser.post("/operations/new", {**filled, "typed": "10", "reason": "all wrong"})
            assert refused.status == 422
            assert refused.main.one("strong", id="fault-typed").text == "To change 100 jobs, type their number, 100."
            assert refused.main.one("input", name="reason").attributes["value"] == "all wrong"
            assert (await browser.open("/operations")).main.all("tbody") == []
            page = await _confirmed(browser, page, typed="100")
            assert "100 of 100" in page.main.text

    run(test())


def test_more_jobs_than_were_counted_are_not_changed() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize", unique="1")
            page = await browser.open("/operations/new?action=cancel&function=resize")
            await browser.submit("resize", unique="2")
            form = page.main.one("form", action="/operations/new")
            filled = {one.attributes["name"]: one.attributes.get("value", "") for one in form.all("input")}
            refused = await browser.post("/operations/new", {**filled, "reason": "wrong"})
            assert refused.status == 409
            assert "2 jobs match, and at most 1 are expected" in refused.main.one("p", role="alert").text
            assert refused.main.one("h1").text == "Cancel 2 jobs?"
            assert (await browser.open("/operations")).main.all("tbody") == []
            page = await _confirmed(browser, refused, reason="wrong")
            assert "✔ done · 2 of 2" in page.main.text

    run(test())


def test_an_unfinished_count_limits_nothing() -> None:
    counted = StartedOperation(None, 120, at_least=True, sample=[])
    fields = {"action": "cancel", "subject": '{"filter":{"function":"f"}}', "matched": "120", "typed": "120"}

    async def test() -> None:
        browser = browser_of({"/operations": counted}, 0.0)
        page = await browser.open("/operations/new?action=cancel&function=f")
        assert page.main.one("h1").text == "Cancel at least 120 jobs?"
        assert page.main.one("input", name="at_least").attributes["value"] == "1"
        assert "expect" not in page.main.text
        await browser.send("/operations/new", {**fields, "at_least": "1"})
        assert browser.sent[-1] == {"action": "cancel", "filter": {"function": "f"}}
        await browser.send("/operations/new", fields)
        assert browser.sent[-1]["expect"] == 120

    run(test())


def test_an_operation_needs_a_filter_or_handles() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert (await browser.open("/operations/new?action=delete")).status == 422
            assert (await browser.open("/operations/new?action=explode&function=f")).status == 422
            assert (await browser.send("/operations/new", {"action": "delete"})).status == 422
            assert (await browser.open("/operations/new?action=delete&function=f", token="viewer")).status == 403

    run(test())


def test_an_abort_that_comes_too_late_says_so() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            operation = (
                await browser.call("POST", "operations", {"action": "cancel", "filter": {"function": "resize"}})
            )["id"]
            await browser.done(operation)
            fields = {"path.id": operation, "next": f"/operations/{operation}"}
            page = await browser.post("/actions/operations_abort", fields)
            assert page.main.one("p", class_="notice").text == "The operation had ended before: nothing was aborted."
            assert "✔ done" in page.main.text

    run(test())
