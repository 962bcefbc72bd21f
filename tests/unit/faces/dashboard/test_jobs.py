"""The pages of jobs."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.api.a_node import run

from mainspring.api.namespaces import JobCounts, NamespaceStatus
from mainspring.api.nodes import WorkerInfo
from mainspring.faces.dashboard.pages.access import ACTS
from mainspring.faces.dashboard.pages.jobs import CANCEL, MOST_SELECTED, ONE_LINE, SHOWN, as_text
from mainspring.faces.dashboard.words import field_time

from .a_browser import browser_of, browsing

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a/b?c#d&e=%2F",
    "\u202eright to left",
    "'); DROP",
)


def test_jobs_are_listed_and_filtered() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            first = await browser.submit("resize", unique="cat", tags=["red"])
            second = await browser.submit("mail", delay=60)
            page = await browser.open("/jobs")
            assert [row[2:4] for row in page.rows()] == [[second, "mail"], [f"{first} cat", "resize"]]
            assert [row[1] for row in page.rows()] == ["◷ scheduled", "○ pending"]
            for query in ("function=resize", "tag=red", "unique=cat", "state=pending&state=running"):
                assert [row[3] for row in (await browser.open(f"/jobs?{query}")).rows()] == ["resize"]
            page = await browser.open("/jobs?state=pending&state=leased&function=resize")
            current = [one for one in page.main.all("a") if one.attributes.get("aria-current")]
            assert [one.text for one in current] == ["waiting 1"]
            assert "function=resize" in current[0].attributes["href"]

    run(test())


def test_a_list_goes_on_with_older_jobs() -> None:
    async def test() -> None:
        async with browsing(prefix="/queue") as (browser, _):
            handles = [await browser.submit("f", unique=str(number)) for number in range(60)]
            page = await browser.open("/jobs?function=f")
            rows = [row[2].split()[0] for row in page.rows()]
            older = page.main.one("a", rel="next").attributes["href"]
            assert older.startswith("/queue/jobs?")
            page = await browser.open(older.removeprefix("/queue"))
            rows += [row[2].split()[0] for row in page.rows()]
            assert rows == handles[::-1]
            assert not page.main.all("a", rel="next")

    run(test())


def test_a_filter_is_named_above_the_rows_and_stays_in_its_form() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/jobs?state=failed&function=resize&created_from=2030-01-31T12:00:00.5%2B01:00")
            folded = page.main.all("details", class_="action")[0]
            assert "open" not in folded.attributes, "it would hide the rows"
            expected = "Filter: function resize , created from 2030-01-31T12:00:00.5+01:00"
            assert folded.one("summary").text == expected
            values = {one.attributes["name"]: one.attributes.get("value") for one in folded.all("input")}
            assert (values["function"], values["created_from"]) == ("resize", "2030-01-31T11:00:00")
            page = await browser.open("/jobs")
            assert page.main.all("details", class_="action")[0].one("summary").text == "Filter"
            assert "Show all jobs" not in page.main.text

    run(test())


@pytest.mark.parametrize("text", ["", "soon", "0001-01-01T00:00:00+14:00", "2030-01-31T12:00:00"])
def test_what_is_no_time_with_a_zone_stays_in_its_field(text: str) -> None:
    assert field_time(text) == text


def test_a_selection_goes_from_page_to_page_in_the_address() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handles = [await browser.submit("f", unique=str(number)) for number in range(51)]
            page = await browser.open(f"/jobs?handle={handles[0]}&handle={handles[1]}&handle={handles[0]}")
            chosen = [one.attributes["value"] for one in page.main.all("input", name="handle", checked="")]
            kept = [one.attributes["value"] for one in page.main.all("input", name="handle", type="hidden")]
            assert (chosen, kept) == ([handles[1]], [handles[0]])
            assert "1 selected job is not on this page. Select none" in page.main.text
            followed = [one.attributes["href"] for one in page.main.all("a")]
            assert not [one for one in followed if "handle=" in one], "the script adds those that are selected by then"
            assert page.main.attributes["hx-include"] == "[name=handle], #shown"
            many = "&".join(f"handle=H:gone:{number}" for number in range(MOST_SELECTED + 2))
            page = await browser.open(f"/jobs?{many}&function=none")
            assert f"{MOST_SELECTED} selected jobs are not on this page, and 2 more could not stay" in page.main.text
            assert page.main.one("form", id="selection").all("input", type="hidden")
            assert len(page.main.all("input", name="handle")) == MOST_SELECTED

    run(test())


def test_a_handle_a_unique_or_pairs_lead_to_jobs() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for text, target in (
                ("H:n1:7", "/jobs/H%3An1%3A7"),
                ("cat+1", "/jobs?unique=cat+1"),
                ("state:failed+state:expired+function:a", "/jobs?state=failed&state=expired&function=a"),
                ("other:1", "/jobs?unique=other%3A1"),
                ("error:ValueError+key:k", "/jobs?error_type=ValueError&key=k"),
                ("state:failed&handle=H:n:1&handle=H:n:2", "/jobs?state=failed&handle=H%3An%3A1&handle=H%3An%3A2"),
                ("cat+1&handle=H:n:1", "/jobs?unique=cat+1&handle=H%3An%3A1"),
            ):
                answer = await browser.open(f"/jobs?find={text}")
                assert (answer.status, answer.answer.headers["location"]) == (303, target)

    run(test())


def test_the_name_of_a_worker_leads_to_its_page_which_has_its_jobs() -> None:
    async def test() -> None:
        workers = [
            WorkerInfo(number, name, "n", 1, "extension", "live", 4, 1, None, None, stops=True, silent_since=None)
            for number, name in (("1-1", "gpu one"), ("1-2", "cpu"), ("2-1", "cpu"))
        ]
        browser = browser_of({"/workers": {"items": workers}, "/nodes": {"items": []}}, 0.0)
        for text, target in (
            ("gpu+one", "/workers/1-1"),
            ("1-2", "/workers/1-2"),
            ("cpu", "/workers?name=cpu"),
            ("gone", "/workers?name=gone"),
        ):
            answer = await browser.open(f"/jobs?find=worker:{text}")
            assert (answer.status, answer.answer.headers["location"]) == (303, target)
        assert [row[0] for row in (await browser.open("/workers?name=cpu")).rows()] == ["cpu", "cpu"]
        assert "No worker has the name or id gone." in (await browser.open("/workers?name=gone")).main.text

    run(test())


def test_a_worker_beside_other_criteria_is_refused_and_taken_for_no_unique() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for text in ("state:failed+worker:cpu", "worker:cpu+state:failed", "function:f+worker:cpu+tag:t"):
                page = await browser.open(f"/jobs?find={text}")
                assert page.status == 422, text
                assert "Use worker:NAME alone" in page.main.text
            for unique in ("state+of+worker:1", "coworker:1"):
                answer = await browser.open(f"/jobs?find={unique}")
                assert answer.answer.headers["location"].startswith("/jobs?unique="), unique

    run(test())


def test_a_unique_leads_to_its_job_if_one_job_alone_has_it() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("resize", unique="cat 1")
            answer = await browser.open("/jobs?find=cat+1")
            assert answer.answer.headers["location"] == f"/jobs/{handle.replace(':', '%3A')}"
            await browser.submit("mail", unique="cat 1")
            answer = await browser.open("/jobs?find=cat+1")
            assert answer.answer.headers["location"] == "/jobs?unique=cat+1"

    run(test())


def test_a_job_leads_to_what_has_the_same_names() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("resize", unique="cat&1", concurrency_key="ann")
            page = await browser.open(f"/jobs/{handle}")
            links = {one.text: one.attributes["href"] for one in page.main.all("a")}
            assert (links["cat&1"], links["ann"]) == ("/jobs?unique=cat%261", "/jobs?key=ann")

    run(test())


def test_an_empty_list_says_how_to_submit_a_job() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "mainspring submit" in (await browser.open("/jobs")).main.text
            filtered = await browser.open("/jobs?function=f")
            assert "No job matches" in filtered.main.text
            everything = [one for one in filtered.main.all("a") if one.text == "Show all jobs"]
            assert [one.attributes.get("hx-boost") for one in everything] == ["true"] * 2, "selected jobs stay selected"
            assert "Activities" not in (await browser.open("/jobs?function=f")).main.text

    run(test())


def test_an_empty_list_of_the_jobs_of_a_run_leads_to_its_page() -> None:
    async def test() -> None:
        status = NamespaceStatus("default", JobCounts(0, 0, 0, 0), 0, None, None, None)
        browser = browser_of({"/jobs": {"items": []}, "/status": status}, 0.0)
        page = await browser.open("/jobs?workflow=run+1")
        link = next(one for one in page.main.all("a") if one.text == "the page of the run")
        assert link.attributes["href"] == "/workflows/run%201"

    run(test())


def test_a_job_is_cancelled_retried_cloned_and_deleted() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("resize", args=["cat.png"], delay=60)
            page = await browser.open(f"/jobs/{handle}")
            assert "◷ scheduled" in page.main.text
            page = await browser.act(page, "jobs_snooze", {"delay": "100"})
            assert "postponed" in page.main.one("p", role="status").text
            page = await browser.act(page, "jobs_cancel", {"reason": "not needed"})
            assert "■ cancelled" in page.main.text
            page = await browser.act(page, "jobs_retry", {"args": "[1, 2]"})
            assert "○ pending" in page.main.text
            page = await browser.act(page, "jobs_clone", {"args": '{"path": "dog.png"}'})
            assert handle not in page.title
            assert "dog.png" in page.main.text
            page = await browser.act(page, "jobs_cancel")
            page = await browser.act(page, "jobs_delete")
            assert [row[2] for row in page.rows()] == [handle]

    run(test())


def test_a_job_shows_who_did_what_to_those_who_may_read_the_audit() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", delay=60)
            page = await browser.open(f"/jobs/{handle}")
            assert "No act names this job." in page.main.text
            for _ in range(ACTS):
                page = await browser.act(page, "jobs_snooze", {"delay": "100"})
            page = await browser.act(page, "jobs_cancel", {"reason": "<b>not needed</b>"})
            acts = [one.text for one in page.main.one("ul", class_="acts").all("li")]
            assert len(acts) == ACTS
            assert acts[0].endswith("admin · jobs.cancel · <b>not needed</b>")
            (earlier,) = [one.attributes["href"] for one in page.main.all("a") if one.text == "Earlier acts"]
            assert len((await browser.open(earlier)).rows()) == ACTS + 1
            assert not (await browser.open(f"/jobs/{handle}", token="operator")).main.all("h2", id="acts")

    run(test())


def test_a_wrong_field_is_named() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", delay=60)
            page = await browser.act(await browser.open(f"/jobs/{handle}"), "jobs_snooze", {"delay": "soon"})
            assert page.status == 422
            assert "Delay: 'soon' is not a duration" in page.main.text

    run(test())


def test_a_viewer_sees_neither_actions_nor_data() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", args=["secret"])
            page = await browser.open(f"/jobs/{handle}", token="viewer")
            assert page.main.all("form") == []
            assert "secret" not in page.main.text
            refused = await browser.send("/actions/jobs_cancel", {"path.handle": handle}, token="viewer")
            assert refused.status == 403
            assert "○ pending" in (await browser.open(f"/jobs/{handle}")).main.text

    run(test())


def test_a_lost_race_shows_the_reason() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", delay=60)
            page = await browser.open(f"/jobs/{handle}")
            await browser.call("POST", f"jobs/{handle}/cancel", {})
            page = await browser.act(page, "jobs_snooze", {"delay": "5"})
            assert page.status == 409
            assert "cancelled" in page.main.text
            back = next(one for one in page.main.all("a") if one.text == "how things are now")
            assert "■ cancelled" in (await browser.open(back.attributes["href"])).main.text

    run(test())


def test_a_cancel_says_what_it_has_done() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", delay=60)
            page = await browser.act(await browser.open(f"/jobs/{handle}"), "jobs_cancel")
            assert page.main.one("p", role="status").text == "The job is cancelled."

    run(test())
    sentences = {"running": "was asked to stop", "succeeded": "had already succeeded", "new": "had already ended"}
    for state, sentence in sentences.items():
        outcome = CANCEL.outcome(msgspec.json.encode({"handle": "H:n1:1", "state": state}))
        assert sentence in CANCEL.notice(outcome)


def test_the_shown_curl_lines_of_a_job_do_what_its_buttons_do() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f")
            for action, state in (
                ("jobs_snooze", "◷ scheduled · due in 60 s"),
                ("jobs_cancel", "■ cancelled"),
                ("jobs_retry", "○ pending"),
                ("jobs_clone", "○ pending"),
            ):
                answer = await browser.paste(await browser.open(f"/jobs/{handle}"), action)
                assert answer.status < 300, answer.body
                assert state[:10] in (await browser.open(f"/jobs/{handle}")).main.text
            await browser.act(await browser.open(f"/jobs/{handle}"), "jobs_cancel")
            assert (await browser.paste(await browser.open(f"/jobs/{handle}"), "jobs_delete")).status < 300
            assert len((await browser.open("/jobs")).rows()) == 1, "the clone"

    run(test())


def test_an_unknown_job_is_no_bare_error() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/jobs/H:n1:999")
            assert page.status == 404
            assert "H:n1:999" in page.main.text

    run(test())


def test_hostile_strings_stay_text() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for text in HOSTILE:
                handle = await browser.submit(
                    text, unique=text, args=[text], tags=[text[:60]] if text.isprintable() else []
                )
                page = await browser.open(f"/jobs/{handle}")
                assert " ".join(text.split()) in page.main.text
                listed = await browser.open("/jobs")
                assert " ".join(text.split()) in listed.main.text
                for shown in (page, listed):
                    assert shown.main.all("script") == []
                    assert shown.main.all("img") == []
                links = [one for one in listed.main.all("a") if one.text == " ".join(text.split())]
                assert (await browser.open(links[0].attributes["href"])).title.startswith(" ".join(text.split()))

    run(test())


def test_bytes_are_shown_as_json_text_or_digits() -> None:
    assert as_text(b'{"a":[1,2]}').text == '{"a": [1, 2]}'
    text = "x" * ONE_LINE
    assert as_text(f'{{"a":[1,"{text}"]}}'.encode()).text == f'{{\n  "a": [\n    1,\n    "{text}"\n  ]\n}}'
    assert as_text("grüß".encode()).kind == "text"
    assert as_text(b"\xff\x00").text == "ff 00"
    large = as_text(b"x" * (SHOWN + 1))
    assert (large.kind, len(large.text), large.size, large.is_cut) == ("text", SHOWN, SHOWN + 1, True)
    assert as_text(b"\xff" * (SHOWN + 1)).is_cut
    assert as_text(b"[" * 5000).kind == "text"


def test_long_bytes_that_are_no_text_are_digits_and_a_cut_within_a_character_is_none() -> None:
    shown = as_text(bytes(range(256)) * 4096)
    assert (shown.kind, shown.is_cut, shown.text[:8]) == ("hex", True, "00 01 02")
    shown = as_text(b"x" * (SHOWN - 1) + "\N{EURO SIGN}".encode() * 10)
    assert (shown.kind, shown.is_cut, shown.text) == ("text", True, "x" * (SHOWN - 1))
    assert as_text(b"caf\xe9").kind == "hex"


def test_deep_json_does_not_become_a_long_page() -> None:
    shown = as_text(b"[" * 200 + b"1" + b"]" * 200)
    assert (shown.kind, len(shown.text)) == ("JSON", 401)


def test_an_overdue_job_is_marked() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("resize", deadline=1e-6)
            await browser.submit("mail", deadline=60)
            rows = {row[3]: row[1] for row in (await browser.open("/jobs")).rows()}
            assert "overdue since" in rows["resize"]
            assert rows["mail"] == "○ pending"
            page = await browser.open(f"/jobs/{handle}")
            assert "overdue since" in page.main.text
            assert "Late if not ended by" in page.main.text

    run(test())
