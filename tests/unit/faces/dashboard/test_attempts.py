"""The drawing of one job, and the page of a job that is gone."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from tests.unit.api.a_node import run

from mainspring.api.jobs import Attempt, JobDetails
from mainspring.faces.dashboard.drawings.attempts import LEFT, MOST, WIDTH, Lane, lane, notes_of, waits_of

from .a_browser import browser_of, browsing

NOON = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC)


def at(seconds: float | None) -> str | None:
    return None if seconds is None else (NOON + dt.timedelta(seconds=seconds)).isoformat()


def job(state: str, **given: Any) -> JobDetails:
    values: dict[str, Any] = dict.fromkeys(JobDetails.__struct_fields__) | dict.fromkeys(
        ("attempt", "input_size", "output_size", "done", "total"), 0
    )
    texts: dict[str, Any] = {
        "handle": "H:n:1",
        "function": "f",
        "unique": "",
        "priority": "normal",
        "tags": [],
        "created_at": at(0),
    }
    return JobDetails(**(values | texts | {"state": state} | given))


def attempt(number: int, started: float, ended: float | None, outcome: str = "failed") -> Attempt:
    duration = None if ended is None else ended - started
    return Attempt(number, outcome, at(started), at(ended), duration, "n", "w", None, None)


def drawn(job: JobDetails, *attempts: Attempt, now: float = 0.0) -> Lane:
    found = lane(job, attempts, NOON.timestamp() + now, dt.UTC)
    assert found is not None
    return found


def test_waits_attempts_and_backoffs_follow_each_other() -> None:
    attempts = (attempt(1, 4, 10), attempt(2, 16, 20, "lost"), attempt(3, 25, 30, "succeeded"))
    shown = drawn(job("succeeded"), *attempts)
    assert [bar.outcome for bar in shown.bars] == ["failed", "lost", "succeeded"]
    assert [(wait.text, wait.kind == "delay") for wait in shown.waits] == [
        ("4.0 s", False),
        ("6.0 s", True),
        ("5.0 s", True),
    ]
    pieces = sorted([(bar.x, bar.width) for bar in shown.bars] + [(wait.x, wait.width) for wait in shown.waits])
    assert pieces[0][0] == LEFT
    for (x, width), (following, _) in zip(pieces, [*pieces[1:], (WIDTH, 0)], strict=True):
        assert x + width == pytest.approx(following, abs=0.2)
    assert [mark.text for mark in shown.marks] == ["worker lost"]
    assert (shown.begin, shown.end) == ("31 Jan 12:00:00", "31 Jan 12:00:30")
    assert waits_of(job("succeeded"), attempts) == [4.0, 6.0, 5.0]
    assert [wait.row for wait in shown.waits] == [0, 0, 0], "there is room for all texts in one row"
    brief = drawn(job("failed"), attempt(1, 0.002, 0.004), now=9)
    assert (brief.begin, brief.end) == ("31 Jan 12:00:00.000", "31 Jan 12:00:00.004")


def test_attempts_with_the_same_number_have_different_notes() -> None:
    attempts = [
        *(attempt(1, 0, 1), attempt(2, 2, 3)),
        *(attempt(1, 10, 11, "lost"), attempt(1, 12, 13), attempt(2, 14, 15, "cancelled")),
        attempt(1, 20, 21, "succeeded"),
    ]
    assert notes_of(attempts) == ["", "", "after retry 1", "again, after a loss", "after retry 1", "after retry 2"]


def test_a_retried_job_says_which_attempts_follow_the_retry() -> None:
    async def test() -> None:
        attempts = {"handle": "H:n:1", "attempts": [attempt(1, 0, 1), attempt(1, 10, 11, "succeeded")]}
        browser = browser_of({"/attempts": attempts, "/jobs/H:n:1": job("succeeded")}, NOON.timestamp() + 60)
        page = await browser.open("/jobs/H:n:1")
        assert [row[0] for row in page.rows()] == ["1", "1 after retry 1"]
        rows = [row.attributes["id"] for row in page.main.all("tr") if "id" in row.attributes]
        assert rows == ["attempt-1", "attempt-2"], "links to attempts are different"

    run(test())


def test_a_long_wait_is_cut_short_and_its_attempt_is_still_seen() -> None:
    shown = drawn(job("failed"), attempt(1, 1, 1.02), attempt(2, 3601, 3601.02))
    assert len(shown.breaks) == 1
    assert all(bar.width >= 3 for bar in shown.bars)
    assert shown.waits[1].text == "59 min 59 s"
    assert shown.waits[1].width < shown.waits[0].width


def test_the_width_of_a_wait_and_of_an_attempt_is_its_time() -> None:
    shown = drawn(job("succeeded"), attempt(1, 0.001, 4, "succeeded"))
    assert (shown.breaks, shown.bars[0].width > 900) == ([], True)
    halves = drawn(job("succeeded"), attempt(1, 7200, 14400, "succeeded"))
    assert halves.breaks == []
    assert halves.bars[0].width == pytest.approx(halves.waits[0].width, abs=0.2)
    later = drawn(job("succeeded"), attempt(1, 86400, 86404, "succeeded"))
    assert (later.bars[0].width > 800, later.waits[0].width < 100, later.waits[0].text) == (True, True, "1 d")


def test_the_time_up_to_the_death_of_a_node_is_no_wait_for_a_worker() -> None:
    lost = attempt(1, 0, 10, "lost")
    lost.started_at = lost.duration = None
    attempts = (lost, attempt(2, 12, 16, "succeeded"))
    shown = drawn(job("succeeded"), *attempts)
    assert [(wait.kind, wait.text) for wait in shown.waits] == [("lost", "10 s"), ("delay", "2.0 s")]
    assert [(mark.text, mark.x) for mark in shown.marks] == [("node lost", shown.waits[1].x)]
    assert [bar.number for bar in shown.bars] == [2]
    only = drawn(job("pending"), lost, now=11)
    assert [(wait.kind, wait.text) for wait in only.waits] == [("lost", "10 s"), ("due", "1.0 s")]
    many = drawn(job("succeeded"), *(attempt(number, number, number + 0.5) for number in range(MOST)), *attempts)
    assert many.left_out == 2

    async def test() -> None:
        answers = {"/attempts": {"handle": "H:n:1", "attempts": attempts}, "/jobs/H:n:1": job("succeeded")}
        page = await browser_of(answers, NOON.timestamp() + 60).open("/jobs/H:n:1")
        assert page.rows()[0][2:4] == ["\N{EN DASH}", "not known: its node died"]
        text = "It waited 10 s with an attempt that was lost with its node, then 2.0 s until it was due."
        assert page.main.one("p", id="waits").text == text
        legend = next(one for one in page.main.all("p") if "due, waits for a worker" in one.text)
        assert "its node died" in legend.text
        assert (
            "lost"
            not in (
                await browser_of({**answers, "/attempts": {"handle": "H:n:1", "attempts": attempts[1:]}}, 0.0).open(
                    "/jobs/H:n:1"
                )
            ).main.text
        )

    run(test())


def test_a_waiting_job_shows_when_it_is_due_and_expires() -> None:
    shown = drawn(job("scheduled", run_at=at(60), expires_at=at(90)), now=20)
    assert [(wait.text, wait.kind == "delay") for wait in shown.waits] == [("1 min", True)]
    assert [mark.text for mark in shown.marks] == ["expires", "now"]
    for state in ("pending", "leased"):
        late = drawn(job(state, run_at=at(60)), now=100)
        assert [(wait.text, wait.kind == "delay") for wait in late.waits] == [("1 min", True), ("40 s", False)]
    expires, now = shown.marks
    assert (expires.x, now.x) == (WIDTH, round(LEFT + (WIDTH - LEFT) * 20 / 90, 1))
    retried = drawn(job("pending", run_at=at(50)), attempt(1, 5, 10), now=20)
    assert [(wait.text, wait.kind == "delay") for wait in retried.waits] == [("5.0 s", False), ("40 s", True)]


def test_a_running_attempt_is_open_and_has_its_time_limit() -> None:
    shown = drawn(job("running", timeout=30.0), attempt(1, 5, None, "running"), now=20)
    assert [bar.is_open for bar in shown.bars] == [True]
    assert [(mark.text, mark.x) for mark in shown.marks] == [("time limit", WIDTH)]
    assert shown.bars[0].x + shown.bars[0].width < WIDTH
    over = drawn(job("succeeded", timeout=30.0), attempt(1, 5, 15, "succeeded"), now=20)
    assert (over.marks, [bar.is_open for bar in over.bars]) == ([], [False])


def test_a_cancel_is_marked_when_its_worker_was_asked_and_when_it_ended_a_wait() -> None:
    asked = attempt(1, 5, 40, "cancelled")
    asked.stop_requested_at = at(20)
    shown = drawn(job("cancelled", ended_at=at(40)), asked)
    assert [mark.text for mark in shown.marks] == ["asked to stop"]
    assert shown.bars[0].x < shown.marks[0].x < WIDTH
    by_an_older_node = drawn(job("cancelled", ended_at=at(40)), attempt(1, 5, 40, "cancelled"))
    assert [mark.text for mark in by_an_older_node.marks] == ["cancelled"]
    unbegun = drawn(job("cancelled", ended_at=at(30)))
    assert [(wait.text, mark.text) for wait, mark in zip(unbegun.waits, unbegun.marks, strict=True)] == [
        ("30 s", "cancelled")
    ]
    between = drawn(job("expired", ended_at=at(30)), attempt(1, 5, 10, "lost"))
    assert [mark.text for mark in between.marks] == ["worker lost", "expired"]
    assert [wait.text for wait in between.waits] == ["5.0 s", "20 s"]


def test_a_short_attempt_is_wide_enough_to_be_seen() -> None:
    long = [attempt(number + 2, number + 0.001, number + 1.001) for number in range(20)]
    shown = drawn(job("failed"), attempt(1, 0, 0.001), *long)
    assert shown.breaks == []
    assert [bar.width for bar in shown.bars[:2]] == [3, pytest.approx(46.8, abs=0.1)]


def test_a_clock_that_is_behind_makes_no_negative_wait() -> None:
    assert waits_of(job("succeeded"), [attempt(1, -2, 5), attempt(2, 4, 6, "succeeded")]) == [0.0, 0.0]


def test_a_drawing_has_the_times_of_the_viewers_zone() -> None:
    shown = lane(job("succeeded"), [attempt(1, 4, 10)], NOON.timestamp(), ZoneInfo("Asia/Kolkata"))
    assert shown is not None
    assert (shown.begin, shown.end) == ("31 Jan 17:30:00", "31 Jan 17:30:10")


def test_marks_side_by_side_have_one_text_and_are_all_described() -> None:
    async def test() -> None:
        attempts = [attempt(number + 1, number, number + 1, "lost") for number in range(30)]
        attempts.append(attempt(31, 30, None, "running"))
        answers = {"/attempts": {"handle": "H:n:1", "attempts": attempts}, "/jobs/H:n:1": job("running")}
        page = await browser_of(answers, NOON.timestamp() + 31).open("/jobs/H:n:1")
        drawing = page.main.one("svg")
        assert [one.text for one in drawing.all("text", y="12")] == ["worker lost"] * 10
        assert len(drawing.all("line", class_="now")) == 30
        assert drawing.one("desc").text.count("worker lost;") == 30
        bars = [one for one in drawing.all("rect") if one.attributes["height"] == "28"]
        assert ["hollow" in one.attributes["class"].split() for one in bars] == [False] * 30 + [True]

    run(test())


def test_a_drawing_has_few_shapes_for_many_attempts() -> None:
    attempts = [attempt(number, number * 10, number * 10 + 5) for number in range(1, 400)]
    shown = drawn(job("failed"), *attempts)
    assert (len(shown.bars), shown.left_out, shown.bars[-1].number) == (MOST, 399 - MOST, 399)
    assert 2 * len(shown.bars) + 2 * len(shown.waits) + 2 * len(shown.marks) + len(shown.breaks) + 6 <= 500


def test_attempts_without_times_are_not_drawn() -> None:
    nowhere = Attempt(1, "succeeded", None, None, None, None, None, None, None)
    assert lane(job("succeeded"), [nowhere], 0, dt.UTC) is None
    assert waits_of(job("succeeded"), [nowhere, attempt(2, 1, 2)]) == [None, None]


def test_the_page_of_a_job_has_the_drawing_and_a_table_that_says_the_same() -> None:
    async def test() -> None:
        asked = attempt(2, 15, 20, "failed")
        asked.stop_requested_at = at(18)
        attempts = {"handle": "H:n:1", "attempts": [attempt(1, 4, 10, "lost"), asked]}
        browser = browser_of({"/attempts": attempts, "/jobs/H:n:1": job("failed")}, NOON.timestamp() + 60)
        page = await browser.open("/jobs/H:n:1")
        svg = page.main.one("svg")
        assert "worker lost" in svg.text
        assert len(svg.all("rect")) == 4
        assert [row[1:3] for row in page.rows()] == [
            ["◆ lost", "4.0 s"],
            ["✖ failed asked to stop 2030-01-31 12:00:18 UTC", "5.0 s"],
        ]

    run(test())


def test_the_page_of_a_job_has_all_lengths_of_its_drawing_as_text() -> None:
    async def test() -> None:
        cancelled = job("cancelled", run_at=at(17), ended_at=at(40))
        browser = browser_of({"/attempts": {"handle": "H:n:1", "attempts": []}, "/jobs/H:n:1": cancelled}, 0.0)
        page = await browser.open("/jobs/H:n:1")
        assert page.main.one("p", id="waits").text == "It waited 17 s until it was due, then 23 s."
        assert "cancelled" in page.main.one("svg").text
        attempts = {"handle": "H:n:1", "attempts": [attempt(1, 4, 10, "lost"), attempt(2, 15, 28)]}
        waiting = job("pending", run_at=at(66))
        browser = browser_of({"/attempts": attempts, "/jobs/H:n:1": waiting}, NOON.timestamp() + 80)
        page = await browser.open("/jobs/H:n:1")
        shown = {text.text for text in page.main.one("svg").all("text") if text.text.endswith(" s")}
        assert shown == {"4.0 s", "5.0 s", "38 s", "14 s"}
        assert all(text in page.main.one("p", id="waits").text for text in shown)

    run(test())


def test_the_page_of_a_job_that_waits_has_a_drawing() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", delay=60)
            assert (await browser.open(f"/jobs/{handle}")).main.one("svg").one(
                "title"
            ).text == "The attempts at the job"

    run(test())


def test_the_page_of_a_job_that_is_gone_says_what_may_have_happened() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f", delay=60)
            await browser.call("POST", f"jobs/{handle}/cancel", {})
            answer = await browser.act(await browser.open(f"/jobs/{handle}"), "jobs_delete")
            assert answer.status == 200
            page = await browser.open(f"/jobs/{handle}")
            assert page.status == 404
            assert "--dead-retention" in page.main.text
            links = [one.attributes["href"] for one in page.main.all("a")]
            (act, *_) = [one.text for one in page.main.one("ul", class_="acts").all("li")]
            assert act.endswith("admin · jobs.delete")
            assert f"/audit?object={quote(handle)}" in links
            assert "/jobs?state=failed" in links
            viewer = await browser.open("/jobs/H:<b>:1", token="viewer")
            assert (viewer.status, viewer.main.all("b")) == (404, [])
            assert "audit" not in viewer.main.text

    run(test())


def test_a_job_says_when_its_next_attempt_begins_and_each_attempt_has_an_address() -> None:
    async def test() -> None:
        attempts = [attempt(1, 0, 1), attempt(2, 6, 7)]
        for shown, line in (
            (job("scheduled", attempt=2, started_at=at(6), run_at=at(30)), "attempt 2 · next attempt in 20 s"),
            (job("scheduled", run_at=at(30)), "due in 20 s"),
            (job("running", attempt=2, started_at=at(6)), "attempt 2 · started 4.0 s ago"),
        ):
            answers = {"/attempts": {"handle": "H:n:1", "attempts": attempts}, "/jobs/H:n:1": shown}
            page = await browser_of(answers, NOON.timestamp() + 10).open("/jobs/H:n:1")
            assert line in page.main.one("div", id="state").text
            assert [row.attributes["id"] for row in page.main.one("tbody").all("tr")] == ["attempt-1", "attempt-2"]

    run(test())


def test_the_job_of_a_run_leads_to_it_and_has_no_button_that_would_be_refused() -> None:
    async def test() -> None:
        for key, labels in (("H:n:1", []), ("H:n:7@7", ["Retry…", "Delete…"]), (None, ["Retry…", "Delete…"])):
            answers: dict[str, Any] = {"/attempts": {"handle": "H:n:1", "attempts": []}}
            answers["/jobs/H:n:1"] = job("failed", run=key)
            page = await browser_of(answers, NOON.timestamp()).open("/jobs/H:n:1")
            assert [one.text for one in page.main.one("div", id="actions").all("summary")] == labels
            links = [one.attributes["href"] for one in page.main.all("a") if one.text == key]
            assert links == ([] if key is None else [f"/workflows/{quote(key, safe='')}"])

    run(test())


def test_a_running_job_says_that_it_was_asked_to_stop() -> None:
    async def test() -> None:
        asked = attempt(2, 6, None, "running")
        asked.stop_requested_at = at(8)
        earlier = attempt(1, 0, 5, "lost")
        earlier.stop_requested_at = at(4)
        for attempts, line in (
            ([earlier, asked], "started 14 s ago · asked to stop 12 s ago"),
            ([earlier, attempt(2, 6, None, "running")], "started 14 s ago"),
            ([earlier], "started 14 s ago"),
        ):
            shown = job("running", attempt=2, started_at=at(6))
            answers = {"/attempts": {"handle": "H:n:1", "attempts": attempts}, "/jobs/H:n:1": shown}
            page = await browser_of(answers, NOON.timestamp() + 20).open("/jobs/H:n:1")
            assert page.main.one("div", id="state").all("p")[0].text.endswith(line)

    run(test())


def test_a_thousand_attempts_are_drawn_with_few_shapes() -> None:
    async def test() -> None:
        attempts = [attempt(number, 60 * number, 60 * number + 20, "lost") for number in range(1, 1001)]
        for one in attempts:
            one.stop_requested_at = one.started_at
        answers = {"/attempts": {"handle": "H:n:1", "attempts": attempts}, "/jobs/H:n:1": job("failed")}
        page = await browser_of(answers, NOON.timestamp() + 99999).open("/jobs/H:n:1")  # which counts the shapes
        assert "945 earlier attempts are in the table alone" in page.main.text
        assert len(page.main.one("svg").all("text", class_="glyph")) == MOST

    run(test())


def test_an_ended_job_and_its_attempts_have_their_last_progress() -> None:
    async def test() -> None:
        failed = attempt(1, 0, 1)
        failed.done, failed.total, failed.text = 1, 4, "row <1>"
        attempts = [failed, attempt(2, 6, 7, "succeeded")]
        for given, text in (
            (
                {"done": 3, "total": 1200, "text": "row 3"},
                "Progress 3 of 1200 3 of 1 200: row 3",
            ),
            ({}, ""),
        ):
            answers = {"/attempts": {"handle": "H:n:1", "attempts": attempts}, "/jobs/H:n:1": job("succeeded", **given)}
            page = await browser_of(answers, NOON.timestamp() + 10).open("/jobs/H:n:1")
            assert page.main.one("div", id="progress").text == text
            assert page.rows()[0][1] == "✖ failed at 1 of 4: row <1>"
            assert page.rows()[1][1] == "✔ succeeded"

    run(test())
